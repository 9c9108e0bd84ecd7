"""Files of studies: their folders and names.

The package contains the studies of papers, `tacit/papers/studies/<paper>/<what>.toml`. Files in
`./experiments/<paper>/` are added to them, and replace those of the same name. Listing studies does not import PyTorch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from tacit.core.schema import choose
from tacit.core.serialization import Source, convert, load_toml
from tacit.errors import UserError

EXPECTED = "expected.toml"
EXPERIMENTS = Path("experiments")
ROWS = "rows, each under [[rows]]"
Text = Annotated[str, Meta(min_length=1, description="text that is not empty")]


class _NamedRow(Struct, frozen=True):
    """A row of a study, as far as a summary needs it."""

    name: Text


class _Outline(Struct, frozen=True):
    """A study, as far as a summary needs it."""

    title: Text
    rows: Annotated[tuple[_NamedRow, ...], Meta(min_length=1, description=ROWS)]


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study's name, `<paper>/<what>`, its title and the names of its rows."""

    name: str
    title: str
    rows: tuple[str, ...]


def studies_folder() -> Path:
    """Return the folder of the studies that are part of the package."""
    return Path(str(resources.files("tacit.papers") / "studies"))


def study_files(*folders: Path) -> dict[str, Path]:
    """Return the files of all studies below these folders by name; default: the package's and `./experiments`."""
    files = {
        f"{file.parent.name}/{file.stem}": file
        for folder in folders or (studies_folder(), EXPERIMENTS)
        for file in folder.glob("*/*.toml")
        if file.name != EXPECTED
    }
    return dict(sorted(files.items()))


def summaries() -> list[StudySummary]:
    """Return name, title and rows of every study."""
    return [_summary(name, file) for name, file in study_files().items()]


def find_study(name: str, rows: Sequence[str] = ()) -> StudySummary:
    """Return the summary of a study; for an unknown study or row, a `UserError` suggests the nearest."""
    summary = _summary(name, choose(study_files(), name, "a table or figure"))
    for row in rows:
        choose(dict.fromkeys(summary.rows, row), row, f"a row of {name}")
    return summary


def results_file(name: str) -> Path:
    """Return where the results of a study are saved by default, relative to the current folder.

    Example:
        >>> results_file("geyer/table-1").as_posix()
        'experiments/geyer/results/table-1.json'
    """
    paper, _, what = name.partition("/")
    return EXPERIMENTS / paper / "results" / f"{what}.json"


def _summary(name: str, file: Path) -> StudySummary:
    outline = convert(load_toml(file), _Outline, Source(label=str(file), closed=False))
    return StudySummary(name=name, title=outline.title, rows=tuple(row.name for row in outline.rows))


def check_distinct(names: Sequence[str], label: str) -> None:
    """Raise `UserError` if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Expected {label} to have different names, got {name!r} twice.")


def check_known(names: Sequence[str], known: Iterable[str], label: str) -> None:
    """Raise `UserError` if a name is unknown or occurs twice; the message suggests the closest known one."""
    check_distinct(names, label)
    for name in names:
        choose(dict.fromkeys(known), name, label)
