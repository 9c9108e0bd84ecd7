"""The neutral element of every slot that has one: together they make federated averaging."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from tacit.core.interfaces import AddNoise, DryRun, Payload, SumMessages, Visibility
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
    """Say everything, as it is: the whole model down, the whole row up."""

    selects: ClassVar[bool] = False
    fixed: ClassVar[bool] = True

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """Nothing."""
        return state

    def view(self, state: State, now: Round) -> View:
        """All weights."""
        return View(state.weights, {frames.Part.WEIGHTS: state.weights})

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The rows themselves."""
        return rows

    def decode(self, total: Tensor, state: State, now: Round) -> Tensor:
        """The vector itself."""
        return total

    def update_state(self, state: State, total: Tensor, now: Round) -> State:
        """Nothing."""
        return state


class StatelessMechanism:
    """A mechanism for which all is settled beforehand: nothing is learnt, and nothing told but the method itself."""

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        """Nothing."""
        return state

    def broadcast_parts(self, state: State) -> Mapping[frames.Part, Tensor]:
        """Nothing."""
        return {}

    def update_state(self, state: State, total: Sum, now: Round) -> State:
        """Nothing."""
        return state


class ClientSideMechanism:
    """A mechanism that leaves it at the client's half: the server neither bounds rows nor blurs their sum."""

    def before_sum(self, messages: Messages, state: State, now: Round) -> BoundedMessages:
        """The messages themselves, under no bound."""
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """The sum itself."""
        return total


@dataclass(frozen=True)
class NoNoise(StatelessMechanism, ClientSideMechanism):
    """AddNoise nothing. There is no guarantee."""

    requires: ClassVar[Visibility] = "sum"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False
    distributed: ClassVar[bool] = False
    per_layer: ClassVar[bool] = False
    adversary: ClassVar[str] = "nobody"
    bits: ClassVar[int | None] = None
    unproved: ClassVar[str] = "nothing is blurred, so what is sent may give away the data it was computed from"

    def event(self, index: int, turnout: Turnout | None = None) -> None:
        """Nothing is proved."""

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """The messages themselves."""
        return messages


class StatelessChannel:
    """A channel that needs nothing beside itself while a run goes, and measures no parts of a round."""

    caveat: ClassVar[str] = ""

    def open(self, method: "Method", population: int, seed: int) -> AbstractContextManager[Self]:
        """Nothing is needed."""
        return nullcontext(self)

    def timings(self) -> Mapping[str, float]:
        """Nothing is measured."""
        return {}


class DirectChannel(StatelessChannel):
    """A channel without a protocol of its own: messages are numbers of any kind, and meet as they are."""

    bits: ClassVar[int | None] = None
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True

    def send(self, messages: Messages, now: Round) -> Messages:
        """The messages themselves."""
        return messages

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """Whoever sees them adds them up."""
        return add(messages)

    def release(self, total: Sum, now: Round, blur: AddNoise) -> Sum:
        """The sum, blurred."""
        return blur(total)

    def overhead(self, now: Round) -> Mapping[str, Traffic]:
        """None: there is nothing but the messages."""
        return {}


@dataclass(frozen=True)
class Plain(DirectChannel):
    """Send messages as they are: the server sees every one of them.

    Args:
        wire: the form in which clients send rows, where it is shorter than four bytes a number: `Csr()`, `Compact()`.
        down: the form in which the server sends whole models, where it is shorter.

    Sees: the server, every message; whoever reads the network too, unless the transport is encrypted.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    server_sees: ClassVar[Visibility] = "messages"
    aggregates: ClassVar[Visibility] = "messages"

    def upload_sizes(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """One frame per message."""
        return messages.sizes(self.wire)

    def download_size(self, view: View, now: Round, *, first: bool) -> int:
        """One frame with the view's parts."""
        return view.size(first=first, wire_format=self.down)


@dataclass(frozen=True)
class Mean:
    """The mean of the messages; every client counts the same."""

    models: ClassVar[int] = 1
    requires: ClassVar[Visibility] = "sum"
    uniform: ClassVar[bool] = True

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """The sum of the rows, and their number."""
        rows = bounded.messages.rows
        squared_norms = float(rows.norms().double().square().sum())
        return Sum(
            rows.sum(), float(rows.count), bounded.bound, bounded.statistic, squared_norms, bounded.messages.grid_step
        )

    def finish(self, total: Sum) -> Tensor:
        """The sum over the number."""
        return total.total / total.weight


@dataclass(frozen=True)
class Add:
    """Add the aggregated update to the model, times a rate."""

    rate: float = 1.0
    expects: ClassVar[Payload] = "updates"

    def __post_init__(self) -> None:
        expect(self.rate > 0, f"rate={self.rate} > 0")

    def apply(self, state: State, aggregate: Tensor) -> State:
        """The model moved by the update."""
        return replace(state, weights=state.weights.add(aggregate, alpha=self.rate))
