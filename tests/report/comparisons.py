"""Comparisons that nobody ran."""

from collections.abc import Mapping

from tacit.report.comparison import Comparison, Row, Trial
from tacit.report.plots import Plot

Values = Mapping[str, float | None]


def row(
    *values: Values,
    name: str = "a row",
    paper: Mapping[str, float] | None = None,
    proved: bool = False,
    length: int = 5,
) -> Row:
    """A row with a trial for each of these values."""
    rounds = tuple(range(1, length + 1))
    return Row(
        name=name,
        method="fedavg",
        args={"rounds": 2},
        task="digits",
        task_args={},
        trials=tuple(
            Trial(
                seed=seed,
                values=each,
                curves={
                    "round": rounds,
                    "accuracy": tuple(1 - 1 / (r + seed + 1) for r in rounds),
                    "scale": (None, *(1e-6 / r for r in rounds[1:])),
                },
            )
            for seed, each in enumerate(values)
        ),
        paper=paper or {},
        source="Table 1" if paper else "",
        proved=proved,
        guarantee="none: it is a test.",
        spent=True,
    )


def make(*rows: Row, fast: bool = False, y: tuple[str, ...] = (), log: tuple[str, ...] = ()) -> Comparison:
    """A comparison of these rows, a figure if there is something to draw."""
    plot = Plot(y=y, log=log) if y else None
    return Comparison(name="tiny/table-1", title="Tiny", fast=fast, versions={}, rows=rows, plot=plot)
