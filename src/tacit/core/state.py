"""The values of a run: the server's state, its broadcast, the clients' messages, their sum, and the round's report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, hypot, sqrt
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tacit.core.keys import ClientKeys, Key
from tacit.core.prices import Unit
from tacit.core.rows import DenseRows, Rows, Surplus, add_surplus
from tacit.errors import WireError
from tacit.wire import frames, indices
from tacit.wire.frames import FrameKind, Part, Parts
from tacit.wire.sparse import WireFormat

SERVER = "server/"  # memory under this prefix never leaves the server's process
DROPPED = SERVER + "dropped"  # how many rounds in a row were dropped
MAX_DROPPED = 3  # in a row, after which a run ends
BEST, LOSS, STALE = SERVER + "best", SERVER + "best loss", SERVER + "stale"  # of early stopping
MASK = "codec/mask"  # the name of a fixed mask in a state's memory
MAX_SAMPLES = 10_000_000  # of one client: limits its influence on a weighted mean


@dataclass(frozen=True, eq=False)
class State:
    """Everything that the server carries from one round to the next.

    Attributes:
        round: how many rounds are complete.
        weights: the trainable parameters as one flat vector; with k hypotheses, (k, dim).
        memory: the state of individual pieces, by name, for example `server/momentum`.
        layers: the number of elements of every parameter, in the order of the flat vector.
        shapes: the shapes of these parameters.
    """

    round: int
    weights: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    layers: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        """Its form, without numbers that clients' data have shaped."""
        return f"State(round={self.round}, weights={tuple(self.weights.shape)}, memory={sorted(self.memory)})"

    @property
    def dim(self) -> int:
        """The number of trainable parameters of one model."""
        return self.weights.shape[-1]

    def memory_with(self, name: str, value: Tensor) -> Mapping[str, Tensor]:
        """The memory with one entry set."""
        return {**self.memory, name: value}


@dataclass(frozen=True)
class Round:
    """The current round (`now`), as every party knows it.

    The size of the cohort is not the number of clients at hand: a site is one client of a cohort of, say, 100.

    Attributes:
        index: the number of the round, from 0.
        population: how many clients can be sampled.
        expected_cohort: the mean size of the cohort under the sampler, by which private sums are divided.
        cohort: how many clients were sampled.
        shared: randomness that all parties may know: masks, sensing.
    """

    index: int
    population: int
    expected_cohort: float
    cohort: int
    shared: Key

    @property
    def max_cohort(self) -> int:
        """A bound on the cohort that fails with probability 10⁻³⁰: twelve standard deviations above the mean."""
        return min(self.population, ceil(self.expected_cohort + 12 * sqrt(self.expected_cohort) + 12))


@dataclass(frozen=True)
class ServerRound(Round):
    """The round as the server knows it: with its own key, for noise on sums."""

    server: Key


@dataclass(frozen=True)
class ClientRound(Round):
    """The round as a client knows it: with its own key, for batches, noise shares and rounding."""

    clients: ClientKeys


@dataclass(frozen=True)
class SimulatedRound(ClientRound, ServerRound):
    """The round as a simulation knows it, which plays all parties."""

    @classmethod
    def of(
        cls, index: int, population: int, expected_cohort: float, cohort: int, shared: Key, secret: Key
    ) -> "SimulatedRound":
        """The round of server and clients whose keys all derive from one secret."""
        keys = secret.child("server"), ClientKeys(secret.child("clients"))
        return cls(index, population, expected_cohort, cohort, shared, *keys)

    def of_clients(self) -> ClientRound:
        """The round as the clients know it, without the server's key."""
        return ClientRound(self.index, self.population, self.expected_cohort, self.cohort, self.shared, self.clients)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """The server's message to every client at the start of a round.

    Attributes:
        parts: what is sent in every round.
        first_parts: what is sent in addition with a client's first broadcast.
    """

    parts: Parts
    first_parts: Parts = field(default_factory=dict)

    def client_parts(self, *, first: bool, wire_format: WireFormat | None = None) -> Parts:
        """All parts that a client receives.

        Args:
            first: whether this is the client's first broadcast.
            wire_format: how to encode a whole model, where that is shorter than its numbers.
        """
        parts = {**self.parts, **self.first_parts} if first else self.parts
        return compress_part(parts, Part.WEIGHTS, wire_format) if Part.WEIGHTS in parts else parts


@dataclass(frozen=True, eq=False)
class View:
    """A client's knowledge of a round after reading the broadcast.

    Attributes:
        weights: the model that it starts from; with k hypotheses, (k, dim).
        parts: all that was sent in this round.
        mask: the coordinates that are sent in this round, ascending; None: all of them.
    """

    weights: Tensor
    parts: Parts = field(default_factory=dict)
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """A client's state from round to round, beside its data. It never reaches the server.

    Attributes:
        weights: the model's initial weights, which every client derives from the task; with k hypotheses, (k, dim).
        before: the shared key from before the first round.
        mask: the coordinates of a fixed mask, once the client has received or derived it.
    """

    weights: Tensor
    before: Key
    mask: Tensor | None = None

    @classmethod
    def of(cls, state: State) -> "ClientMemory":
        """The memory of a client that took part in all rounds so far, as the server knows it."""
        return cls(state.weights, Key(bytes(32)), state.memory.get(MASK))

    def read_weights(self, parts: Parts) -> Tensor:
        """The whole model of a broadcast; raises `WireError` unless it has the form of this client's model."""
        weights, initial = parts.get(Part.WEIGHTS), self.weights
        if weights is None or weights.numel() != initial.numel() or weights.dtype != initial.dtype:
            received = "none" if weights is None else f"{weights.numel()} numbers of {weights.dtype}"
            raise WireError(f"Expected a model of {initial.numel()} numbers of {initial.dtype}, got {received}.")
        return weights.view_as(initial)

    def pack(self) -> bytes:
        """The memory as bytes."""
        parts = {
            Part.WEIGHTS: self.weights,
            Part.KEY: torch.frombuffer(bytearray(self.before.value), dtype=torch.uint8),
        }
        if self.mask is not None:
            parts[Part.MASK] = indices.pack(self.mask, self.weights.shape[-1])
        return frames.pack(FrameKind.MEMORY, 0, parts)

    @classmethod
    def read(cls, data: bytes, models: int = 1) -> "ClientMemory":
        """The memory of a client of `models` hypotheses; raises `WireError` for other bytes."""
        parts = frames.unpack(data, FrameKind.MEMORY).parts
        if not {Part.WEIGHTS, Part.KEY} <= parts.keys():
            raise WireError("Expected the memory of a client, with its initial weights and the shared key.")
        if parts[Part.KEY].numel() != 32 or parts[Part.KEY].dtype != torch.uint8:
            raise WireError(f"Expected a shared key of 32 bytes, got {parts[Part.KEY].numel()} numbers.")
        if parts[Part.WEIGHTS].numel() % models:
            raise WireError(f"Expected the weights of {models} models, got {parts[Part.WEIGHTS].numel()} numbers.")
        weights = parts[Part.WEIGHTS] if models == 1 else parts[Part.WEIGHTS].view(models, -1)
        mask = indices.unpack(parts[Part.MASK], weights.shape[-1]) if Part.MASK in parts else None
        return cls(weights, Key(parts[Part.KEY].numpy().tobytes()), mask)


@dataclass(frozen=True, eq=False)
class Messages:
    """The clients' messages, as a stack of rows.

    Attributes:
        clients: the number of each row's client.
        rows: one row per client.
        samples: the number of samples of each client; only if the aggregator weights rows by it.
        grid_step: the step of the grid to which rows are rounded; None: they are not rounded.
        surplus: the part of the rows' noise that can be removed from their sum; None: they have no noise in shares.
            It is never part of a message's bytes: its seeds are the clients' secrets.
    """

    clients: Tensor
    rows: Rows
    samples: Tensor | None = None
    grid_step: "GridStep | None" = None
    surplus: Surplus | None = None

    def keep(self, which: Tensor) -> "Messages":
        """The messages where the boolean `which` is true."""
        samples = None if self.samples is None else self.samples[which]
        clients = self.clients[which]
        surplus = None if self.surplus is None else self.surplus.of(clients.tolist())
        return Messages(clients, self.rows.keep(which), samples, self.grid_step, surplus)


class MessageFormat(Protocol):
    """The format of messages as bytes."""

    @property
    def bits(self) -> int | None:
        """Rows are integers modulo 2^bits; None: any numbers."""

    def pack(self, messages: Messages, i: int, now: Round) -> bytes:
        """Message i."""

    def read(self, data: bytes, client: int, like: Messages, now: Round) -> Messages:
        """The message of one client; raises `WireError` or `ProtocolError` unless it has the form of `like`."""

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        """The length of every message in bytes, without packing it."""


@dataclass(frozen=True)
class FrameFormat:
    """Messages as frames, with rows in a wire format where that is shorter than their numbers."""

    wire: WireFormat | None = None
    bits: ClassVar[int | None] = None

    def pack(self, messages: Messages, i: int, now: Round) -> bytes:
        return frames.pack(FrameKind.MESSAGE, now.index, self._parts(messages, i), now.cohort)

    def read(self, data: bytes, client: int, like: Messages, now: Round) -> Messages:
        frame = frames.unpack(data, FrameKind.MESSAGE)
        expected = {Part.ROW} if like.samples is None else {Part.ROW, Part.SAMPLES}
        if frame.parts.keys() != expected or frame.round != now.index:
            raise WireError("The message has other parts than expected, or is of another round.")
        row = decode_part(frame.parts[Part.ROW], self.wire, like.rows.dim)
        if row.dtype != like.rows.dtype or row.shape != (like.rows.dim,):
            raise WireError(f"Expected {like.rows.dim} numbers of {like.rows.dtype}, got {row.numel()} of {row.dtype}.")
        samples = None if like.samples is None else _validate_samples(frame.parts[Part.SAMPLES])
        return Messages(torch.tensor([client]), DenseRows(row[None]), samples, like.grid_step)

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        count = messages.rows.count
        if self.wire is not None:
            return tuple(frames.size(self._parts(messages, i)) for i in range(count))
        parts = {Part.ROW: torch.empty(messages.rows.dim, dtype=messages.rows.dtype, device="meta")}
        if messages.samples is not None and count:
            parts[Part.SAMPLES] = messages.samples[0]
        return (frames.size(parts),) * count

    def _parts(self, messages: Messages, i: int) -> Parts:
        parts = compress_part({Part.ROW: messages.rows.dense()[i]}, Part.ROW, self.wire)
        return parts if messages.samples is None else {**parts, Part.SAMPLES: messages.samples[i]}


def compress_part(parts: Parts, which: Part, wire_format: WireFormat | None) -> Parts:
    """The parts with one of them encoded in a wire format, if that is shorter than its numbers."""
    if wire_format is None:
        return parts
    data = wire_format.encode(parts[which])
    if len(data) >= parts[which].numel() * parts[which].element_size():
        return parts
    return {**parts, which: torch.frombuffer(bytearray(data), dtype=torch.uint8)}


def decode_part(values: Tensor, wire_format: WireFormat | None, count: int) -> Tensor:
    """The `count` numbers of a part that may be encoded in a wire format."""
    if wire_format is None or values.dtype != torch.uint8:
        return values
    return wire_format.decode(values.numpy().tobytes(), count)


def _validate_samples(values: Tensor) -> Tensor:
    if values.dtype != torch.int64 or values.numel() != 1 or not 1 <= int(values) <= MAX_SAMPLES:
        raise WireError(f"Expected a number of samples from 1 to {MAX_SAMPLES}.")
    return values.view(1)


@dataclass(frozen=True)
class Bound:
    """An L2 clipping bound that every row respects: of the whole row, of each of its layers, or an ellipsoid.

    In an ellipsoid, ‖row / axes‖ is at most the single value.

    Attributes:
        values: the bound, or one bound per layer.
        layers: the sizes of the layers, if there is a bound for each.
        axes: the axes of an ellipsoid, one per coordinate.
        ball: whether rows respect even the largest ball inside the ellipsoid.

    Example:
        >>> Bound((3.0, 4.0), layers=(10, 20)).whole
        5.0
        >>> Bound((2.0,), axes=torch.tensor([0.5, 3.0])).whole
        6.0
    """

    values: tuple[float, ...] = (float("inf"),)
    layers: tuple[int, ...] = ()
    axes: Tensor | None = field(default=None, compare=False)
    ball: bool = False

    @property
    def whole(self) -> float:
        """The largest possible L2 norm of a whole row."""
        if self.axes is None:
            return hypot(*self.values)
        return self.values[0] * float(self.axes.min() if self.ball else self.axes.max())

    def per_coordinate(self, like: Tensor) -> Tensor:
        """The bound of every coordinate, as a tensor that can be multiplied with a row."""
        values = like.new_tensor(self.values)
        if self.axes is not None:
            return values * self.axes.to(like)
        return values.repeat_interleave(torch.tensor(self.layers)) if self.layers else values


@dataclass(frozen=True, eq=False)
class BoundedMessages:
    """Messages with the bound that their rows respect.

    Attributes:
        messages: the messages, clipped.
        bound: their bound; infinite by default.
        statistic: a number that the mechanism needs as a sum over clients, in addition to the rows.
    """

    messages: Messages
    bound: Bound = Bound()
    statistic: float = 0.0

    def summed(self, total: Tensor, weight: float, squared_norms: float) -> "Sum":
        """A sum of these rows, with their bound, statistic and grid."""
        grid_step, surplus = self.messages.grid_step, self.messages.surplus
        return Sum(total, weight, self.bound, self.statistic, squared_norms, grid_step, surplus)


@dataclass(frozen=True, eq=False)
class Sum:
    """A partial sum of a round: the total, its weight, and the bound of the rows in it.

    Sums are added in a fixed order, one per wave; all waves of a round have the same bound.

    Attributes:
        total: the weighted sum of the rows.
        weight: what to divide the total by to get the mean.
        bound: the bound that every row in it respects.
        statistic: the sum of the mechanism's statistic.
        squared_norms: the sum of the squared norms of the rows, weighted as the rows are; for diagnostics.
        grid_step: the step of the grid to which rows were rounded; None: they were not.
        surplus: the part of the rows' noise that can be removed; None: they have no noise in shares.
    """

    total: Tensor
    weight: float
    bound: Bound = Bound()
    statistic: float = 0.0
    squared_norms: float = 0.0
    grid_step: "GridStep | None" = None
    surplus: Surplus | None = None

    @property
    def tolerated(self) -> int:
        """For how many losses the shares of the noise provide; 0 also if there are none."""
        return 0 if self.surplus is None else self.surplus.tolerated

    def __add__(self, other: "Sum") -> "Sum":
        return replace(
            self,
            total=self.total.add_(other.total),
            weight=self.weight + other.weight,
            statistic=self.statistic + other.statistic,
            squared_norms=self.squared_norms + other.squared_norms,
            surplus=add_surplus(self.surplus, other.surplus),
        )


@dataclass(frozen=True)
class GridStep:
    """The step of a grid to which numbers are rounded, so that they add up exactly, as float64 or as integers.

    Attributes:
        size: all numbers are multiples of this power of two.
        inflation: by how much rounding can lengthen a row, relative to its bound; the noise grows by the same factor.
        bits: a sum, in steps, is known from its value modulo 2^bits; 0: as many bits as the channel has.
    """

    size: float
    inflation: float = 0.0
    bits: int = 0


@dataclass(frozen=True)
class Traffic:
    """Bytes from clients to the server (up) and from the server to clients (down)."""

    up: int = 0
    down: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.up + other.up, self.down + other.down)

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(self.up * times, self.down * times)


@dataclass(frozen=True)
class Turnout:
    """The number of clients in the cohort of a round, and the number of those that delivered a message.

    `secret_mean` is the mean size of cohorts whose sizes are secret; 0: they are public.
    """

    cohort: int
    delivered: int
    secret_mean: int = 0

    @property
    def fraction(self) -> float:
        """The fraction of the cohort that delivered; 1 for an empty cohort."""
        return self.delivered / self.cohort if self.cohort else 1.0


@dataclass(frozen=True)
class WaveReport:
    """The clients of a wave that delivered, the L2 norms of their rows, and the rejected clients.

    `lengths` are those by which rows are shortened (`tacit.core.lengths`); empty: they are not.
    """

    delivered: tuple[int, ...]
    rejected: tuple[int, ...]
    norms: tuple[float, ...]
    lengths: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """The measurements of one round.

    Attributes:
        round: the number of complete rounds, from 1.
        clients: the cohort, without clients that declined.
        rejected: clients whose message was not finite, or longer than the method accepts; the others' messages count.
        up: bytes that each client of the cohort sent.
        down: bytes that each client of the cohort received.
        norm: mean L2 norm of the delivered messages; None if the server does not see messages.
        variance: variance between clients of the summed rows, per coordinate (V_c of Geyer et al.); None: as above.
        scale: mean square of their mean, per coordinate (U_s of Geyer et al.); None: as above. These three are not
            private.
        metrics: metrics on held-out data; empty if this round was not evaluated.
        seconds: wall-clock time of the round.
        epsilons: ε of each unit over all rounds so far, at the method's δ, within clients that of the worst client;
            empty if none is accounted for. They are never added.
        overhead: the bytes above that belong to the channel's own protocol, not to messages and broadcasts, by phase.
        grid_step: the step of the grid to which rows were rounded; None: they were not.
        declined: sampled clients that would have exceeded their leakage limit (d-privacy) and sent nothing.
        leakage: the largest leakage of any client so far (d-privacy); None without d-privacy.
        timings: the seconds spent on training and on the phases that the channel measured; empty: not measured.
        dropped: whether the round's sum was longer than honest clients could make it, so that the model is unchanged.
    """

    round: int
    clients: tuple[int, ...]
    rejected: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    norm: float | None
    variance: float | None
    scale: float | None
    metrics: Mapping[str, float]
    seconds: float
    epsilons: Mapping[Unit, float] = field(default_factory=dict)
    overhead: Mapping[str, Traffic] = field(default_factory=dict)
    grid_step: GridStep | None = None
    declined: tuple[int, ...] = ()
    leakage: float | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    dropped: bool = False

    @property
    def turnout(self) -> Turnout:
        return Turnout(len(self.clients), len(self.clients) - len(self.rejected))


def count_dropped(state: State) -> int:
    """How many rounds in a row, up to this state, were dropped because of their sums."""
    return int(state.memory.get(DROPPED, 0))


def drop_round(state: State) -> State:
    """The state after a round whose sum is not used: the model is unchanged."""
    memory = {**state.memory, DROPPED: torch.tensor(count_dropped(state) + 1)}
    return replace(state, round=state.round + 1, memory=memory)


def track_best(patience: int | None, state: State, metrics: Mapping[str, float]) -> State:
    """The state with the best weights updated after an evaluation on held-out data; unchanged without patience."""
    if patience is None or "loss" not in metrics:
        return state
    loss = torch.tensor(metrics["loss"], dtype=torch.float64)
    if LOSS not in state.memory or bool(loss < state.memory[LOSS]):
        updated = {BEST: state.weights, LOSS: loss, STALE: torch.tensor(0)}
    else:
        updated = {STALE: state.memory[STALE] + 1}
    return replace(state, memory={**state.memory, **updated})


def out_of_patience(patience: int | None, state: State) -> bool:
    """Whether the loss has not improved for `patience` evaluations."""
    return patience is not None and STALE in state.memory and int(state.memory[STALE]) >= patience


def final_weights(state: State) -> Tensor:
    """The weights a run returns: the best on held-out data with early stopping, otherwise the last."""
    return state.memory.get(BEST, state.weights)
