"""The one interface between a federation and its channels, and the registry of their halves.

A channel of `tacit.pieces.channels` defines how messages are summed. One file here defines its behaviour between sites:
the server's half, a site's half, the adaptation of a method, objections, disclosures and tolerated losses. For example,
`secure_sum.py` registers the halves of `SecureSum`, and is imported when a plan or a policy names the channel. No other
module of the federation depends on a particular channel. The defaults below are those of messages in the clear: a
channel overrides what differs.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from tacit.core import Messages, Method, Randomness, Round, ServerRound, State
from tacit.core.interfaces import Conversation
from tacit.errors import UserError
from tacit.federation import channels, metrics
from tacit.federation.channels.noise import server_draws
from tacit.federation.messages import EVALUATE, RefusedError, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.protocols.secagg import Vector

if TYPE_CHECKING:
    from tacit.federation.plan.plan import FederationPlan
    from tacit.federation.server.enrolled_sites import EnrolledSites
    from tacit.federation.server.round_reports import RoundOutcome, SiteBytes
    from tacit.federation.site.policy import SitePolicy

Connect = Callable[[], Any]  # to a further party


@dataclass(frozen=True)
class Survival:
    """What a round of a whole cohort takes and survives.

    Attributes:
        messages: of the server to a site.
        losses: how many of the cohort may drop out.
        colluding: how many may collude with the server; None: the channel hides nothing from it.
    """

    messages: int
    losses: int
    colluding: int | None


@dataclass(frozen=True)
class SiteReply:
    """A site's message, and the state of the conversation; empty: it has ended.

    Attributes:
        body: the message.
        state: of the conversation.
        lasting: whether later conversations continue from the state (`Member.kept`).
    """

    body: bytes
    state: bytes = b""
    lasting: bool = False


@dataclass(frozen=True)
class Member:
    """A site that accepted a plan, as its channel sees it.

    Attributes:
        plan: what is trained.
        number: the site's.
        identity: its secret key.
        allow: its policy.
        folder: where it keeps the plan's files.
        kept: reads the latest lasting state of a conversation; empty: there is none.
    """

    plan: "FederationPlan"
    number: int
    identity: bytes
    allow: "SitePolicy"
    folder: Path
    kept: Callable[[], bytes] = bytes


class Arrangement(Protocol):
    """A plan's table for its channel, on which all sites agree; `name` is the table's."""

    name: ClassVar[str]

    @classmethod
    def read(cls, table: Mapping[str, Any], path: Path, *, configured: bool) -> Self:
        """Read the table of the plan's file `path`; `configured`: with the files that it names."""

    def canonical(self) -> dict[str, Any]:
        """What sites agree to, as plain values."""

    @classmethod
    def from_canonical(cls, content: Mapping[str, Any]) -> Self:
        """The inverse."""


class ServerHalf(Protocol):
    """The server's half."""

    sites: "EnrolledSites"

    def validate(self) -> None:
        """Raise before any charge unless a round could begin; by default, sites suffice."""
        return

    def draw(self, state: State, now: ServerRound) -> list[int] | None:
        """The next round's cohort, if another party draws it; None: the server does."""
        return None

    def invite(self, present: list[int]) -> list[int]:
        """The next round's cohort, if the server draws it and these of it are present; by default, they."""
        return present

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> "RoundOutcome":
        """The round's outcome: the sum of messages like these, and their senders."""

    def metrics(self, asked: SiteRequest, traffic: "SiteBytes") -> tuple[HeldOut, int]:
        """The sum of the sites' metrics, and the number of sites; by default, metrics in the clear."""
        replies = self.sites.ask_round(EVALUATE, asked, dict.fromkeys(asked.cohort, b""), traffic)
        vectors = [*metrics.read_vectors(replies.values())]
        return HeldOut.of_sum(sum(vectors, np.zeros(metrics.DIM, np.uint32))), len(vectors)

    def close(self) -> None:
        """End connections, after the last round or an error."""
        return


class SiteHalf(Protocol):
    """A site's half. It trusts nobody: an unsafe request raises `RefusedError` or `ProtocolError`."""

    def opens(self, verb: str) -> bool:
        """Whether a request with this verb brings the first request of a protocol."""
        return False

    def validate(self, asked: SiteRequest, like: Messages, now: Round) -> None:
        """Raise unless the site could answer with a message like this; notes, charges and draws nothing."""
        return

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        """The answer to the first message of a round."""

    def check_evaluation(self, asked: SiteRequest) -> None:
        """`validate` for metrics."""
        return

    def reply_metrics(self, asked: SiteRequest, vector: Vector) -> SiteReply:
        """The answer to the first message of an evaluation."""
        return SiteReply(metrics.pack_vector(vector))

    def further(self, state: bytes, request: bytes) -> SiteReply:
        """The answer to every further request of a conversation."""
        raise RefusedError("malformed", "The plan's channel asks for one message only.")

    def prepare(self, request: bytes) -> tuple[bytes, Mapping[str, str]]:
        """The answer to a request before a round, and an entry of the site's journal; empty: none."""
        raise RefusedError("malformed", "The plan's channel asks for nothing before a round.")


class FederatedChannel(Protocol):
    """A channel between sites, made from its piece.

    Attributes:
        words: its names in a site's policy.
        arranged: the type of its table in a plan; None: it has none.
        sums_metrics: whether it hides the metrics of a single site.
        too_few: what happens to a round whose cohort is too small.
        notes: what to consider, as sentences.
    """

    words: ClassVar[tuple[str, ...]]
    arranged: ClassVar[type[Arrangement] | None] = None
    sums_metrics: ClassVar[bool] = False
    too_few: ClassVar[str] = "is repeated"
    notes: ClassVar[tuple[str, ...]] = ()

    @property
    def word(self) -> str:
        """Its name in checks and objections."""
        return self.words[0]

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """The words of a policy, each of which allows it."""
        return (self.word,)

    @property
    def min_cohort(self) -> int:
        """The fewest sites with which a round can begin."""
        return 0

    @classmethod
    def check_policy(cls, allow: "SitePolicy") -> None:
        """Raise `UserError` unless the policy's tables for this channel can be read."""

    def adapt(self, method: Method, sites: int, least: int, arranged: Arrangement | None) -> Method:
        """The method as this many sites run it, with sums of at least `least` sites."""
        return method

    def incompatibility(self, method: Method, sites: int, cohort: float) -> str:
        """Why the method cannot run between this many sites, in a sentence or as a `TacitError`; empty: it can."""
        return ""

    def problem(self, plan: "FederationPlan") -> str:
        """Why the plan's arrangement does not suit this channel, a sentence; empty: it does, or there is none."""
        arrangement = plan.arrangement
        return (
            ""
            if arrangement is None
            else f"The plan names an {arrangement.name}, but {plan.method.name} sends nothing to one."
        )

    def exposure(self, method: Method) -> str:
        """Why the server must be trusted with messages without noise, a sentence; empty: it need not be."""
        return server_draws(method)

    def objections(self, plan: "FederationPlan", allow: "SitePolicy") -> Iterator[str]:
        """A site's objections to the plan's arrangement, as sentences."""
        return iter(())

    def reveals(self, method: Method) -> Iterator[str]:
        """Who learns what in a round, as sentences."""

    def survival(self, cohort: int, least: int) -> Survival:
        """The messages and tolerated losses of a round that must end with at least `least` sites."""

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> ServerHalf:
        """The server's half; tests replace the connection to a further party by `connect`."""

    def at_site(self, member: Member) -> SiteHalf:
        """The half of a site."""


Halves = TypeVar("Halves")
_registered: dict[type, type[FederatedChannel]] = {}


def register(piece: type) -> Callable[[Halves], Halves]:
    """Register a class as the federated halves of a piece, from which it is made."""

    def note(halves: Halves) -> Halves:
        _registered[piece] = halves  # type: ignore[assignment]  # mypy does not compare a class with a protocol here
        return halves

    return note


def channel_of(method: Method) -> FederatedChannel:
    """The halves of a method's channel; raises `UserError` for a simulation-only channel.

    Example:
        >>> from tacit import methods
        >>> channel_of(methods.make("fl-std")).word
        'plain'
    """
    kind = type(method.channel)
    if kind not in _registered:
        _load(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower())
    if kind not in _registered:
        raise UserError(
            f"{method.name} assumes {kind.__name__}, a sum that nobody computes between sites. "
            'Use channel = "SecureSum()".'
        )
    return _registered[kind](method.channel)  # type: ignore[call-arg]  # a protocol has no constructor


def channel_named(word: str) -> type[FederatedChannel] | None:
    """The channel with this word of a policy; None: there is none."""
    _load(word.partition("/")[0].replace("-", "_"))
    return next((kind for kind in _registered.values() if word in kind.words), None)


def arrangements(content: Mapping[str, Any]) -> dict[str, type[Arrangement]]:
    """The keys of a plan that are tables of channels, with their types."""
    kinds = {key: channel_named(key) for key in content}
    return {key: kind.arranged for key, kind in kinds.items() if kind is not None and kind.arranged is not None}


def all_words() -> list[str]:
    """What a policy may name: the words of channels that need nothing else first."""
    for module in pkgutil.iter_modules(channels.__path__):
        _load(module.name)
    kinds = sorted(_registered.values(), key=lambda kind: (kind.arranged is not None, kind.words))
    return [word for kind in kinds for word in kind.words]


def _load(name: str) -> None:
    """Import the file of a channel, if there is one, to register its halves."""
    if name in {module.name for module in pkgutil.iter_modules(channels.__path__)}:
        importlib.import_module(f"{channels.__name__}.{name}")
