"""The common style of all figures: colours, sizes, plain axes, title and caption."""

import io
from typing import TYPE_CHECKING

from tacit.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, and grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
INK, PALE = "#333333", "#DDDDDD"
WIDTH, PANEL = 8.0, 3.6  # inches: width of a figure, height of a single panel
ABOVE, BELOW = 0.85, 0.85  # inches: space for the title and for the caption


def require_matplotlib() -> None:
    """Raise `UserError` if the plotting library is not installed."""
    new_figure(1, 1)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("Expected matplotlib for a figure: pip install tacit-fl[plot].") from None
    return Figure(figsize=(width, height))


def to_png(figure: "Figure") -> bytes:
    """Encode a figure as PNG; equal figures give equal bytes."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=160, metadata={"Software": None})
    return content.getvalue()


def plain(panel: "Axes") -> None:
    """Reduce axes to a bottom line and pale horizontal grid lines."""
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(PALE)
    panel.grid(axis="y", color=PALE, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(which="both", colors=INK, length=0, labelsize=8.5)


def add_title_and_caption(figure: "Figure", title: str, caption: str, left: float) -> None:
    """Write the title above and the caption below the panels, from `left` (a share of the width) on."""
    height = float(figure.get_size_inches()[1])
    figure.text(left, 1 - 0.18 / height, title, size=12, color=INK, va="top")
    figure.text(left, 0.12 / height, caption, size=8, color=INK, va="bottom")
