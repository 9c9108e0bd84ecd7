"""The places of a table's rows, sorted by client, in bounded memory.

Rows are divided among temporary files by a digest of their client's name, so that all rows of a client are in the same
one and each can be sorted in memory. Clients stay in the order of their first rows, and so do the rows of a client.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

ROWS_OF_A_BUCKET = 1 << 19
MAX_BUCKETS = 256  # files that are open at a time
_CHUNK = 1 << 20  # rows


def digests(names: Sequence[str]) -> NDArray[np.uint64]:
    """128 bits of every name, as two numbers."""
    index: dict[str, int] = {}
    codes = np.array([index.setdefault(name, len(index)) for name in names], dtype=np.int64)
    joined = b"".join(blake2b(name.encode(), digest_size=16).digest() for name in index)
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)[codes]


class RowPlaces:
    """Collects the clients of all rows, then computes the place of each row.

    Args:
        folder: for temporary files, of about 32 bytes a row.
        rows: how many rows will come.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows, self._seen = folder, rows, 0
        buckets = min(max(1, -(-rows // ROWS_OF_A_BUCKET)), MAX_BUCKETS)
        self._buckets = [folder / f"bucket-{number}" for number in range(buckets)]
        with ExitStack() as stack:
            self._files: list[IO[bytes]] = [stack.enter_context(path.open("wb")) for path in self._buckets]
            self._stack = stack.pop_all()

    def add(self, clients: Sequence[str]) -> None:
        """Add the clients of the next rows."""
        keys = digests(clients)
        rows = np.arange(self._seen, self._seen + len(clients), dtype=np.uint64)
        bucket = keys[:, 0] % len(self._buckets)
        order = bucket.argsort(kind="stable")
        numbers, starts = np.unique(bucket[order], return_index=True)
        for number, part in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            self._files[number].write(np.column_stack([keys[part], rows[part]]).tobytes())
        self._seen += len(clients)

    def close(self) -> None:
        """Close the temporary files; they remain until their folder is removed."""
        self._stack.close()

    def finish(self, offsets: Path) -> NDArray[np.int64]:
        """The place of every row, in a file; writes the first place of every client to another file."""
        self.close()
        assert self._seen == self._rows
        places: NDArray[np.int64] = np.memmap(self._folder / "places", np.int64, "w+", shape=(self._rows,))
        for rows, starts in self._groups():
            places[rows[starts]] = _sizes(rows, starts)  # of a client, at its first row; no other row has any
        _number_clients(places, offsets)
        for rows, starts in self._groups():
            sizes = _sizes(rows, starts)
            places[rows] = np.repeat(places[rows[starts]] - starts, sizes) + np.arange(len(rows))
        return places

    def _groups(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The rows of each bucket by client, and where those of each client begin."""
        for path in self._buckets:
            places = np.fromfile(path, np.uint64).reshape(-1, 3)
            if len(places):
                ordered = places[np.lexsort((places[:, 1], places[:, 0]))]  # stable: rows ascend
                new = (ordered[1:, :2] != ordered[:-1, :2]).any(1)
                yield ordered[:, 2].astype(np.int64), np.concatenate([[0], np.flatnonzero(new) + 1])


def _sizes(rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(starts, append=len(rows))


def _number_clients(places: NDArray[np.int64], offsets: Path) -> None:
    """Replace sizes by the place of the client's first row, in the order of these rows."""
    end = 0
    with offsets.open("wb") as file:
        file.write(np.zeros(1, np.int64).tobytes())
        for begin in range(0, len(places), _CHUNK):
            part = places[begin : begin + _CHUNK]
            first = np.flatnonzero(part)
            ends = end + part[first].cumsum()
            file.write(ends.astype(np.int64).tobytes())
            part[first] = ends - part[first]
            end = int(ends[-1]) if len(ends) else end
