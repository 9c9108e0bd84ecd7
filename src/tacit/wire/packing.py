"""Fields of protocol messages: numbers, chunks, tables of equally long entries by client, and sets of clients.

A table is `count u32`, then per client `id u32 | entry`, with ids strictly ascending, so that no client occurs twice.
Counts are compared with the length of the message before anything is read, so that no reader allocates more than the
message's own length.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct

from tacit.errors import ProtocolError

Table = Mapping[int, bytes]
WORD = 4  # bytes of a count and of a client's number
LENGTH = 8  # bytes of a length
CLIENT_LIMIT = 1 << 32  # clients' numbers are below it


def pack_number(value: int, width: int = WORD) -> bytes:
    """A little-endian unsigned number of `width` bytes."""
    return value.to_bytes(width, "little")


def pack_chunk(data: bytes) -> bytes:
    """Bytes prefixed with their length, as `Reader.chunk` reads them."""
    return pack_number(len(data), LENGTH) + data


@cache
def _table_entry(width: int) -> Struct:
    return Struct(f"<I{width}s")


class Reader:
    """Reads a message once, from the front; missing or left-over bytes raise `ProtocolError`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self._data):
            raise ProtocolError(f"Expected {count} more bytes, got {len(self._data)}: the message was truncated.")
        head, self._data = self._data[:count], self._data[count:]
        return bytes(head)

    def number(self, width: int = WORD) -> int:
        """The next number of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def chunk(self, limit: int) -> bytes:
        """The next bytes that are prefixed with their length, which may be at most `limit`."""
        length = self.number(LENGTH)
        if length > limit:
            raise ProtocolError(f"Expected at most {limit} bytes, got {length}.")
        return self.take(length)

    def rest(self) -> memoryview:
        """All remaining bytes, not copied."""
        remaining, self._data = self._data, self._data[:0]
        return remaining

    @property
    def at_end(self) -> bool:
        """Whether no bytes remain."""
        return not self._data

    def expect_end(self) -> None:
        """Raise `ProtocolError` if bytes remain."""
        if self._data:
            raise ProtocolError(f"Expected the end of the message, got {len(self._data)} more bytes.")

    def table(self, width: int, limit: int) -> dict[int, bytes]:
        """The next table of entries of `width` bytes, at most `limit` of them."""
        count = self.number()
        if count > limit:
            raise ProtocolError(f"Expected a table of at most {limit} entries, got {count}.")
        if count * (WORD + width) > len(self._data):
            raise ProtocolError(f"Expected a table of {count} entries, but only {len(self._data)} bytes remain.")
        entry = _table_entry(width)
        table: list[tuple[int, bytes]] = list(entry.iter_unpack(self.take(count * entry.size)))
        last = -1
        for client, _ in table:
            if client <= last:
                raise ProtocolError(f"Expected clients in ascending order, got {client} after {last}.")
            last = client
        return dict(table)

    def subset(self, members: Sequence[int]) -> frozenset[int]:
        """The next subset of `members`, one bit for each."""
        bits = self.number((len(members) + 7) // 8)
        if bits >> len(members):
            raise ProtocolError(f"Expected a subset of {len(members)} clients, got bits beyond them.")
        return frozenset(client for place, client in enumerate(members) if bits >> place & 1)


def pack_table(table: Table, width: int) -> bytes:
    """A table as `Reader.table` reads it."""
    if any(len(entry) != width for entry in table.values()):
        raise ProtocolError(f"Expected entries of {width} bytes.")
    pack = _table_entry(width).pack
    return pack_number(len(table)) + b"".join(pack(client, table[client]) for client in sorted(table))


def table_size(count: int, width: int) -> int:
    """The length of `pack_table` in bytes."""
    return WORD + count * (WORD + width)


def pack_subset(chosen: frozenset[int], members: Sequence[int]) -> bytes:
    """A subset of clients as `Reader.subset` reads it."""
    bits = sum(1 << place for place, client in enumerate(members) if client in chosen)
    return pack_number(bits, (len(members) + 7) // 8)


def packed_size(count: int, bits: int) -> int:
    """Bytes of `count` numbers of `bits` bits each, without gaps."""
    return (count * bits + 7) // 8
