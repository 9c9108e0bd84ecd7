"""Secure aggregation between sites: each party derives the session from its own bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from tacit.core import Messages, Method, Randomness, Round, ServerRound, State
from tacit.core.interfaces import Conversation
from tacit.core.server_half import sum_of_total
from tacit.core.state import Traffic
from tacit.federation import messages as wire
from tacit.federation.channels.interface import (
    Arrangement,
    Connect,
    FederatedChannel,
    Member,
    ServerHalf,
    SiteHalf,
    SiteReply,
    Survival,
    register,
)
from tacit.federation.channels.noise import in_shares
from tacit.federation.messages import EVALUATE, TRAIN, SiteRequest
from tacit.federation.metrics import DIM, HeldOut
from tacit.federation.server.round_reports import RoundOutcome, SiteBytes
from tacit.pieces.channels import SecureSum
from tacit.pieces.channels.secure_sum import THREAT_MODELS, opened_surplus
from tacit.protocols import crypto
from tacit.protocols.pad_processes import remove_many_pads
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggClientState,
    SecaggOutcome,
    SecaggPolicy,
    SecaggSession,
    Vector,
    answer,
    by_part,
    converse,
    join_round,
    set_vector,
)
from tacit.wire.packing import pack_number, packed_size

if TYPE_CHECKING:
    from tacit.federation.plan.plan import FederationPlan
    from tacit.federation.server.enrolled_sites import EnrolledSites

_FEW = 64  # up to this many sites, secrets are shared on a complete graph
_LOSSES = 0.25  # the least fraction of few sites that may drop out: one of four, two of eight
CORRUPT = 0.25  # the least fraction of few sites that may collude with the server


@register(SecureSum)
@dataclass(frozen=True)
class FederatedSecureSum(FederatedChannel):
    """`SecureSum` between sites."""

    channel: SecureSum
    words: ClassVar[tuple[str, ...]] = ("secure-sum/semi_honest", "secure-sum/active_server")
    sums_metrics: ClassVar[bool] = True

    @property
    def word(self) -> str:
        return f"secure-sum/{self.channel.level}"

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """Its own word, or that of the weaker threat model."""
        return ("secure-sum/semi_honest", self.word)

    @property
    def min_cohort(self) -> int:
        return self.channel.min_cohort

    def adapt(self, method: Method, sites: int, least: int, arranged: Arrangement | None) -> Method:
        """Every client draws its own noise, and few sites survive a dropout.

        Fractions that suit cohorts of hundreds tolerate no dropout among eight. So with up to 64 sites, at least a
        quarter may drop out and a quarter may collude. With noise in shares, neither ε nor the noise of a sum changes:
        the surplus is removed once the survivors are known.
        """
        losses, corrupt = self.channel.dropout, self.channel.corrupt
        if sites <= _FEW:
            losses, corrupt = max(losses, _LOSSES), max(corrupt, CORRUPT)
        channel = replace(self.channel, dropout=losses, corrupt=corrupt, conversation=False, epoch=1)
        return replace(method, channel=channel, mechanism=in_shares(method.mechanism, losses))

    def incompatibility(self, method: Method, sites: int, cohort: float) -> str:
        size = max(int(cohort), self.min_cohort)
        if size > sites:
            return f"SecureSum needs at least {self.min_cohort} sites, got {sites}. Enrol more."
        self.channel.parameters_for(size).graph(size)
        return ""

    def reveals(self, method: Method) -> Iterator[str]:
        yield "The server learns the sum of the sites' messages in every round, who took part, and when; no message."
        yield "Other sites learn the model, who takes part, and nothing about a single message."
        if method.weighted:
            yield "The server learns how many samples every site has."

    def survival(self, cohort: int, least: int) -> Survival:
        needed = max(self.channel.parameters_for(max(cohort, self.min_cohort)).min_survivors, least)
        messages = 6 if self.channel.level == "active_server" else 5
        return Survival(messages, max(cohort - needed, 0), int(self.channel.corrupt * cohort))

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> "SecureSumServer":
        return SecureSumServer(self.channel, sites)

    def at_site(self, member: Member) -> "SecureSumSite":
        return SecureSumSite(self.channel, member)


def training_parameters(channel: SecureSum, least: int, like: Messages, now: Round) -> Parameters:
    """The parameters for a sum of such messages, of at least `least` sites, the plan's `min_cohort`."""
    tolerated = None if like.surplus is None else like.surplus.tolerated
    return _with_min_survivors(least, channel.parameters(like.rows.dim, now, tolerated))


def evaluation_parameters(channel: SecureSum, least: int, cohort: int) -> Parameters:
    """The parameters for a sum of metrics: a message without noise, with room for all limbs."""
    return _with_min_survivors(least, replace(channel.parameters_for(cohort, DIM), bits=32))


def _with_min_survivors(least: int, parameters: Parameters) -> Parameters:
    return replace(parameters, min_uploads=min(max(parameters.min_survivors, least), parameters.cohort))


def session_of(plan: "FederationPlan", asked: SiteRequest, verb: str, parameters: Parameters) -> SecaggSession:
    """The session of a request: random run bytes, round, the broadcast's bytes, and all else that parties agree on.

    The configuration covers the verb, the plan with its directory, the method with its noise as this party computed it,
    the attempt, the cohort and the one-time broadcast. If a server sends two sites different values, their pads do not
    cancel.
    """
    numbers = b"".join(map(pack_number, (asked.attempt, *asked.cohort)))
    config = crypto.digest(
        "federation", verb.encode(), plan.digest, bytes.fromhex(plan.method.digest), numbers, asked.first_digest
    )
    return SecaggSession(
        run=asked.run, round=asked.round, model=wire.digest_of(asked.frame), config=config, parameters=parameters
    )


@dataclass(frozen=True)
class SecureSumServer(ServerHalf):
    """The server of `SecureSum`."""

    channel: SecureSum
    sites: "EnrolledSites"

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> RoundOutcome:
        """The sum of messages that the server does not see."""
        plan, traffic = self.sites.plan, SiteBytes()
        parameters = training_parameters(self.channel, plan.min_cohort, like, now)
        outcome = self._aggregate(TRAIN, asked, parameters, traffic)
        total = self.channel.message_format.numbers(outcome.result, like)
        surplus = opened_surplus(like.surplus, outcome)
        summed = sum_of_total(plan.method, state, total, len(outcome.clients), like, surplus)
        phases, content = _phase_bytes(outcome), packed_size(parameters.dim, parameters.bits)
        uploaded = content * len(outcome.transcript.up[Phase.UPLOAD])
        protocol = sum(phases.values(), Traffic())
        envelope = traffic.beyond(protocol.up, asked)
        phases["upload"] = Traffic(phases["upload"].up - uploaded, phases["upload"].down)
        phases["envelope"] = Traffic(envelope.up, envelope.down - protocol.down)
        return RoundOutcome(summed, outcome.clients, overhead=phases, traffic=traffic)

    def metrics(self, asked: SiteRequest, traffic: SiteBytes) -> tuple[HeldOut, int]:
        parameters = evaluation_parameters(self.channel, self.sites.plan.min_cohort, len(asked.cohort))
        outcome = self._aggregate(EVALUATE, asked, parameters, traffic)
        return HeldOut.of_sum(outcome.result), len(outcome.clients)

    def _aggregate(self, verb: str, asked: SiteRequest, parameters: Parameters, traffic: SiteBytes) -> SecaggOutcome:
        """Secure aggregation with the cohort; the first phase travels with the broadcast."""
        plan = self.sites.plan
        identities = {number: plan.directory.by_number[number] for number in asked.cohort}
        server = converse(session_of(plan, asked, verb, parameters), asked.cohort, identities, remove=remove_many_pads)
        requests = next(server)
        replies = self.sites.ask_round(verb, asked, requests, traffic)
        while True:
            try:
                requests = server.send(replies.items())
            except StopIteration as end:
                outcome: SecaggOutcome = end.value
                return outcome
            replies = self.sites.ask_further(asked.session(verb), requests, traffic)


def _phase_bytes(outcome: SecaggOutcome) -> dict[str, Traffic]:
    """The bytes of secure aggregation by phase."""
    up, down = outcome.transcript.up, outcome.transcript.down
    return by_part({phase: Traffic(up[phase].total(), down[phase].total()) for phase in down.keys() | up.keys()})


@dataclass(frozen=True)
class SecureSumSite(SiteHalf):
    """A site of `SecureSum`."""

    channel: SecureSum
    member: Member

    def opens(self, verb: str) -> bool:
        return True

    def validate(self, asked: SiteRequest, like: Messages, now: Round) -> None:
        answer(self._join(asked, TRAIN, self._train_parameters(like, now)), asked.opening)  # the reply is discarded

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        parameters = self._train_parameters(messages, now)
        seed = messages.surplus.seeds[0].value if messages.surplus is not None and parameters.surplus else b""
        joined = self._join(asked, TRAIN, parameters)
        return _step(set_vector(joined, self.channel.message_format.integers(messages, 0), seed), asked.opening)

    def check_evaluation(self, asked: SiteRequest) -> None:
        answer(self._join_evaluation(asked), asked.opening)

    def reply_metrics(self, asked: SiteRequest, vector: Vector) -> SiteReply:
        return _step(set_vector(self._join_evaluation(asked), vector), asked.opening)

    def further(self, state: bytes, request: bytes) -> SiteReply:
        return _step(SecaggClientState.from_bytes(state), request)

    def _train_parameters(self, like: Messages, now: Round) -> Parameters:
        return training_parameters(self.channel, self.member.plan.min_cohort, like, now)

    def _join_evaluation(self, asked: SiteRequest) -> SecaggClientState:
        parameters = evaluation_parameters(self.channel, self.member.plan.min_cohort, len(asked.cohort))
        return self._join(asked, EVALUATE, parameters)

    def _join(self, asked: SiteRequest, verb: str, parameters: Parameters) -> SecaggClientState:
        """Join secure aggregation with fresh secrets; the vector follows."""
        plan, least = self.member.plan, self.member.allow.min_cohort
        policy = SecaggPolicy(
            threat_model=THREAT_MODELS[self.channel.level],
            min_corrupt=Fraction(1, 20),
            min_cohort=max(least, SecaggPolicy().min_cohort),
            min_survivors=max(least, SecaggPolicy().min_survivors),
        )
        return join_round(
            session_of(plan, asked, verb, parameters),
            self.member.number,
            policy,
            identity=self.member.identity,
            directory={number: plan.directory.by_number[number] for number in asked.cohort},
        )


def _step(state: SecaggClientState, request: bytes) -> SiteReply:
    after, reply = answer(state, request)
    return SiteReply(reply, after.to_bytes())
