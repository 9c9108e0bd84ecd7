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
from tacit.federation.messages import CONTINUE, EVALUATE, PREPARE, REGISTER, TRAIN, Answer, SiteRequest
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
        key: the server's secret key, with which every request is signed.

    Attributes:
        problems: why each site failed to deliver last time, by name.
        excluded: sites that receive no more requests.
        silent: the numbers of sites that send no metrics.
    """

    def __init__(
        self, plan: FederationPlan, transport: Transport, run: bytes, journal: AuditLog | None, key: bytes
    ) -> None:
        self._key, self._step = key, 0
        self.plan, self.transport, self.run, self.journal = plan, transport, run, journal
        self.problems: dict[str, str] = {}
        self.excluded: set[str] = set()
        self.silent: set[int] = set()
        self._failures: Counter[str] = Counter()  # in a row
        self._failed: set[str] = set()  # in this round
        self._welcome: dict[str, bytes] = {}  # their tickets for this run
        self._declined: set[str] = set()  # do not take part in this plan
        self._received: set[int] = set()  # have the one-time broadcast

    # Who takes part

    def present(self) -> tuple[str, ...]:
        """The enrolled sites that are connected, take part in this plan, and are not excluded."""
        connected = {name for name in self.transport.sites() if name in self.plan.directory.identities}
        for absent in [name for name in (*self._welcome, *self._declined, *self.excluded) if name not in connected]:
            self.readmit(absent)
        self._greet(sorted(connected - self._welcome.keys() - self._declined - self.excluded))
        return tuple(name for name in self.plan.directory.names if name in self._welcome and name not in self.excluded)

    def present_of(self, cohort: Sequence[int]) -> list[int]:
        """The sites of a cohort that are connected and take part."""
        present = {self.plan.directory.number(name) for name in self.present()}
        return [number for number in cohort if number in present]

    def readmit(self, name: str) -> None:
        """Forget the failures of a site that left or registers anew, and ask it again."""
        self._welcome.pop(name, None)
        self._declined.discard(name)
        self.excluded.discard(name)
        self._failures.pop(name, None)

    def _greet(self, names: Sequence[str]) -> None:
        """Ask newly connected sites whether they take part in this plan."""
        if not names:
            return
        register = wire.Registration(self.plan.digest, self.run)
        requests = {name: self._pack_for(REGISTER, register, self.plan.directory.number(name)) for name in names}
        replies = self.transport.ask(REGISTER, requests, self.plan.timeouts.message)
        for name, request in requests.items():
            reply = replies.get(name, Failure("absent"))
            ticket = self._read(REGISTER, register.session(REGISTER), name, request, reply)
            if ticket is not None and len(ticket) != len(wire.NO_TICKET):
                self._note(name, "malformed: its answer is no ticket for this run")
            elif ticket is not None:
                self._welcome[name] = ticket
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
        requests = {
            n: replace(asked, first=first[n], opening=data, ticket=self._ticket(n)) for n, data in openings.items()
        }
        traffic.sent_once.update({number: len(content) for number, content in first.items()})
        self.log("asked", verb=verb, round=asked.round + 1, attempt=asked.attempt, sites=self.names([*openings]))
        replies = self._ask(verb, asked.session(verb), requests, self.plan.timeouts.train, traffic)
        if verb == TRAIN:
            self._received = (self._received - set(openings)) | (set(replies) if asked.first else set())
        return replies

    def ask_further(self, session: bytes, requests: Mapping[int, bytes], traffic: SiteBytes) -> dict[int, bytes]:
        """Send a further request of a channel's protocol in a conversation."""
        self._step += 1
        continued = {n: wire.Continuation(self.plan.digest, session, self._step, data) for n, data in requests.items()}
        return self._ask(CONTINUE, session, continued, self.plan.timeouts.message, traffic)

    def ask_before(self, asked: SiteRequest, requests: Mapping[int, bytes], traffic: SiteBytes) -> dict[int, bytes]:
        """Send a request of a channel's protocol before the round that `asked` begins."""
        self._step += 1
        first = wire.Preparation(asked.plan, asked.run, asked.round, asked.attempt, self._step, b"")
        prepared = {
            number: replace(first, request=data, ticket=self._ticket(number)) for number, data in requests.items()
        }
        return self._ask(PREPARE, first.session(PREPARE), prepared, self.plan.timeouts.message, traffic)

    def _pack_for(self, verb: str, request: wire.Request, number: int) -> bytes:
        """A request as bytes, signed for one site."""
        return wire.pack(wire.sign_request(verb, request, number, self._key))

    def _ask(
        self, verb: str, session: bytes, asked: Mapping[int, wire.Request], timeout: float, traffic: SiteBytes
    ) -> dict[int, bytes]:
        """The valid answers of these sites; the other sites failed."""
        names = self.plan.directory.names
        requests = {n: self._pack_for(verb, each, n) for n, each in asked.items()}
        replies = self.transport.ask(verb, {names[number]: data for number, data in requests.items()}, timeout)
        answers: dict[int, bytes] = {}
        for number, request in requests.items():
            traffic.down[number] += len(request)
            reply = replies.get(names[number], Failure("absent"))
            traffic.up[number] += 0 if isinstance(reply, Failure) else len(reply)
            answer = self._read(verb, session, names[number], request, reply)
            if answer is None:
                self._failed.add(names[number])
            else:
                answers[number] = answer
        return answers

    def _ticket(self, number: int) -> bytes:
        """What a site answered to the registration of this run."""
        return self._welcome.get(self.plan.directory.names[number], wire.NO_TICKET)

    def _read(self, verb: str, session: bytes, name: str, request: bytes, reply: bytes | Failure) -> bytes | None:
        """A site's answer, if it is valid in this conversation; else None, with the failure noted."""
        number = self.plan.directory.number(name)
        if isinstance(reply, Failure):
            self._note(name, f"{reply.reason}{f': {reply.text}' if reply.text else ''}")
            return None
        try:
            answer = wire.read_reply(reply, verb, session, number, self.plan.directory.by_number, request)
        except ProtocolError as error:
            self._note(name, f"malformed: {error}")
            return None
        if isinstance(answer, Answer):
            return answer.body
        self._note(name, f"refused ({answer.code}): {answer.text}")
        if answer.code == "run":  # it has lost its state, or trained in another run since: ask it again
            self._welcome.pop(name, None)
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
    def count_failures(self, cohort: Sequence[int]) -> Iterator[None]:
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
