"""A site: the process that plays one client, with its own data, secrets, policy and ledger. It trusts nobody.

`Site.handle(verb, request)` maps bytes to bytes and never raises because of a request: it answers an unsafe one with a
signed refusal. A round at a site::

    read ─► did the server of the pinned directory sign it for this site and phase? ─► is it of the current run?
         ─► is the plan accepted and within the policy, and does the whole request fit it? ─► is this attempt new?
         ─► note the attempt (durable) ─► charge the site's own ledger (durable) ─► train, with fresh secrets
         ─► store the state (durable) ─► answer

An invalid request is refused before it is noted or charged: nothing was drawn for it, so a valid request for the same
attempt may follow. After a later crash, the site never answers that attempt again. The server then starts another one,
which is charged again and draws fresh noise: nothing of the lost attempt was sent. The log has the first refusals of a
kind, and then every doubling of their number.
"""

import hmac
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.core import ClientMemory, ClientRound, Messages, View
from tacit.core.client_half import empty_messages, read_broadcast
from tacit.core.server_half import reject_unusable
from tacit.engine.waves import single_thread
from tacit.errors import (
    BudgetError,
    DataError,
    LedgerError,
    ProtocolError,
    StorageError,
    WireError,
)
from tacit.federation import messages as wire
from tacit.federation.channels.interface import SiteReply
from tacit.federation.messages import (
    CONTINUE,
    EVALUATE,
    PREPARE,
    REGISTER,
    TRAIN,
    RefusalCode,
    RefusedError,
    SiteRequest,
)
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.accepted_plan import (
    AcceptedPlan,
    Secrets,
    SiteProgress,
    StoredConversation,
    fresh_secrets,
)
from tacit.federation.site.data import SiteData
from tacit.federation.site.files import SiteFiles, read_site
from tacit.federation.site.policy import charge_of_round, objections
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Parts

MAX_LOGGED = 256  # refusals of a kind that are all logged
BYTES_PER_WEIGHT, SLACK = 16, 1 << 16  # of a broadcast at most: a number and its place, and everything else


class Site:
    """A site of a federation. Use `Site.open` with its file.

    Args:
        files: the site's file and folder.
        keys: the source of each attempt's keys: the operating system, except in tests.
    """

    def __init__(self, files: SiteFiles, keys: Secrets = fresh_secrets) -> None:
        self.files, self._secrets = files, keys
        self.name, self.number = files.name, files.number
        self.journal = files.journal()
        self._plans: dict[bytes, AcceptedPlan] = {}
        self._lock = threading.Lock()  # one request at a time, whatever the transport's threads
        self._noted = files.noted_charges
        self._refused: Counter[tuple[str, RefusalCode]] = Counter()
        self._joined: dict[str, str] = {}
        self.journal.append("started", site=self.name)

    @classmethod
    def open(cls, path: Path, keys: Secrets = fresh_secrets) -> "Site":
        """The site of a file."""
        return cls(read_site(path), keys)

    def handle(self, verb: str, request: bytes) -> bytes:
        """The site's signed reply to a request, an answer or a refusal; a request never makes it raise."""
        with self._lock:
            return self._handle(verb, request)

    def _handle(self, verb: str, request: bytes) -> bytes:
        session = wire.unread(request)
        try:
            if verb not in wire.REQUESTS:
                raise RefusedError("malformed", f"Expected one of {', '.join(wire.REQUESTS)}, got {verb[:20]!r}.")
            asked = wire.read_request(request, wire.REQUESTS[verb])
            wire.check_addressed(verb, asked, self.number, self.files.directory.server)
            session = asked.session(verb)
            body = self._acts[verb](asked, session)
        except RefusedError as refusal:
            return self._refuse(verb, session, refusal.code, str(refusal))
        except Exception as error:
            self.files.note_error(error)
            return self._refuse(verb, session, *_reason(error))
        return wire.pack(wire.sign_reply(verb, wire.Answer(self.number, session, body), self.files.identity))

    @cached_property
    def _acts(self) -> dict[str, Callable[[Any, bytes], bytes]]:
        """All that a request can make this process do."""
        return {
            REGISTER: self._register,
            TRAIN: self._train,
            CONTINUE: self._continue,
            EVALUATE: self._evaluate,
            PREPARE: self._prepare,
        }

    def _refuse(self, verb: str, session: bytes, code: RefusalCode, text: str) -> bytes:
        known = verb if verb in wire.REQUESTS else ""
        self._refused[known, code] += 1
        times = self._refused[known, code]
        if times <= MAX_LOGGED or times.bit_count() == 1:  # whoever repeats requests does not fill the disk
            self.journal.append("refused", verb=verb[:20], code=code, reason=text[:500], times=times)
        refusal = wire.Refusal(self.number, session, code, text[: wire.MAX_TEXT])
        return wire.pack(wire.sign_reply(verb, refusal, self.files.identity))

    # Verbs

    def _register(self, register: wire.Registration, _: bytes) -> bytes:
        plan = self._find_accepted(register.plan)
        names = {"plan": register.plan.hex(), "run": register.run.hex()}
        if names != self._joined:  # a run that registers again says nothing new
            self.journal.append("joined", **names, method=plan.plan.method_name)
            self._joined = names
        return plan.progress.ticket(self.files.identity, register.plan, register.run)

    def _train(self, asked: SiteRequest, session: bytes) -> bytes:
        plan = self._find_accepted(asked.plan)
        self._progress_in_run(plan, asked)
        parts = self._check(plan, asked, TRAIN)
        self._next_progress(plan, asked, TRAIN)
        self._check_fits(plan, asked, parts)
        progress = self._begin(plan, asked, TRAIN)
        keys = self._secrets()
        half = plan.half(keys)
        now = half.round(asked.round, len(asked.cohort), asked.attempt - 1)
        self._charge(plan, asked, now)
        with single_thread():
            messages, memory = half.messages(parts, plan.wave, plan.memory(), now)
        self._keep(plan, progress, asked, memory)
        self._check_finite(plan, messages)
        self.journal.append("trained", **_round_of(asked))
        return self._send(plan, session, 0, lambda: plan.channel.reply(asked, messages, now))

    def _evaluate(self, asked: SiteRequest, session: bytes) -> bytes:
        plan = self._find_accepted(asked.plan)
        self._progress_in_run(plan, asked)
        if not self.files.allow.allows_metrics(plan.plan.channel):
            raise RefusedError("policy", "This site does not send metrics through this channel.")
        if plan.data.held_out is None:
            raise RefusedError("policy", "This site holds no samples out.")
        view = _view(plan, self._check(plan, asked, EVALUATE), _round(plan, asked))
        plan.channel.check_evaluation(asked)  # refuse before noting it
        self._begin(plan, asked, EVALUATE)
        vector = plan.evaluate(view.weights, plan.data.held_out).to_vector()
        self.journal.append("evaluated", plan=asked.plan.hex(), round=asked.round, attempt=asked.attempt)
        return self._send(plan, session, 0, lambda: plan.channel.reply_metrics(asked, vector))

    def _continue(self, further: wire.Continuation, session: bytes) -> bytes:
        plan = self._find_accepted(further.plan)
        conversation = plan.conversation()
        if conversation is None or conversation.session != session:
            raise RefusedError("replay", "This site is in no such conversation: it has ended, or was never begun.")
        if further.step <= conversation.step:
            raise RefusedError("replay", "This request was answered before.")
        return self._send(
            plan, session, further.step, lambda: plan.channel.further(conversation.state, further.request)
        )

    def _prepare(self, asked: wire.Preparation, _: bytes) -> bytes:
        """A step of the channel's protocol before a round."""
        plan = self._find_accepted(asked.plan)
        plan.note(self._progress_in_run(plan, asked).begin(PREPARE, (asked.round, asked.attempt, asked.step)))
        reply, noted = plan.channel.prepare(asked.request)
        if noted:
            self.journal.append(plan=asked.plan.hex(), **noted)
        return reply

    def _send(self, plan: AcceptedPlan, session: bytes, step: int, answer: Callable[[], SiteReply]) -> bytes:
        """A step of the channel's protocol; an unsafe request ends its conversation."""
        try:
            reply = answer()
        except ProtocolError:
            plan.leave()
            raise
        if reply.state:
            plan.store(StoredConversation(session, step, reply.state, reply.lasting))
        return reply.body

    # Checks of a request

    def _find_accepted(self, digest: bytes) -> AcceptedPlan:
        """The plan with this digest, if the site accepted it and its policy still allows it."""
        verdict = self.files.verdict(digest)
        if verdict is None or not verdict.accepted:
            raise RefusedError("plan", f"This site has not accepted the plan {digest.hex()[:16]}.")
        if digest not in self._plans:
            plan = self.files.accepted_plan(digest)
            if plan is None or plan.directory != self.files.directory:
                raise RefusedError("plan", "The plan's sites and keys are not those of this site's pinned directory.")
            _expect_none(objections(plan, self.files.allow))
            data = self._data(plan)
            _expect_none(self.files.unit_objections(plan, data))
            self._plans[digest] = AcceptedPlan(self.files, plan, data)
        return self._plans[digest]

    def _progress_in_run(self, plan: AcceptedPlan, asked: SiteRequest | wire.Preparation) -> SiteProgress:
        """The progress in the request's run; raises for a run that the site has left, or never joined."""
        progress = plan.progress
        if not hmac.compare_digest(asked.ticket, progress.ticket(self.files.identity, asked.plan, asked.run)):
            raise RefusedError(
                "run", "This request belongs to a run of the server that this site has left, or has not joined yet."
            )
        return progress.join(asked.run)

    def _data(self, plan: FederationPlan) -> SiteData:
        """The site's data under a plan; an error may quote data, and is not sent."""
        try:
            return self.files.load_data(plan)
        except DataError as error:
            self.files.note_error(error)
            raise RefusedError("data", "This site's data do not fit the plan. Its operator has to look.") from None

    def _check(self, plan: AcceptedPlan, asked: SiteRequest, verb: str) -> Parts:
        """The broadcast's parts, if an honest server could send this request now."""
        cohort, least = asked.cohort, max(self.files.allow.min_cohort, plan.plan.min_cohort)
        if list(cohort) != sorted(set(cohort)) or cohort[-1] >= plan.plan.population or self.number not in cohort:
            raise RefusedError("malformed", "Expected a cohort of enrolled sites that includes this one.")
        if len(cohort) < least:
            raise RefusedError("policy", f"Expected a cohort of at least {least} sites, got {len(cohort)}.")
        last = plan.method.rounds - (verb == TRAIN)  # an evaluation follows the last round
        if asked.round > last:
            raise RefusedError("policy", f"The plan has {plan.method.rounds} rounds, got round {asked.round + 1}.")
        _check_size(plan, asked)
        frame = frames.unpack(asked.frame, FrameKind.VIEW)
        first = frames.unpack(asked.first, FrameKind.VIEW).parts if asked.first else {}
        if frame.parts.keys() & first.keys():  # it could replace one site's model
            raise RefusedError("malformed", "What is sent once must not replace what is sent in every round.")
        if (frame.round, frame.cohort) != (asked.round, len(cohort)):
            raise RefusedError("malformed", "The broadcast is of another round or cohort than the request.")
        if asked.first and wire.digest_of(asked.first) != asked.first_digest:
            raise RefusedError("malformed", "What is sent once has another digest than announced.")
        if not asked.first and plan.progress.first != asked.first_digest.hex():
            raise RefusedError("protocol", "This site has not received what is sent once, or received something else.")
        if bool(asked.opening) != plan.channel.opens(verb):
            raise RefusedError("malformed", "Expected the first request of the plan's channel.")
        return {**frame.parts, **first}

    def _check_fits(self, plan: AcceptedPlan, asked: SiteRequest, parts: Parts) -> None:
        """Raise unless the site could answer this, without notes, charges, draws or access to data."""
        now = _round(plan, asked)
        like = empty_messages(plan.method, _view(plan, parts, now), plan.layout.shapes, now)
        plan.channel.validate(asked, like, now)

    def _begin(self, plan: AcceptedPlan, asked: SiteRequest, verb: str) -> SiteProgress:
        """Note the attempt durably, so it is never answered again, and leave any earlier conversation."""
        begun = self._next_progress(plan, asked, verb)
        plan.leave()
        plan.note(begun)
        return begun

    def _next_progress(self, plan: AcceptedPlan, asked: SiteRequest, verb: str) -> SiteProgress:
        """The site's progress with this attempt; raises unless it is a new one, and within the limits."""
        limit = plan.plan.max_evaluations
        if verb == TRAIN:
            most = plan.method.terms.max_participations(plan.layout.dim)
            limit = plan.plan.max_answers if most is None else min(most, plan.plan.max_answers)
        return plan.progress.join(asked.run).begin(verb, (asked.round, asked.attempt), limit)

    def _charge(self, plan: AcceptedPlan, asked: SiteRequest, now: ClientRound) -> None:
        """Charge the attempt to the site's own ledger, before drawing noise."""
        budget = self.files.allow.budget
        charge = charge_of_round(plan.plan, asked.round, plan.data.units)
        from tacit.privacy.accountants import default_accountant

        of_clients = () if charge.unit.within_client else charge.releases
        accountant = None if self.files.has_ledger else default_accountant(*of_clients)
        run, label = f"{asked.plan.hex()} {asked.run.hex()}", plan.plan.method_name
        with self.files.open_ledger(self._noted, accountant, budget) as ledger:
            ledger.reserve(run, asked.round + 1, charge, label, now.clients.of(0).digest)
            accounts, units = ledger.accounts, ledger.accounts.units if budget.limited else ()
            used = max((accounts[each].epsilon(budget.delta) for each in units), default=None)
            self._noted = noted = ledger.head
        epsilon = None if used is None else round(used, 6)
        head = {"ledger": noted.ledger, "row": noted.row, "head": noted.hash}
        self.journal.append("charged", **_round_of(asked), unit=charge.unit.value, epsilon=epsilon, **head)

    def _keep(self, plan: AcceptedPlan, progress: SiteProgress, asked: SiteRequest, memory: ClientMemory) -> None:
        """Store the client state and the digest of the one-time broadcast."""
        if memory.mask is not None or asked.first:
            plan.keep(memory)
        if progress.first != asked.first_digest.hex():
            plan.note(replace(progress, first=asked.first_digest.hex()))

    def _check_finite(self, plan: AcceptedPlan, messages: Messages) -> None:
        """Raise for a row that the server would reject."""
        kept, _ = reject_unusable(messages, plan.method.max_norm(messages.rows.dim))
        if kept.rows.count == 0:
            raise RefusedError("training", "The update is not finite, or longer than the method accepts.")


def _expect_none(objections: Iterable[str]) -> None:
    """Raise if the policy objects to anything."""
    if text := " ".join(objections):
        raise RefusedError("policy", text)


def _round(plan: AcceptedPlan, asked: SiteRequest) -> ClientRound:
    """The round of a request, with secrets of which nothing is drawn."""
    return plan.half(fresh_secrets()).round(asked.round, len(asked.cohort))


def _view(plan: AcceptedPlan, parts: Parts, now: ClientRound) -> View:
    """The site's view of a broadcast; raises `WireError` unless it suits the plan's method."""
    return read_broadcast(plan.method, parts, plan.memory(), now)[0]


def _check_size(plan: AcceptedPlan, asked: SiteRequest) -> None:
    """Refuse a broadcast longer than any of the plan's models, before unpacking it."""
    most = SLACK + BYTES_PER_WEIGHT * plan.models * plan.layout.dim
    for sent in (asked.frame, asked.first):
        if len(sent) > most:
            raise RefusedError("malformed", f"Expected a broadcast of at most {most} bytes, got {len(sent)}.")


def _round_of(asked: SiteRequest) -> dict[str, Any]:
    return {"plan": asked.plan.hex(), "round": asked.round + 1, "attempt": asked.attempt}


def _reason(error: Exception) -> tuple[RefusalCode, str]:
    """Why a request is refused; for third-party errors only the type, since the text may quote data."""
    match error:
        case BudgetError():
            return "budget", "This site's privacy budget does not allow another round."
        case WireError():
            return "malformed", str(error)
        case ProtocolError():
            return "protocol", str(error)
        case StorageError() | LedgerError():
            return "storage", f"{type(error).__name__}: the site could not record it."
    return "error", type(error).__name__
