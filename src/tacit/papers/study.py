"""A table or figure of a paper, described by a TOML file.

::

    title = "Geyer, Klein, Nabi 2017, Table 1"
    evaluate-every = 5                    # evaluate the model every 5 rounds; default: after every round

    [[rows]]
    name = "K=100"
    method = "geyer"                      # as in an experiment's file
    task = "mnist"
    seeds = [0, 1, 2]
    args = { cohort = 100, noise = 4.8 }
    task-args = { clients = 100 }
    fast = { args = { rounds = 2 } }      # what --fast changes; its seed is 0
    evaluate-every = 1                    # for this row only
    expected = "K=100"                    # the entry of expected.toml; default: the row's name

    [[rows]]
    from = "table-1"                      # a row of another study of this paper, and its runs
    name = "100 clients"                  # its name here
    row = "K=100"                         # its name there; default: the same

    [figure]
    y = ["accuracy"]                      # a panel per quantity: a metric, variance, scale, norm or epsilon
    labels = { accuracy = "accuracy on the test set" }
    log = ["round"]                       # logarithmic axes

Further keys of a study::

    columns = ["best_accuracy", "cost_up"]  # a line per row with these quantities; default: a line per quantity
    stand-in = "Other patients: ..."        # why the data are not the paper's; nothing is then judged

    [figure]
    kind = "histogram"                    # of the final weights, instead of lines over the rounds
    bins = 60

    [[figure.panels]]                     # of a histogram
    title = "Fashion-MNIST"
    rows = ["FL-TOP", "FL-STD"]           # rows of this file
    mask = "FL-TOP"                       # the row whose mask selects the weights, in the run with the same seed

    [figure]
    kind = "scatter"                      # a quantity over an argument, with error bars
    x = "noise"                           # the argument; 0 for a row whose method does not have it
    y = "rmse"
    lines = "models"                      # rows with the same value of this argument are joined

    [figure]
    kind = "maps"                         # importance of inputs to a client; repeats the first row's run: needs data
    client = 0
    at = [1, 5, 25]                       # rounds
    importance = ["sensitivity", "variance"]
    noise = 0.0028                        # standard deviation that the measures assume

In expected.toml, where a figure prints no numbers::

    [["figure-6".rankings]]
    rows = ["20 % most", "40 % least"]    # the first has less accuracy than the second
    place = "Figure 6"
    within = 0.01                         # with this key: the two differ by at most 0.01

A study of attacks runs one round instead of training, and shows what an adversary reconstructs from it::

    [attack]                              # for all rows; a row's own `attack` replaces single keys
    images = 20
    adversary = "server"                  # also batch, cohort, after, published: as in tacit attack dlg
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.attacks.dlg import Dlg
from tacit.attacks.scenario import AttackConfig
from tacit.attacks.views import Adversary
from tacit.core.schema import call, choose
from tacit.core.serialization import load_toml
from tacit.errors import UserError
from tacit.papers.comparison import Ranking
from tacit.papers.figure_specs import FIGURE, FigureSpec, read_columns, read_figure
from tacit.papers.study_files import (
    EXPECTED,
    Table,
    check_distinct,
    check_keys,
    count,
    study_files,
    tables,
    text,
    texts,
)
from tacit.runs.experiment import Experiment, flat_args, parse

FAST = "fast"
_RANKINGS, _ATTACK, _EVERY = "rankings", "attack", "evaluate-every"
_STUDY_KEYS = ("title", _EVERY, "columns", "stand-in", "rows", FIGURE, _ATTACK)
_ROW_KEYS = ("name", "fast", "expected", _EVERY, _ATTACK)  # those that are not an experiment's
_REFERENCE_KEYS = ("from", "name", "row")
Files = Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """A row of a table or a line of a figure.

    Attributes:
        name: the row's name.
        study: the study that defines it, `<paper>/<what>`; its runs are below a folder of this name.
        folder: the name of the row's folder there.
        experiment: what is run.
        fast: what is run in the short version.
        paper: the published numbers by quantity.
        source: their place in the paper.
        evaluate_every: the model is evaluated every this many rounds.
        attack: how it is attacked; None: it is trained.
    """

    name: str
    study: str
    folder: str
    experiment: Experiment
    fast: Experiment
    paper: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    evaluate_every: int = 1
    attack: AttackConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: `<paper>/<what>`.
        title: what it reproduces.
        rows: its rows or lines.
        plot: what is drawn; None: it is a table.
        columns: the quantities of the table, a column each; empty: all quantities, a line each.
        stand_in: why the data are not the paper's; empty if they are.
        rankings: which rows the paper ranks above others, where it prints no numbers.
    """

    name: str
    title: str
    rows: tuple[StudyRow, ...]
    plot: FigureSpec | None = None
    columns: tuple[str, ...] = ()
    stand_in: str = ""
    rankings: tuple[Ranking, ...] = ()

    @property
    def attacks(self) -> bool:
        """Whether rows are attacked instead of trained."""
        return self.rows[0].attack is not None


def read_study(name: str, files: Files | None = None) -> Study:
    """Read the study of this name; an unknown one is a `UserError` that lists all and names the nearest."""
    files = study_files() if files is None else files
    file = choose(files, name, "a table or figure")
    table = load_toml(file)
    check_keys(table, _STUDY_KEYS, str(file))
    numbered = enumerate(tables(table, "rows", str(file)), start=1)
    rows = tuple(_read_row(files, file, table, entry, position) for position, entry in numbered)
    check_distinct([row.name for row in rows], f"the rows of {file}")
    check_distinct([row.folder for row in rows if row.study == name], f"the rows of {file}")
    return Study(
        name=name,
        title=text(table, "title", str(file)),
        rows=rows,
        plot=read_figure(table, [row.name for row in rows], str(file)),
        columns=read_columns(table, str(file)),
        stand_in=text(table, "stand-in", str(file)) if "stand-in" in table else "",
        rankings=_read_rankings(file, [row.name for row in rows]),
    )


def _read_row(files: Files, file: Path, study: Table, entry: Table, position: int) -> StudyRow:
    label = f"row {entry.get('name', position)!r} of {file}"
    if "from" in entry:
        return _read_reference(files, file, entry, label)
    name = text(entry, "name", label)
    experiment = parse({key: value for key, value in entry.items() if key not in _ROW_KEYS}, label)
    paper, source = _read_expected(file, entry, name, label)
    return StudyRow(
        name=name,
        study=f"{file.parent.name}/{file.stem}",
        folder=_folder(name, label),
        experiment=experiment,
        fast=_read_fast(experiment, entry.get("fast", {}), label),
        paper=paper,
        source=source,
        evaluate_every=_read_every(study, entry, label, str(file)),
        attack=_read_attack(study, entry, label),
    )


def _read_reference(files: Files, file: Path, entry: Table, label: str) -> StudyRow:
    """Read a row of another study of the same paper, under its own name here."""
    check_keys(entry, _REFERENCE_KEYS, label)
    name = text(entry, "name", label)
    there = choose(files, f"{file.parent.name}/{text(entry, 'from', label)}", f"from of {label}")
    study = load_toml(there)
    defined = [other for other in tables(study, "rows", str(there)) if "from" not in other]
    origin = choose(
        {str(other.get("name")): other for other in defined}, str(entry.get("row", name)), f"row of {label}"
    )
    return replace(_read_row(files, there, study, origin, 0), name=name)


def _read_every(study: Table, entry: Table, row: str, label: str) -> int:
    return count(entry, _EVERY, 1, row) if _EVERY in entry else count(study, _EVERY, 1, label)


def _read_fast(experiment: Experiment, changes: Any, label: str) -> Experiment:
    check_keys(changes, ("args", "task-args"), f"fast of {label}")
    return replace(
        experiment,
        args={**experiment.args, **flat_args(changes.get("args", {}))},
        task_args={**experiment.task_args, **changes.get("task-args", {})},
        seeds=(0,),
    )


def _read_attack(study: Table, entry: Table, label: str) -> AttackConfig | None:
    """Read the study's `[attack]` with the row's own keys in place of its; None: nothing is attacked."""
    if _ATTACK not in study:
        if _ATTACK in entry:
            raise UserError(f"Expected no attack in {label}, whose file has no [{_ATTACK}] for all rows.")
        return None
    return call(_attack_config, f"attack of {label}", {**study[_ATTACK], **entry.get(_ATTACK, {})})


def _attack_config(
    images: int = 20,
    batch: int = 1,
    adversary: Adversary = "server",
    cohort: int | None = None,
    after: int = 0,
    published: bool = False,
) -> AttackConfig:
    dlg = Dlg.published(batch) if published else Dlg.improved(batch)
    return AttackConfig(images=images, adversary=adversary, cohort=cohort, after=after, dlg=dlg)


def _published(file: Path) -> dict[str, Any]:
    """Return what the paper's expected.toml says about a study."""
    expected = file.with_name(EXPECTED)
    return dict(load_toml(expected).get(file.stem, {})) if expected.exists() else {}


def _read_rankings(file: Path, rows: Sequence[str]) -> tuple[Ranking, ...]:
    label = f"{_RANKINGS} of {file.stem} in {file.with_name(EXPECTED)}"
    return tuple(_read_ranking(table, rows, label) for table in _published(file).get(_RANKINGS, []))


def _read_ranking(table: Table, rows: Sequence[str], label: str) -> Ranking:
    check_keys(table, ("rows", "place", "quantity", "within"), label)
    known = {name: name for name in rows}
    named = [choose(known, name, f"rows of {label}") for name in texts(table, "rows", label, "two rows")]
    within = table.get("within")
    if len(named) != 2 or not (within is None or isinstance(within, int | float)):
        raise UserError(f"Expected {label} to have two rows, and within, if given, to be a number.")
    quantity = text(table, "quantity", label) if "quantity" in table else "accuracy"
    return Ranking(rows=(named[0], named[1]), place=text(table, "place", label), quantity=quantity, within=within)


def _read_expected(file: Path, entry: Table, name: str, label: str) -> tuple[dict[str, float], str]:
    """Read the published numbers of a row, and their place in the paper."""
    known = {key: value for key, value in _published(file).items() if key != _RANKINGS}
    if "expected" in entry:
        found = choose(known, text(entry, "expected", label), f"expected of {label}")
    else:
        found = known.get(name, {})
    numbers = {key: value for key, value in found.items() if key != "source"}
    place = f"{name!r} in {file.with_name(EXPECTED)}"
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"Expected {key} of {place} to be a number, got {value!r}.")
    return numbers, text(found, "source", place) if found else ""


def _folder(name: str, label: str) -> str:
    folder = re.sub(r"[^\w=.+-]+", "-", name).strip("-.")
    if not folder or folder == FAST:
        raise UserError(f"Expected the name of {label} to have letters or digits, and not to be {FAST!r}.")
    return folder
