"""Means over seeds, with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10, sqrt
from statistics import fmean, stdev

from tacit.report.labels import number, size

INTERVAL_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its 95 % interval by Student's t; None: one value has no interval.

    The interval is that of the mean over seeds, if runs with other seeds are like further draws from a normal
    distribution.
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """The interval of these values; None if there are none, or one is not finite.

        Example:
            >>> Interval.of([0.90, 0.92, 0.94]).text()
            '0.920 ± 0.050'
        """
        if not values or not all(map(isfinite, values)):
            return None
        count = len(values)
        if count == 1:
            return cls(values[0], None, 1)
        from scipy.special import stdtrit  # takes a third of a second, which pages of one run save

        quantile = float(stdtrit(count - 1, (1 + INTERVAL_CONFIDENCE) / 2))
        return cls(fmean(values), quantile * stdev(values) / sqrt(count), count)

    def text(self) -> str:
        """The mean to the digits that its interval leaves, and the half-width with two digits.

        Example:
            >>> Interval(0.88154, 0.01234, 3).text(), Interval(41.3, None, 1).text(), Interval(3.0, 0.0, 2).text()
            ('0.882 ± 0.012', '41.3', '3 ± 0')
        """
        if self.half is None or self.half == 0:
            return number(self.mean) + (" ± 0" if self.half == 0 else "")
        decimals = min(8, max(0, 1 - int(log10(self.half) // 1)))
        return f"{self.mean:.{decimals}f} ± {self.half:.{decimals}f}"

    def size(self) -> str:
        """The text for bytes."""
        spread = "" if not self.half else f" ± {size(self.half)}"
        return f"{size(self.mean)}{spread}"

    def to_json(self) -> dict[str, float | int | None]:
        return {"mean": self.mean, "half_width": self.half, "runs": self.count}
