"""The server of a federation: rounds as the engine's, with a transport between the halves.

`FederationServer` is a `RoundSource`: charging, checkpoints, reports and budget stops are those of `tacit.runs`. In a
round it asks the sites of the cohort that are connected (`EnrolledSites`); who fails is a dropout, by name. It ends
with those who delivered, if they are as many as plan and channel require, or without a sum; then the next attempt is
charged anew, at server and sites.
"""

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from tacit.core import KeySource, Messages, Method, Noise, Report, Round, RunKeys, ServerRound, State, Sum
from tacit.core.interfaces import Conversation
from tacit.core.keys import Key, Ratchet, SecretKeys
from tacit.core.server_half import (
    aggregate_messages,
    apply_release,
    broadcast,
    finish_round,
    no_messages,
    pack_broadcast,
    read_messages,
    reject_unusable,
    sum_messages,
    sum_of_total,
)
from tacit.core.state import Broadcast, Traffic
from tacit.engine.simulation import draw, variance_and_scale
from tacit.engine.worker import single_thread
from tacit.errors import ProtocolError, RoundOverError, TooFewClientsError, UserError
from tacit.federation import messages as wire
from tacit.federation import metrics
from tacit.federation.enclave_host import EnclaveHost, EnclaveLink
from tacit.federation.enrolled_sites import EnrolledSites
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.journal import AuditLog
from tacit.federation.messages import EVALUATE, TRAIN, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.federation.round_reports import RoundOutcome, SiteBytes, phase_bytes, report_of, with_metrics
from tacit.federation.sessions import evaluation_parameters, training_parameters
from tacit.federation.transport import Transport
from tacit.pieces.channels import Enclave, SecureSum
from tacit.pieces.channels.secure_sum import opened_surplus
from tacit.protocols.kit import RUN
from tacit.protocols.secagg import Phase
from tacit.runs.records import Plan
from tacit.wire import frames
from tacit.wire.frames import FrameKind
from tacit.wire.packing import packed_size

POLL = 0.2  # seconds between two looks at who is connected


@dataclass(frozen=True)
class AttemptKeys:
    """Keys that derive from a seed, for tests: those of a simulation at the first attempt."""

    seed: int
    attempt: int = 0

    def keys(self, index: int) -> RunKeys:
        return RunKeys.from_seed(self.seed).at(index, self.attempt)


class FederationServer:
    """The server's side of a plan, over any transport: the source of its rounds.

    Args:
        plan: what is trained.
        transport: the way to the sites.
        journal: where to record what is sent, received and refused; None: nowhere.
        noise: `secret`, or `seeded` in tests, where sites have seeded secrets too.
        sleep: how to wait for sites to connect.
        enclave: makes a connection to the plan's enclave; None: as the plan says.

    Attributes:
        run: random bytes of this start of the server, to which all sessions are bound.
        sites: those of the plan, as this server knows them.
    """

    checkpoints_every_round: ClassVar[bool] = True  # repeating a round costs sites another charge

    def __init__(
        self,
        plan: FederationPlan,
        transport: Transport,
        journal: AuditLog | None = None,
        noise: Noise = "secret",
        sleep: Callable[[float], None] = time.sleep,
        enclave: Callable[[], EnclaveLink] | None = None,
    ) -> None:
        self.plan, self._noise, self._sleep = plan, noise, sleep
        self.run = secrets.token_bytes(RUN)
        self.sites = EnrolledSites(plan, transport, self.run, journal)
        self._attempt, self._retries = 1, 0
        self._enclave = self._host(enclave)
        self.sites.log("started", plan=plan.digest.hex(), method=plan.method_name, run=self.run.hex())

    @property
    def method(self) -> Method:
        return self.plan.method

    @cached_property
    def run_plan(self) -> Plan:
        """What `tacit.runs` runs, with this server as the source of its rounds."""
        return self.plan.run_plan(self._noise)

    def _host(self, connect: Callable[[], EnclaveLink] | None) -> EnclaveHost | None:
        """The host of the plan's enclave; None: it needs none."""
        enclave, configuration = self.plan.enclave, self.plan.configuration
        if enclave is None or configuration is None:
            return None
        if configuration.seed is not None and self._noise == "secret":
            raise UserError("The enclave's configuration has a seed, which makes its noise public. Configure it anew.")
        return EnclaveHost(self.sites, connect or enclave.connect)

    # The source of rounds

    def keys(self, ratchet: Ratchet | None) -> KeySource:
        """Fresh keys: a round that is repeated after a crash is another attempt, with other noise and a new charge."""
        return self._new_keys()

    def ready(self) -> None:
        """Wait until enough sites are connected; raises `TooFewClientsError` if they are not in time."""
        if self._enclave is not None:
            self._enclave.check()
        waited = 0.0
        self.sites.ask_refusing()
        while True:
            began = time.monotonic()
            present = self.sites.present()
            if len(present) >= self.least:
                return
            waited += time.monotonic() - began  # a silent site takes its time
            if waited >= self.plan.patience.talk:
                raise TooFewClientsError(
                    f"Expected at least {self.least} of {self.plan.population} sites, got {len(present)}. "
                    f"{self.sites.explanation()}Start those that are absent, let those that refused review the plan, "
                    "and resume the run."
                )
            self._sleep(POLL)
            waited += POLL

    def rounds(self, state: State, last: int, keys: KeySource) -> Generator[tuple[State, Report]]:
        layout = self.run_plan.simulation.layout
        state = replace(state, layers=layout.sizes, shapes=layout.shapes)
        with self._conversation() as conversation, self._enclave or nullcontext():
            while state.round < last:
                began = time.perf_counter()
                state, report = self._round(state, keys, conversation)
                self._attempt = 1
                if self._evaluates(state.round, last):
                    report = self._evaluate(state, report)
                yield state, replace(report, seconds=time.perf_counter() - began)

    def retry(self) -> KeySource | None:
        """Another attempt, as long as the plan allows one."""
        if self._retries >= self.plan.retries:
            return None
        self._retries += 1
        self._attempt += 1
        return self._new_keys()

    def _new_keys(self) -> KeySource:
        if self._noise == "seeded":
            return AttemptKeys(self.plan.seed, self._retries)
        return SecretKeys(self.plan.seed)

    def _conversation(self) -> AbstractContextManager[Conversation]:
        return self.method.channel.open(self.method, self.plan.population)

    # Who takes part

    @property
    def least(self) -> int:
        """The fewest sites with which a round can begin."""
        channel = self.method.channel
        return max(self.plan.least_cohort, channel.least if isinstance(channel, Enclave) else channel.min_cohort)

    # A round

    def _round(self, state: State, keys: KeySource, conversation: Conversation) -> tuple[State, Report]:
        method = self.method
        sampled, now = draw(method, self.plan.population, keys.keys(state.round), state.round)
        cohort = self._cohort(sampled.tolist()) if self._enclave is None else self._drawn_inside(state, now)
        now = replace(now, cohort=len(cohort))
        sent = broadcast(method, state, now)
        like = no_messages(method, sent, state, now)
        found = RoundOutcome(aggregate_messages(method, conversation, state, like, now))
        if cohort:
            asked = self._request(state, now, sent, cohort)
            with self.sites.counting_failures(cohort):
                found = self._play(state, now, asked, like, conversation)
        with single_thread():
            if found.memory is None:
                after = finish_round(method, conversation, state, found.total, now)
            else:  # clipping, noise and the mechanism's next memory are the enclave's
                updated = replace(state, memory={**state.memory, **found.memory})
                after = apply_release(method, updated, found.total, now)
        self.sites.log("closed", round=after.round, attempt=self._attempt, delivered=self.sites.names(found.clients))
        return after, report_of(after, cohort, found)

    def _cohort(self, sampled: list[int]) -> list[int]:
        """The sampled sites that are connected; raises if they are too few, nobody if too few were sampled."""
        if len(sampled) < self.method.channel.min_cohort:  # ends like a round without clients, as in a simulation
            return []
        cohort = self._present(sampled)
        if len(cohort) < min(self.least, len(sampled)):
            raise TooFewClientsError(
                f"Expected at least {self.least} sites in a round, got {len(cohort)}. {self.sites.explanation()}"
            )
        return cohort

    def _play(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, talk: Conversation
    ) -> RoundOutcome:
        """What the round brings, through the method's channel."""
        if self._enclave is not None:
            return self._enclave.aggregate(state, like.rows.dim, asked, self._present(asked.cohort))
        secure = isinstance(self.method.channel, SecureSum)
        return (self._secure if secure else self._plain)(state, now, asked, like, talk)

    def _drawn_inside(self, state: State, now: ServerRound) -> list[int]:
        """The cohort that the enclave draws; nobody if it will release nothing.

        That is so if the cohort is too small, or if it has released this round before, to a server that has died.
        """
        assert self._enclave is not None
        like = no_messages(self.method, broadcast(self.method, state, now), state, now)
        try:
            cohort = self._enclave.cohort(state, like.rows.dim)
        except RoundOverError as error:
            self.sites.log("abandoned", round=state.round + 1, reason=str(error))
            return []
        channel, present = self.method.channel, self._present(cohort)
        assert isinstance(channel, Enclave)
        needed = channel.contributors(len(cohort))
        if len(cohort) < needed:  # ends like a round without clients, as in a simulation
            return []
        if len(present) < needed:
            raise TooFewClientsError(
                f"Expected at least {needed} of the {len(cohort)} sites that the enclave drew, got {len(present)}. "
                f"{self.sites.explanation()}Nobody was asked. Start those that are absent, and resume the run."
            )
        return cohort

    def _present(self, cohort: Sequence[int]) -> list[int]:
        """The sites of a cohort that are connected and take part."""
        present = {self.plan.directory.number(name) for name in self.sites.present()}
        return [number for number in cohort if number in present]

    def _request(self, state: State, now: Round, sent: Broadcast, cohort: Sequence[int]) -> SiteRequest:
        """The request of a round, without what is sent only once."""
        return SiteRequest(
            plan=self.plan.digest,
            run=self.run,
            round=state.round,
            attempt=self._attempt,
            cohort=tuple(cohort),
            frame=pack_broadcast(self.method, sent, now, first=False),
            first=(first := frames.pack(FrameKind.VIEW, 0, sent.first_parts) if sent.first_parts else b""),
            first_digest=wire.digest_of(first) if first else b"",
        )

    def _plain(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, talk: Conversation
    ) -> RoundOutcome:
        traffic = SiteBytes()
        replies = self.sites.ask_round(TRAIN, asked, dict.fromkeys(asked.cohort, b""), traffic)
        found, malformed = read_messages(self.method, replies, like, now)
        kept, wave = reject_unusable(found, self.method.max_norm(like.rows.dim))
        for number in (*malformed, *wave.rejected):
            self.sites.fail(
                number, malformed.get(number, "its update is not finite, or longer than the method accepts")
            )
        self._check_enough(wave.delivered)
        with single_thread():
            total = self._sum(state, kept, talk, now)
        diagnostics = (float(np.mean(wave.norms)) if wave.norms else 0.0, *variance_and_scale(total))
        content = sum(map(len, replies.values()))
        return RoundOutcome(total, wave.delivered, diagnostics, {"envelope": traffic.beyond(content, asked)}, traffic)

    def _sum(self, state: State, kept: Messages, talk: Conversation, now: Round) -> Sum:
        """The messages' sum, in the order of the sites' numbers, whenever they came."""
        if not self.method.streams:
            return aggregate_messages(self.method, talk, state, kept, now)
        numbers = kept.clients
        parts = (sum_messages(self.method, state, kept.keep(numbers == number)) for number in numbers.tolist())
        first = next(parts)
        return reduce(lambda total, part: total + part, parts, replace(first, total=first.total.clone()))

    def _secure(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, _: Conversation
    ) -> RoundOutcome:
        traffic = SiteBytes()
        parameters = training_parameters(self.plan, like, now)
        outcome = self.sites.aggregate(TRAIN, asked, parameters, traffic)
        channel = self.method.channel
        assert isinstance(channel, SecureSum)
        total = channel.message_format.numbers(outcome.result, like)
        surplus = opened_surplus(like.surplus, outcome, now)
        summed = sum_of_total(self.method, state, total, len(outcome.clients), like, surplus)
        phases, content = phase_bytes(outcome), packed_size(parameters.dim, parameters.bits)
        uploaded = content * len(outcome.transcript.up[Phase.UPLOAD])
        protocol = sum(phases.values(), Traffic())
        envelope = traffic.beyond(protocol.up, asked)
        phases["upload"] = Traffic(phases["upload"].up - uploaded, phases["upload"].down)
        phases["envelope"] = Traffic(envelope.up, envelope.down - protocol.down)
        return RoundOutcome(summed, outcome.clients, overhead=phases, traffic=traffic)

    def _check_enough(self, delivered: Sequence[int]) -> None:
        if len(delivered) < self.plan.least_cohort:
            raise TooFewClientsError(
                f"Expected at least {self.plan.least_cohort} sites to deliver, got {len(delivered)}. "
                f"{self.sites.explanation()}Nothing was released."
            )

    # Evaluation

    def _evaluates(self, done: int, last: int) -> bool:
        every = self.plan.evaluate_every
        return bool(every) and (done % every == 0 or done == last)

    def _evaluate(self, state: State, report: Report) -> Report:
        """The report with metrics on the held-out data of the sites that send them; none if these are too few."""
        present = {self.plan.directory.number(name) for name in self.sites.present()}
        delivered = [number for number in report.clients if number not in report.rejected]
        cohort = [number for number in delivered if number in present - self.sites.silent]
        if len(cohort) < self.least:
            return report
        now, traffic = self._evaluation_round(state, len(cohort)), SiteBytes()
        asked = self._request(state, now, broadcast(self.method, state, now), cohort)
        try:
            total, count = self._metrics(asked, traffic)
        except TooFewClientsError as error:
            self.sites.log("no metrics", round=state.round, reason=str(error)[:500])
            return with_metrics(report, {}, traffic)
        return with_metrics(report, total.metrics if count >= self.least else {}, traffic)

    def _evaluation_round(self, state: State, cohort: int) -> Round:
        """The round after this state, as the broadcast that is evaluated belongs to it."""
        population = self.plan.population
        expected = self.method.sampler.sampling(population, state.round).mean_cohort(population)
        shared = Key.from_seed(self.plan.seed, "shared").child("round", state.round)
        return Round(state.round, population, expected, cohort, shared)

    def _metrics(self, asked: SiteRequest, traffic: SiteBytes) -> tuple[HeldOut, int]:
        """The sum of the sites' metrics, and of how many sites it is."""
        if isinstance(self.method.channel, SecureSum):
            outcome = self.sites.aggregate(
                EVALUATE, asked, evaluation_parameters(self.plan, len(asked.cohort)), traffic
            )
            return HeldOut.of_sum(outcome.result), len(outcome.clients)
        replies = self.sites.ask_round(EVALUATE, asked, dict.fromkeys(asked.cohort, b""), traffic)
        vectors = [*_vectors(replies)]
        return HeldOut.of_sum(sum(vectors, np.zeros(metrics.DIM, np.uint32))), len(vectors)


def _vectors(replies: Mapping[int, bytes]) -> Iterator[np.ndarray]:
    for data in replies.values():
        try:
            yield metrics.unpack_vector(data)
        except ProtocolError:
            continue
