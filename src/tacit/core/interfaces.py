"""The interfaces of the seven pieces of a method, as Protocols with defaults.

Pieces are frozen values. Their state from round to round is in `State.memory` at the server and in `ClientMemory` at a
client. All randomness comes from the keys in `now`: a `ServerRound` has the server's, a `ClientRound` the clients'.

A piece of your own is a subclass of its Protocol. It defines the abstract members and inherits defaults for the rest.
What it does not declare is assumed to be the worst case: a mechanism needs all messages together, a channel shows the
server every message, and a piece is bounded for clients alone.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol, Self

from torch import Tensor

from tacit.core.keys import Key
from tacit.core.prices import AggregateNoise, Price, RecordPrice, RecordSum, RecordSums, Sampling, Unit
from tacit.core.rows import Rows
from tacit.core.state import (
    BoundedMessages,
    Broadcast,
    ClientMemory,
    ClientRound,
    FrameFormat,
    MessageFormat,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Traffic,
    Turnout,
    View,
)
from tacit.core.wave import Shapes, Wave
from tacit.wire.frames import Part, Parts
from tacit.wire.sparse import WireFormat

if TYPE_CHECKING:
    from tacit.core.method import Method

Payload = Literal["updates", "weights", "terms"]
Visibility = Literal["all messages", "messages", "anything", "only the sum"]  # what the summing party must see
Summation = Literal["sum", "weighted sum", "messages"]
Reader = Literal["server", "enclave", "nobody"]
Coordinates = Literal["model", "mask", "other"]


class Bounded(Protocol):
    """A piece that may change a client's row, or the sum of rows, after records were clipped."""

    @property
    def bounded_for(self) -> tuple[Unit, ...]:
        """The units whose influence on a row this piece does not enlarge.

        For clients every piece is harmless, because rows are clipped after it. For records and persons a row is a sum
        of parts that were clipped before it. A piece is then harmless only if it reads no data and changes the sum by a
        linear map, fixed by what is public, that lengthens no vector. Coordinates chosen by the update, a vote, a count
        or a message whose length depends on the row are not harmless. A piece that does not declare this itself is
        bounded for clients alone, and `Method` refuses it where noise is for records.
        """
        return (Unit.CLIENT,)


class Sampler(Protocol):
    """Who takes part in a round, and how does sampling amplify privacy?"""

    @abstractmethod
    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """The clients of round `index`, in ascending order."""

    @abstractmethod
    def sampling(self, population: int, index: int) -> Sampling:
        """The sampling of that cohort, which amplifies privacy for an adversary who does not know it.

        Raises `UserError` if the population is too small for it.
        """


class Trainer(Protocol):
    """What does a client compute from its data?"""

    @abstractmethod
    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One row per client of the wave."""

    @property
    def sends(self) -> Payload:
        """Whether rows are updates, whole weights, or sums of terms that answer a query."""
        return "updates"

    @property
    def masked(self) -> bool:
        """Whether it trains only the coordinates that the codec selected."""
        return False

    @property
    def state_length(self) -> int | None:
        """The length of the state that it works on, in float64; None: that of any model."""
        return None

    @property
    def chooses(self) -> bool:
        """Whether each client chooses the hypothesis to train; the choice is never sent."""
        return False

    def weight_counts(self, shapes: Shapes) -> tuple[int | None, ...]:
        """The number of weights that a client sends of each parameter; None: all; empty: all of all parameters."""
        return ()

    def variants(self, state: State) -> Mapping[str, Tensor]:
        """Further weights to evaluate beside those of the model, by the prefix of their metrics (`pruned`)."""
        return {}

    def record_price(self, samples: int) -> RecordPrice | None:
        """The price of a round for one record of a client with `samples`, with the trainer's own noise.

        None: the trainer adds no noise, and protects no record by itself.
        """
        return None

    @property
    def record_sum(self) -> RecordSum | None:
        """The most that one record can change a row that is a sum over a Poisson batch; None: a row is no such sum."""
        return None

    @property
    def draws_persons(self) -> bool:
        """Whether batches draw persons, with all their records, where the task assigns records to persons."""
        return False

    def with_noise_multiplier(self, noise: float) -> Self:
        """The trainer with this noise multiplier of its own noise; itself if it adds none."""
        return self


class Codec(Bounded, Protocol):
    """In which coordinates are updates sent? `read` and `encode` run at the clients, all else at the server."""

    @abstractmethod
    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The rows in the coordinates that are sent."""

    @abstractmethod
    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        """An aggregate as a vector of the model, and the state with what this codec keeps of it for later rounds."""

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of a row: all weights of the model, those under a mask, or something else."""
        return "other"

    @property
    def fixed(self) -> bool:
        """Whether the same coordinates are sent in all rounds."""
        return False

    @property
    def reads(self) -> tuple[Part, ...]:
        """The parts of a broadcast that it reads; a client refuses all others. Not declared: any."""
        return tuple(Part)

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The state before the first round, with what this codec learns from public data, if there is any."""
        return state

    def tune(self, state: State, public: Wave, noise: AggregateNoise, now: Round) -> State:
        """The state before the first round, with a decoder for aggregates of this noise, fitted to public data.

        It is called after `prepare` if there are public data and the mechanism declares its noise.
        """
        return state

    def broadcast(self, state: State, now: Round) -> Broadcast:
        """The server's broadcast at the start of a round: the whole model, unless a codec sends less."""
        return Broadcast({Part.WEIGHTS: state.weights})

    def read(self, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
        """A client's view of the broadcast and its memory afterwards; raises `WireError` for parts that do not fit."""
        return View(memory.read_weights(parts), parts), memory


DryRun = Callable[[int], Rows]  # what a client with the public data would send, for the n-th draw of shared randomness


class Mechanism(Bounded, Protocol):
    """How are updates clipped and noised, and what does that cost? Client side and server side in one piece."""

    @abstractmethod
    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """The price of round `index` for its participants, before amplification by sampling.

        Without a turnout, the price promised before the round; with one, the price of what took place.
        """

    @abstractmethod
    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        """The client side: clip and add noise before sending; `data` belongs to the same clients."""

    @abstractmethod
    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        """The server side before aggregation: clip every row to the bound."""

    @abstractmethod
    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """The server side after aggregation: add noise scaled to the bound of the sum."""

    @property
    def requires(self) -> Visibility:
        """What the summing party must see: all messages of a round together, every message, or nothing in particular.

        `only the sum`: clients add noise in shares, so that only their sum is private and nobody may see a message.
        """
        return "all messages"

    @property
    def per_layer(self) -> bool:
        """Whether it needs rows with the model's layers, for example to clip each layer separately."""
        return False

    @property
    def expects(self) -> Payload | None:
        """Whether rows must be updates or whole weights; None: either."""
        return None

    def honest_clients(self, cohort: int) -> int | None:
        """How many of a cohort have to deliver honest noise for the declared price; None: clients add none."""
        return None

    @property
    def bits(self) -> int | None:
        """Its noise is integer-valued, for sums modulo 2^bits; None: it is real-valued, or there is none."""
        return None

    @property
    def reads(self) -> tuple[Part, ...]:
        """The parts of a broadcast that it reads; a client refuses all others. Not declared: any."""
        return tuple(Part)

    @property
    def record_bound(self) -> float | None:
        """The bound on what one record adds to a row, to which noise is scaled; None: it is scaled to whole rows."""
        return None

    @property
    def record_sums(self) -> RecordSums:
        """How the sums over records must be computed for which its noise provides."""
        return "float32"

    @property
    def row_bound(self) -> float | None:
        """The largest norm of a row that is a sum over records, without noise; None: noise is scaled to whole rows."""
        return None

    def with_noise_multiplier(self, noise: float) -> Self:
        """The same mechanism with this noise multiplier, if its price is `Uncalibrated`; otherwise itself."""
        return self

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        """The state before the first round, with what this mechanism learns from public data, if there is any."""
        return state

    def broadcast_parts(self, state: State) -> Parts:
        """The parts that the client side needs, in addition to the codec's broadcast."""
        return {}

    def check_broadcast(self, view: View) -> None:
        """Raise `WireError` unless the parts that the mechanism reads agree with the method.

        A client calls this before it computes or charges anything.
        """
        return

    def max_sum(self, total: Sum, now: ServerRound) -> float | None:
        """The largest L2 norm of the sum with noise that honest clients can cause, except with probability 2⁻⁴⁰.

        None: not known, or whoever sees the messages has clipped them.
        """
        return None

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        """The state for the next round, updated from the round's sum before noise."""
        return state

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise | None:
        """The bound of rows and the noise of their sum divided by the expected cohort, in the first round.

        None: not known before the round, because the noise multiplier is not, or the bound depends on rows.
        """
        return None


SumMessages = Callable[[Messages], Sum]
AddNoise = Callable[[Sum], Sum]


class Conversation(Protocol):
    """A channel during a run: it holds what changes from round to round; the channel itself is frozen."""

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """The sum of the messages; `add` clips and sums those that a party sees in the clear."""
        return add(messages)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        """The round's sum as the server receives it; `add_noise` is the mechanism's `after_sum`."""
        return add_noise(total)

    def timings(self) -> Mapping[str, float]:
        """The seconds that each phase of the last round took; empty: not measured."""
        return {}


class DirectConversation(Conversation):
    """The conversation of channels without a protocol of their own: messages are summed unchanged."""


class Channel(Bounded, Protocol):
    """Who sees which part of the messages, and how many bytes do they take?"""

    @property
    @abstractmethod
    def messages_seen_by(self) -> Reader:
        """Who sees single messages: the server, an enclave, or nobody, so that only their sum is known."""

    @property
    def caveat(self) -> str:
        """A warning that every output of a run with this channel must carry; empty: none."""
        return ""

    @property
    def min_cohort(self) -> int:
        """The fewest clients that a round needs; fewer are treated as none. 0: any number will do."""
        return 0

    @property
    def tolerates(self) -> str:
        """The clients that may collude or drop out, in words; empty if that does not apply."""
        return ""

    @property
    def streams(self) -> bool:
        """Whether a simulation may sum each wave separately, without the conversation, and add the results."""
        return False

    def send(self, messages: Messages, now: Round) -> Messages:
        """The client side: messages converted to the numbers that this channel carries."""
        return messages

    @property
    def message_format(self) -> MessageFormat:
        """The format of messages as bytes, before encryption."""
        return FrameFormat()

    @property
    def down(self) -> WireFormat | None:
        """The wire format of whole models that the server sends, where it is shorter; None: plain numbers."""
        return None

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        """The whole cohort's traffic in addition to messages and broadcasts, by phase of the channel's protocol.

        `tolerated`: the losses for which messages carry surplus noise, whose seeds some clients share.
        """
        return {}

    def open(self, method: "Method", population: int, seed: int | None = None) -> AbstractContextManager[Conversation]:
        """The conversation of one simulated run, with its resources, such as a process.

        Args:
            method: whose channel this is.
            population: the number of clients.
            seed: of the run, from which simulated parties derive their keys; None: for single rounds outside a run, for
                which no party is started and the same result is computed without one.
        """
        return nullcontext(DirectConversation())


class Aggregator(Bounded, Protocol):
    """How do many messages become one model, or k?"""

    @abstractmethod
    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """The contribution of these messages to the sum."""

    @property
    def models(self) -> int:
        """The number of models that it produces; with more than one, the state's weights are (models, dim)."""
        return 1

    @property
    def requires(self) -> Summation:
        """What it must see: only sums, sums weighted by the number of samples of each client, or every message."""
        return "messages"

    def finish(self, total: Sum) -> Tensor:
        """The aggregate of all contributions."""
        return total.total / total.weight


class ServerUpdate(Protocol):
    """How does the aggregate change the model?"""

    @abstractmethod
    def apply(self, state: State, aggregate: Tensor) -> State:
        """The state after the round, except for its round number."""

    @property
    def expects(self) -> Payload:
        """Whether aggregates are updates, whole weights, or sums of terms."""
        return "updates"

    @property
    def counts(self) -> tuple[tuple[float, str], ...]:
        """Numbers of clients' units that this update contains, each with what is counted; guarantees list them."""
        return ()
