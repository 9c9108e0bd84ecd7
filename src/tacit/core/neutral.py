"""The default piece of every slot that has one; with a sampler and a trainer they make federated averaging."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from tacit.core.interfaces import AddNoise, Coordinates, DryRun, Payload, SumMessages, Visibility
from tacit.core.prices import Price, Unproved
from tacit.core.rows import Rows
from tacit.core.state import BoundedMessages, Messages, Round, State, Sum, Traffic, Turnout, View
from tacit.core.wave import Wave
from tacit.errors import expect
from tacit.wire import frames
from tacit.wire.sparse import WireFormat

if TYPE_CHECKING:
    from tacit.core.method import Method


@dataclass(frozen=True)
class Identity:
    """No compression: the server broadcasts the whole model, and clients send whole rows."""

    coordinates: ClassVar[Coordinates] = "model"
    fixed: ClassVar[bool] = True

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        return state

    def view(self, state: State, now: Round) -> View:
        return View(state.weights, {frames.Part.WEIGHTS: state.weights})

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return rows

    def decode(self, total: Tensor, state: State, now: Round) -> Tensor:
        return total

    def update_state(self, state: State, total: Tensor, now: Round) -> State:
        return state


class StatelessMechanism:
    """Mixin for mechanisms that learn nothing from public data or earlier rounds and broadcast nothing."""

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return state

    def broadcast_parts(self, state: State) -> Mapping[frames.Part, Tensor]:
        return {}

    def update_state(self, state: State, total: Sum, now: Round) -> State:
        return state


class ClientSideMechanism:
    """Mixin for mechanisms that act only at the client: the server neither clips rows nor adds noise."""

    def before_sum(self, messages: Messages, state: State, now: Round) -> BoundedMessages:
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        return total


@dataclass(frozen=True)
class NoNoise(StatelessMechanism, ClientSideMechanism):
    """No clipping and no noise. There is no privacy guarantee: updates can reveal training data."""

    requires: ClassVar[Visibility] = "sum"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False
    distributed: ClassVar[bool] = False
    per_layer: ClassVar[bool] = False
    bits: ClassVar[int | None] = None
    expects: ClassVar[Payload | None] = None

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Unproved("no noise is added, so updates can reveal training data")

    def sized(self, noise: float) -> Self:
        return self

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
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

    Sees: the server, every message; anybody on the network too, unless the transport is encrypted.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    server_sees: ClassVar[Visibility] = "messages"
    aggregates: ClassVar[Visibility] = "messages"
    caveat: ClassVar[str] = ""
    bits: ClassVar[int | None] = None
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True

    def send(self, messages: Messages, now: Round) -> Messages:
        return messages

    def upload_sizes(self, messages: Messages, now: Round) -> tuple[int, ...]:
        return messages.sizes(self.wire)

    def download_size(self, view: View, now: Round, *, first: bool) -> int:
        return view.size(first=first, wire_format=self.down)

    def overhead(self, now: Round) -> Mapping[str, Traffic]:
        return {}

    def open(
        self, method: "Method", population: int, seed: int | None = None
    ) -> AbstractContextManager[DirectConversation]:
        return nullcontext(DirectConversation())


@dataclass(frozen=True)
class Mean:
    """The mean of the messages, with the same weight for every client."""

    models: ClassVar[int] = 1
    requires: ClassVar[Visibility] = "sum"
    uniform: ClassVar[bool] = True

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
