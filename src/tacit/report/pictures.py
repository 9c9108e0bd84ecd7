"""Images in strips, one below the other: what was, and what an adversary made of it."""

from typing import TYPE_CHECKING

from tacit.report.plots import Gallery, Strip
from tacit.report.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE, LEFT, ABOVE, BELOW = 0.5, 2.2, 0.55, 0.15  # inches
MOST = 12  # images of a strip that are shown
NARROWEST = 6.0


def draw(title: str, gallery: Gallery) -> "Figure":
    """The strips, each behind its name."""
    from matplotlib.figure import Figure

    columns = min(max(strip.shape[0] for strip in gallery.strips), MOST)
    width = max(LEFT + columns * TILE + 0.1, NARROWEST)
    height = ABOVE + len(gallery.strips) * TILE + BELOW
    figure = Figure(figsize=(width, height))
    figure.text(0.1 / width, 1 - 0.15 / height, title, size=11, color=INK, va="top")
    for row, strip in enumerate(gallery.strips):
        _strip(figure, strip, height - ABOVE - (row + 1) * TILE)
    return figure


def _strip(figure: "Figure", strip: Strip, bottom: float) -> None:
    """One strip, so many inches above the lower edge."""
    width, height = figure.get_size_inches()
    middle = (bottom + TILE / 2) / height
    figure.text((LEFT - 0.12) / width, middle, strip.name, size=9, color=INK, ha="right", va="center")
    figure.text(LEFT / width, middle, strip.words, size=9, color=INK, va="center", style="italic")
    for column, image in enumerate(strip.images[:MOST]):
        size = 0.94 * TILE
        axes = figure.add_axes(((LEFT + column * TILE) / width, bottom / height, size / width, size / height))
        axes.imshow(image if image.shape[2] == 3 else image[:, :, 0], cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
