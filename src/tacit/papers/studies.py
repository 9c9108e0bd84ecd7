"""A paper's table or figure as a file.

::

    title = "Geyer, Klein, Nabi 2017, Table 1"
    evaluate-every = 5                    # measure the model every so many rounds; left out: after every one

    [[rows]]
    name = "K=100"
    method = "geyer"                      # as in an experiment's file
    task = "mnist"
    seeds = [0, 1, 2]
    args = { cohort = 100, noise = 4.8 }
    task-args = { clients = 100 }
    fast = { args = { rounds = 2 } }      # what --fast changes; its seed is 0
    evaluate-every = 1                    # for this row, instead of what is said for all
    expected = "K=100"                    # whose numbers in expected.toml; left out: the row's own name

    [[rows]]
    from = "table-1"                      # a row of another file of this paper, and its runs
    name = "100 clients"                  # what it is called here
    row = "K=100"                         # what it is called there; left out: the same

    [figure]
    y = ["accuracy"]                      # a panel per quantity: a metric, variance, scale, norm or epsilon
    labels = { accuracy = "accuracy on the test set" }
    log = ["round"]                       # axes that are logarithmic

Also, for a whole study::

    columns = ["best_accuracy", "cost_up"]  # a line per row with these quantities; left out: a line per quantity
    stand-in = "Other patients: ..."        # the data are not the paper's, so nothing is judged

    [figure]
    kind = "histogram"                    # of the weights when training ends, instead of lines over the rounds
    bins = 60

    [figure]
    kind = "points"                       # what came out over an argument, with error bars
    x = "noise"                           # the argument; 0 where a row's method has none
    y = "rmse"
    lines = "models"                      # rows that agree in this argument are joined

    [[figure.panels]]                     # of a histogram
    title = "Fashion-MNIST"
    rows = ["FL-TOP", "FL-STD"]           # rows of this file
    mask = "FL-TOP"                       # whose coordinates are counted, in the run with the same seed

    [figure]
    kind = "maps"                         # of what matters to a client, by playing the first row again; needs the data
    client = 0
    at = [1, 5, 25]                       # rounds
    importance = ["sensitivity", "variance"]
    noise = 0.0028                        # the standard deviation that measures reckon with

In expected.toml, where a figure prints no numbers::

    [["figure-6".orders]]
    rows = ["20 % most", "40 % least"]    # the first has less accuracy than the second
    place = "Figure 6"
    within = 0.01                         # or, with this, about as much

A study of attacks plays a round instead of training, and draws what an adversary makes of it::

    [attack]                              # for all rows; a row's own `attack` says what differs
    images = 20
    vantage = "server"                    # and batch, cohort, after, published: as tacit attack dlg has them
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.attacks.scenario import Siege
from tacit.core.schema import choose
from tacit.errors import UserError
from tacit.papers.attack_config import ATTACK, read_siege
from tacit.papers.files import Table, check_different, check_keys, count, entries, read, text, texts
from tacit.papers.plots import FIGURE, read_columns, read_plot
from tacit.report.plots import Picture
from tacit.report.rankings import Order
from tacit.runs.experiment import Experiment, parse

EXPECTED = "expected.toml"
FAST, ORDERS = "fast", "orders"
_EVERY = "evaluate-every"
_STUDY, _OWN, _BORROWED = (
    ("title", _EVERY, "columns", "stand-in", "rows", FIGURE, ATTACK),
    ("name", "fast", "expected", _EVERY, ATTACK),
    ("from", "name", "row"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table or a line of a figure.

    Attributes:
        name: what it is called.
        study: the file that describes it, `<paper>/<what>`; its runs lie below a folder of this name.
        folder: the name of the row's own folder there.
        experiment: what is run.
        fast: what is run in the short version.
        paper: the paper's numbers by quantity.
        source: their place in the paper.
        evaluate_every: after how many rounds the model is measured.
        siege: how it is attacked; None: it is trained.
    """

    name: str
    study: str
    folder: str
    experiment: Experiment
    fast: Experiment
    paper: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    evaluate_every: int = 1
    siege: Siege | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: `<paper>/<what>`.
        title: what it reproduces.
        rows: its rows or lines.
        plot: what is drawn of them, if anything.
        columns: the quantities of the table, a column each; empty: all there are, a line each.
        stand_in: why the data are not the paper's; empty if they are.
        orders: which rows the paper has in front, where it prints no numbers.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    plot: Picture | None = None
    columns: tuple[str, ...] = ()
    stand_in: str = ""
    orders: tuple[Order, ...] = ()


def experiments_folder() -> Path:
    """Where experiments are: `./experiments`, or beside the sources of this package."""
    places = (Path("experiments"), Path(__file__).resolve().parents[3] / "experiments")
    for place in places:
        if any(place.glob("*/*.toml")):
            return place
    raise UserError("Expected a folder of experiments here, ./experiments. Go to the project's folder.")


def catalog(folder: Path) -> dict[str, Path]:
    """Every study there is, by name."""
    files = sorted(file for file in folder.glob("*/*.toml") if file.name != EXPECTED)
    return {f"{file.parent.name}/{file.stem}": file for file in files}


def read_study(folder: Path, name: str) -> Study:
    """The study of this name; a `UserError` lists what there is and points to the nearest."""
    file = choose(catalog(folder), name, "a table or figure")
    table = read(file)
    check_keys(table, _STUDY, str(file))
    numbered = enumerate(entries(table, "rows", str(file)), start=1)
    rows = tuple(_row(file, table, entry, number) for number, entry in numbered)
    for same in ("name", "folder"):
        names = [getattr(row, same) for row in rows if row.study == name or same == "name"]
        check_different(names, f"the rows of {file}")
    return Study(
        name=name,
        title=text(table, "title", str(file)),
        rows=rows,
        plot=read_plot(table, [row.name for row in rows], str(file)),
        columns=read_columns(table, str(file)),
        stand_in=text(table, "stand-in", str(file)) if "stand-in" in table else "",
        orders=_orders(file, [row.name for row in rows]),
    )


def _row(file: Path, study: Table, entry: Table, number: int) -> Row:
    label = f"row {entry.get('name', number)!r} of {file}"
    if "from" in entry:
        return _borrowed(file, entry, label)
    name = text(entry, "name", label)
    experiment = parse({key: value for key, value in entry.items() if key not in _OWN}, label)
    paper, source = _expected(file, entry, name, label)
    return Row(
        name=name,
        study=f"{file.parent.name}/{file.stem}",
        folder=_folder(name, label),
        experiment=experiment,
        fast=_fast(experiment, entry.get("fast", {}), label),
        paper=paper,
        source=source,
        evaluate_every=_every(study, entry, label, str(file)),
        siege=read_siege(study, entry, label),
    )


def _every(study: Table, entry: Table, row: str, label: str) -> int:
    """After how many rounds a row's model is measured: its own word, or the study's."""
    return count(entry, _EVERY, 1, row) if _EVERY in entry else count(study, _EVERY, 1, label)


def _borrowed(file: Path, entry: Table, label: str) -> Row:
    """A row of another file, under a name of its own."""
    check_keys(entry, _BORROWED, label)
    name = text(entry, "name", label)
    there = choose(catalog(file.parent.parent), f"{file.parent.name}/{text(entry, 'from', label)}", f"from of {label}")
    study = read(there)
    own = [other for other in entries(study, "rows", str(there)) if "from" not in other]
    origin = choose({str(other.get("name")): other for other in own}, str(entry.get("row", name)), f"row of {label}")
    return replace(_row(there, study, origin, 0), name=name)


def _fast(experiment: Experiment, changes: Any, label: str) -> Experiment:
    check_keys(changes, ("args", "task-args"), f"fast of {label}")
    return replace(
        experiment,
        args={**experiment.args, **changes.get("args", {})},
        task_args={**experiment.task_args, **changes.get("task-args", {})},
        seeds=(0,),
    )


def _orders(file: Path, rows: Sequence[str]) -> tuple[Order, ...]:
    """Which rows are in front of which, from [[<what>.orders]] of the paper's numbers."""
    book = file.with_name(EXPECTED)
    told = read(book).get(file.stem, {}).get(ORDERS, []) if book.exists() else []
    return tuple(_order(table, rows, f"orders of {file.stem} in {book}") for table in told)


def _order(table: Table, rows: Sequence[str], label: str) -> Order:
    check_keys(table, ("rows", "place", "quantity", "within"), label)
    known = {name: name for name in rows}
    named = [choose(known, name, f"rows of {label}") for name in texts(table, "rows", label, "two rows")]
    within = table.get("within")
    if len(named) != 2 or not (within is None or isinstance(within, int | float)):
        raise UserError(f"Expected {label} to have two rows, and within to be a number if it is there.")
    quantity = text(table, "quantity", label) if "quantity" in table else "accuracy"
    return Order(rows=(named[0], named[1]), place=text(table, "place", label), quantity=quantity, within=within)


def _expected(file: Path, entry: Table, name: str, label: str) -> tuple[dict[str, float], str]:
    """The paper's numbers for a row, and their place in it."""
    book = file.with_name(EXPECTED)
    known = (
        {key: value for key, value in read(book).get(file.stem, {}).items() if key != ORDERS} if book.exists() else {}
    )
    if "expected" in entry:
        found = choose(known, text(entry, "expected", label), f"expected of {label}")
    else:
        found = known.get(name, {})
    numbers = {key: value for key, value in found.items() if key != "source"}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"Expected {key} of {name!r} in {book} to be a number, got {value!r}.")
    return numbers, text(found, "source", f"{name!r} in {book}") if found else ""


def _folder(name: str, label: str) -> str:
    """A row's name as that of a folder."""
    folder = re.sub(r"[^\w=.+-]+", "-", name).strip("-.")
    if not folder or folder == FAST:
        raise UserError(f"Expected the name of {label} to have letters or digits, and not to be {FAST!r}.")
    return folder
