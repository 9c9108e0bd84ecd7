"""Messages in the clear: the server reads each site's message and adds them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tacit.core import Messages, Method, Plain, Randomness, Round, ServerRound, State, Sum
from tacit.core.interfaces import Conversation
from tacit.core.lengths import row_limit, shorten_outliers
from tacit.core.server_half import aggregate_messages, read_messages, reject_unusable, sum_messages
from tacit.engine.simulation import variance_and_scale
from tacit.engine.waves import single_thread
from tacit.errors import TooFewClientsError
from tacit.federation.channels.interface import (
    Connect,
    FederatedChannel,
    Member,
    ServerHalf,
    SiteHalf,
    SiteReply,
    Survival,
    register,
)
from tacit.federation.messages import TRAIN, SiteRequest
from tacit.federation.server.round_reports import RoundOutcome, SiteBytes

if TYPE_CHECKING:
    from tacit.federation.server.enrolled_sites import EnrolledSites


@register(Plain)
@dataclass(frozen=True)
class FederatedPlain(FederatedChannel):
    """`Plain` between sites."""

    channel: Plain
    words: ClassVar[tuple[str, ...]] = ("plain",)

    def reveals(self, method: Method) -> Iterator[str]:
        if self.exposure(method):
            yield "The server sees every message without noise: it must be trusted. Other sites learn the model."
        else:
            yield "The server sees every message of every site. Other sites learn the model."
        if method.weighted:
            yield (
                "The server learns how many samples every site has. Nobody checks the number: a site that overstates "
                "it decides about the model. With weighted=false every site counts the same."
            )

    def survival(self, cohort: int, least: int) -> Survival:
        return Survival(messages=1, losses=max(cohort - least, 0), colluding=None)

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> "PlainServer":
        return PlainServer(sites)

    def at_site(self, member: Member) -> "PlainSite":
        return PlainSite(self.channel)


@dataclass(frozen=True)
class PlainServer(ServerHalf):
    """The server of `Plain`."""

    sites: "EnrolledSites"

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> RoundOutcome:
        """The sum of all valid messages within the norm bound, those much longer than others shortened."""
        method, traffic = self.sites.plan.method, SiteBytes()
        replies = self.sites.ask_round(TRAIN, asked, dict.fromkeys(asked.cohort, b""), traffic)
        received, malformed = read_messages(method, replies, like, now)
        usable, wave = reject_unusable(received, row_limit(method, received, state, now))
        for number in (*malformed, *wave.rejected):
            self.sites.fail(
                number, malformed.get(number, "its update is not finite, or longer than the method accepts")
            )
        self._check_enough(len(wave.delivered))
        with single_thread():
            total = self._sum(state, usable, conversation, now)
        diagnostics = (float(np.mean(wave.norms)) if wave.norms else 0.0, *variance_and_scale(total))
        content = sum(map(len, replies.values()))
        return RoundOutcome(total, wave.delivered, diagnostics, {"envelope": traffic.beyond(content, asked)}, traffic)

    def _sum(self, state: State, kept: Messages, conversation: Conversation, now: Round) -> Sum:
        """The messages' sum in the order of the sites' numbers, not of arrival."""
        method, numbers = self.sites.plan.method, kept.clients
        short = shorten_outliers(method, kept, state)
        if short is not kept:
            changed = (short.rows.dense() != kept.rows.dense()).any(1)
            self.sites.log("shortened", round=state.round + 1, sites=self.sites.names(numbers[changed].tolist()))
        if not method.streams:
            return aggregate_messages(method, conversation, state, kept, now)
        parts = (sum_messages(method, state, short.keep(numbers == number)) for number in numbers.tolist())
        first = next(parts)
        return reduce(lambda total, part: total + part, parts, replace(first, total=first.total.clone()))

    def _check_enough(self, delivered: int) -> None:
        least = self.sites.plan.min_cohort
        if delivered < least:
            raise TooFewClientsError(
                f"Expected at least {least} sites to deliver, got {delivered}. "
                f"{self.sites.explanation()}Nothing was released."
            )


@dataclass(frozen=True)
class PlainSite(SiteHalf):
    """A site of `Plain`."""

    channel: Plain

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        return SiteReply(self.channel.message_format.pack(messages, 0, now))
