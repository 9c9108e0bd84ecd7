"""The server of a federation: rounds as the engine's, with a transport between the halves.

`FederationServer` is a `RoundSource`: charging, checkpoints, reports and budget stops are those of `tacit.runs`. In a
round it asks the sites of the cohort that are connected, and whatever happens to one of them, the others go on: who is
absent, late, silent, malformed or refuses is a dropout, by name. A round ends with those who delivered, if they are as
many as plan and channel require, or without a sum; then the next attempt is charged anew, at server and sites. Two
failures in a row strike a site out until it connects again.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from tacit.core import KeySource, Messages, Method, Noise, Report, Round, RunKeys, ServerRound, State, Sum
from tacit.core.interfaces import Conversation
from tacit.core.keys import Key, Ratchet, SecretKeys
from tacit.core.server_half import (
    aggregate_messages,
    broadcast,
    finish_round,
    no_messages,
    pack_broadcast,
    read_messages,
    reject_non_finite,
    sum_messages,
    sum_of_total,
)
from tacit.core.state import Broadcast, Traffic
from tacit.engine.simulation import draw, variance_and_scale
from tacit.engine.worker import single_thread
from tacit.errors import ProtocolError, TooFewClientsError
from tacit.federation import messages as wire
from tacit.federation import metrics
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.journal import AuditLog
from tacit.federation.messages import EVALUATE, HELLO, TALK, TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.federation.sessions import evaluation_parameters, session_of, training_parameters
from tacit.federation.transport import Failure, Transport
from tacit.pieces.channels import SecureSum
from tacit.pieces.channels.secure_sum import opened_surplus
from tacit.protocols.kit import RUN
from tacit.protocols.secagg import Parameters, Phase, SecaggOutcome, converse
from tacit.runs.records import Plan
from tacit.wire import frames
from tacit.wire.frames import FrameKind
from tacit.wire.packing import packed_size

STRIKES = 2  # failures in a row after which a site is not asked any more
POLL = 0.2  # seconds between two looks at who is connected


@dataclass(frozen=True)
class AttemptKeys:
    """Keys that derive from a seed, for tests: those of a simulation at the first attempt."""

    seed: int
    attempt: int = 0

    def keys(self, index: int) -> RunKeys:
        return RunKeys.from_seed(self.seed).at(index, self.attempt)


@dataclass
class Bytes:
    """What was sent to sites and received from them, by their numbers."""

    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    sent_once: Counter[int] = field(default_factory=Counter)

    def beyond(self, content: int, asked: SiteRequest) -> Traffic:
        """The bytes beyond this content of replies, and beyond the broadcast of a request."""
        broadcasts = len(asked.frame) * len(asked.cohort) + self.sent_once.total()
        return Traffic(self.up.total() - content, self.down.total() - broadcasts)


class FederationServer:
    """The server's side of a plan, over any transport: the source of its rounds.

    Args:
        plan: what is trained.
        transport: the way to the sites.
        journal: where to record what is sent, received and refused; None: nowhere.
        noise: `secret`, or `seeded` in tests, where sites have seeded secrets too.
        sleep: how to wait for sites to connect.

    Attributes:
        run: random bytes of this start of the server, to which all sessions are bound.
        problems: why each site that did not deliver last time did not, by name.
        struck: sites that are not asked any more.
    """

    checkpoints_every_round: ClassVar[bool] = True  # repeating a round costs sites another charge

    def __init__(
        self,
        plan: FederationPlan,
        transport: Transport,
        journal: AuditLog | None = None,
        noise: Noise = "secret",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.plan, self.transport, self.journal, self._noise, self._sleep = plan, transport, journal, noise, sleep
        self.run = secrets.token_bytes(RUN)
        self.problems: dict[str, str] = {}
        self.struck: set[str] = set()
        self._failures: Counter[str] = Counter()  # in a row
        self._failed: set[str] = set()  # in this round
        self._welcome: set[str] = set()
        self._declined: set[str] = set()  # they do not take part in this plan
        self._silent: set[int] = set()  # they send no metrics
        self._received: set[int] = set()  # they have what is sent only once
        self._attempt, self._retries = 1, 0
        self._log("started", plan=plan.digest.hex(), method=plan.method_name, run=self.run.hex())

    @property
    def method(self) -> Method:
        return self.plan.method

    @cached_property
    def run_plan(self) -> Plan:
        """What `tacit.runs` runs, with this server as the source of its rounds."""
        return self.plan.run_plan(self._noise)

    # The source of rounds

    def keys(self, ratchet: Ratchet | None) -> KeySource:
        """Fresh keys: a round that is repeated after a crash is another attempt, with other noise and a new charge."""
        return self._new_keys()

    def ready(self) -> None:
        """Wait until enough sites are connected; raises `TooFewClientsError` if they are not in time."""
        waited = 0.0
        self._declined.clear()  # a site may have accepted the plan since
        while len(present := self.present()) < self.least:
            if waited >= self.plan.patience.talk:
                raise TooFewClientsError(
                    f"Expected at least {self.least} of {self.plan.population} sites, got {len(present)}. "
                    f"{self._explanation()}Start the others, and resume the run."
                )
            self._sleep(POLL)
            waited += POLL

    def rounds(self, state: State, last: int, keys: KeySource) -> Generator[tuple[State, Report]]:
        layout = self.run_plan.simulation.layout
        state = replace(state, layers=layout.sizes, shapes=layout.shapes)
        with self._conversation() as conversation:
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
        return max(self.plan.least_cohort, self.method.channel.min_cohort)

    def present(self) -> tuple[str, ...]:
        """The enrolled sites that are connected, take part in this plan, and are not struck out."""
        connected = {name for name in self.transport.sites() if name in self.plan.directory.identities}
        for gone in [name for name in (*self._welcome, *self._declined, *self.struck) if name not in connected]:
            self.readmit(gone)
        self._greet(sorted(connected - self._welcome - self._declined - self.struck))
        return tuple(name for name in self.plan.directory.names if name in self._welcome and name not in self.struck)

    def readmit(self, name: str) -> None:
        """Ask a site again, which has left or registers anew; its failures are forgotten."""
        self._welcome.discard(name)
        self._declined.discard(name)
        self.struck.discard(name)
        self._failures.pop(name, None)

    def _greet(self, names: Sequence[str]) -> None:
        """Ask sites that have connected whether they take part in this plan."""
        if not names:
            return
        hello = wire.Hello(self.plan.digest, self.run)
        replies = self.transport.ask(HELLO, dict.fromkeys(names, wire.pack(hello)), self.plan.patience.talk)
        for name in names:
            reply = self._read(HELLO, hello.session, name, replies.get(name, Failure("absent")))
            if isinstance(reply, Answer):
                self._welcome.add(name)
                self._log("joined", site=name)
                self.problems.pop(name, None)
            elif isinstance(reply, Refusal):
                self._declined.add(name)

    # A round

    def _round(self, state: State, keys: KeySource, conversation: Conversation) -> tuple[State, Report]:
        method = self.method
        sampled, now = draw(method, self.plan.population, keys.keys(state.round), state.round)
        cohort = self._cohort(sampled.tolist())
        now = replace(now, cohort=len(cohort))
        sent = broadcast(method, state, now)
        like = no_messages(method, sent, state, now)
        found = _Delivered(aggregate_messages(method, conversation, state, like, now))
        if cohort:
            asked = self._request(state, now, sent, cohort)
            play = self._secure if isinstance(method.channel, SecureSum) else self._plain
            with self._counting_failures(cohort):
                found = play(state, now, asked, like, conversation)
        with single_thread():
            after = finish_round(method, conversation, state, found.total, now)
        self._log("closed", round=after.round, attempt=self._attempt, delivered=self._names(found.clients))
        return after, _report(after, cohort, found)

    def _cohort(self, sampled: list[int]) -> list[int]:
        """The sampled sites that are connected; raises if they are too few, nobody if too few were sampled."""
        if len(sampled) < self.method.channel.min_cohort:  # ends like a round without clients, as in a simulation
            return []
        present = {self.plan.directory.number(name) for name in self.present()}
        cohort = [number for number in sampled if number in present]
        if len(cohort) < min(self.least, len(sampled)):
            raise TooFewClientsError(
                f"Expected at least {self.least} sites in a round, got {len(cohort)}. {self._explanation()}"
            )
        return cohort

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
    ) -> "_Delivered":
        traffic = Bytes()
        replies = self._ask_round(TRAIN, asked, dict.fromkeys(asked.cohort, b""), traffic)
        found, malformed = read_messages(self.method, replies, like, now)
        kept, wave = reject_non_finite(found, self.method.max_norm(like.rows.dim))
        for number in (*malformed, *wave.rejected):
            self._fail(number, malformed.get(number, "its update is not finite, or longer than the method accepts"))
        self._check_enough(wave.delivered)
        with single_thread():
            total = self._sum(state, kept, talk, now)
        diagnostics = (float(np.mean(wave.norms)) if wave.norms else 0.0, *variance_and_scale(total))
        content = sum(map(len, replies.values()))
        return _Delivered(total, wave.delivered, diagnostics, {"envelope": traffic.beyond(content, asked)}, traffic)

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
    ) -> "_Delivered":
        traffic = Bytes()
        tolerated = None if like.surplus is None else like.surplus.tolerated
        parameters = training_parameters(self.plan, like.rows.dim, now, tolerated)
        outcome = self._aggregate(TRAIN, asked, parameters, traffic)
        channel = self.method.channel
        assert isinstance(channel, SecureSum)
        total = channel.message_format.numbers(outcome.result, like)
        surplus = opened_surplus(like.surplus, outcome, now)
        summed = sum_of_total(self.method, state, total, len(outcome.clients), like, surplus)
        phases, content = _phases(outcome), packed_size(parameters.dim, parameters.bits)
        uploaded = content * len(outcome.transcript.up[Phase.UPLOAD])
        protocol = sum(phases.values(), Traffic())
        envelope = traffic.beyond(protocol.up, asked)
        phases["upload"] = Traffic(phases["upload"].up - uploaded, phases["upload"].down)
        phases["envelope"] = Traffic(envelope.up, envelope.down - protocol.down)
        return _Delivered(summed, outcome.clients, overhead=phases, traffic=traffic)

    def _aggregate(self, verb: str, asked: SiteRequest, parameters: Parameters, traffic: Bytes) -> SecaggOutcome:
        """Secure aggregation with the cohort, its first phase in one message with the broadcast."""
        session = session_of(self.plan, asked, verb, parameters)
        known = {number: self.plan.directory.by_number[number] for number in asked.cohort}
        server = converse(session, asked.cohort, known)
        requests = next(server)
        replies = self._ask_round(verb, asked, requests, traffic)
        while True:
            try:
                requests = server.send(replies.items())
            except StopIteration as end:
                outcome: SecaggOutcome = end.value
                return outcome
            replies = self._ask_further(verb, asked, requests, traffic)

    def _check_enough(self, delivered: Sequence[int]) -> None:
        if len(delivered) < self.plan.least_cohort:
            raise TooFewClientsError(
                f"Expected at least {self.plan.least_cohort} sites to deliver, got {len(delivered)}. "
                f"{self._explanation()}Nothing was released."
            )

    # Asking

    def _ask_round(self, verb: str, asked: SiteRequest, talks: Mapping[int, bytes], traffic: Bytes) -> dict[int, bytes]:
        """The first message of a round or an evaluation; what is sent only once goes to those who do not have it."""

        def packed(number: int) -> bytes:
            first = b"" if number in self._received else asked.first
            return wire.pack(wire.addressed(asked, first, talks[number]))

        requests = {number: packed(number) for number in asked.cohort}
        traffic.sent_once.update({n: len(asked.first) for n in asked.cohort if n not in self._received})
        self._log("asked", verb=verb, round=asked.round + 1, attempt=asked.attempt, sites=self._names(asked.cohort))
        found = self._ask(verb, asked.session(verb), requests, self.plan.patience.train, traffic)
        if verb == TRAIN:
            self._received = (self._received - set(asked.cohort)) | (set(found) if asked.first else set())
        return found

    def _ask_further(
        self, verb: str, asked: SiteRequest, requests: Mapping[int, bytes], traffic: Bytes
    ) -> dict[int, bytes]:
        session = asked.session(verb)
        packed = {
            number: wire.pack(wire.Talk(self.plan.digest, session, request)) for number, request in requests.items()
        }
        return self._ask(TALK, session, packed, self.plan.patience.talk, traffic)

    def _ask(
        self, verb: str, session: bytes, requests: Mapping[int, bytes], patience: float, traffic: Bytes
    ) -> dict[int, bytes]:
        """The valid answers of these sites; all others have failed."""
        names = self.plan.directory.names
        replies = self.transport.ask(verb, {names[number]: data for number, data in requests.items()}, patience)
        found: dict[int, bytes] = {}
        for number, request in requests.items():
            traffic.down[number] += len(request)
            reply = replies.get(names[number], Failure("absent"))
            traffic.up[number] += 0 if isinstance(reply, Failure) else len(reply)
            answer = self._read(verb, session, names[number], reply)
            if isinstance(answer, Answer):
                found[number] = answer.body
                continue
            self._failed.add(names[number])
            if verb == EVALUATE and isinstance(answer, Refusal):
                self._silent.add(number)
        return found

    def _read(self, verb: str, session: bytes, name: str, reply: bytes | Failure) -> Answer | Refusal | None:
        """A site's reply, if it is its own and of this conversation; otherwise why it failed is noted."""
        if isinstance(reply, Failure):
            self._note(name, f"{reply.reason}{f': {reply.text}' if reply.text else ''}")
            return None
        try:
            found = wire.read_reply(reply, verb, session, self.plan.directory.number(name), self._identities)
        except ProtocolError as error:
            self._note(name, f"malformed: {error}")
            return None
        if isinstance(found, Refusal):
            self._note(name, f"refused ({found.code}): {found.text}")
        return found

    @property
    def _identities(self) -> dict[int, bytes]:
        return self.plan.directory.by_number

    def _fail(self, number: int, why: str) -> None:
        name = self.plan.directory.names[number]
        self._note(name, f"malformed: {why}")
        self._failed.add(name)

    def _note(self, name: str, why: str) -> None:
        self.problems[name] = why
        self._log("failed", site=name, reason=why[:500])

    @contextmanager
    def _counting_failures(self, cohort: Sequence[int]) -> Iterator[None]:
        """Count for every site of the cohort whether it failed in this round, also if the round fails."""
        self._failed.clear()
        try:
            yield
        finally:
            for name in self._names(cohort):
                self._failures[name] = self._failures[name] + 1 if name in self._failed else 0
                if self._failures[name] >= STRIKES:
                    self.struck.add(name)
                    self._log("struck out", site=name)

    def _explanation(self) -> str:
        """Why sites are missing, by name; empty if nothing is known."""
        known = "; ".join(f"{name}: {why}" for name, why in sorted(self.problems.items()))
        return f"{known}. " if known else ""

    # Evaluation

    def _evaluates(self, done: int, last: int) -> bool:
        every = self.plan.evaluate_every
        return bool(every) and (done % every == 0 or done == last)

    def _evaluate(self, state: State, report: Report) -> Report:
        """The report with metrics on the held-out data of the sites that send them; none if these are too few."""
        present = {self.plan.directory.number(name) for name in self.present()}
        delivered = [number for number in report.clients if number not in report.rejected]
        cohort = [number for number in delivered if number in present - self._silent]
        if len(cohort) < self.least:
            return report
        now, traffic = self._evaluation_round(state, len(cohort)), Bytes()
        asked = self._request(state, now, broadcast(self.method, state, now), cohort)
        try:
            total, count = self._metrics(asked, traffic)
        except TooFewClientsError as error:
            self._log("no metrics", round=state.round, reason=str(error)[:500])
            return _evaluated(report, {}, traffic)
        return _evaluated(report, total.metrics if count >= self.least else {}, traffic)

    def _evaluation_round(self, state: State, cohort: int) -> Round:
        """The round after this state, as the broadcast that is evaluated belongs to it."""
        population = self.plan.population
        expected = self.method.sampler.sampling(population, state.round).mean_cohort(population)
        shared = Key.from_seed(self.plan.seed, "shared").child("round", state.round)
        return Round(state.round, population, expected, cohort, shared)

    def _metrics(self, asked: SiteRequest, traffic: Bytes) -> tuple[HeldOut, int]:
        """The sum of the sites' metrics, and of how many sites it is."""
        if isinstance(self.method.channel, SecureSum):
            outcome = self._aggregate(EVALUATE, asked, evaluation_parameters(self.plan, len(asked.cohort)), traffic)
            return HeldOut.of_sum(outcome.result), len(outcome.clients)
        replies = self._ask_round(EVALUATE, asked, dict.fromkeys(asked.cohort, b""), traffic)
        vectors = [*_vectors(replies)]
        return HeldOut.of_sum(sum(vectors, np.zeros(metrics.DIM, np.uint32))), len(vectors)

    def _names(self, numbers: Sequence[int]) -> list[str]:
        return [self.plan.directory.names[number] for number in numbers]

    def _log(self, event: str, **content: object) -> None:
        if self.journal is not None:
            self.journal.append(event, **content)


@dataclass(frozen=True, eq=False)
class _Delivered:
    """What a round brought.

    Attributes:
        total: the sum.
        clients: whose messages are in it.
        diagnostics: norm, variance and scale of the messages, where the server sees them.
        overhead: bytes that are neither messages nor broadcasts, by phase.
        traffic: all bytes, by site.
    """

    total: Sum
    clients: tuple[int, ...] = ()
    diagnostics: tuple[float | None, float | None, float | None] = (None, None, None)
    overhead: Mapping[str, Traffic] = field(default_factory=dict)
    traffic: Bytes = field(default_factory=Bytes)


def _report(after: State, cohort: Sequence[int], found: _Delivered) -> Report:
    """The report of a round, without metrics and time."""
    norm, variance, scale = found.diagnostics
    return Report(
        round=after.round,
        clients=tuple(cohort),
        rejected=tuple(number for number in cohort if number not in found.clients),
        up=tuple(found.traffic.up[number] for number in cohort),
        down=tuple(found.traffic.down[number] for number in cohort),
        norm=norm,
        variance=variance,
        scale=scale,
        metrics={},
        seconds=0.0,
        overhead=found.overhead,
        grid_step=found.total.grid_step,
    )


def _evaluated(report: Report, found: Mapping[str, float], traffic: Bytes) -> Report:
    """The report with metrics, and with the bytes that they took."""
    extra = Traffic(traffic.up.total(), traffic.down.total())
    return replace(
        report,
        metrics=dict(found),
        up=tuple(size + traffic.up[number] for number, size in zip(report.clients, report.up, strict=True)),
        down=tuple(size + traffic.down[number] for number, size in zip(report.clients, report.down, strict=True)),
        overhead={**report.overhead, "evaluate": extra},
    )


def _phases(outcome: SecaggOutcome) -> dict[str, Traffic]:
    """The bytes of secure aggregation by phase."""
    up, down = outcome.transcript.up, outcome.transcript.down
    return {phase.name.lower(): Traffic(up[phase].total(), down[phase].total()) for phase in [*down]}


def _vectors(replies: Mapping[int, bytes]) -> Iterator[np.ndarray]:
    for data in replies.values():
        try:
            yield metrics.unpack_vector(data)
        except ProtocolError:
            continue
