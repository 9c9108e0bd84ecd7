"""The default piece of every slot that has one; with a sampler and a trainer they make federated averaging."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from tacit.core.interfaces import AddNoise, Coordinates, DryRun, Payload, Reader, Summation, SumMessages, Visibility
from tacit.core.prices import AggregateNoise, Price, Unit, Unproved
from tacit.core.rows import Rows
from tacit.core.state import (
    BoundedMessages,
    Broadcast,
    ClientMemory,
    ClientRound,
    FrameFormat,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Traffic,
    Turnout,
    View,
)
from tacit.core.wave import Wave
from tacit.errors import WireError, expect
from tacit.wire.frames import Part, Parts
from tacit.wire.sparse import WireFormat

if TYPE_CHECKING:
    from tacit.core.method import Method


@dataclass(frozen=True)
class Identity:
    """No compression: the server broadcasts the whole model, and clients send whole rows."""

    coordinates: ClassVar[Coordinates] = "model"
    fixed: ClassVar[bool] = True
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = (Part.WEIGHTS,)

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        return state

    def broadcast(self, state: State, now: Round) -> Broadcast:
        return Broadcast({Part.WEIGHTS: state.weights})

    def read(self, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
        return View(received_weights(parts, memory), parts), memory

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return rows

    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        return total, state


def received_weights(parts: Parts, memory: ClientMemory) -> Tensor:
    """The whole model of a broadcast; raises `WireError` if it is not one of this client's task."""
    weights, known = parts.get(Part.WEIGHTS), memory.weights
    if weights is None or weights.numel() != known.numel() or weights.dtype != known.dtype:
        found = "none" if weights is None else f"{weights.numel()} numbers of {weights.dtype}"
        raise WireError(f"Expected a model of {known.numel()} numbers of {known.dtype}, got {found}.")
    return weights.view_as(known)


class StatelessMechanism:
    """Mixin for mechanisms that learn nothing from public data or earlier rounds and broadcast nothing."""

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return state

    def broadcast_parts(self, state: State) -> Parts:
        return {}

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return state


class ClientSideMechanism:
    """Mixin for mechanisms that act only at the client: the server neither clips rows nor adds noise."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return total


@dataclass(frozen=True)
class NoNoise(StatelessMechanism, ClientSideMechanism):
    """No clipping and no noise. There is no privacy guarantee: updates can reveal training data."""

    requires: ClassVar[Visibility] = "anything"
    per_layer: ClassVar[bool] = False
    bits: ClassVar[int | None] = None
    expects: ClassVar[Payload | None] = None
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = ()

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Unproved("no noise is added, so updates can reveal training data", noisy=False)

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise:
        return AggregateNoise()

    def sized(self, noise: float) -> Self:
        return self

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages


class DirectConversation:
    """The conversation of channels without a protocol of their own: messages are summed as they are."""

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        return add(messages)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        return add_noise(total)

    def timings(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class Plain:
    """Messages are sent as they are, and the server sees each of them.

    Args:
        wire: the wire format of rows that clients send, where it is shorter than four bytes a number: `Csr()`,
            `Compact()`.
        down: the wire format of whole models that the server sends, where it is shorter.

    Formal guarantees: none on privacy. A row longer than the method's `max_norm` is rejected, and the round goes on.
    Not covered: a client may send any other vector, such as its update with the sign flipped or scaled up to that
    bound, and so move a mean of n clients by the bound over n in every round.

    Sees: the server, every message; anybody on the network too, unless the transport is encrypted.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    messages_seen_by: ClassVar[Reader] = "server"
    caveat: ClassVar[str] = ""
    min_cohort: ClassVar[int] = 0
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True

    def send(self, messages: Messages, now: Round) -> Messages:
        return messages

    @property
    def message_format(self) -> FrameFormat:
        return FrameFormat(self.wire)

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        return {}

    def open(
        self, method: "Method", population: int, seed: int | None = None
    ) -> AbstractContextManager[DirectConversation]:
        return nullcontext(DirectConversation())


@dataclass(frozen=True)
class Mean:
    """The mean of the messages, with the same weight for every client."""

    models: ClassVar[int] = 1
    requires: ClassVar[Summation] = "sum"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        rows = bounded.messages.rows
        squared_norms = float(rows.norms().double().square().sum())
        return bounded.summed(rows.sum(), float(rows.count), squared_norms)

    def finish(self, total: Sum) -> Tensor:
        return total.total / total.weight


@dataclass(frozen=True)
class Add:
    """Add the aggregated update to the model, multiplied by a server learning rate."""

    rate: float = 1.0
    expects: ClassVar[Payload] = "updates"

    def __post_init__(self) -> None:
        expect(self.rate > 0, f"rate={self.rate} > 0")

    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=state.weights.add(aggregate, alpha=self.rate))
