"""Secure aggregation between sites: each party derives the session from its own bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tacit.core import Messages, Method, Randomness, Round, ServerRound, State
from tacit.core.interfaces import Conversation
from tacit.core.server_half import sum_of_total
from tacit.core.state import Traffic
from tacit.errors import ProtocolError
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
from tacit.protocols.kit import ServerSide
from tacit.protocols.pad_processes import remove_many_pads
from tacit.protocols.secagg import (
    Epoch,
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
    next_round,
    set_up,
    set_vector,
)
from tacit.wire.packing import Reader, pack_number, packed_size

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
        epoch = min(self.channel.epoch, method.rounds)
        channel = replace(self.channel, dropout=losses, corrupt=corrupt, conversation=False, epoch=epoch)
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
        messages = 7 if self.channel.level == "active_server" else 6  # in the first round of an epoch
        return Survival(messages, max(cohort - needed, 0), int(self.channel.corrupt * cohort))

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> "SecureSumServer":
        return SecureSumServer(self.channel, sites)

    def at_site(self, member: Member) -> "SecureSumSite":
        return SecureSumSite(self.channel, member)


def training_parameters(channel: SecureSum, least: int, like: Messages, now: Round) -> Parameters:
    """The parameters for a sum of such messages, of at least `least` sites, the plan's `min_cohort`."""
    tolerated = None if like.surplus is None else like.surplus.tolerated
    bits = channel.message_format.bits_of(like)
    return _with_min_survivors(least, channel.parameters(like.rows.dim, now, tolerated, bits))


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


@dataclass
class _ServerEpoch:
    """What sites have set up for several rounds, at the server.

    Attributes:
        epoch: of the protocol.
        cohort: who was invited to the set-up.
        parameters: of its first round.
        turn: the number of the last round.
        missing: sites that were asked in it, and did not upload.
    """

    epoch: Epoch
    cohort: tuple[int, ...]
    parameters: Parameters
    turn: int = 0
    missing: frozenset[int] = frozenset()

    def goes_on(self, present: frozenset[int]) -> bool:
        """Whether these sites can have another round without a set-up.

        Not if one of them is not in the epoch, or has not uploaded in the last round, perhaps because its state is
        lost: then all set up again. Sites that are absent count as lost, and take part again when they return.
        """
        last, enough = self.parameters.rounds - 1, self.parameters.min_survivors
        return self.turn < last and enough <= len(present) and present <= self.epoch.sharers - self.missing


class SecureSumServer(ServerHalf):
    """The server of `SecureSum`."""

    def __init__(self, channel: SecureSum, sites: "EnrolledSites") -> None:
        self.channel, self.sites = channel, sites
        self._epoch: _ServerEpoch | None = None
        self._present: frozenset[int] = frozenset()

    def invite(self, present: list[int]) -> list[int]:
        """The cohort of the epoch if it goes on, also those that are absent; by it the noise of a site is sized."""
        self._present = frozenset(present)
        if self._epoch is not None and self._epoch.goes_on(self._present):
            return list(self._epoch.cohort)
        self._epoch = None
        return present

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> RoundOutcome:
        """The sum of messages that the server does not see."""
        plan, traffic = self.sites.plan, SiteBytes()
        parameters = training_parameters(self.channel, plan.min_cohort, like, now)
        outcome = self._play(TRAIN, asked, self._round_of_epoch(asked, parameters), traffic)
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
        session, identities = session_of(self.sites.plan, asked, EVALUATE, parameters), self._identities(asked)
        here = converse(session, asked.cohort, identities, remove=remove_many_pads)
        outcome = self._play(EVALUATE, asked, here, traffic)
        return HeldOut.of_sum(outcome.result), len(outcome.clients)

    def _identities(self, asked: SiteRequest) -> dict[int, bytes]:
        return {number: self.sites.plan.directory.by_number[number] for number in asked.cohort}

    def _round_of_epoch(self, asked: SiteRequest, parameters: Parameters) -> ServerSide[SecaggOutcome]:
        """The next round of the epoch, or the first one of another; after a failure, the next one sets up anew."""
        session, now = session_of(self.sites.plan, asked, TRAIN, parameters), self._epoch
        self._epoch = None
        if now is None:
            epoch = yield from set_up(session, asked.cohort, self._identities(asked), remove=remove_many_pads)
            now = _ServerEpoch(epoch, asked.cohort, parameters)
        else:
            now.turn += 1
        outcome = yield from now.epoch.converse(session, now.turn)
        now.missing = self._present - frozenset(outcome.clients)
        self._epoch = now
        return outcome

    def _play(
        self, verb: str, asked: SiteRequest, server: ServerSide[SecaggOutcome], traffic: SiteBytes
    ) -> SecaggOutcome:
        """Secure aggregation with those of the cohort that are present; the first phase travels with the broadcast."""
        turn = self._epoch.turn + 1 if verb == TRAIN and self._epoch is not None else 0
        requests = next(server)
        openings = {j: pack_number(turn) + first for j, first in requests.items() if j in self._present}
        replies = self.sites.ask_round(verb, asked, openings, traffic)
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
        parameters = self._train_parameters(like, now)
        zeros, seed = np.zeros(parameters.dim, np.uint32), bytes(crypto.KEY) if parameters.surplus else b""
        joined, request = self._join(asked, TRAIN, parameters)
        answer(set_vector(joined, zeros, seed), request)  # the reply is discarded

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        parameters = self._train_parameters(messages, now)
        seed = messages.surplus.seeds[0].value if messages.surplus is not None and parameters.surplus else b""
        joined, request = self._join(asked, TRAIN, parameters)
        return _step(set_vector(joined, self.channel.message_format.integers(messages, 0), seed), request)

    def check_evaluation(self, asked: SiteRequest) -> None:
        answer(*self._join_evaluation(asked))

    def reply_metrics(self, asked: SiteRequest, vector: Vector) -> SiteReply:
        joined, request = self._join_evaluation(asked)
        return _step(set_vector(joined, vector), request)

    def further(self, state: bytes, request: bytes) -> SiteReply:
        return _step(SecaggClientState.from_bytes(state), request)

    def _train_parameters(self, like: Messages, now: Round) -> Parameters:
        return training_parameters(self.channel, self.member.plan.min_cohort, like, now)

    def _join_evaluation(self, asked: SiteRequest) -> tuple[SecaggClientState, bytes]:
        parameters = evaluation_parameters(self.channel, self.member.plan.min_cohort, len(asked.cohort))
        return self._join(asked, EVALUATE, parameters)

    def _join(self, asked: SiteRequest, verb: str, parameters: Parameters) -> tuple[SecaggClientState, bytes]:
        """The state with which this site joins a sum, and the first request; the vector follows."""
        opening = Reader(asked.opening)
        turn, session = opening.number(), session_of(self.member.plan, asked, verb, parameters)
        state = self._set_up(asked, session) if turn == 0 else self._go_on(asked, session, turn)
        return state, bytes(opening.rest())

    def _go_on(self, asked: SiteRequest, session: SecaggSession, turn: int) -> SecaggClientState:
        """Join a further round of the epoch in which this site is, with those who have set it up."""
        kept = self.member.kept()
        if not kept:
            raise ProtocolError("This site has not set up an epoch of secure aggregation, or has lost it.")
        before = SecaggClientState.from_bytes(kept)
        if not set(before.members) <= set(asked.cohort):
            raise ProtocolError("Expected a cohort of the sites that have set up this epoch, got another one.")
        self._policy.validate(session.parameters)
        return next_round(before, session, turn)

    def _set_up(self, asked: SiteRequest, session: SecaggSession) -> SecaggClientState:
        """Join the set-up of an epoch with fresh secrets."""
        known = self.member.plan.directory.by_number
        return join_round(
            session,
            self.member.number,
            self._policy,
            identity=self.member.identity,
            directory={number: known[number] for number in asked.cohort},
        )

    @property
    def _policy(self) -> SecaggPolicy:
        least = self.member.allow.min_cohort
        return SecaggPolicy(
            threat_model=THREAT_MODELS[self.channel.level],
            min_corrupt=Fraction(1, 20),
            min_cohort=max(least, SecaggPolicy().min_cohort),
            min_survivors=max(least, SecaggPolicy().min_survivors),
        )


def _step(state: SecaggClientState, request: bytes) -> SiteReply:
    after, reply = answer(state, request)
    return SiteReply(reply, after.to_bytes(), lasting=after.session.parameters.rounds > 1)
