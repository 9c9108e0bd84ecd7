"""What a run is made of over time: the server's state, what it broadcasts, what comes back, what is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, hypot, sqrt

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.rows import Rows
from tacit.wire import frames
from tacit.wire.frames import Part, Parts
from tacit.wire.sparse import WireFormat

SERVER = "server/"  # memory under this prefix never leaves the server's process


@dataclass(frozen=True, eq=False)
class State:
    """All that the server carries from round to round.

    Attributes:
        round: how many rounds are done.
        weights: the trainable parameters as one flat vector; of k hypotheses, k of them, (k, dim).
        memory: what pieces remember, by name: `server/momentum`, for example.
        layers: how many numbers each parameter has, in the order in which they make up the vector.
        shapes: the shapes of these parameters.
    """

    round: int
    weights: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    layers: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def dim(self) -> int:
        """How many trainable numbers a model has."""
        return self.weights.shape[-1]

    def memory_with(self, name: str, value: Tensor) -> Mapping[str, Tensor]:
        """The memory with one entry written."""
        return {**self.memory, name: value}


@dataclass(frozen=True)
class Round:
    """Which round it is (`now`), and the two kinds of randomness.

    The cohort's size is not the number of clients at hand: a device plays one client of a cohort of 100.
    """

    index: int
    population: int
    expected_cohort: float  # the mean size of the cohort under the sampler: what sums are divided by under privacy
    cohort: int
    shared: Key
    secret: Key

    @property
    def max_cohort(self) -> int:
        """No cohort is larger, but with probability 10⁻³⁰: twelve standard deviations above the mean."""
        return min(self.population, ceil(self.expected_cohort + 12 * sqrt(self.expected_cohort) + 12))


@dataclass(frozen=True, eq=False)
class View:
    """What the server broadcasts.

    Attributes:
        weights: the model the clients start from, however it was sent; of k hypotheses, k of them, (k, dim).
        parts: what is really sent; packed by the wire and counted.
        once: what is sent as well, but only with the first view that a client gets.
        mask: the coordinates that travel in this round, in ascending order; None: all of them.
        layers: how many numbers each parameter of the model has, which every client knows.
    """

    weights: Tensor
    parts: Mapping[Part, Tensor]
    first_parts: Mapping[Part, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    layers: tuple[int, ...] = ()

    def sent(self, *, first: bool, wire_format: WireFormat | None = None) -> Parts:
        """All that goes to a client, whose first view it is or not; a whole model in a shorter form, if it is one."""
        parts = {**self.parts, **self.first_parts} if first else self.parts
        return compressed_part(parts, Part.WEIGHTS, wire_format) if Part.WEIGHTS in parts else parts

    def size(self, *, first: bool, wire_format: WireFormat | None = None) -> int:
        """How many bytes that takes as one frame."""
        return frames.size(self.sent(first=first, wire_format=wire_format))


@dataclass(frozen=True, eq=False)
class Messages:
    """What clients send: a stack of rows, and whose they are.

    Attributes:
        clients: their numbers.
        rows: one for each.
        samples: the size of each one's data, only if messages are weighed by it.
        step: that of the grid on which all numbers lie; None: they lie on none.
    """

    clients: Tensor
    rows: Rows
    samples: Tensor | None = None
    grid_step: "GridStep | None" = None

    def keep(self, which: Tensor) -> "Messages":
        """The messages where the boolean `which` is true."""
        samples = None if self.samples is None else self.samples[which]
        return Messages(self.clients[which], self.rows.keep(which), samples, self.grid_step)

    def sizes(self, wire_format: WireFormat | None = None) -> tuple[int, ...]:
        """How many bytes each message takes as a frame; in a form for rows all differ, as numbers they are alike."""
        if wire_format is not None:
            return tuple(frames.size(self.parts(i, wire_format)) for i in range(self.rows.count))
        parts = {Part.ROW: torch.empty(self.rows.dim, dtype=self.rows.dtype, device="meta")}
        if self.samples is not None:
            parts[Part.SAMPLES] = self.samples[0]
        return (frames.size(parts),) * self.rows.count if self.rows.count else ()

    def parts(self, i: int, wire_format: WireFormat | None = None) -> Parts:
        """What message i says on the wire; its row in a shorter form, if it is one."""
        parts = compressed_part({Part.ROW: self.rows.dense()[i]}, Part.ROW, wire_format)
        return parts if self.samples is None else {**parts, Part.SAMPLES: self.samples[i]}


def compressed_part(parts: Parts, which: Part, wire_format: WireFormat | None) -> Parts:
    """The parts with one of them as bytes in a form for rows, where that is shorter than its numbers."""
    if wire_format is None:
        return parts
    data = wire_format.encode(parts[which])
    if len(data) >= parts[which].numel() * parts[which].element_size():
        return parts
    return {**parts, which: torch.frombuffer(bytearray(data), dtype=torch.uint8)}


@dataclass(frozen=True)
class Bound:
    """The L2 bound that every row respects: one for the whole row, one for each layer of it, or an ellipsoid.

    Within an ellipsoid, ‖row / axes‖ is at most the one value.

    Example:
        >>> Bound((3.0, 4.0), layers=(10, 20)).whole
        5.0
        >>> Bound((2.0,), axes=torch.tensor([0.5, 3.0])).whole
        6.0
    """

    values: tuple[float, ...] = (float("inf"),)
    layers: tuple[int, ...] = ()  # the layers' sizes, if there is one bound for each
    axes: Tensor | None = field(default=None, compare=False)  # of an ellipsoid, one per coordinate
    ball: bool = False  # whether rows even respect the largest ball inside the ellipsoid

    @property
    def whole(self) -> float:
        """What the norm of a whole row cannot exceed."""
        if self.axes is None:
            return hypot(*self.values)
        return self.values[0] * float(self.axes.min() if self.ball else self.axes.max())

    def per_coordinate(self, like: Tensor) -> Tensor:
        """Each coordinate's bound, as a tensor that can be multiplied with a row."""
        values = like.new_tensor(self.values)
        if self.axes is not None:
            return values * self.axes.to(like)
        return values.repeat_interleave(torch.tensor(self.layers)) if self.layers else values


@dataclass(frozen=True, eq=False)
class BoundedMessages:
    """Messages with the bound that their rows respect.

    Attributes:
        messages: the messages.
        bound: no bound is known by default.
        tally: a number that the mechanism wants summed over all clients, beside the rows.
    """

    messages: Messages
    bound: Bound = Bound()
    statistic: float = 0.0


@dataclass(frozen=True, eq=False)
class Sum:
    """What an aggregator folds: a total, what to divide it by, and the bound that went into it.

    Sums add up, in the order in which they are given: the fold of the waves of a round, which share one bound.
    """

    total: Tensor
    weight: float
    bound: Bound = Bound()
    statistic: float = 0.0
    squared_norms: float = 0.0  # of the rows' squared norms, weighted as the rows are; for diagnostics
    grid_step: "GridStep | None" = None  # that of the grid on which all numbers lie, if they do

    def __add__(self, other: "Sum") -> "Sum":
        return replace(
            self,
            total=self.total.add_(other.total),
            weight=self.weight + other.weight,
            statistic=self.statistic + other.statistic,
            squared_norms=self.squared_norms + other.squared_norms,
        )


@dataclass(frozen=True)
class GridStep:
    """Of a grid of numbers that are rounded alike, so that they are added up exactly, in float64 or as integers.

    Attributes:
        size: all numbers are multiples of this power of two.
        longer: by how much rounding may lengthen a row, relative to its bound: so much more noise is needed.
    """

    size: float
    inflation: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """Bytes both ways: from clients to the server, and back."""

    up: int = 0
    down: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.up + other.up, self.down + other.down)

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(self.up * times, self.down * times)


@dataclass(frozen=True)
class Turnout:
    """How many clients a round asked, and how many of them delivered."""

    cohort: int
    delivered: int

    @property
    def fraction(self) -> float:
        """Of the cohort; all of it, if nobody was asked."""
        return self.delivered / self.cohort if self.cohort else 1.0


@dataclass(frozen=True)
class WaveReport:
    """What the server noted about one wave: who delivered, how long the rows were, who was refused."""

    delivered: tuple[int, ...]
    rejected: tuple[int, ...]
    norms: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """One round in numbers.

    Attributes:
        round: the number of rounds done, from 1.
        clients: the cohort, without those who declined.
        refused: clients whose message was not finite; the others' work is kept.
        up: bytes each client of the cohort sent.
        down: bytes each client of the cohort received.
        phases: the part of these bytes that the channel's own protocol takes beside rows and views, by its phases.
        step: that of the grid on which rows were added up, if they were on one.
        norm: mean L2 norm of the messages that were delivered.
        variance: between clients, of their rows as they were summed, per coordinate (V_c of Geyer et al.).
        scale: mean square of their mean, per coordinate (U_s of Geyer et al.); like the two above, not private.
        metrics: held-out figures; empty if this round was not evaluated.
        seconds: wall-clock time of the round.
        parts: the part of it that training took, and those that the channel measured; empty if it measured none.
        epsilon: what all rounds so far cost together, at the method's δ; None if nothing is accounted.
        declined: clients that were asked and would have leaked more than they allow (d-privacy); they sent nothing.
        leakage: the most that any client has leaked so far (d-privacy); None if that is not how it is counted.
    """

    round: int
    clients: tuple[int, ...]
    rejected: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    norm: float
    variance: float
    scale: float
    metrics: Mapping[str, float]
    seconds: float
    epsilon: float | None = None
    overhead: Mapping[str, Traffic] = field(default_factory=dict)
    grid_step: GridStep | None = None
    declined: tuple[int, ...] = ()
    leakage: float | None = None
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def turnout(self) -> Turnout:
        """How many were asked and delivered."""
        return Turnout(len(self.clients), len(self.clients) - len(self.rejected))
