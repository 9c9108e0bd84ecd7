"""Messages in the clear: the server reads every site's own, and adds them up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tacit.core import Messages, Method, Noise, Plain, Round, ServerRound, State, Sum
from tacit.core.interfaces import Conversation
from tacit.core.server_half import aggregate_messages, read_messages, reject_unusable, sum_messages
from tacit.engine.simulation import variance_and_scale
from tacit.engine.waves import single_thread
from tacit.errors import ProtocolError, TooFewClientsError
from tacit.federation import metrics
from tacit.federation.channels.interface import Arrangement, Connect, Member, SiteReply, Survival, register
from tacit.federation.channels.noise import server_draws
from tacit.federation.messages import EVALUATE, TRAIN, RefusedError, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.federation.server.round_reports import RoundOutcome, SiteBytes
from tacit.protocols.secagg import Vector

if TYPE_CHECKING:
    from tacit.federation.plan.plan import FederationPlan
    from tacit.federation.server.enrolled_sites import EnrolledSites
    from tacit.federation.site.policy import Allow


@register(Plain)
@dataclass(frozen=True)
class FederatedPlain:
    """`Plain` between sites."""

    channel: Plain
    words: ClassVar[tuple[str, ...]] = ("plain",)
    arranged: ClassVar[type[Arrangement] | None] = None
    sums_metrics: ClassVar[bool] = False
    too_few: ClassVar[str] = "is repeated"
    notes: ClassVar[tuple[str, ...]] = ()
    word: ClassVar[str] = "plain"
    allowed_by: ClassVar[tuple[str, ...]] = words
    min_cohort: ClassVar[int] = 0

    @classmethod
    def check_policy(cls, allow: "Allow") -> None:
        """It has no table."""

    def adapted(self, method: Method, sites: int, least: int, arranged: Arrangement | None) -> Method:
        return method

    def obstacle(self, method: Method, sites: int, cohort: float) -> str:
        return ""

    def problem(self, plan: "FederationPlan") -> str:
        return unneeded(plan)

    def exposed(self, method: Method) -> str:
        return server_draws(method)

    def objections(self, plan: "FederationPlan", allow: "Allow") -> Iterator[str]:
        return iter(())

    def reveals(self, method: Method) -> Iterator[str]:
        if self.exposed(method):
            yield "The server sees every message without noise: it must be trusted. Other sites learn the model."
        else:
            yield "The server sees every message of every site. Other sites learn the model."
        if method.weighted:
            yield "The server learns how many samples every site has."

    def survival(self, cohort: int, least: int) -> Survival:
        return Survival(messages=1, losses=max(cohort - least, 0), colluding=None)

    def at_server(self, sites: "EnrolledSites", noise: Noise, connect: Connect | None) -> "PlainServer":
        return PlainServer(sites)

    def at_site(self, member: Member) -> "PlainSite":
        return PlainSite(self.channel)


def unneeded(plan: "FederationPlan") -> str:
    """That a plan has a table for another channel than its own, in a sentence; empty: it has none."""
    found = plan.arrangement
    return "" if found is None else f"The plan names an {found.name}, but {plan.method.name} sends nothing to one."


@dataclass(frozen=True)
class PlainServer:
    """The server of `Plain`."""

    sites: "EnrolledSites"

    def check(self) -> None:
        """Sites suffice."""

    def draw(self, state: State, now: ServerRound) -> list[int] | None:
        return None

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, talk: Conversation
    ) -> RoundOutcome:
        """The sum of all messages that can be read and are not too long."""
        method, traffic = self.sites.plan.method, SiteBytes()
        replies = self.sites.ask_round(TRAIN, asked, dict.fromkeys(asked.cohort, b""), traffic)
        found, malformed = read_messages(method, replies, like, now)
        kept, wave = reject_unusable(found, method.max_norm(like.rows.dim))
        for number in (*malformed, *wave.rejected):
            self.sites.fail(
                number, malformed.get(number, "its update is not finite, or longer than the method accepts")
            )
        self._check_enough(len(wave.delivered))
        with single_thread():
            total = _sum(method, state, kept, talk, now)
        diagnostics = (float(np.mean(wave.norms)) if wave.norms else 0.0, *variance_and_scale(total))
        content = sum(map(len, replies.values()))
        return RoundOutcome(total, wave.delivered, diagnostics, {"envelope": traffic.beyond(content, asked)}, traffic)

    def _check_enough(self, delivered: int) -> None:
        least = self.sites.plan.least_cohort
        if delivered < least:
            raise TooFewClientsError(
                f"Expected at least {least} sites to deliver, got {delivered}. "
                f"{self.sites.explanation()}Nothing was released."
            )

    def metrics(self, asked: SiteRequest, traffic: SiteBytes) -> tuple[HeldOut, int]:
        return read_metrics(self.sites, asked, traffic)

    def close(self) -> None:
        """Nothing is open."""


def read_metrics(sites: "EnrolledSites", asked: SiteRequest, traffic: SiteBytes) -> tuple[HeldOut, int]:
    """The sum of metrics that sites send in the clear, and of how many sites it is."""
    vectors = [*_vectors(sites.ask_round(EVALUATE, asked, dict.fromkeys(asked.cohort, b""), traffic))]
    return HeldOut.of_sum(sum(vectors, np.zeros(metrics.DIM, np.uint32))), len(vectors)


def _vectors(replies: Mapping[int, bytes]) -> Iterator[Vector]:
    for data in replies.values():
        try:
            yield metrics.unpack_vector(data)
        except ProtocolError:
            continue


def _sum(method: Method, state: State, kept: Messages, talk: Conversation, now: Round) -> Sum:
    """The messages' sum, in the order of the sites' numbers, whenever they came."""
    if not method.streams:
        return aggregate_messages(method, talk, state, kept, now)
    numbers = kept.clients
    parts = (sum_messages(method, state, kept.keep(numbers == number)) for number in numbers.tolist())
    first = next(parts)
    return reduce(lambda total, part: total + part, parts, replace(first, total=first.total.clone()))


@dataclass(frozen=True)
class PlainSite:
    """A site of `Plain`."""

    channel: Plain

    def opens(self, verb: str) -> bool:
        return False

    def check(self, asked: SiteRequest, like: Messages, now: Round) -> None:
        """Every request of a round that fits the plan can be answered."""

    def reply(self, asked: SiteRequest, found: Messages, now: Round) -> SiteReply:
        return SiteReply(self.channel.message_format.pack(found, 0, now))

    def check_evaluation(self, asked: SiteRequest) -> None:
        """The same for metrics."""

    def reply_metrics(self, asked: SiteRequest, vector: Vector) -> SiteReply:
        return SiteReply(metrics.pack_vector(vector))

    def further(self, state: bytes, request: bytes) -> SiteReply:
        raise RefusedError("malformed", "The plan's channel asks for one message only.")

    def prepare(self, request: bytes) -> tuple[bytes, Mapping[str, str]]:
        raise RefusedError("malformed", "The plan's channel asks for nothing before a round.")
