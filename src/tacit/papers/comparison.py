"""Measured and published numbers side by side: the document that is printed, saved, loaded and drawn.

A comparison has rows, like the table of the paper; a row has trials, one per seed. Apart from the seconds nothing in
it depends on the machine, and its size does not grow with the number of clients.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, to_builtins

from tacit.core.serialization import Source, convert, read_json
from tacit.papers.figure_specs import FigureSpec, Number
from tacit.report.intervals import Interval

_FORMAT = 2
_ADVICE = "Save it again with tacit reproduce --save."
MIN_SEEDS = 3  # with two, Student's t allows nearly everything
MIN_SEEDS_TO_EQUATE = 8  # fewer find no difference where there is one
LOWER_IS_BETTER = {"loss", "rmse", "rounds", "cost", "epsilon", "delta", "up", "down", "seconds", "volume", "uploads"}
PRIVACY = {"epsilon", "delta"}
# Neither direction is better: they follow from the best round, or from the clipping bound.
UNJUDGED = {"best_round", "cost_down", "cost_up", "epsilon_classic", "bound", "leakage"}
RowVerdict = Literal["reached", "within reach", "undecided", "missed", "not measured", "no guarantee", ""]
Values = Mapping[str, Number | None]
Curves = Mapping[str, tuple[Number | None, ...]]


@dataclass(frozen=True, kw_only=True)
class RowTrial:
    """One run of a row.

    Attributes:
        seed: the run's seed.
        values: the results: metrics of the released model, the best metric of any round, rounds, cost (messages sent
            by clients), ε, δ, bytes and seconds; and the other quantities that the columns name.
        curves: quantities over at most a hundred rounds, with `round`. For a histogram: the `density` between each
            two edges of `weight`. For importance maps: the values of all inputs by measure and round, and their
            `shape`.
    """

    seed: int
    values: Values
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A quantity over seeds.

    Attributes:
        mean: its mean.
        lowest: its minimum.
        highest: its maximum.
        further: the half-width of the 95 % prediction interval for one more seed (Student's t); None: fewer than
            `MIN_SEEDS` seeds.
    """

    mean: float
    lowest: float
    highest: float
    further: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of values.

        Example:
            >>> round(Spread.of([0.90, 0.92, 0.94]).further, 3), Spread.of([0.90, 0.94]).further
            (0.099, None)
        """
        count, interval = len(values), Interval.of(values)
        further = None
        if interval is not None and interval.half is not None and count >= MIN_SEEDS:
            # The half-width of the mean is t·s/√count, that of a new value t·s·√(1 + 1/count).
            further = interval.half * sqrt(count + 1)
        return cls(math.fsum(values) / count, min(values), max(values), further)


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One row of the paper's table, with the results measured here.

    Attributes:
        name: the row's name.
        method: the method's name, `args` its arguments.
        task: the task's name, `task_args` its arguments.
        trials: one per seed.
        paper: the published numbers by quantity; `source` is their place in the paper.
        proved: whether (ε, δ) is a guarantee.
        guarantee: the guarantee in words, or why there is none.
        spent: whether the budget allows no further round.
        caveat: a sentence that is always shown with the row; empty: none.
    """

    name: str
    method: str
    args: Mapping[str, object]
    task: str
    task_args: Mapping[str, object]
    trials: tuple[RowTrial, ...]
    paper: Mapping[str, Number] = field(default_factory=dict)
    source: str = ""
    proved: bool = False
    guarantee: str = ""
    spent: bool = False
    caveat: str = ""

    def merged_with(self, earlier: "ComparisonRow") -> "ComparisonRow":
        """Add the earlier trials with other seeds, if their settings are the same."""
        if not self.same_settings(earlier):
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

    def same_settings(self, other: "ComparisonRow") -> bool:
        """Whether method, task and arguments are the same, so seeds can be merged."""
        return self._settings() == other._settings()

    def _settings(self) -> str:
        """What was run, as JSON: the same for a row in memory and one read from a file."""
        return json.dumps([self.method, self.args, self.task, self.task_args], sort_keys=True)

    def quantities(self) -> list[str]:
        """Every quantity that was measured or published, in order."""
        return list(dict.fromkeys([*(name for trial in self.trials for name in trial.values), *self.paper]))

    def by_seed(self, quantity: str) -> dict[int, float]:
        """A quantity by seed, where it was measured."""
        values = {trial.seed: trial.values.get(quantity) for trial in self.trials}
        return {seed: value for seed, value in values.items() if value is not None}

    def spread(self, quantity: str) -> Spread | None:
        """A quantity over all seeds; None if some run did not measure it."""
        values = [trial.values.get(quantity) for trial in self.trials]
        measured = [value for value in values if value is not None]
        if not measured or len(measured) < len(values):
            return None
        return Spread.of(measured)

    def verdict(self, quantity: str) -> RowVerdict:
        """Whether the published number is reached; empty if there is nothing to judge.

        From three seeds on, the 95 % interval of the mean decides: it is *undecided* as long as that contains the
        published number. With fewer the number is at most *within reach*. (ε, δ) follow from the settings.
        """
        if quantity not in self.paper or quantity in UNJUDGED:
            return ""
        measured = self.spread(quantity)
        if measured is None:
            return "not measured"
        values, sign = [*self.by_seed(quantity).values()], -1 if quantity in LOWER_IS_BETTER else 1
        if quantity in PRIVACY:
            return (
                "no guarantee" if not self.proved else _judge([measured.mean] * MIN_SEEDS, sign, self.paper[quantity])
            )
        return _judge(values, sign, self.paper[quantity])


def _judge(values: Sequence[float], sign: int, paper: Number) -> RowVerdict:
    """The verdict on values of which larger ones (`sign` 1) or smaller ones (-1) are better."""
    low, high = sorted(sign * end for end in _interval(values))
    mean, needed = sign * math.fsum(values) / len(values), sign * paper

    def enough(value: float) -> bool:
        return value >= needed or math.isclose(value, needed)  # sums of 0.77, 0.78, 0.79 are not exact

    if len(values) < MIN_SEEDS:
        return "within reach" if enough(mean) else "missed"
    return "reached" if enough(low) else "undecided" if enough(high) else "missed"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A paper's claim that one row has less of a quantity than another, or about as much.

    Attributes:
        rows: the names of the two; the first has less.
        place: where the paper claims it.
        quantity: what is compared, as a mean over the seeds that both rows have.
        within: the two differ by at most this much; None: the first is below the second.

    A claim is judged by the differences between the two rows with the same seeds, and their 95 % interval (Student's
    t): it is undecided as long as the interval allows both, with fewer than three seeds, and, if it is a claim of no
    difference, with fewer than eight.
    """

    rows: Annotated[tuple[str, str], Meta(description="a list of two rows")]
    place: str
    quantity: str = "accuracy"
    within: Number | None = None

    def describe(self, rows: Sequence[ComparisonRow]) -> str:
        """Report in one line whether the claim holds here, with the numbers."""
        by_name = {row.name: row.by_seed(self.quantity) for row in rows}
        first, second = (by_name.get(name, {}) for name in self.rows)
        seeds = [seed for seed in first if seed in second]
        sign = "<" if self.within is None else "≈"
        claim = f"{self.place}: {self.rows[0]} {sign} {self.rows[1]} in {self.quantity}"
        if not seeds:
            return f"{claim}: not measured"
        differences = [second[seed] - first[seed] for seed in seeds]
        if len(seeds) == 1:
            return f"{claim}: undecided; difference {differences[0]:+.4f} with one seed"
        low, high = _interval(differences)
        estimate = f"difference {fmean(differences):+.4f} (95 % interval {low:+.4f} to {high:+.4f}, {len(seeds)} seeds)"
        return f"{claim}: {self.judge(low, high, len(seeds))}; {estimate}"

    def judge(self, low: float, high: float, seeds: int) -> str:
        """The verdict for an interval of the second row minus the first, and the number of seeds."""
        if seeds < MIN_SEEDS:
            return "undecided"
        if self.within is None:
            return "reached" if low > 0 else "missed" if high < 0 else "undecided"
        if low > 0 or high < 0:
            return "missed"
        equal = -self.within <= low and high <= self.within
        return "reached" if equal and seeds >= MIN_SEEDS_TO_EQUATE else "undecided"


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean, by Student's t.

    Example:
        >>> [round(end, 3) for end in _interval([0.1, 0.2, 0.3])]
        [-0.048, 0.448]
    """
    interval = Interval.of(values)
    if interval is None or interval.half is None:  # non-finite values exclude nothing
        return -math.inf, math.inf
    return interval.mean - interval.half, interval.mean + interval.half


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table or figure of a paper, with measured and published numbers.

    Attributes:
        name: as in `tacit reproduce NAME`.
        title: what it reproduces.
        fast: whether this is the short version, whose numbers are not comparable.
        versions: the versions of the software that the numbers depend on.
        rows: one per row of the table or line of the figure.
        plot: what is drawn; None: it is a table.
        columns: the quantities of the table, a column each; empty: all quantities, a line each.
        stand_in: why the data are not the paper's; empty if they are.
        rankings: which rows the paper ranks above others, where it prints no numbers.
    """

    name: str
    title: str
    fast: bool
    versions: Mapping[str, str]
    rows: tuple[ComparisonRow, ...]
    plot: FigureSpec | None = None
    columns: tuple[str, ...] = ()
    stand_in: str = ""
    rankings: tuple[Ranking, ...] = ()

    def merged_with(self, earlier: "Comparison", order: Sequence[str]) -> "Comparison":
        """Add the earlier rows and seeds that are not in this one; rows in the given order, unknown ones last."""
        old, new = ({row.name: row for row in each.rows} for each in (earlier, self))
        rows = old | {name: row.merged_with(old[name]) if name in old else row for name, row in new.items()}
        places = {name: place for place, name in enumerate(order)}
        names = sorted(rows, key=lambda name: places.get(name, len(places)))
        versions = {
            name: ", ".join(dict.fromkeys([*earlier.versions.get(name, "?").split(", "), *release.split(", ")]))
            for name, release in self.versions.items()
        }
        return replace(self, versions=versions, rows=tuple(rows[name] for name in names))

    @property
    def seeds(self) -> str:
        """How many seeds its rows have: `3`, or `1 to 3` if they differ; empty if it has no rows."""
        counts = sorted(len(row.trials) for row in self.rows)
        return " to ".join(str(count) for count in dict.fromkeys([*counts[:1], *counts[-1:]]))

    def verdict(self, row: ComparisonRow, quantity: str) -> RowVerdict:
        """The row's verdict; empty for the short version and for other data than the paper's."""
        return "" if self.fast or self.stand_in else row.verdict(quantity)

    def to_bytes(self) -> bytes:
        """JSON with the verdicts, and each list of numbers on one line."""
        table = {**asdict(self), "plot": to_builtins(self.plot)}
        for entry, row in zip(table["rows"], self.rows, strict=True):
            entry["compared"] = [self._compare(row, quantity) for quantity in row.quantities()]
        return (_dump({"format": _FORMAT, **table}) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, label: str) -> Self:
        """The inverse of `to_bytes`, judged again; raises `UserError` for other bytes."""
        source = Source(label=label, advice=_ADVICE, closed=False)
        return convert(read_json(content, dict[str, Any], source, version=_FORMAT), cls, source)

    def _compare(self, row: ComparisonRow, quantity: str) -> dict[str, object]:
        measured = row.spread(quantity)
        return {
            "quantity": quantity,
            "paper": row.paper.get(quantity),
            "ours": measured and asdict(measured),
            "verdict": self.verdict(row, quantity),
        }


def _dump(value: object, indent: str = "") -> str:
    deeper = indent + "  "
    match value:
        case dict() if value:
            items = [f"{deeper}{json.dumps(str(key))}: {_dump(item, deeper)}" for key, item in value.items()]
            return "{\n" + ",\n".join(items) + f"\n{indent}}}"
        case [dict(), *_]:
            return "[\n" + ",\n".join(f"{deeper}{_dump(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
