"""The enrolled sites as the server sees them: participation, requests, and failures with reasons.

One site's failure does not stop the others. A site fails if it is absent, late or silent, refuses, or sends a malformed
reply. After two failures in a row, it is excluded until it reconnects.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from tacit.errors import ProtocolError
from tacit.federation import messages as wire
from tacit.federation.journal import AuditLog
from tacit.federation.messages import EVALUATE, REGISTER, TRAIN, Answer, SiteRequest
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.round_reports import SiteBytes
from tacit.federation.transport.endpoints import Failure, Transport

MAX_FAILURES = 2  # failures in a row that exclude a site


class EnrolledSites:
    """The sites of a plan.

    Args:
        plan: what is trained.
        transport: the server's transport.
        run: random bytes of this start of the server.
        journal: the record of requests, replies and refusals; None: no record.

    Attributes:
        problems: why each site failed to deliver last time, by name.
        excluded: sites that receive no more requests.
        silent: the numbers of sites that send no metrics.
    """

    def __init__(self, plan: FederationPlan, transport: Transport, run: bytes, journal: AuditLog | None) -> None:
        self.plan, self.transport, self.run, self.journal = plan, transport, run, journal
        self.problems: dict[str, str] = {}
        self.excluded: set[str] = set()
        self.silent: set[int] = set()
        self._failures: Counter[str] = Counter()  # in a row
        self._failed: set[str] = set()  # in this round
        self._welcome: set[str] = set()
        self._declined: set[str] = set()  # do not take part in this plan
        self._received: set[int] = set()  # have the one-time broadcast

    # Who takes part

    def present(self) -> tuple[str, ...]:
        """The enrolled sites that are connected, take part in this plan, and are not excluded."""
        connected = {name for name in self.transport.sites() if name in self.plan.directory.identities}
        for absent in [name for name in (*self._welcome, *self._declined, *self.excluded) if name not in connected]:
            self.readmit(absent)
        self._greet(sorted(connected - self._welcome - self._declined - self.excluded))
        return tuple(name for name in self.plan.directory.names if name in self._welcome and name not in self.excluded)

    def present_of(self, cohort: Sequence[int]) -> list[int]:
        """The sites of a cohort that are connected and take part."""
        present = {self.plan.directory.number(name) for name in self.present()}
        return [number for number in cohort if number in present]

    def readmit(self, name: str) -> None:
        """Forget the failures of a site that left or registers anew, and ask it again."""
        self._welcome.discard(name)
        self._declined.discard(name)
        self.excluded.discard(name)
        self._failures.pop(name, None)

    def _greet(self, names: Sequence[str]) -> None:
        """Ask newly connected sites whether they take part in this plan."""
        if not names:
            return
        register = wire.Registration(self.plan.digest, self.run)
        replies = self.transport.ask(REGISTER, dict.fromkeys(names, wire.pack(register)), self.plan.timeouts.message)
        for name in names:
            if self._read(REGISTER, register.session, name, replies.get(name, Failure("absent"))) is not None:
                self._welcome.add(name)
                self.log("joined", site=name)
                self.problems.pop(name, None)

    def ask_refusing(self) -> None:
        """Ask refusing sites again: one may have accepted the plan since."""
        self._declined.clear()

    # Asking

    def ask_round(
        self, verb: str, asked: SiteRequest, openings: Mapping[int, bytes], traffic: SiteBytes
    ) -> dict[int, bytes]:
        """Send the first message of a round or an evaluation, with the one-time broadcast where it is missing."""
        first = {number: b"" if number in self._received else asked.first for number in openings}
        requests = {n: wire.pack(replace(asked, first=first[n], opening=data)) for n, data in openings.items()}
        traffic.sent_once.update({number: len(content) for number, content in first.items()})
        self.log("asked", verb=verb, round=asked.round + 1, attempt=asked.attempt, sites=self.names([*openings]))
        replies = self._ask(verb, asked.session(verb), requests, self.plan.timeouts.train, traffic)
        if verb == TRAIN:
            self._received = (self._received - set(openings)) | (set(replies) if asked.first else set())
        return replies

    def ask_further(
        self, verb: str, session: bytes, requests: Mapping[int, bytes], traffic: SiteBytes
    ) -> dict[int, bytes]:
        """Send a further request of a channel's protocol, in a conversation or before a round."""
        packed = {
            number: wire.pack(wire.Continuation(self.plan.digest, session, request))
            for number, request in requests.items()
        }
        return self._ask(verb, session, packed, self.plan.timeouts.message, traffic)

    def _ask(
        self, verb: str, session: bytes, requests: Mapping[int, bytes], timeout: float, traffic: SiteBytes
    ) -> dict[int, bytes]:
        """The valid answers of these sites; the other sites failed."""
        names = self.plan.directory.names
        replies = self.transport.ask(verb, {names[number]: data for number, data in requests.items()}, timeout)
        answers: dict[int, bytes] = {}
        for number, request in requests.items():
            traffic.down[number] += len(request)
            reply = replies.get(names[number], Failure("absent"))
            traffic.up[number] += 0 if isinstance(reply, Failure) else len(reply)
            answer = self._read(verb, session, names[number], reply)
            if answer is None:
                self._failed.add(names[number])
            else:
                answers[number] = answer
        return answers

    def _read(self, verb: str, session: bytes, name: str, reply: bytes | Failure) -> bytes | None:
        """A site's answer, if it is valid in this conversation; else None, with the failure noted."""
        number = self.plan.directory.number(name)
        if isinstance(reply, Failure):
            self._note(name, f"{reply.reason}{f': {reply.text}' if reply.text else ''}")
            return None
        try:
            answer = wire.read_reply(reply, verb, session, number, self.plan.directory.by_number)
        except ProtocolError as error:
            self._note(name, f"malformed: {error}")
            return None
        if isinstance(answer, Answer):
            return answer.body
        self._note(name, f"refused ({answer.code}): {answer.text}")
        if verb == REGISTER:
            self._declined.add(name)
        if verb == EVALUATE:
            self.silent.add(number)
        return None

    def fail(self, number: int, why: str) -> None:
        """Note that a site's message is unusable."""
        name = self.plan.directory.names[number]
        self._note(name, f"malformed: {why}")
        self._failed.add(name)

    def _note(self, name: str, why: str) -> None:
        self.problems[name] = why
        self.log("failed", site=name, reason=why[:500])

    @contextmanager
    def counting_failures(self, cohort: Sequence[int]) -> Iterator[None]:
        """Count the failures of the cohort's sites in this round, even if the round fails."""
        self._failed.clear()
        try:
            yield
        finally:
            for name in self.names(cohort):
                self._failures[name] = self._failures[name] + 1 if name in self._failed else 0
                if self._failures[name] >= MAX_FAILURES:
                    self.excluded.add(name)
                    self.log("excluded", site=name)

    def explanation(self) -> str:
        """Why sites are missing, by name; empty if nothing is known."""
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(self.problems.items()))
        return f"{reasons}. " if reasons else ""

    def names(self, numbers: Sequence[int]) -> list[str]:
        """The names of sites by their numbers."""
        return [self.plan.directory.names[number] for number in numbers]

    def log(self, event: str, **content: object) -> None:
        """Record an event, if there is a journal."""
        if self.journal is not None:
            self.journal.append(event, **content)
