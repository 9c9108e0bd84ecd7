"""What all pictures have in common: colours, sizes, and the words beneath."""

from typing import TYPE_CHECKING

from tacit.errors import UserError
from tacit.report.comparison import Comparison, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
INK, PALE = "#333333", "#DDDDDD"
WIDTH, ONE = 8.0, 3.6  # inches: the whole, the height of a panel that is alone
ABOVE, BELOW = 0.85, 0.85  # inches: the title's, the caption's height


def plain(panel: "Axes") -> None:
    """A bottom line and pale lines across; nothing else that is not data."""
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(PALE)
    panel.grid(axis="y", color=PALE, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=INK, length=0, labelsize=8.5)


def _unlike(row: Row) -> bool:
    """Whether its runs had different numbers of rounds."""
    return len({trial.values.get("rounds") for trial in row.trials}) > 1


def caption(comparison: Comparison, line: str, band: str) -> str:
    """What dot, line and band are, as far as they are drawn."""
    said = []
    if line == "Line" and any(row.spent for row in comparison.rows):
        said.append("Dot: the privacy budget allows no further round.")
    most = max((len(row.trials) for row in comparison.rows), default=1)
    if most > 1:
        said.append(f"{line}: mean of {most} seeds; {band}: least to most.")
    if line == "Line" and any(_unlike(row) for row in comparison.rows):
        said.append("A run that stopped earlier stays at its last value.")
    said += dict.fromkeys(row.caveat for row in comparison.rows if row.caveat)
    if comparison.fast:
        said.append("Short version: not for comparison.")
    return " ".join(said)


def require() -> None:
    """Raise `UserError` unless the plotting library is there."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError("Expected matplotlib for a figure: pip install tacit[plot].") from None
