"""How much of a model is sent."""

from dataclasses import dataclass

from tacit.errors import expect


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many numbers are sent, of those the model has: a share of all, rounded down, or a number.

    Example:
        >>> Size(ratio=0.005).of(1_663_370), Size(number=12).of(100)
        (8316, 12)
    """

    ratio: float | None = None
    number: int | None = None

    def __post_init__(self) -> None:
        expect((self.ratio is None) != (self.number is None), "either ratio or number, and not both")
        expect(self.ratio is None or 0 < self.ratio <= 1, f"ratio={self.ratio} in (0, 1]")
        expect(self.number is None or self.number >= 1, f"number={self.number} >= 1")

    def of(self, dim: int) -> int:
        """That many of `dim`."""
        if self.number is not None:
            expect(self.number <= dim, f"number={self.number} <= {dim}, the number of the model's weights")
            return self.number
        assert self.ratio is not None
        count = int(self.ratio * dim + 1e-9)  # 0.29 · 100 is 28.999999999999996
        expect(count >= 1, f"ratio={self.ratio} to be at least one of {dim} weights")
        return count
