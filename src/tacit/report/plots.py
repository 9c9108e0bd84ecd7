"""What is drawn of a comparison: quantities over rounds or an argument, distributions of weights, maps, images."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What is drawn over the rounds: a panel per quantity, with a line per row in each.

    Attributes:
        y: the quantities, from top to bottom.
        labels: what a panel calls its quantity, if not by its name.
        log: the quantities, or `round`, whose axis is logarithmic.
    """

    y: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Rows whose weights are drawn together.

    Attributes:
        title: what the panel is called.
        rows: the names of the rows.
        mask: the name of the row whose coordinates are counted, in the run with the same seed.
    """

    title: str
    rows: tuple[str, ...]
    mask: str


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How the weights at a mask are distributed when training ends: panels side by side, a shape per row.

    Attributes:
        panels: from left to right.
        bins: into how many parts the axis of weights is cut.
    """

    panels: tuple[Panel, ...]
    bins: int = 60


@dataclass(frozen=True, kw_only=True)
class Maps:
    """What matters to one client, input by input, as pictures: a line per measure, in it some rounds; its mean sample.

    Attributes:
        client: whose importance it is.
        at: in which rounds.
        importance: by which measures, from top to bottom.
        noise: the standard deviation of the noise that measures are to reckon with.
    """

    client: int
    at: tuple[int, ...]
    importance: tuple[str, ...]
    noise: float


@dataclass(frozen=True, kw_only=True)
class Points:
    """What came out over an argument of the method: a point per row with its deviation, joined where another agrees.

    Attributes:
        x: the argument; a row whose method lacks it stands at 0.
        y: the quantity.
        lines: the argument that rows of a line have in common.
        labels: what `x`, `y` and `lines` are called, if not by their names.
    """

    x: str
    y: str
    lines: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Images of equal size from left to right, in 256 shades.

    Attributes:
        name: what stands to the left of them.
        shape: how many, how high, how wide, how many channels.
        pixels: their bytes in base64, so that they fit into a document.
        words: what stands in their place, if there are none.
    """

    name: str
    shape: tuple[int, ...] = (0, 0, 0, 0)
    pixels: str = ""
    words: str = ""

    @classmethod
    def of(cls, name: str, images: NDArray[Any]) -> "Strip":
        """From images (count, channels, height, width) in [0, 1]."""
        shades = np.moveaxis(np.clip(np.nan_to_num(images), 0, 1) * 255, 1, 3).round().astype(np.uint8)
        return cls(name=name, shape=shades.shape, pixels=base64.b64encode(shades.tobytes()).decode())

    @property
    def images(self) -> NDArray[np.uint8]:
        """(count, height, width, channels)."""
        return np.frombuffer(base64.b64decode(self.pixels), np.uint8).reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Images in strips, one below the other."""

    strips: tuple[Strip, ...]


Picture = Plot | Histogram | Maps | Points | Gallery


def read_plot(table: dict[str, Any] | None) -> Picture | None:
    """What `dataclasses.asdict` made of it, read again."""
    if table is None:
        return None
    if "client" in table:
        return Maps(**{**table, "at": tuple(table["at"]), "importance": tuple(table["importance"])})
    if "lines" in table:
        return Points(**table)
    if "strips" in table:
        return Gallery(strips=tuple(Strip(**{**strip, "shape": tuple(strip["shape"])}) for strip in table["strips"]))
    if "panels" not in table:
        return Plot(y=tuple(table["y"]), labels=table["labels"], log=tuple(table["log"]))
    panels = tuple(Panel(title=p["title"], rows=tuple(p["rows"]), mask=p["mask"]) for p in table["panels"])
    return Histogram(panels=panels, bins=table["bins"])
