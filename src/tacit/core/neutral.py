"""The default piece of every slot that has one; with a sampler and a trainer they make federated averaging."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from tacit.core.interfaces import (
    Aggregator,
    Channel,
    Codec,
    Coordinates,
    Mechanism,
    Reader,
    ServerUpdate,
    Summation,
    Visibility,
)
from tacit.core.prices import AggregateNoise, Price, Unit, Unproved
from tacit.core.rows import Rows
from tacit.core.state import (
    BoundedMessages,
    ClientRound,
    FrameFormat,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
)
from tacit.core.wave import Wave
from tacit.errors import positive
from tacit.wire.frames import Part
from tacit.wire.sparse import WireFormat


@dataclass(frozen=True)
class Identity(Codec):
    """No compression: the server broadcasts the whole model, and clients send whole rows."""

    coordinates: ClassVar[Coordinates] = "model"
    fixed: ClassVar[bool] = True
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = (Part.WEIGHTS,)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return rows

    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        return total, state


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """No clipping and no noise. There is no privacy guarantee: updates can reveal training data."""

    requires: ClassVar[Visibility] = "anything"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = ()

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Unproved("no noise is added, so updates can reveal training data", noisy=False)

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise:
        return AggregateNoise()

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return total


@dataclass(frozen=True)
class Plain(Channel):
    """Messages are sent as they are, and the server sees each of them.

    Args:
        wire: the wire format of rows that clients send, where it is shorter than four bytes a number: `Csr()`,
            `Compact()`.
        down: the wire format of whole models that the server sends, where it is shorter.

    Formal guarantees: none on privacy. A row longer than the method's `max_norm` is rejected, and the round goes on;
    one much longer than others counts as much as they do, or nothing (`tacit.core.lengths`). Not covered: a client may
    send any other vector, such as its update with the sign flipped, and so move a mean of n clients by four times the
    usual length over n in every round.

    Sees: the server, every message; anybody on the network too, unless the transport is encrypted.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    messages_seen_by: ClassVar[Reader] = "server"
    streams: ClassVar[bool] = True

    @property
    def message_format(self) -> FrameFormat:
        return FrameFormat(self.wire)


@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean of the messages, with the same weight for every client."""

    requires: ClassVar[Summation] = "sum"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        return sum_messages(bounded)


def sum_messages(bounded: BoundedMessages) -> Sum:
    """The sum of all messages, each with the same weight."""
    rows = bounded.messages.rows
    squared_norms = float(rows.norms().double().square().sum())
    return bounded.summed(rows.sum(), float(rows.count), squared_norms)


@dataclass(frozen=True)
class Add(ServerUpdate):
    """Add the aggregated update to the model, multiplied by a server learning rate."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        positive(rate=self.rate)

    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=state.weights.add(aggregate, alpha=self.rate))
