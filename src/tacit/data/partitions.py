"""Folders whose names say what their rows have in common, as Hive and Spark write them: `hospital=3/part.parquet`."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from tacit.core.schema import listed
from tacit.data.data_frames import Columns
from tacit.data.written_numbers import plain_column
from tacit.errors import DataError

MISSING = "__HIVE_DEFAULT_PARTITION__"


def is_partitioned(folder: Path) -> bool:
    """Whether a folder has folders named COLUMN=VALUE."""
    return any("=" in path.name and path.is_dir() for path in folder.iterdir())


def partitioned_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """The tables in a folder and in its folders named COLUMN=VALUE, at any depth, in the order of their paths."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):  # such as _SUCCESS, which Spark writes
            continue
        if path.is_dir() and "=" in path.name:
            found += partitioned_files(path, endings)
        elif path.is_file() and path.name.endswith(endings):
            found.append(path)
    return found


def partition_columns(folder: Path, files: Sequence[Path]) -> Columns:
    """What the folders say, as columns with one value for every file: numbers, if all of them are."""
    values = [_values(path.relative_to(folder)) for path in files]
    for path, each in zip(files, values, strict=True):
        if each.keys() != values[0].keys():
            raise DataError(
                f"Expected folders of the same names in {folder}, but {files[0].relative_to(folder)} has "
                f"{listed(values[0]) or 'none'} and {path.relative_to(folder)} has {listed(each) or 'none'}."
            )
    texts = {key: [each[key] for each in values] for key in values[0]} if values else {}
    columns: Columns = {}
    for key, column in texts.items():
        numbers = plain_column([text for text in column if text is not None])
        known = iter(numbers or ())
        if numbers is None:
            columns[key] = np.array(column, dtype=object)
        else:
            columns[key] = np.array([np.nan if text is None else next(known) for text in column])
    return columns


def _values(path: Path) -> dict[str, str | None]:
    parts = (part.partition("=") for part in path.parts[:-1])
    return {unquote(key): None if value == MISSING else unquote(value) for key, _, value in parts}
