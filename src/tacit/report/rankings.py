"""Which of two rows a paper has in front, where its figures print no numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Measured(Protocol):
    """A row of a comparison."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def by_seed(self, quantity: str) -> Mapping[int, float]:
        """What came out for each seed that measured it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Order:
    """The first row has less of a quantity than the second, or about as much.

    Attributes:
        rows: the names of the two.
        place: where the paper says so.
        quantity: what is compared, as a mean over the seeds that both have.
        within: so far the two may be apart to count as about equal; None: the first must be below the second.
    """

    rows: tuple[str, str]
    place: str
    quantity: str = "accuracy"
    within: float | None = None

    def told(self, rows: Sequence[Measured]) -> str:
        """Whether it is so here, with the numbers, in one line."""
        known = {row.name: row.by_seed(self.quantity) for row in rows}
        first, second = (known.get(name, {}) for name in self.rows)
        seeds = [seed for seed in first if seed in second]
        sign = "<" if self.within is None else "≈"
        claim = f"{self.place}: {self.rows[0]} {sign} {self.rows[1]} in {self.quantity}"
        if not seeds:
            return f"{claim}: not measured"
        low, high = (sum(values[seed] for seed in seeds) / len(seeds) for values in (first, second))
        so = sum(self.holds(first[seed], second[seed]) for seed in seeds)
        verdict = "reached" if self.holds(low, high) else "missed"
        return f"{claim}: {verdict}, {low:.4f} and {high:.4f}; so in {so} of {len(seeds)} seeds"

    def holds(self, low: float, high: float) -> bool:
        """Whether two values stand in this order."""
        return low < high if self.within is None else abs(low - high) <= self.within


def read_order(table: Mapping[str, Any]) -> Order:
    """What `dataclasses.asdict` made of it, read again."""
    first, second = table["rows"]
    return Order(**{**table, "rows": (first, second)})
