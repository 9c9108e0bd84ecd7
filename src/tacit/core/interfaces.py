"""The seven questions a method answers, as Protocols.

Pieces are frozen records. They hold no state of their own: what they remember lives in `State.memory`, and all
randomness comes from the keys in `Round`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from torch import Tensor

from tacit.core.keys import Key
from tacit.core.rows import Rows
from tacit.core.state import BoundedMessages, Messages, Round, State, Sum, Traffic, Turnout, View
from tacit.core.wave import Shapes, Wave
from tacit.wire.frames import Part

if TYPE_CHECKING:
    from tacit.core.method import Method

Payload = Literal["updates", "weights"]
Visibility = Literal["messages", "sum"]


class Event(Protocol):
    """What was released, for the privacy books to price: an event of `dp_accounting`, opaque to the core.

    Its noise multipliers are over what one client can add to the sum, whatever the adjacency it is priced for.
    """

    def to_named_tuple(self) -> object:
        """The event in plain values."""
        ...


@dataclass(frozen=True)
class ApproximateEvent:
    """What was released is no further than this from another event, in total variation.

    Attributes:
        event: the other.
        distance: how much of δ may be lost by taking one for the other, times 1 + e^ε.
    """

    event: Event
    distance: float

    def to_named_tuple(self) -> object:
        """The event in plain values."""
        return ("Near", self.event.to_named_tuple(), self.distance)


class Sampler(Protocol):
    """Who takes part, and what does that do for privacy?"""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """The clients of round `index`, in ascending order."""
        ...

    def expected_cohort(self, population: int, index: int) -> float:
        """The mean size of that cohort; raises `UserError` if this population cannot give it."""
        ...

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event of round `index` as seen from outside, where nobody knows who took part."""
        ...


class Trainer(Protocol):
    """What does a client learn?"""

    @property
    def sends(self) -> Payload:
        """Whether rows are updates or whole weights."""
        ...

    @property
    def masked(self) -> bool:
        """Whether it trains only the coordinates that the codec chose."""
        ...

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One row per client."""
        ...


@runtime_checkable
class PruningTrainer(Protocol):
    """A trainer that sends few of the weights, so that the aggregated model is worth a second look. Most are not."""

    def kept_counts(self, shapes: Shapes) -> tuple[int | None, ...]:
        """How many numbers of each parameter a client sends; None: all, because it is not pruned."""
        ...

    def pruned_weights(self, state: State, shapes: Shapes) -> Tensor | None:
        """The model with as few weights as a client sends; None: pruning has not begun."""
        ...


@runtime_checkable
class HypothesisTrainer(Protocol):
    """A trainer whose clients choose one of several hypotheses."""

    def choose(self, view: View, data: Wave) -> Tensor:
        """The number of each client's choice, which is never sent."""
        ...


class Codec(Protocol):
    """In which coordinates is it said?"""

    @property
    def selects(self) -> bool:
        """Whether it chooses some of the model's coordinates."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether the same coordinates travel in all rounds."""
        ...

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The state before the first round, with what this codec learns from public data, if there are any."""
        ...

    def view(self, state: State, now: Round) -> View:
        """What clients are told at the start of a round."""
        ...

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The rows in the coordinates that travel."""
        ...

    def decode(self, total: Tensor, state: State, now: Round) -> Tensor:
        """A vector of those coordinates as a vector of the model's."""
        ...

    def update_state(self, state: State, total: Tensor, now: Round) -> State:
        """The state with what this codec learnt from the round's aggregate, for the next one."""
        ...


DryRun = Callable[[int], Rows]  # what a client with the public data would send, at one draw of the shared randomness


class Mechanism(Protocol):
    """How is it blurred, and what does that cost? Both halves, client and server, in one piece."""

    @property
    def requires(self) -> Visibility:
        """What the server must see for this mechanism to work: every message, or only their sum."""
        ...

    @property
    def row_wise(self) -> bool:
        """Whether `before_sum` treats each row by itself, so that waves can be summed as they come."""
        ...

    @property
    def bounds_rows(self) -> bool:
        """Whether anything is blurred at all."""
        ...

    @property
    def needs_noise(self) -> bool:
        """Whether the noise is still to be sized for a method's budget and a population."""
        ...

    @property
    def distributed(self) -> bool:
        """Whether a client adds only its share of the noise, so that nobody may see a message by itself."""
        ...

    @property
    def per_layer(self) -> bool:
        """Whether it needs rows with the model's layers, as a bound for every layer does."""
        ...

    @property
    def adversary(self) -> str:
        """From whom clients are protected."""
        ...

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed about privacy, event or not; empty if the event bounds all that is released."""
        ...

    @property
    def bits(self) -> int | None:
        """Its noise is of integers, for sums modulo 2^bits; None: of real numbers, or there is none."""
        ...

    def event(self, index: int, turnout: Turnout | None = None) -> Event | None:
        """What round `index` releases about those who take part in it; None: nothing is proved.

        Without a turnout, what is promised before the round; with one, what it came to.
        """
        ...

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        """The state before the first round, with what this mechanism learns from public data, if there are any."""
        ...

    def broadcast_parts(self, state: State) -> Mapping[Part, Tensor]:
        """What clients must be told for their half, beside what the codec says."""
        ...

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """The client's half: clip and blur before anything is sent; `data` are those of the same clients."""
        ...

    def before_sum(self, messages: Messages, state: State, now: Round) -> BoundedMessages:
        """The server's half, before aggregation: bound every row."""
        ...

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """The server's half, after aggregation: blur by the bound that went into the sum."""
        ...

    def update_state(self, state: State, total: Sum, now: Round) -> State:
        """The state with what this mechanism learnt from the round, before it was blurred, for the next one."""
        ...


@runtime_checkable
class MetricMechanism(Protocol):
    """A mechanism that blurs each message by itself, so that each client has a price of its own: d-privacy.

    The price says how well two points within a radius can be told apart, and grows with their distance. It is no
    (ε, δ), and the two are never added up.
    """

    @property
    def radius(self) -> float | None:
        """The radius, public and fixed beforehand; None: it depends on the data, and the price is nominal."""
        ...

    @property
    def limit(self) -> float | None:
        """What a client may leak in all rounds together before it declines to take part; None: anything."""
        ...

    @property
    def expects(self) -> Payload:
        """What it blurs: updates or whole weights."""
        ...

    def leakage(self, dim: int) -> float:
        """What one message of so many numbers costs within the radius."""
        ...


@runtime_checkable
class NominalMechanism(Protocol):
    """A mechanism that comes with figures of its paper, which are no guarantee."""

    @property
    def nominal(self) -> Mapping[str, float]:
        """The figures by their names."""
        ...


def nominal(mechanism: Mechanism) -> Mapping[str, float]:
    """The figures of a mechanism that are no guarantee; most have none."""
    return mechanism.nominal if isinstance(mechanism, NominalMechanism) else {}


@runtime_checkable
class PayloadMechanism(Protocol):
    """A mechanism that must know whether rows are updates or weights."""

    @property
    def expects(self) -> Payload:
        """Which of them."""
        ...


SumMessages = Callable[[Messages], Sum]
AddNoise = Callable[[Sum], Sum]


class Channel(Protocol):
    """Who sees which part of it, in how many bytes?"""

    @property
    def server_sees(self) -> Visibility:
        """What the server sees."""
        ...

    @property
    def aggregates(self) -> Visibility:
        """What mechanism and aggregator are given, wherever they run: every message, or only their sum."""
        ...

    @property
    def caveat(self) -> str:
        """What everything that a run leaves must say about this channel; empty: nothing."""
        ...

    @property
    def bits(self) -> int | None:
        """It carries integers modulo 2^bits; None: any numbers."""
        ...

    @property
    def tolerates(self) -> str:
        """How many may collude or be lost, in words; empty where that is no question."""
        ...

    @property
    def streams(self) -> bool:
        """Whether a simulation may let each wave meet by itself and add up what comes of it."""
        ...

    def send(self, messages: Messages, now: Round) -> Messages:
        """The client's half: messages in the numbers that this channel carries."""
        ...

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """Where messages come together; `add` is what anybody would do who sees them: bound them and add them up."""
        ...

    def release(self, total: Sum, now: Round, blur: AddNoise) -> Sum:
        """What the server gets of the round's sum; `blur` is the mechanism's half after aggregation."""
        ...

    def upload_sizes(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """How many bytes the client of each of these messages sends."""
        ...

    def download_size(self, view: View, now: Round, *, first: bool) -> int:
        """How many bytes a client receives, whose first view it is or not."""
        ...

    def overhead(self, now: Round) -> Mapping[str, Traffic]:
        """What a client sends and receives beside row and view, by phase of the channel's own protocol."""
        ...

    def open(self, method: "Method", population: int, seed: int) -> "AbstractContextManager[Channel]":
        """This channel for one simulated run, with what it needs while it goes, such as a process."""
        ...

    def timings(self) -> Mapping[str, float]:
        """How long the parts of the last round took; empty: it was not measured."""
        ...


class Aggregator(Protocol):
    """How do many become one, or k?"""

    @property
    def models(self) -> int:
        """How many models come of it; with more than one, the state's weights are (models, dim)."""
        ...

    @property
    def requires(self) -> Visibility:
        """What it must see: every message, or only sums."""
        ...

    @property
    def uniform(self) -> bool:
        """Whether every client counts the same, as bounded sensitivity requires."""
        ...

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """What these messages contribute."""
        ...

    def finish(self, total: Sum) -> Tensor:
        """The aggregate of all contributions."""
        ...


class ServerUpdate(Protocol):
    """What becomes of the model?"""

    @property
    def expects(self) -> Payload:
        """Whether aggregates are updates or whole weights."""
        ...

    def apply(self, state: State, aggregate: Tensor) -> State:
        """The state of the next round, but for the round's number."""
        ...
