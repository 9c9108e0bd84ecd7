"""Bytes in fixed schemas: numbers, tables of equally long entries by client, sets of clients.

A table is `count u32`, then per client `id u32 | entry`, ids strictly ascending: nobody can stand in it twice. What a
count promises is compared with the bytes that are there before anything is read, so that no message makes its reader
allocate more than its own length.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct

from tacit.errors import ProtocolError

Table = Mapping[int, bytes]
WORD = 4  # bytes of a count and of a client's number
LENGTH = 8  # bytes of a length
MOST = 1 << 32  # clients' numbers are smaller


def number(value: int, width: int = WORD) -> bytes:
    """A little-endian unsigned number."""
    return value.to_bytes(width, "little")


def pack_chunk(data: bytes) -> bytes:
    """Bytes with their length in front, as `Reader.chunk` reads them."""
    return number(len(data), LENGTH) + data


@cache
def _entry(width: int) -> Struct:
    """How one client's entry lies in a table."""
    return Struct(f"<I{width}s")


class Reader:
    """Reads bytes once, from the front; whatever is missing, or left over at the end, is a `ProtocolError`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self._data):
            raise ProtocolError(f"Expected {count} more bytes, got {len(self._data)}: the message was cut.")
        taken, self._data = self._data[:count], self._data[count:]
        return bytes(taken)

    def number(self, width: int = WORD) -> int:
        """The next number."""
        return int.from_bytes(self.take(width), "little")

    def chunk(self, most: int) -> bytes:
        """The next bytes that say their own length, `most` at most."""
        length = self.number(LENGTH)
        if length > most:
            raise ProtocolError(f"Expected at most {most} bytes, got {length}.")
        return self.take(length)

    def rest(self) -> memoryview:
        """All that is left, not copied."""
        taken, self._data = self._data, self._data[:0]
        return taken

    def done(self) -> None:
        """Nothing may be left."""
        if self._data:
            raise ProtocolError(f"Expected the end of the message, got {len(self._data)} more bytes.")

    def table(self, width: int, most: int) -> dict[int, bytes]:
        """The next table, of entries with `width` bytes, `most` of them at most."""
        count = self.number()
        if count > most:
            raise ProtocolError(f"Expected a table of at most {most} entries, got {count}.")
        if count * (WORD + width) > len(self._data):
            raise ProtocolError(f"A table of {count} entries does not fit into {len(self._data)} bytes.")
        entry = _entry(width)
        table: list[tuple[int, bytes]] = list(entry.iter_unpack(self.take(count * entry.size)))
        last = -1
        for client, _ in table:
            if client <= last:
                raise ProtocolError(f"Expected clients in ascending order, got {client} after {last}.")
            last = client
        return dict(table)

    def subset(self, members: Sequence[int]) -> frozenset[int]:
        """The next set of clients out of `members`, one bit for each."""
        bits = self.number((len(members) + 7) // 8)
        if bits >> len(members):
            raise ProtocolError("A set of clients has members beyond the roster.")
        return frozenset(client for place, client in enumerate(members) if bits >> place & 1)


def pack_table(table: Table, width: int) -> bytes:
    """A table as `Reader.table` reads it."""
    if any(len(entry) != width for entry in table.values()):
        raise ProtocolError(f"Expected entries of {width} bytes.")
    pack = _entry(width).pack
    return number(len(table)) + b"".join(pack(client, table[client]) for client in sorted(table))


def size_table(count: int, width: int) -> int:
    """How many bytes `pack_table` needs."""
    return WORD + count * (WORD + width)


def pack_subset(chosen: frozenset[int], members: Sequence[int]) -> bytes:
    """A set of clients as `Reader.subset` reads it."""
    bits = sum(1 << place for place, client in enumerate(members) if client in chosen)
    return number(bits, (len(members) + 7) // 8)
