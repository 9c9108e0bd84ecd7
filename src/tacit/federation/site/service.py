"""A site: the process that plays one client, with its own data, secrets, policy and ledger. It trusts nobody.

`Site.handle(verb, request)` maps bytes to bytes and never raises because of a request: it answers an unsafe one with a
signed refusal. A round at a site::

    read ─► is the plan accepted and within the policy, and does the whole request fit it? ─► is this attempt new?
         ─► note the attempt (durable) ─► charge the site's own ledger (durable) ─► train, with fresh secrets
         ─► store the state (durable) ─► answer

An invalid request is refused before it is noted or charged: nothing was drawn for it, so a valid request for the same
attempt may follow. After a later crash, the site never answers that attempt again. The server then starts another one,
which is charged again and draws fresh noise: nothing of the lost attempt was sent.
"""

import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
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
from tacit.federation.site.accepted_plan import AcceptedPlan, Secrets, SiteProgress, fresh_secrets
from tacit.federation.site.data import SiteData
from tacit.federation.site.files import SiteFiles, read_site
from tacit.federation.site.policy import charged, objections, unit_of
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Parts

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
        self._answered = b""  # the last request of a conversation
        self.registration = secrets.token_bytes(16)  # new at each start of the process
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
        session = wire.NO_SESSION
        try:
            session, act = self._read(verb, request)
            body = act()
        except RefusedError as refusal:
            return self._refuse(verb, session, refusal.code, str(refusal))
        except Exception as error:
            self.files.note_error(error)
            return self._refuse(verb, session, *_reason(error))
        return wire.pack(wire.signed(verb, wire.Answer(self.number, session, body), self.files.identity))

    def _read(self, verb: str, request: bytes) -> tuple[bytes, Callable[[], bytes]]:
        """A request's conversation, and the action to take."""
        if verb == REGISTER:
            register = wire.read_request(request, wire.Registration)
            return register.session, lambda: self._register(register)
        if verb in (CONTINUE, PREPARE):
            further = wire.read_request(request, wire.Continuation)
            return further.session, lambda: self._continue(further) if verb == CONTINUE else self._prepare(further)
        if verb in (TRAIN, EVALUATE):
            asked = wire.read_request(request, SiteRequest)
            act = self._train if verb == TRAIN else self._evaluate
            return asked.session(verb), lambda: act(asked)
        raise RefusedError(
            "malformed", f"Expected one of register, train, continue, prepare, evaluate, got {verb[:20]!r}."
        )

    def _refuse(self, verb: str, session: bytes, code: RefusalCode, text: str) -> bytes:
        self.journal.append("refused", verb=verb[:20], code=code, reason=text[:500])
        refusal = wire.Refusal(self.number, session, code, text[: wire.MAX_TEXT])
        return wire.pack(wire.signed(verb, refusal, self.files.identity))

    # Verbs

    def _register(self, register: wire.Registration) -> bytes:
        plan = self._accepted(register.plan)
        self.journal.append("joined", plan=register.plan.hex(), run=register.run.hex(), method=plan.plan.method_name)
        return self.registration

    def _train(self, asked: SiteRequest) -> bytes:
        plan = self._accepted(asked.plan)
        parts = self._check(plan, asked, TRAIN)
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
        return self._send(plan, asked.session(TRAIN), asked.opening, lambda: plan.channel.reply(asked, messages, now))

    def _evaluate(self, asked: SiteRequest) -> bytes:
        plan = self._accepted(asked.plan)
        if not self.files.allow.allows_metrics(plan.plan.channel):
            raise RefusedError("policy", "This site does not send metrics through this channel.")
        if plan.data.held_out is None:
            raise RefusedError("policy", "This site holds no samples out.")
        view = _view(plan, self._check(plan, asked, EVALUATE), _round(plan, asked))
        plan.channel.check_evaluation(asked)  # refuse before noting it
        self._begin(plan, asked, EVALUATE)
        vector = plan.evaluate(view.weights, plan.data.held_out).to_vector()
        self.journal.append("evaluated", plan=asked.plan.hex(), round=asked.round, attempt=asked.attempt)
        return self._send(
            plan, asked.session(EVALUATE), asked.opening, lambda: plan.channel.reply_metrics(asked, vector)
        )

    def _continue(self, further: wire.Continuation) -> bytes:
        plan = self._accepted(further.plan)
        conversation = plan.conversation()
        if conversation is None or conversation[0] != further.session:
            raise RefusedError("replay", "This site is in no such conversation: it has ended, or was never begun.")
        if self._answered == further.request:
            raise RefusedError("replay", "This request was answered before.")
        session, state = conversation
        return self._send(plan, session, further.request, lambda: plan.channel.further(state, further.request))

    def _prepare(self, further: wire.Continuation) -> bytes:
        """A step of the channel's protocol before a round."""
        reply, noted = self._accepted(further.plan).channel.prepare(further.request)
        if noted:
            self.journal.append(plan=further.plan.hex(), **noted)
        return reply

    def _send(self, plan: AcceptedPlan, session: bytes, request: bytes, answer: Callable[[], SiteReply]) -> bytes:
        """A step of the channel's protocol; an unsafe request ends its conversation."""
        try:
            reply = answer()
        except ProtocolError:
            plan.leave()
            raise
        if reply.state:
            plan.store(session, reply.state)
            self._answered = request
        return reply.body

    # Checks of a request

    def _accepted(self, digest: bytes) -> AcceptedPlan:
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
            _expect_none(self.files.unit_objections(plan, data.unit))
            self._plans[digest] = AcceptedPlan(self.files, plan, data)
        return self._plans[digest]

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
        limit = plan.plan.max_evaluations
        if verb == TRAIN:
            most = plan.method.terms.max_participations(plan.layout.dim)
            limit = plan.plan.max_answers if most is None else min(most, plan.plan.max_answers)
        begun = plan.progress.begin(verb, asked, limit)
        plan.leave()
        plan.note(begun)
        return begun

    def _charge(self, plan: AcceptedPlan, asked: SiteRequest, now: ClientRound) -> None:
        """Charge the attempt to the site's own ledger, before drawing noise."""
        budget = self.files.allow.budget
        if budget is None:
            return
        charge = charged(plan.plan, asked.round, plan.data.units)
        if charge is None:
            raise RefusedError("policy", "This plan has no proved ε, which this site requires.")
        from tacit.privacy.accountants import default_accountant
        from tacit.privacy.ledger import Ledger

        of_clients = () if charge.unit.within_client else charge.releases
        terms = () if self.files.has_ledger else (default_accountant(*of_clients),)
        run, label = f"{asked.plan.hex()} {asked.run.hex()}", plan.plan.method_name
        with Ledger.open(self.files.ledger, budget, *terms) as ledger:
            ledger.reserve(run, asked.round + 1, charge, label, now.clients.of(0).digest)
            used = max(ledger.accounts[each].epsilon(budget.delta) for each in ledger.accounts.units)
        self.journal.append("charged", **_round_of(asked), unit=unit_of(plan.plan).value, epsilon=round(used, 6))

    def _keep(self, plan: AcceptedPlan, progress: SiteProgress, asked: SiteRequest, memory: ClientMemory) -> None:
        """Store the client state and the digest of the one-time broadcast."""
        if memory.mask is not None or asked.first:
            plan.keep(memory)
        if progress.first != asked.first_digest.hex():
            plan.note(replace(progress, first=asked.first_digest.hex()))

    def _check_finite(self, plan: AcceptedPlan, found: Messages) -> None:
        """Raise for a row that the server would reject."""
        kept, _ = reject_unusable(found, plan.method.max_norm(found.rows.dim))
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
