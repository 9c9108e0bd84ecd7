"""The server of a federation: the engine's rounds, with a transport between the halves.

`FederationServer` is a `RoundSource`: charging, checkpoints, reports and budget stops are those of `tacit.runs`. In a
round it asks the cohort's connected sites (`EnrolledSites`); a site that fails is a dropout. The round releases a sum
if as many sites delivered as plan and channel require. Otherwise the next attempt is charged anew, at server and
sites.
"""

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from tacit.core import KeySource, Method, Randomness, Report, Round, RunKeys, State
from tacit.core.interfaces import Conversation
from tacit.core.keys import Key, Ratchet, SecretKeys
from tacit.core.server_half import (
    aggregate_messages,
    apply_release,
    broadcast,
    finish_round,
    no_messages,
    pack_broadcast,
)
from tacit.core.state import Broadcast, count_dropped
from tacit.engine.simulation import draw
from tacit.engine.waves import single_thread
from tacit.errors import TooFewClientsError, UserError
from tacit.federation import messages as wire
from tacit.federation.channels.interface import Connect
from tacit.federation.journal import AuditLog
from tacit.federation.messages import SiteRequest
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.enrolled_sites import EnrolledSites
from tacit.federation.server.round_reports import RoundOutcome, SiteBytes, report_of, with_metrics
from tacit.federation.transport.endpoints import Transport
from tacit.protocols import crypto
from tacit.protocols.kit import RUN
from tacit.runs.run import RunSpec
from tacit.wire import frames
from tacit.wire.frames import FrameKind

DROPPED_BECAUSE = "The sum is longer than honest sites can make it: a site has sent a row that it did not clip."
POLL = 0.2  # seconds between checks of the connected sites


@dataclass(frozen=True)
class AttemptKeys:
    """Keys from a seed, for tests; at the first attempt, those of a simulation."""

    seed: int
    attempt: int = 0

    def keys(self, index: int) -> RunKeys:
        return RunKeys.from_seed(self.seed).at(index, self.attempt)


class FederationServer:
    """The server's side of a plan, over any transport: the source of its rounds.

    Args:
        plan: what is trained.
        transport: the server's transport.
        key: the server's secret key, whose public half is in the plan's directory: it signs every request.
        journal: the record of requests, replies and refusals; None: no record.
        randomness: `secret`, or `seeded` in tests, where sites have seeded secrets too.
        sleep: how to wait for sites to connect.
        connect: connects to the channel's further party; None: as in the plan.

    Attributes:
        run: random bytes of this start of the server, bound into all sessions.
        sites: the plan's sites, as this server sees them.
    """

    checkpoints_every_round: ClassVar[bool] = True  # a repeated round is another charge at sites

    def __init__(
        self,
        plan: FederationPlan,
        transport: Transport,
        key: bytes,
        journal: AuditLog | None = None,
        randomness: Randomness = "secret",
        sleep: Callable[[float], None] = time.sleep,
        connect: Connect | None = None,
    ) -> None:
        self.plan, self._randomness, self._sleep = plan, randomness, sleep
        if crypto.public_identity(key) != plan.directory.server:
            raise UserError(
                f"Expected the secret key of {plan.directory.server.hex()[:16]}, the server in the plan's directory, "
                f"got that of {crypto.public_identity(key).hex()[:16]}. Sites answer no other server: use the plan's "
                "key, or a directory and a plan with this one, which all sites pin and review."
            )
        self.run = secrets.token_bytes(RUN)
        self.sites = EnrolledSites(plan, transport, self.run, journal, key)
        self._attempt, self._retries = 1, 0
        plan.check_channel()
        self._channel = plan.channel.at_server(self.sites, randomness, connect)
        self.sites.log("started", plan=plan.digest.hex(), method=plan.method_name, run=self.run.hex())

    @property
    def method(self) -> Method:
        return self.plan.method

    @cached_property
    def run_spec(self) -> RunSpec:
        """The run for `tacit.runs`, with this server as the source of its rounds."""
        return replace(self.plan.run_spec(self._randomness), federation=self.plan.entry)

    # The source of rounds

    def keys(self, ratchet: Ratchet | None) -> KeySource:
        """Fresh keys: a round repeated after a crash is another attempt, with fresh noise and a new charge."""
        return self._new_keys()

    def ready(self) -> None:
        """Wait until enough sites connect; raises `TooFewClientsError` after the timeout."""
        self._channel.validate()
        waited = 0.0
        self.sites.ask_refusing()
        while True:
            began = time.monotonic()
            present = self.sites.present()
            if len(present) >= self.least:
                return
            waited += time.monotonic() - began  # a silent site takes its time
            if waited >= self.plan.timeouts.message:
                raise TooFewClientsError(
                    f"Expected at least {self.least} of {self.plan.population} sites, got {len(present)}. "
                    f"{self.sites.explanation()}Start those that are absent, let those that refused review the plan, "
                    "and resume the run."
                )
            self._sleep(POLL)
            waited += POLL

    def rounds(self, state: State, last: int, keys: KeySource) -> Generator[tuple[State, Report]]:
        layout = self.run_spec.simulation.layout
        state = replace(state, layers=layout.sizes, shapes=layout.shapes)
        opened = self.method.channel.open(self.method, self.plan.population)
        with opened as conversation, closing(self._channel):
            while state.round < last:
                began = time.perf_counter()
                state, report = self._round(state, keys, conversation)
                self._attempt = 1
                if self._evaluates(state.round, last):
                    report = self._evaluate(state, report)
                yield state, replace(report, seconds=time.perf_counter() - began)

    def retry(self) -> KeySource | None:
        """Keys for another attempt, if the plan allows one."""
        if self._retries >= self.plan.retries:
            return None
        self._retries += 1
        self._attempt += 1
        return self._new_keys()

    def _new_keys(self) -> KeySource:
        if self._randomness == "seeded":
            return AttemptKeys(self.plan.seed, self._retries)
        return SecretKeys(self.plan.seed)

    # Who takes part

    @property
    def least(self) -> int:
        """The fewest sites with which a round can begin."""
        return max(self.plan.min_cohort, self.plan.channel.min_cohort)

    # A round

    def _round(self, state: State, keys: KeySource, conversation: Conversation) -> tuple[State, Report]:
        method = self.method
        sampled, now = draw(method, self.plan.population, keys.keys(state.round), state.round)
        drawn = self._channel.draw(state, now)
        cohort = self._cohort(sampled.tolist()) if drawn is None else drawn
        now = replace(now, cohort=len(cohort))
        view = broadcast(method, state, now)
        like = no_messages(method, view, state, now)
        outcome = RoundOutcome(aggregate_messages(method, conversation, state, like, now))
        if cohort:
            asked = self._request(state, now, view, cohort)
            with self.sites.count_failures(cohort):
                outcome = self._channel.gather(state, now, asked, like, conversation)
        with single_thread():
            if outcome.memory is None:
                after = finish_round(method, conversation, state, outcome.total, now)
            else:  # a further party clipped, added noise and updated the mechanism's memory
                updated = replace(state, memory={**state.memory, **outcome.memory})
                after = apply_release(method, updated, outcome.total, now)
        if count_dropped(after):
            self.sites.log("dropped", round=after.round, reason=DROPPED_BECAUSE)
        self.sites.log("closed", round=after.round, attempt=self._attempt, delivered=self.sites.names(outcome.clients))
        return after, report_of(after, cohort, outcome)

    def _cohort(self, sampled: list[int]) -> list[int]:
        """The connected sites among those sampled; raises for too few, empty if too few were sampled."""
        if len(sampled) < self.method.channel.min_cohort:  # ends like a round without clients, as in a simulation
            return []
        cohort = self.sites.present_of(sampled)
        if len(cohort) < min(self.least, len(sampled)):
            raise TooFewClientsError(
                f"Expected at least {self.least} sites in a round, got {len(cohort)}. {self.sites.explanation()}"
            )
        return self._channel.invite(cohort)

    def _request(self, state: State, now: Round, sent: Broadcast, cohort: Sequence[int]) -> SiteRequest:
        """The request of a round, without the one-time broadcast."""
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

    # Evaluation

    def _evaluates(self, done: int, last: int) -> bool:
        every = self.plan.evaluate_every
        return bool(every) and (done % every == 0 or done == last)

    def _evaluate(self, state: State, report: Report) -> Report:
        """The report with metrics on the held-out data of sites that send them; without, if too few do."""
        delivered = [number for number in report.clients if number not in report.rejected]
        cohort = [number for number in self.sites.present_of(delivered) if number not in self.sites.silent]
        if len(cohort) < self.least:
            return report
        now, traffic = self._evaluation_round(state, len(cohort)), SiteBytes()
        asked = self._request(state, now, broadcast(self.method, state, now), cohort)
        try:
            total, count = self._channel.metrics(asked, traffic)
        except TooFewClientsError as error:
            self.sites.log("no metrics", round=state.round, reason=str(error)[:500])
            return with_metrics(report, {}, traffic)
        return with_metrics(report, total.metrics if count >= self.least else {}, traffic)

    def _evaluation_round(self, state: State, cohort: int) -> Round:
        """The round after this state, to which the evaluated broadcast belongs."""
        population = self.plan.population
        expected = self.method.sampler.sampling(population, state.round).mean_cohort(population)
        shared = Key.from_seed(self.plan.seed, "shared").child("round", state.round)
        return Round(state.round, population, expected, cohort, shared)
