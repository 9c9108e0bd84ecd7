"""Ours beside the paper's: the one document that is printed, saved, read again and drawn.

A comparison has rows, as the paper's table has; a row has trials, one per seed. Nothing in it depends on the machine
but the seconds, and nothing grows with the number of clients.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from tacit.errors import UserError
from tacit.report.plots import Picture, read_plot
from tacit.report.rankings import Order, read_order

FORMAT = 1
LOWER_IS_BETTER = {"loss", "rmse", "rounds", "cost", "epsilon", "delta", "up", "down", "seconds", "volume", "uploads"}
PRIVACY = {"epsilon", "delta"}
UNJUDGED = {
    "best_round",
    "cost_down",
    "cost_up",
    "epsilon_classic",
    "bound",
    "leakage",
}  # they follow from the best round, or S
Verdict = Literal["reached", "missed", "not measured", "no guarantee", ""]
Values = Mapping[str, float | None]
Curves = Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a row.

    Attributes:
        seed: of everything random.
        values: what came out: the metrics of the released model, the best of any round, rounds, cost (messages that
            clients sent), ε, δ, bytes and seconds; and whatever else the columns ask for.
        curves: quantities over some of the rounds, at most a hundred; `round` tells which. Of a histogram, the
            `density` between each two edges of `weight`. Of maps, all inputs' values by measure and round, and the
            `shape` in which they lie.
    """

    seed: int
    values: Values
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A quantity over several seeds."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the paper's table, and what came of it here.

    Attributes:
        name: what it is called.
        method: the method's name, `args` its arguments.
        task: the task's name, `task_args` its arguments.
        trials: one per seed.
        paper: the paper's numbers by quantity; `source` is their place in the paper.
        proved: whether (ε, δ) is a guarantee.
        guarantee: the guarantee in words, or `none` and why.
        spent: whether the budget allows no further round.
        caveat: what must be said about it wherever it is shown; empty: nothing.
    """

    name: str
    method: str
    args: Mapping[str, object]
    task: str
    task_args: Mapping[str, object]
    trials: tuple[Trial, ...]
    paper: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    proved: bool = False
    guarantee: str = ""
    spent: bool = False
    caveat: str = ""

    def joined(self, earlier: "Row") -> "Row":
        """With the earlier trials of other seeds, if they had the same settings; without them, if not."""
        if self._settings() != earlier._settings():
            return self
        trials = {trial.seed: trial for trial in (*earlier.trials, *self.trials)}
        longest = max((self, earlier), key=lambda row: max(row.by_seed("rounds").values(), default=0))
        return replace(
            self,
            trials=tuple(trials[seed] for seed in sorted(trials)),
            proved=longest.proved,
            guarantee=longest.guarantee,
            spent=longest.spent,
        )

    def _settings(self) -> str:
        """What was run, in the same words whether it was read from a file or not."""
        return json.dumps([self.method, self.args, self.task, self.task_args], sort_keys=True)

    def quantities(self) -> list[str]:
        """Everything that was measured or that the paper tells, in order."""
        return list(dict.fromkeys([*(name for trial in self.trials for name in trial.values), *self.paper]))

    def by_seed(self, quantity: str) -> dict[int, float]:
        """What came out for each seed that measured it."""
        values = {trial.seed: trial.values.get(quantity) for trial in self.trials}
        return {seed: value for seed, value in values.items() if value is not None}

    def ours(self, quantity: str) -> Spread | None:
        """What came out over all seeds; None if some run did not measure it."""
        values = [trial.values.get(quantity) for trial in self.trials]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return Spread(math.fsum(known) / len(known), min(known), max(known))

    def verdict(self, quantity: str) -> Verdict:
        """Whether ours is at least as good as the paper's number; empty if it has none, or no way is better."""
        if quantity not in self.paper or quantity in UNJUDGED:
            return ""
        ours = self.ours(quantity)
        if ours is None:
            return "not measured"
        if quantity in PRIVACY and not self.proved:
            return "no guarantee"
        mean, paper = ours.mean, self.paper[quantity]
        better = mean < paper if quantity in LOWER_IS_BETTER else mean > paper
        return "reached" if better or math.isclose(mean, paper) else "missed"  # sums of 0.77, 0.78, 0.79 are not exact


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table or figure of a paper, ours beside theirs.

    Attributes:
        name: as in `tacit reproduce NAME`.
        title: what it reproduces.
        fast: whether this is the short version, whose numbers mean nothing.
        versions: the releases that the numbers depend on.
        rows: one per row of the table or line of the figure.
        plot: what is drawn, if this is a figure.
        columns: the quantities of the table, a column each; empty: all there are, a line each.
        stand_in: why ours and the paper's numbers are not of the same data; empty if they are.
        orders: which rows the paper has in front, where it prints no numbers.
    """

    name: str
    title: str
    fast: bool
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    plot: Picture | None = None
    columns: tuple[str, ...] = ()
    stand_in: str = ""
    orders: tuple[Order, ...] = ()

    def joined(self, earlier: "Comparison", order: Sequence[str]) -> "Comparison":
        """With the earlier rows and seeds that are not in this one, rows in the given order; unknown ones come last."""
        before, now = ({row.name: row for row in each.rows} for each in (earlier, self))
        rows = before | {name: row.joined(before[name]) if name in before else row for name, row in now.items()}
        places = {name: place for place, name in enumerate(order)}
        names = sorted(rows, key=lambda name: places.get(name, len(places)))
        known = {name: {each.versions.get(name, "?"): None for each in (earlier, self)} for name in self.versions}
        versions = {name: ", ".join(releases) for name, releases in known.items()}
        return replace(self, versions=versions, rows=tuple(rows[name] for name in names))

    def verdict(self, row: Row, quantity: str) -> Verdict:
        """That of the row; a short version is not compared, nor are other data."""
        return "" if self.fast or self.stand_in else row.verdict(quantity)

    def to_json(self) -> dict[str, object]:
        """Plain values, with the verdicts in them."""
        table = asdict(self)
        for entry, row in zip(table["rows"], self.rows, strict=True):
            entry["compared"] = [self._compared(row, quantity) for quantity in row.quantities()]
        return {"format": FORMAT, **table}

    def to_bytes(self) -> bytes:
        """As JSON, a line per list of numbers."""
        return (_dumped(self.to_json()) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, label: str) -> Self:
        """From JSON; `label` is what messages call it. Verdicts are found anew."""
        try:
            table = json.loads(content)
            if table["format"] != FORMAT:
                raise UserError(f"Expected {label} to have format {FORMAT}, got {table['format']}. Save it anew.")
            return cls._from_table(table)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"Expected {label} to be what tacit reproduce --save writes.") from None

    @classmethod
    def _from_table(cls, table: dict[str, Any]) -> Self:
        return cls(
            name=table["name"],
            title=table["title"],
            fast=table["fast"],
            versions=table["versions"],
            rows=tuple(map(_row, table["rows"])),
            plot=read_plot(table["plot"]),
            columns=tuple(table.get("columns", ())),
            stand_in=table.get("stand_in", ""),
            orders=tuple(map(read_order, table.get("orders", ()))),
        )

    def _compared(self, row: Row, quantity: str) -> dict[str, object]:
        ours = row.ours(quantity)
        return {
            "quantity": quantity,
            "paper": row.paper.get(quantity),
            "ours": ours and asdict(ours),
            "verdict": self.verdict(row, quantity),
        }


def _row(table: dict[str, Any]) -> Row:
    known = {key: value for key, value in table.items() if key not in ("trials", "compared")}
    return Row(trials=tuple(map(_trial, table["trials"])), **known)


def _trial(table: dict[str, Any]) -> Trial:
    curves = {name: tuple(values) for name, values in table["curves"].items()}
    return Trial(seed=table["seed"], values=table["values"], curves=curves)


def _dumped(value: object, indent: str = "") -> str:
    """JSON that is indented where it is deep, and has lists of numbers in one line."""
    deeper = indent + "  "
    if isinstance(value, Mapping) and value:
        items = [f"{deeper}{json.dumps(str(key))}: {_dumped(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return "[\n" + ",\n".join(f"{deeper}{_dumped(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
