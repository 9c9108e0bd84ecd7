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
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tacit.attacks.dlg import Dlg
from tacit.attacks.scenario import AttackConfig
from tacit.attacks.views import Adversary
from tacit.core.schema import call, choose
from tacit.core.serialization import Source, convert, load_toml
from tacit.errors import UserError
from tacit.papers.comparison import Ranking
from tacit.papers.figure_specs import Count, FigureSpec, Number, StudyFigure
from tacit.papers.quantities import KNOWN
from tacit.papers.study_files import EXPECTED, ROWS, Text, check_distinct, check_known, study_files
from tacit.pieces.mechanisms.importance import MEASURES
from tacit.runs.experiment import Experiment, ExperimentTable, experiment_of, flat_args

FAST = "fast"
_RANKINGS = "rankings"
_COLUMNS = "a list of quantities, for example ['best_accuracy', 'cost_up']"
Files = Mapping[str, Path]


class _StudyTable(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A study in TOML; its rows are read one by one, so that error messages name them."""

    rows: Annotated[tuple[Mapping[str, Any], ...], Meta(min_length=1, description=ROWS)]
    title: Text
    evaluate_every: Count = 1
    columns: Annotated[tuple[str, ...], Meta(min_length=1, description=_COLUMNS)] = ()
    stand_in: Text = ""
    figure: StudyFigure | UnsetType = UNSET
    attack: Mapping[str, Any] | UnsetType = UNSET


class _Changes(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Changes of the short version."""

    args: Mapping[str, Any] = msgspec.field(default_factory=dict)
    task_args: Mapping[str, Any] = msgspec.field(default_factory=dict)


class _RowTable(ExperimentTable, frozen=True, kw_only=True, rename="kebab"):
    """A row that the study defines."""

    name: Text
    fast: _Changes = _Changes()
    expected: Text | UnsetType = UNSET
    evaluate_every: Count | UnsetType = UNSET
    attack: Mapping[str, Any] | UnsetType = UNSET


class _ReferenceTable(Struct, frozen=True, kw_only=True):
    """A row that another study defines."""

    study: Text = msgspec.field(name="from")
    name: Text
    row: Text | UnsetType = UNSET


class _Place(Struct, frozen=True):
    """Where a paper prints the numbers of a row."""

    source: Text


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
        evaluate_every: rounds from one evaluation to the next.
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
    """Read the study of this name; for an unknown one, a `UserError` lists all and suggests the nearest."""
    files = study_files() if files is None else files
    file = choose(files, name, "a table or figure")
    table = _read_table(file)
    expected = _read_expected(file)
    rows = tuple(_read_row(files, file, table, expected, position) for position in range(len(table.rows)))
    names = [row.name for row in rows]
    check_distinct(names, f"the rows of {file}")
    check_distinct([row.folder for row in rows if row.study == name], f"the rows of {file}")
    check_known(table.columns, KNOWN, f"columns of {file}")
    if table.figure is not UNSET:
        table.figure.validate(names, MEASURES, str(file))
    return Study(
        name=name,
        title=table.title,
        rows=rows,
        plot=None if table.figure is UNSET else table.figure,
        columns=table.columns,
        stand_in=table.stand_in,
        rankings=_read_rankings(file, expected, names),
    )


def _read_table(file: Path) -> _StudyTable:
    table = load_toml(file)
    match table:
        case {"figure": dict(figure)}:
            table = {**table, "figure": {"kind": "lines", **figure}}
    return convert(table, _StudyTable, Source(label=str(file)))


def _read_row(files: Files, file: Path, study: _StudyTable, expected: Mapping[str, Any], position: int) -> StudyRow:
    entry = study.rows[position]
    label = f"row {entry.get('name', position + 1)!r} of {file}"
    if "from" in entry:
        return _read_reference(files, file, convert(entry, _ReferenceTable, Source(label=label)), label)
    row = convert(entry, _RowTable, Source(label=label))
    experiment = experiment_of(row, label)
    paper, source = _read_published(file, expected, row, label)
    return StudyRow(
        name=row.name,
        study=f"{file.parent.name}/{file.stem}",
        folder=_folder(row.name, label),
        experiment=experiment,
        fast=replace(
            experiment,
            args={**experiment.args, **flat_args(row.fast.args)},
            task_args={**experiment.task_args, **row.fast.task_args},
            seeds=(0,),
        ),
        paper=paper,
        source=source,
        evaluate_every=study.evaluate_every if row.evaluate_every is UNSET else row.evaluate_every,
        attack=_read_attack(study, row, label),
    )


def _read_reference(files: Files, file: Path, given: _ReferenceTable, label: str) -> StudyRow:
    """Read a row of another study of the same paper, under its own name here."""
    there = choose(files, f"{file.parent.name}/{given.study}", f"from of {label}")
    study = _read_table(there)
    defined = {str(row.get("name")): position for position, row in enumerate(study.rows) if "from" not in row}
    position = choose(defined, given.name if given.row is UNSET else given.row, f"row of {label}")
    return replace(_read_row(files, there, study, _read_expected(there), position), name=given.name)


def _read_attack(study: _StudyTable, row: _RowTable, label: str) -> AttackConfig | None:
    """Read the study's `[attack]` with the row's own keys in place of its; None: nothing is attacked."""
    own = {} if row.attack is UNSET else row.attack
    if study.attack is not UNSET:
        return call(_attack_config, f"attack of {label}", {**study.attack, **own})
    if row.attack is not UNSET:
        raise UserError(f"Expected no attack in {label}, whose file has no [attack] for all rows.")
    return None


def _attack_config(
    images: int = 20,
    batch: int = 1,
    adversary: Adversary = "server",
    cohort: int | None = None,
    after: int = 0,
    published: bool = False,
) -> AttackConfig:
    dlg = Dlg.as_published(batch) if published else Dlg.with_improvements(batch)
    return AttackConfig(images=images, adversary=adversary, cohort=cohort, after=after, dlg=dlg)


def _read_expected(file: Path) -> Mapping[str, Any]:
    """Return the entries of a study in the paper's expected.toml."""
    expected = file.with_name(EXPECTED)
    tables = load_toml(expected) if expected.exists() else {}
    studies = convert(tables, dict[str, dict[str, dict[str, Any] | list[Any]]], Source(label=str(expected)))
    return studies.get(file.stem, {})


def _read_rankings(file: Path, expected: Mapping[str, Any], rows: Sequence[str]) -> tuple[Ranking, ...]:
    label = f"{_RANKINGS} of {file.stem} in {file.with_name(EXPECTED)}"
    rankings = convert(expected.get(_RANKINGS, []), tuple[Ranking, ...], Source(label=label))
    for ranking in rankings:
        check_known(ranking.rows, rows, f"rows of {label}")
    return rankings


def _read_published(
    file: Path, expected: Mapping[str, Any], row: _RowTable, label: str
) -> tuple[Mapping[str, Number], str]:
    """Read the published numbers of a row, and their place in the paper."""
    entries = {key: value for key, value in expected.items() if key != _RANKINGS}
    entry = entries.get(row.name) if row.expected is UNSET else choose(entries, row.expected, f"expected of {label}")
    if entry is None:
        return {}, ""
    source = Source(label=f"{row.name!r} in {file.with_name(EXPECTED)}", closed=False)
    numbers = convert({key: value for key, value in entry.items() if key != "source"}, dict[str, Number], source)
    return numbers, convert(entry, _Place, source).source


def _folder(name: str, label: str) -> str:
    folder = re.sub(r"[^\w=.+-]+", "-", name).strip("-.")
    if not folder or folder == FAST:
        raise UserError(f"Expected the name of {label} to have letters or digits, and not to be {FAST!r}.")
    return folder
