"""Files of studies: where they are, what they are called, and checks of what they contain.

The package contains the studies of papers, `tacit/papers/studies/<paper>/<what>.toml`. Files in
`./experiments/<paper>/` are added to them, and replace those of the same name. Listing studies does not import PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tacit.core.schema import choose, listed, suggestion
from tacit.core.serialization import load_toml
from tacit.errors import UserError

EXPECTED = "expected.toml"
EXPERIMENTS = Path("experiments")
Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study's name, `<paper>/<what>`, its title and the names of its rows."""

    name: str
    title: str
    rows: tuple[str, ...]


def packaged_studies() -> Path:
    """Return the folder of the studies that are part of the package."""
    return Path(str(resources.files("tacit.papers") / "studies"))


def study_files(*folders: Path) -> dict[str, Path]:
    """Return the files of all studies below these folders by name; default: the package's and `./experiments`."""
    found = {
        f"{file.parent.name}/{file.stem}": file
        for folder in folders or (packaged_studies(), EXPERIMENTS)
        for file in folder.glob("*/*.toml")
        if file.name != EXPECTED
    }
    return dict(sorted(found.items()))


def summaries() -> list[StudySummary]:
    """Return name, title and rows of every study."""
    return [_summary(name, file) for name, file in study_files().items()]


def find_study(name: str, rows: Sequence[str] = ()) -> StudySummary:
    """Return the summary of a study; an unknown name, or that of a row, is a `UserError` that suggests the nearest."""
    found = _summary(name, choose(study_files(), name, "a table or figure"))
    for row in rows:
        choose(dict.fromkeys(found.rows, row), row, f"a row of {name}")
    return found


def results_file(name: str) -> Path:
    """Return where the results of a study are saved by default, relative to the current folder.

    Example:
        >>> results_file("geyer/table-1").as_posix()
        'experiments/geyer/results/table-1.json'
    """
    paper, _, what = name.partition("/")
    return EXPERIMENTS / paper / "results" / f"{what}.json"


def _summary(name: str, file: Path) -> StudySummary:
    table = load_toml(file)
    rows = enumerate(tables(table, "rows", str(file)), start=1)
    names = tuple(text(row, "name", f"row {position} of {file}") for position, row in rows)
    return StudySummary(name=name, title=text(table, "title", str(file)), rows=names)


def tables(table: Table, key: str, label: str) -> list[dict[str, Any]]:
    """Return the tables under [[key]], at least one."""
    found = table.get(key.rpartition(".")[2])
    if not isinstance(found, list) or not found or not all(isinstance(entry, dict) for entry in found):
        raise UserError(f"Expected {label} to have {key}, each under [[{key}]].")
    return found


def text(table: Table, key: str, label: str) -> str:
    """Return a string that is not empty."""
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"Expected {label} to have a {key}, as text.")
    return value


def texts(table: Table, key: str, label: str, example: str) -> tuple[str, ...]:
    """Return a list of distinct strings, at least one."""
    value = table.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise UserError(f"Expected {key} of {label} to be a list of {example}.")
    check_distinct(value, f"{key} of {label}")
    return tuple(value)


def count(table: Table, key: str, default: int, label: str) -> int:
    """Return a whole number >= 1."""
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"Expected {key} of {label} to be a whole number, at least 1, got {value!r}.")
    return value


def check_keys(table: Any, known: Sequence[str], label: str) -> None:
    """Raise `UserError` unless this is a table whose keys are all known."""
    if not isinstance(table, Mapping):
        raise UserError(f"Expected {label} to be a table, got {table!r}.")
    for key in table:
        if key not in known:
            raise UserError(f"Expected keys of {label} in {listed(known)}, got {key!r}.{suggestion(key, known)}")


def check_distinct(names: Sequence[str], label: str) -> None:
    """Raise `UserError` if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Expected {label} to have different names, got {name!r} twice.")
