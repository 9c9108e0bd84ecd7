"""Parquet files, by pyarrow, which nothing else imports: as a whole, or some rows at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import DataError

MAX_TABLE_BYTES = 1 << 32  # of a table that is read as a whole
MAX_BATCH_BYTES = 1 << 30  # of a record batch
BATCH_ROWS = 1 << 14


def read_parquet(path: Path) -> Any:
    """A file as a table of pyarrow."""
    with _errors(path):
        import pyarrow

        rest, batches = MAX_TABLE_BYTES, []
        with _open(path, MAX_TABLE_BYTES) as file:
            schema = file.schema_arrow
            for batch in file.iter_batches(BATCH_ROWS):
                batch, size = _decode(batch, path, rest)
                rest, schema = rest - size, batch.schema
                batches.append(batch)
        return pyarrow.Table.from_batches(batches, schema)


def count_rows(path: Path) -> int:
    """The number of rows in a file, by its footer."""
    with _errors(path):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)


def record_batches(path: Path, rows: int) -> Iterator[Any]:
    """A file as record batches of pyarrow with at most this many rows; a row group is not read at once."""
    with _errors(path), _open(path) as file:
        yield from (_decode(batch, path, MAX_BATCH_BYTES)[0] for batch in file.iter_batches(rows))


def _open(path: Path, limit: int | None = None) -> Any:
    """An open file that is read with its texts as they are stored: a distinct one may occur a million times.

    With a limit, a file whose own description exceeds it is refused.
    """
    from pyarrow import parquet, types

    with parquet.ParquetFile(path) as file:
        schema, described = file.schema_arrow, file.metadata
        nested = [each.name for each in schema if types.is_nested(each.type)]
        stored = sum(described.row_group(number).total_byte_size for number in range(described.num_row_groups))
        if limit is not None and max(stored, described.num_rows * max(described.num_columns, 1)) > limit:
            raise DataError(_too_long(path, limit))
    if nested:
        raise DataError(
            f"Expected a number, a date or a text in every row of column {nested[0]!r} of {path}, got "
            f"{str(schema.field(schema.names.index(nested[0])).type)[:40]}. Make columns of its parts, or leave it out."
        )
    texts = [each.name for each in schema if _is_text(each.type)]
    return parquet.ParquetFile(path, read_dictionary=texts)


def _decode(batch: Any, path: Path, limit: int) -> tuple[Any, int]:
    """A batch with its texts written out, and the bytes of all its values; refused before they exceed a limit."""
    import pyarrow

    size = sum(map(_size_in_memory, batch.columns))
    if size > limit:
        raise DataError(_too_long(path, limit))
    plain = [each.dictionary_decode() if _is_stored_text(each) else each for each in batch.columns]
    return pyarrow.RecordBatch.from_arrays(plain, names=batch.schema.names), size


def _size_in_memory(column: Any) -> int:
    """The bytes of a column's values, a text as often as it occurs."""
    from pyarrow import compute

    if not _is_stored_text(column):
        return int(column.nbytes)
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return 8 * len(column) + (compute.sum(lengths).as_py() or 0)


def _is_stored_text(column: Any) -> bool:
    from pyarrow import types

    return types.is_dictionary(column.type) and _is_text(column.type.value_type)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return any(
        check(kind) for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _too_long(path: Path, limit: int) -> str:
    return (
        f"Expected the rows of {path} to take at most {limit / 2**30:g} GiB in memory, got more: texts in Parquet may "
        "be a thousand times as long as the file. Write fewer rows or columns."
    )


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise DataError(f"Expected pyarrow to read {path}. Install it: pip install 'tacit-fl[data]'.") from error
    except Exception as error:  # of pyarrow, for damaged files
        raise DataError(f"Expected a readable Parquet file, got {path}: {error}") from error
