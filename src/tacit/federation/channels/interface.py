"""The one interface between a federation and its channels, and where the halves of a channel are found.

A channel of `tacit.pieces.channels` says how messages are summed. What that means between sites is in one file here:
what the server gathers, what a site replies, how a method is adapted, what is objected to, revealed and survived. The
halves of the piece `SecureSum` are in `secure_sum.py`, which registers them and is imported when a plan or a policy
names the channel. Nothing else in the federation knows any channel. A channel answers what differs: the answers below
are those of messages in the clear.
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

Connect = Callable[[], Any]  # to a party beside server and sites


@dataclass(frozen=True)
class Survival:
    """What a round of a whole cohort takes and survives.

    Attributes:
        messages: of the server to a site.
        losses: how many of the cohort may be lost.
        colluding: how many of it may collude with the server; None: the channel hides nothing from it.
    """

    messages: int
    losses: int
    colluding: int | None


@dataclass(frozen=True)
class SiteReply:
    """What a site sends, and the state of the conversation that goes on; empty: it has ended."""

    body: bytes
    state: bytes = b""


@dataclass(frozen=True)
class Member:
    """A site that has accepted a plan, as its channel knows it.

    Attributes:
        plan: what is trained.
        number: the site's.
        identity: its secret key.
        allow: its policy.
        folder: where it keeps what belongs to the plan.
    """

    plan: "FederationPlan"
    number: int
    identity: bytes
    allow: "SitePolicy"
    folder: Path


class Arrangement(Protocol):
    """What a plan's table for its channel says, to which all sites agree; `name` is that of the table."""

    name: ClassVar[str]

    @classmethod
    def read(cls, table: Mapping[str, Any], path: Path, *, configured: bool) -> Self:
        """What the table in the plan's file `path` says; `configured`: with the files that it names."""

    def canonical(self) -> dict[str, Any]:
        """What sites agree to, as plain values."""

    @classmethod
    def from_canonical(cls, content: Mapping[str, Any]) -> Self:
        """The inverse."""


class ServerHalf(Protocol):
    """What the server does."""

    sites: "EnrolledSites"

    def validate(self) -> None:
        """Raise unless a round could begin, before anything is charged; sites suffice where there is nobody else."""
        return

    def draw(self, state: State, now: ServerRound) -> list[int] | None:
        """The next round's cohort, if it is drawn elsewhere; None: the server draws it."""
        return None

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> "RoundOutcome":
        """What the round brings: the sum of messages like these, and whose they are."""

    def metrics(self, asked: SiteRequest, traffic: "SiteBytes") -> tuple[HeldOut, int]:
        """The sum of the sites' metrics, and of how many sites it is; here, metrics that are sent in the clear."""
        replies = self.sites.ask_round(EVALUATE, asked, dict.fromkeys(asked.cohort, b""), traffic)
        vectors = [*metrics.read_vectors(replies.values())]
        return HeldOut.of_sum(sum(vectors, np.zeros(metrics.DIM, np.uint32))), len(vectors)

    def close(self) -> None:
        """End connections, after the last round or an error."""
        return


class SiteHalf(Protocol):
    """What a site does. It trusts nobody: what is not safe to answer raises `RefusedError` or `ProtocolError`."""

    def opens(self, verb: str) -> bool:
        """Whether a request with this verb brings the first request of a protocol."""
        return False

    def validate(self, asked: SiteRequest, like: Messages, now: Round) -> None:
        """Raise unless the site could answer with a message like this: nothing is noted, charged or drawn yet."""
        return

    def reply(self, asked: SiteRequest, found: Messages, now: Round) -> SiteReply:
        """The answer to the first message of a round."""

    def check_evaluation(self, asked: SiteRequest) -> None:
        """The same as `validate` for metrics."""
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
    """A channel between sites, made of its piece.

    Attributes:
        words: what names it in a site's policy.
        arranged: what its table in a plan is; None: it has none.
        sums_metrics: whether nobody sees the metrics of a single site.
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
        """The words of a policy each of which allows it."""
        return (self.word,)

    @property
    def min_cohort(self) -> int:
        """The fewest sites with which a round can begin."""
        return 0

    @classmethod
    def check_policy(cls, allow: "SitePolicy") -> None:
        """Raise `UserError` unless the policy's tables for this channel can be read."""

    def adapted(self, method: Method, sites: int, least: int, arranged: Arrangement | None) -> Method:
        """The method as this many sites run it, with sums of at least `least` of them."""
        return method

    def incompatibility(self, method: Method, sites: int, cohort: float) -> str:
        """Why the method cannot run between this many sites, in a sentence or as a `TacitError`; empty: it can."""
        return ""

    def problem(self, plan: "FederationPlan") -> str:
        """Why what the plan arranges is not for this channel, a sentence; empty: it is, or there is nothing."""
        arrangement = plan.arrangement
        return (
            ""
            if arrangement is None
            else f"The plan names an {arrangement.name}, but {plan.method.name} sends nothing to one."
        )

    def exposed(self, method: Method) -> str:
        """Why the server must be trusted with messages without noise, in a sentence; empty: it need not be."""
        return server_draws(method)

    def objections(self, plan: "FederationPlan", allow: "SitePolicy") -> Iterator[str]:
        """What a site's policy objects to in what the plan arranges, as sentences."""
        return iter(())

    def reveals(self, method: Method) -> Iterator[str]:
        """Who learns what in a round, as sentences."""

    def survival(self, cohort: int, least: int) -> Survival:
        """What a round of this cohort takes and survives; it ends with at least `least` sites."""

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> ServerHalf:
        """The server's half; `connect` replaces the connection to a further party, in tests."""

    def at_site(self, member: Member) -> SiteHalf:
        """The half of a site."""


Halves = TypeVar("Halves")
_registered: dict[type, type[FederatedChannel]] = {}


def register(piece: type) -> Callable[[Halves], Halves]:
    """Register a class as the federated halves of a piece, of which it is made."""

    def note(halves: Halves) -> Halves:
        _registered[piece] = halves  # type: ignore[assignment]  # mypy does not compare a class with a protocol here
        return halves

    return note


def channel_of(method: Method) -> FederatedChannel:
    """The halves of a method's channel; raises `UserError` for one that exists in simulations only.

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
    """The keys of a plan that are tables of channels, and what reads them."""
    kinds = {key: channel_named(key) for key in content}
    return {key: kind.arranged for key, kind in kinds.items() if kind is not None and kind.arranged is not None}


def all_words() -> list[str]:
    """What a policy may name: the words of channels that need nothing else first."""
    for module in pkgutil.iter_modules(channels.__path__):
        _load(module.name)
    kinds = sorted(_registered.values(), key=lambda kind: (kind.arranged is not None, kind.words))
    return [word for kind in kinds for word in kind.words]


def _load(name: str) -> None:
    """Import the file of a channel, which registers its halves, if there is one."""
    if name in {module.name for module in pkgutil.iter_modules(channels.__path__)}:
        importlib.import_module(f"{channels.__name__}.{name}")
