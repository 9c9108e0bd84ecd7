"""The interfaces of the seven pieces of a method, as Protocols.

Pieces are frozen records. What they carry from round to round lives in `State.memory` at the server and in
`ClientMemory` at a client, and all randomness comes from the keys in `now`: a `ServerRound` has the server's, a
`ClientRound` the clients'.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from torch import Tensor

from tacit.core.keys import Key
from tacit.core.prices import AggregateNoise, Price, RecordPrice, RecordSum, Sampling, Unit
from tacit.core.rows import Rows
from tacit.core.state import (
    BoundedMessages,
    Broadcast,
    ClientMemory,
    ClientRound,
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

Payload = Literal["updates", "weights"]
Visibility = Literal["all messages", "messages", "anything", "only the sum"]  # what a mechanism needs to be summed
Summation = Literal["sum", "weighted sum", "messages"]
Reader = Literal["server", "enclave", "nobody"]
Coordinates = Literal["model", "mask", "other"]


class Sampler(Protocol):
    """Who takes part in a round, and how does sampling amplify privacy?"""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """The clients of round `index`, in ascending order."""
        ...

    def sampling(self, population: int, index: int) -> Sampling:
        """How that cohort is drawn, which amplifies privacy for an adversary who does not know it.

        Raises `UserError` if the population is too small for it.
        """
        ...


class Trainer(Protocol):
    """What does a client compute from its data?"""

    @property
    def sends(self) -> Payload:
        """Whether rows are updates or whole weights."""
        ...

    @property
    def masked(self) -> bool:
        """Whether it trains only the coordinates that the codec selected."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether each client chooses the hypothesis that it trains; the choice is never sent."""
        ...

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One row per client of the wave."""
        ...

    def kept(self, shapes: Shapes) -> tuple[int | None, ...]:
        """How many weights of each parameter a client sends, None where it sends all; empty: all of all parameters."""
        ...

    def variants(self, state: State) -> Mapping[str, Tensor]:
        """Further weights to evaluate beside those of the model, by the prefix of their metrics (`pruned`)."""
        ...


@runtime_checkable
class RecordTrainer(Trainer, Protocol):
    """A trainer that bounds what single records contribute, or adds noise for them."""

    def record_price(self, samples: int) -> RecordPrice | None:
        """What a round releases about one record of a client with so many samples, noise of the trainer's own included.

        None: the trainer adds no noise, and protects no record by itself.
        """
        ...

    @property
    def record_sum(self) -> RecordSum | None:
        """How far one record can change a row, where a row is a sum over a Poisson batch; None: it is none."""
        ...

    def sized(self, noise: float) -> Self:
        """The trainer with this noise multiplier of its own noise; itself if it adds none."""
        ...


@runtime_checkable
class BoundedFor(Protocol):
    """A codec, selection, mechanism, channel or aggregator that declares whose influence on a row it does not enlarge.

    For clients every piece is harmless, because rows are clipped after it. For records and persons a row is a sum of
    parts that were clipped before it, so that a piece is harmless only if it changes the sum by a linear map that
    lengthens nothing, given what is public, and reads no data. Choosing coordinates by the update, a vote, a count, or
    a message whose length depends on the row are not. A piece that declares nothing is bounded for clients alone, and
    `Method` refuses it where noise is for records.
    """

    @property
    def bounded_for(self) -> tuple[Unit, ...]:
        """The units."""
        ...


@runtime_checkable
class ReadsParts(Protocol):
    """A codec or mechanism that declares which parts of a broadcast it reads; a client refuses all others.

    Of a piece that declares nothing, a client accepts any.
    """

    @property
    def reads(self) -> tuple[Part, ...]:
        """The parts."""
        ...


@runtime_checkable
class ChecksBroadcast(Protocol):
    """A mechanism that can tell, before anything is computed or charged, whether a broadcast is one of its method."""

    def check_broadcast(self, view: View) -> None:
        """Raise `WireError` unless what the mechanism reads of it is what the method says."""
        ...


class Codec(Protocol):
    """In which coordinates are updates sent? `read` and `encode` run at the clients, all else at the server."""

    @property
    def coordinates(self) -> Coordinates:
        """What a row's numbers belong to: all weights of the model, those under a mask, or something else."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether the same coordinates are sent in all rounds."""
        ...

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The state before the first round, with what this codec learns from public data, if there is any."""
        ...

    def broadcast(self, state: State, now: Round) -> Broadcast:
        """What the server sends at the start of a round."""
        ...

    def read(self, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
        """What a client makes of the broadcast, and what it keeps; raises `WireError` for parts that do not fit."""
        ...

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The rows in the coordinates that are sent."""
        ...

    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        """An aggregate as a vector of the model, and the state with what this codec keeps of it for later rounds."""
        ...


@runtime_checkable
class CalibratedCodec(Codec, Protocol):
    """A codec whose decoding depends on the noise of aggregates, such as a threshold below which all is noise."""

    def calibrate(self, state: State, public: Wave, noise: AggregateNoise, now: Round) -> State:
        """The state before the first round, with how aggregates of this noise are decoded, learnt from public data.

        It is called after `prepare`, where there are public data and the mechanism declares its noise.
        """
        ...


DryRun = Callable[[int], Rows]  # what a client with the public data would send, for the n-th draw of shared randomness


class Mechanism(Protocol):
    """How are updates clipped and noised, and what does that cost? Client side and server side in one piece."""

    @property
    def requires(self) -> Visibility:
        """What the party that sums must see: all messages of a round together, every message, or nothing in particular.

        `only the sum`: clients add noise in shares, so that only their sum is private and nobody may see a message.
        """
        ...

    @property
    def per_layer(self) -> bool:
        """Whether it needs rows with the model's layers, for example to clip each layer separately."""
        ...

    @property
    def expects(self) -> Payload | None:
        """Whether rows must be updates or whole weights; None: either."""
        ...

    @property
    def bits(self) -> int | None:
        """Its noise is integer-valued, for sums modulo 2^bits; None: it is real-valued, or there is none."""
        ...

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """What round `index` costs its participants, before amplification by sampling.

        Without a turnout, the price promised before the round; with one, the price of what took place.
        """
        ...

    def sized(self, noise: float) -> Self:
        """The same mechanism with this noise multiplier, if its price is `Unsized`; otherwise itself."""
        ...

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        """The state before the first round, with what this mechanism learns from public data, if there is any."""
        ...

    def broadcast_parts(self, state: State) -> Parts:
        """What clients need for their side, in addition to the codec's broadcast."""
        ...

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        """The client side: clip and add noise before sending; `data` belongs to the same clients."""
        ...

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        """The server side before aggregation: clip every row to the bound."""
        ...

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """The server side after aggregation: add noise scaled to the bound of the sum."""
        ...

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        """The state with what this mechanism derives from the round's sum, before noise, for the next round."""
        ...


SumMessages = Callable[[Messages], Sum]
AddNoise = Callable[[Sum], Sum]


class Conversation(Protocol):
    """A channel during a run: all that changes from round to round is here, and the channel stays a frozen record."""

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """The sum of the messages; `add` clips and sums those that a party sees in the clear."""
        ...

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        """What the server receives of the round's sum; `add_noise` is the mechanism's `after_sum`."""
        ...

    def timings(self) -> Mapping[str, float]:
        """The seconds that each phase of the last round took; empty: not measured."""
        ...


class Channel(Protocol):
    """Who sees which part of the messages, and how many bytes do they take?"""

    @property
    def messages_seen_by(self) -> Reader:
        """Who sees single messages: the server, an enclave, or nobody, so that there is only their sum."""
        ...

    @property
    def caveat(self) -> str:
        """A warning that every output of a run with this channel must carry; empty: none."""
        ...

    @property
    def min_cohort(self) -> int:
        """The fewest clients that a round needs; fewer are treated as none. 0: any number will do."""
        ...

    @property
    def tolerates(self) -> str:
        """How many clients may collude or drop out, in words; empty if that does not apply."""
        ...

    @property
    def streams(self) -> bool:
        """Whether a simulation may sum each wave separately, without the conversation, and add the results."""
        ...

    def send(self, messages: Messages, now: Round) -> Messages:
        """The client side: messages converted to the numbers that this channel carries."""
        ...

    @property
    def message_format(self) -> MessageFormat:
        """How messages become bytes, before encryption."""
        ...

    @property
    def down(self) -> WireFormat | None:
        """The wire format of whole models that the server sends, where it is shorter; None: plain numbers."""
        ...

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        """What a client sends and receives in addition to message and broadcast, by phase of the channel's protocol.

        `tolerated`: the losses for which messages carry surplus noise, whose seeds clients share.
        """
        ...

    def open(
        self, method: "Method", population: int, seed: int | None = None
    ) -> AbstractContextManager["Conversation"]:
        """The conversation of one simulated run, with its resources, such as a process.

        Args:
            method: whose channel this is.
            population: how many clients there are.
            seed: of the run, from which simulated parties derive their keys; None: single rounds outside a run, for
                which no party is started and the same result is computed without it.
        """
        ...


@runtime_checkable
class RecordMechanism(Protocol):
    """A mechanism whose noise may be scaled to what one record adds to a row, and not to a client's whole row."""

    @property
    def record_bound(self) -> float | None:
        """The bound on what one record adds to a row; None: the noise is scaled to whole rows."""
        ...

    @property
    def row_bound(self) -> float | None:
        """The largest norm of a row that is a sum over records, without noise; None likewise."""
        ...


@runtime_checkable
class DeclaresNoise(Protocol):
    """A mechanism that declares, before the first round, which noise an aggregate will have."""

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise | None:
        """The bound of rows and the noise of their sum divided by the expected cohort, in the first round.

        None: not known before the round, because the noise multiplier is not, or the bound depends on rows.
        """
        ...


class Aggregator(Protocol):
    """How do many messages become one model, or k?"""

    @property
    def models(self) -> int:
        """How many models it produces; with more than one, the state's weights are (models, dim)."""
        ...

    @property
    def requires(self) -> Summation:
        """What it must see: only sums, sums weighted by the number of samples of each client, or every message."""
        ...

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """The contribution of these messages to the sum."""
        ...

    def finish(self, total: Sum) -> Tensor:
        """The aggregate of all contributions."""
        ...


class ServerUpdate(Protocol):
    """How does the aggregate change the model?"""

    @property
    def expects(self) -> Payload:
        """Whether aggregates are updates or whole weights."""
        ...

    def apply(self, state: State, aggregate: Tensor) -> State:
        """The state after the round, except for its round number."""
        ...
