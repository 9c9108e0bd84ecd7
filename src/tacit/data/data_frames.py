"""Columns of a data frame of any library: pandas, Polars, pyarrow, or a dictionary of columns.

Frames are recognised by their members, so none of these libraries is imported here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.core.schema import list_names, suggestion
from tacit.errors import DataError

Columns = dict[str, NDArray[Any]]
MAX_COLUMNS = 100_000  # of a table
_MAX_LISTED = 10  # names in a message


def is_frame(data: object) -> bool:
    """Whether this is a table with named columns: of pandas, Polars or pyarrow."""
    if isinstance(data, np.ndarray):
        return data.dtype.names is not None
    kind = type(data)  # reading the columns of a lazy frame would compute them
    members = ("iloc", "get_column", "collect_schema")
    return (hasattr(kind, "columns") and any(hasattr(kind, name) for name in members)) or _is_arrow(data)


def columns_of(frame: Any, who: str) -> Columns:
    """The columns of a frame by name, as arrays; `who` names the frame in error messages."""
    if hasattr(frame, "collect") and not hasattr(frame, "get_column"):
        frame = frame.collect()  # a lazy frame of Polars
    if isinstance(frame, np.ndarray):
        return {name: replace_missing(np.asarray(frame[name])) for name in frame.dtype.names or ()}
    names = list(frame.column_names if _is_arrow(frame) else frame.columns)
    names = [name for name in names if not str(name).startswith("__index_level_")]  # what pandas writes to Parquet
    check_columns(list(map(str, names)), who)
    return {str(name): _values(_column(frame, name)) for name in names}


def check_columns(names: Sequence[str], who: str) -> None:
    """Raise `DataError` for a name that occurs twice, of which one column would be lost, and for too many columns."""
    if len(names) > MAX_COLUMNS:
        raise DataError(f"Expected at most {MAX_COLUMNS} columns in {who}, got {len(names)}. Select some of them.")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        more = f" and {len(repeated) - _MAX_LISTED} others" if len(repeated) > _MAX_LISTED else ""
        raise DataError(
            f"Expected columns with different names, but {who} has {list_names(repeated[:_MAX_LISTED])}{more} more "
            "than once. Rename or drop one of them."
        )


def take_target(columns: Columns, target: object, who: str) -> NDArray[Any]:
    """Remove the target's column and return it."""
    if target is None:
        raise DataError(f"Expected the name of the column to predict in {who}, got none. Add target='...' (--target).")
    return columns.pop(find_column(columns, target, who, "target"))


def find_column(columns: Iterable[str], name: object, who: str, role: str) -> str:
    """The name of the column, if the table has it."""
    names = list(columns)
    if str(name) not in names:
        index = (
            "" if Path(who).suffix else " If it is the index of a frame, use frame.reset_index()."
        )  # files have none
        raise DataError(
            f"Expected {who} to have the column {name!r}, given as {role}; it has {list_names(names)}."
            f"{suggestion(str(name), names) or index}"
        )
    return str(name)


def as_numbers(name: str, column: NDArray[Any], who: str) -> NDArray[Any]:
    """A column of numbers or booleans; raises `DataError` with advice for any other."""
    if column.dtype.kind in "biuf":
        return column
    if column.dtype.kind in "Mm":
        dates = "dates", ", drop the column, or use tacit.Task.from_table, which encodes them."
        what, how = dates if column.dtype.kind == "M" else ("durations", ": column / numpy.timedelta64(1, 'D').")
        raise DataError(
            f"Expected numbers in column {name!r} of {who}, got {what}. Convert them, for example to days{how}"
        )
    if column.dtype.kind == "O" and all(value is None or is_number(value) for value in column):
        return np.array([np.nan if value is None else value for value in column], dtype=np.float64)
    example = next((value for value in column.tolist() if value is not None), None)
    raise DataError(
        f"Expected numbers in column {name!r} of {who}, got {type(example).__name__} such as {example!r}. Drop the "
        "column, convert it, or use tacit.Task.from_table, which encodes categories."
    )


def is_number(value: object) -> bool:
    """Whether this is a real number of any kind."""
    return isinstance(value, Number) and not isinstance(value, complex)


def _is_arrow(data: object) -> bool:
    return hasattr(data, "column_names") and hasattr(data, "to_pydict")


def _column(frame: Any, name: Any) -> Any:
    if _is_arrow(frame):
        return frame.column(name)
    return frame.get_column(name) if hasattr(frame, "get_column") else frame[name]


def _values(column: Any) -> NDArray[Any]:
    if _is_arrow_array(column):
        return replace_missing(np.asarray(column.to_numpy(zero_copy_only=False)))
    kind = str(getattr(column, "dtype", ""))
    if kind.startswith("datetime64"):  # also with a time zone, which to_numpy would make objects of
        return np.asarray(column.to_numpy(dtype="datetime64[ns]"))
    if kind[:3] in ("Int", "UIn", "Flo", "boo") and hasattr(column, "isna") and bool(column.isna().any()):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return replace_missing(np.asarray(column.to_numpy()))


def _is_arrow_array(column: object) -> bool:
    """Whether this is a column of a record batch, and not one in chunks."""
    return hasattr(column, "null_count") and hasattr(column, "buffers")


def replace_missing(values: NDArray[Any]) -> NDArray[Any]:
    """An array of objects with None for every missing value; other arrays are unchanged."""
    if values.dtype.kind in "UT":
        values = values.astype(object)
    if values.dtype.kind != "O":
        return values
    plain = np.empty(len(values), dtype=object)
    plain[:] = [None if _is_missing(value) else value for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds and kinds <= {bool, int, float, np.bool_} and None not in plain.tolist():
        return np.array(plain.tolist())
    return plain


def _is_missing(value: object) -> bool:
    """None, NaN, or what pandas writes for a missing value."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def is_columns(data: object) -> bool:
    """Whether this is a dictionary of columns."""
    return isinstance(data, Mapping) and bool(data) and all(isinstance(name, str) for name in data)
