"""Images in a PNG figure: strips of originals and reconstructions, and maps of values per input."""

import base64
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tacit.errors import UserError
from tacit.report.style import ABOVE, BELOW, INK, new_figure, to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE, LEFT, TITLE, MARGIN = 0.5, 2.2, 0.55, 0.15  # inches: an image of a strip, and the space around all strips
MAX_IMAGES = 12  # drawn of a strip
NARROWEST = 6.0  # inches
_SIDE, _GAP = 1.45, 0.35  # inches: a map, and the space between two


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Images of equal size in one line, in 256 shades.

    Attributes:
        name: the text to the left of the images.
        shape: number of images, height, width, channels.
        pixels: their bytes in base64, so that they fit into a JSON document.
        note: the text in place of the images, if there are none.
    """

    name: str
    shape: tuple[int, ...] = (0, 0, 0, 0)
    pixels: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """Reject pixels that do not match the shape: they may come from a file."""
        if not _are_images(self.pixels, self.shape):
            raise UserError(f"Expected the pixels of {self.name!r:.80} to be images of shape {self.shape!r:.80}.")

    @classmethod
    def of(cls, name: str, images: NDArray[Any]) -> "Strip":
        """Make a strip from images (count, channels, height, width) in [0, 1]."""
        shades = np.moveaxis(np.clip(np.nan_to_num(images), 0, 1) * 255, 1, 3).round().astype(np.uint8)
        return cls(name=name, shape=shades.shape, pixels=base64.b64encode(shades.tobytes()).decode())

    @property
    def images(self) -> NDArray[np.uint8]:
        """The images, (count, height, width, channels)."""
        return np.frombuffer(base64.b64decode(self.pixels), np.uint8).reshape(self.shape)


def _are_images(pixels: str, shape: tuple[int, ...]) -> bool:
    """Whether the text is the base64 of images (count, height, width, channels), with one channel or three."""
    if len(shape) != 4 or min(shape) < 0 or (shape[3] not in (1, 3) and shape[0]):
        return False
    try:
        return len(base64.b64decode(pixels, validate=True)) == math.prod(shape)
    except ValueError:
        return False


class Gallery(Struct, frozen=True, kw_only=True, tag_field="kind", tag="gallery"):
    """Strips of images, from top to bottom."""

    strips: tuple[Strip, ...]


@dataclass(frozen=True, eq=False)
class ValueMap:
    """Values per input as an image, at a line and column of a grid."""

    line: int
    column: int
    title: str
    values: NDArray[np.float64]


def draw_gallery(title: str, gallery: Gallery) -> bytes:
    """Draw the strips below each other, with their names to the left."""
    columns = min(max(strip.shape[0] for strip in gallery.strips), MAX_IMAGES)
    width = max(LEFT + columns * TILE + 0.1, NARROWEST)
    height = TITLE + len(gallery.strips) * TILE + MARGIN
    figure = new_figure(width, height)
    figure.text(0.1 / width, 1 - 0.15 / height, title, size=11, color=INK, va="top")
    for position, strip in enumerate(gallery.strips):
        _draw_strip(figure, strip, height - TITLE - (position + 1) * TILE)
    return to_png(figure)


def draw_maps(title: str, caption: str, maps: Iterable[ValueMap], lines: int, columns: int) -> bytes:
    """Draw maps in a grid, each from dark (its lowest value) to light (its highest)."""
    width, height = _GAP + columns * (_SIDE + _GAP), ABOVE + lines * (_SIDE + _GAP) + BELOW / 2
    figure = new_figure(width, height)
    for each in maps:
        left, top = _GAP + each.column * (_SIDE + _GAP), ABOVE + each.line * (_SIDE + _GAP)
        axis = figure.add_axes((left / width, 1 - (top + _SIDE) / height, _SIDE / width, _SIDE / height))
        axis.imshow(each.values, cmap="gray", interpolation="nearest")
        axis.set_title(each.title, size=8.5, color=INK, loc="left", pad=3)
        axis.set_axis_off()
    figure.text(_GAP / width, 1 - 0.14 / height, title, size=11, color=INK, va="top")
    figure.text(_GAP / width, 0.1 / height, caption, size=8, color=INK, va="bottom")
    return to_png(figure)


def _draw_strip(figure: "Figure", strip: Strip, bottom: float) -> None:
    """Draw one strip, `bottom` inches above the lower edge of the figure."""
    width, height = figure.get_size_inches()
    middle = (bottom + TILE / 2) / height
    figure.text((LEFT - 0.12) / width, middle, strip.name, size=9, color=INK, ha="right", va="center")
    figure.text(LEFT / width, middle, strip.note, size=9, color=INK, va="center", style="italic")
    for column, image in enumerate(strip.images[:MAX_IMAGES]):
        side = 0.94 * TILE
        axes = figure.add_axes(((LEFT + column * TILE) / width, bottom / height, side / width, side / height))
        axes.imshow(image if image.shape[2] == 3 else image[:, :, 0], cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
