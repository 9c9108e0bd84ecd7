"""Comparisons that were not run."""

from collections.abc import Mapping

from tacit.papers.comparison import Comparison, ComparisonRow, RowTrial
from tacit.papers.figure_specs import LinePlot

Values = Mapping[str, float | None]


def row(
    *values: Values,
    name: str = "a row",
    paper: Mapping[str, float] | None = None,
    proved: bool = False,
    length: int = 5,
) -> ComparisonRow:
    """A row with one trial per mapping of values."""
    rounds = tuple(range(1, length + 1))
    return ComparisonRow(
        name=name,
        method="fedavg",
        args={"rounds": 2},
        task="digits",
        task_args={},
        trials=tuple(
            RowTrial(
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


def make(*rows: ComparisonRow, fast: bool = False, y: tuple[str, ...] = (), log: tuple[str, ...] = ()) -> Comparison:
    """A comparison of these rows; a figure if `y` is given."""
    plot = LinePlot(y=y, log=log) if y else None
    return Comparison(name="tiny/table-1", title="Tiny", fast=fast, versions={}, rows=rows, plot=plot)
