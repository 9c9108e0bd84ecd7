"""Parquet files, by pyarrow, which nothing else imports: as a whole, or some rows at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import DataError


def read_parquet(path: Path) -> Any:
    """A file as a table of pyarrow."""
    with _errors(path):
        from pyarrow import parquet

        return parquet.read_table(path, partitioning=None)


def count_rows(path: Path) -> int:
    """The number of rows in a file, by its footer."""
    with _errors(path):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)


def record_batches(path: Path, rows: int) -> Iterator[Any]:
    """A file as record batches of pyarrow with at most this many rows; a row group is not read at once."""
    with _errors(path):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(rows)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise DataError(f"Expected pyarrow to read {path}. Install it: pip install 'tacit-fl[data]'.") from error
    except Exception as error:  # of pyarrow, for damaged files
        raise DataError(f"{path} is not a Parquet file that can be read: {error}") from error
