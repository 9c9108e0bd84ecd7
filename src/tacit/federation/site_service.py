"""A site: the process that plays one client, with its own data, secrets, policy and ledger. It trusts nobody.

`Site.handle(verb, request)` maps bytes to bytes and never raises for what came from outside: what is not safe to answer
becomes a signed refusal. A round at a site::

    read ─► is the plan accepted, within the policy, and this attempt new? ─► note the attempt (durable)
         ─► charge the site's own ledger (durable) ─► train, with fresh secrets ─► store the state (durable) ─► answer

A crash anywhere leaves an attempt that can never be answered again. The server then starts another one, which is
charged again and draws fresh noise: of what was lost, nothing was sent.
"""

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.core import ClientKeys, ClientMemory, ClientRound, Key, Messages, Population, Samples, files
from tacit.core.client_half import ClientHalf, read_broadcast
from tacit.core.keys import RunKeys
from tacit.core.losses import best_outputs
from tacit.core.prices import Repeated, Unit, max_participations
from tacit.core.server_half import reject_unusable
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.engine.worker import single_thread
from tacit.errors import BudgetError, LedgerError, ProtocolError, StorageError, TacitError, UserError, WireError
from tacit.federation import messages as wire
from tacit.federation import metrics
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.messages import EVALUATE, HELLO, TALK, TRAIN, RefusalCode, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.federation.policy import charged, objections, reason_unbounded
from tacit.federation.sessions import evaluation_parameters, session_of, training_parameters
from tacit.federation.site_files import SiteFiles, read_site
from tacit.pieces.channels import SecureSum
from tacit.pieces.channels.secure_sum import THREAT_MODELS
from tacit.protocols.secagg import Parameters, SecaggClientState, SecaggPolicy, Vector, answer, join_round, set_vector
from tacit.wire import frames
from tacit.wire.frames import Frame, FrameKind

EVALUATED_AT_ONCE = 256
Secrets = Callable[[], ClientKeys]  # the keys of one attempt


def fresh_secrets() -> ClientKeys:
    """New keys of this client from the operating system."""
    return ClientKeys(Key.from_entropy(), single=True)


def seeded_secrets(seed: int, client: int) -> Secrets:
    """Keys that derive from a seed, as a simulation's: for tests only, since whoever knows it can subtract noise."""
    return lambda: RunKeys.from_seed(seed).clients.site(client)


class RefusedError(Exception):
    """A request that the site does not answer; the text contains nothing private."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        Exception.__init__(self, text)
        self.code: RefusalCode = code


@dataclass(frozen=True)
class SiteProgress:
    """What a site has answered under a plan.

    Attributes:
        answers: how many times it trained and evaluated.
        begun: of every run of the server, by verb, the last round and attempt that it began.
        first: the digest of what is sent only once, once it was received.
    """

    answers: dict[str, int] = field(default_factory=dict)
    begun: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: bytes = b""

    def begin(self, verb: str, asked: SiteRequest, limit: int) -> "SiteProgress":
        """With one more attempt, which must be later than all others of its run; at most `limit` of them."""
        count, run = self.answers.get(verb, 0), f"{verb} {asked.run.hex()}"
        if (asked.round, asked.attempt) <= self.begun.get(run, (-1, 0)):
            raise RefusedError("replay", f"Round {asked.round + 1}, attempt {asked.attempt}, was begun before.")
        if count >= limit:
            raise RefusedError("policy", f"This site has answered {count} times under this plan, and does no more.")
        begun = {**self.begun, run: (asked.round, asked.attempt)}
        return replace(self, answers={**self.answers, verb: count + 1}, begun=begun)

    def to_bytes(self) -> bytes:
        return json.dumps({"answers": self.answers, "begun": self.begun, "first": self.first.hex()}).encode()

    @classmethod
    def read(cls, path: Path) -> "SiteProgress":
        if not path.exists():
            return cls()
        found = json.loads(files.read(path))
        begun = {run: (int(last[0]), int(last[1])) for run, last in found["begun"].items()}
        return cls(found["answers"], begun, bytes.fromhex(found["first"]))


class _Plan:
    """What a site holds of an accepted plan while it runs: the client's half, data and model, and its files."""

    def __init__(self, site: SiteFiles, plan: FederationPlan, train: Samples, held_out: Samples | None) -> None:
        self.plan, self.method, self.folder = plan, plan.method, site.folder_of(plan.digest)
        self.number, self.held_out = site.number, held_out
        self.own = Population.of([train])
        self.task = plan.task_of(self.own)
        self.model: nn.Module = make_model(self.task, plan.seed)
        self.layout = Layout.of(self.model)
        learner = AutoLearner(make_model(self.task, plan.seed), self.task.loss, like=train)
        self.wave = StackedClients(torch.tensor([0]), self.own, learner)

    @cached_property
    def initial_weights(self) -> Tensor:
        return initial_weights(make_model(self.task, self.plan.seed), self.task, self.plan.seed, self._models)

    @property
    def _models(self) -> int:
        return self.method.aggregator.models

    def half(self, keys: ClientKeys) -> ClientHalf:
        """The client's half of a round with these keys."""
        shared = Key.from_seed(self.plan.seed, "shared")
        return ClientHalf(self.method, self.plan.population, shared, keys)

    @property
    def progress(self) -> SiteProgress:
        return SiteProgress.read(self.folder / "progress.json")

    def note(self, progress: SiteProgress) -> None:
        files.write(self.folder / "progress.json", progress.to_bytes(), private=True)

    def memory(self, *, anew: bool) -> ClientMemory:
        """What the client keeps from round to round; `anew`: what is sent only once is sent again."""
        path = self.folder / "memory"
        if path.exists() and not anew:
            return ClientMemory.read(files.read(path, limit=frames.LIMIT), self._models)
        return self.half(fresh_secrets()).join(self.initial_weights)

    def keep(self, memory: ClientMemory) -> None:
        files.write(self.folder / "memory", memory.pack(), private=True)

    def conversation(self) -> tuple[bytes, SecaggClientState] | None:
        """The conversation that the client is in, and its state."""
        path = self.folder / "conversation"
        if not path.exists():
            return None
        content = files.read(path, limit=frames.LIMIT)
        return content[:32], SecaggClientState.from_bytes(content[32:])

    def store(self, session: bytes, state: SecaggClientState) -> None:
        """Store a conversation's state, before the reply leaves."""
        files.write(self.folder / "conversation", session + state.to_bytes(), private=True)

    def leave(self) -> None:
        """Leave the conversation: its state is erased, and it cannot go on."""
        (self.folder / "conversation").unlink(missing_ok=True)


class Site:
    """A site of a federation. Use `Site.open` with its file.

    Args:
        files: the site's file and folder.
        keys: where the keys of every attempt come from: the operating system, everywhere but in tests.
    """

    def __init__(self, files: SiteFiles, keys: Secrets = fresh_secrets) -> None:
        self.files, self._secrets = files, keys
        self.name, self.number = files.name, files.number
        self.journal = files.journal()
        self._plans: dict[bytes, _Plan] = {}
        self._lock = threading.Lock()  # one request at a time, however many threads a transport has
        self._answered = b""  # the last request of a conversation
        self.registration = secrets.token_bytes(16)  # new whenever the process starts
        self.journal.append("started", site=self.name)

    @classmethod
    def open(cls, path: Path, keys: Secrets = fresh_secrets) -> "Site":
        """The site that a file describes."""
        return cls(read_site(path), keys)

    @cached_property
    def data(self) -> tuple[Samples, Samples | None]:
        """The samples to train on, and those held out."""
        return self.files.load_data()

    def handle(self, verb: str, request: bytes) -> bytes:
        """The site's signed reply to a request: an answer, or a refusal. It never raises for what came from outside."""
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
        reply = wire.signed_answer(verb, session, self.number, body, self.files.identity)
        return wire.pack(reply)

    def _read(self, verb: str, request: bytes) -> tuple[bytes, Callable[[], bytes]]:
        """The conversation that a request belongs to, and what to do."""
        if verb == HELLO:
            hello = wire.read_request(request, wire.Hello)
            return hello.session, lambda: self._hello(hello)
        if verb == TALK:
            talk = wire.read_request(request, wire.Talk)
            return talk.session, lambda: self._talk(talk)
        if verb in (TRAIN, EVALUATE):
            asked = wire.read_request(request, SiteRequest)
            act = self._train if verb == TRAIN else self._evaluate
            return asked.session(verb), lambda: act(asked)
        raise RefusedError("malformed", f"Expected one of hello, train, talk, evaluate, got {verb[:20]!r}.")

    def _refuse(self, verb: str, session: bytes, code: RefusalCode, text: str) -> bytes:
        self.journal.append("refused", verb=verb[:20], code=code, reason=text[:500])
        return wire.pack(wire.signed_refusal(verb, session, self.number, (code, text), self.files.identity))

    # Verbs

    def _hello(self, hello: wire.Hello) -> bytes:
        plan = self._accepted(hello.plan)
        self.journal.append("joined", plan=hello.plan.hex(), run=hello.run.hex(), method=plan.plan.method_name)
        return self.registration

    def _train(self, asked: SiteRequest) -> bytes:
        plan = self._accepted(asked.plan)
        frame = self._check(plan, asked, TRAIN)
        progress = self._begin(plan, asked, TRAIN)
        keys = self._secrets()
        half = plan.half(keys)
        now = half.round(asked.round, len(asked.cohort), asked.attempt - 1)
        self._charge(plan, asked, now)
        parts = {**frame.parts, **_first_parts(asked)}
        with single_thread():
            found, memory = half.messages(parts, plan.wave, plan.memory(anew=bool(asked.first)), now)
        self._keep(plan, progress, asked, memory)
        self._check_finite(plan, found)
        self.journal.append("trained", **_round_of(asked))
        channel = plan.method.channel
        if not isinstance(channel, SecureSum):
            return channel.message_format.pack(found, 0, now)
        tolerated = None if found.surplus is None else found.surplus.tolerated
        parameters = training_parameters(plan.plan, found.rows.dim, now, tolerated)
        seed = found.surplus.seeds[0].value if found.surplus is not None and parameters.surplus else b""
        return self._join(plan, asked, TRAIN, parameters, channel.message_format.integers(found, 0), seed)

    def _evaluate(self, asked: SiteRequest) -> bytes:
        plan = self._accepted(asked.plan)
        channel = plan.method.channel
        if not self.files.allow.allows_metrics(channel):
            raise RefusedError("policy", "This site does not send metrics through this channel.")
        if plan.held_out is None:
            raise RefusedError("policy", "This site holds no samples out.")
        frame = self._check(plan, asked, EVALUATE)
        self._begin(plan, asked, EVALUATE)
        now = plan.half(fresh_secrets()).round(asked.round, len(asked.cohort))
        parts, memory = {**frame.parts, **_first_parts(asked)}, plan.memory(anew=bool(asked.first))
        view, _ = read_broadcast(plan.method, parts, memory, now)
        vector = evaluate(plan.model, plan.layout, view.weights, plan.task.loss, plan.held_out).to_vector()
        self.journal.append("evaluated", plan=asked.plan.hex(), round=asked.round, attempt=asked.attempt)
        if not isinstance(channel, SecureSum):
            return metrics.pack_vector(vector)
        return self._join(plan, asked, EVALUATE, evaluation_parameters(plan.plan, len(asked.cohort)), vector, b"")

    def _join(
        self, plan: _Plan, asked: SiteRequest, verb: str, parameters: Parameters, vector: Vector, seed: bytes
    ) -> bytes:
        """Join secure aggregation with this vector, and answer its first request."""
        channel, least = plan.method.channel, self.files.allow.least_cohort
        assert isinstance(channel, SecureSum)
        policy = SecaggPolicy(
            threat_model=THREAT_MODELS[channel.level],
            min_corrupt=Fraction(1, 20),
            min_cohort=max(least, SecaggPolicy().min_cohort),
            min_survivors=max(least, SecaggPolicy().min_survivors),
        )
        known = {number: self.files.directory.by_number[number] for number in asked.cohort}
        state = join_round(
            session_of(plan.plan, asked, verb, parameters),
            self.number,
            policy,
            identity=self.files.identity,
            directory=known,
            noise_seed=seed,
        )
        return self._step(plan, asked.session(verb), set_vector(state, vector), asked.talk)

    def _talk(self, talk: wire.Talk) -> bytes:
        plan = self._accepted(talk.plan)
        found = plan.conversation()
        if found is None or found[0] != talk.session:
            raise RefusedError("replay", "This site is in no such conversation: it has ended, or was never begun.")
        if self._answered == talk.request:
            raise RefusedError("replay", "This request was answered before.")
        return self._step(plan, *found, talk.request)

    def _step(self, plan: _Plan, session: bytes, state: SecaggClientState, request: bytes) -> bytes:
        """One step of the conversation; a request that is not safe to answer ends it here."""
        try:
            after, reply = answer(state, request)
        except ProtocolError:
            plan.leave()
            raise
        plan.store(session, after)
        self._answered = request
        return reply

    # What a request must satisfy

    def _accepted(self, digest: bytes) -> _Plan:
        """The plan with this digest, which the site has accepted and whose policy still allows it."""
        verdict = self.files.verdict(digest)
        if verdict is None or not verdict.accepted:
            raise RefusedError("plan", f"This site has not accepted the plan {digest.hex()[:16]}.")
        if digest not in self._plans:
            plan = self.files.accepted_plan(digest)
            if plan is None or plan.directory != self.files.directory:
                raise RefusedError("plan", "The plan's sites and keys are not those of this site's pinned directory.")
            found = [*objections(plan, self.files.allow, reason_unbounded(plan.method))]
            if found:
                raise RefusedError("policy", " ".join(found))
            self._plans[digest] = _Plan(self.files, plan, *self.data)
        return self._plans[digest]

    def _check(self, plan: _Plan, asked: SiteRequest, verb: str) -> Frame:
        """The broadcast, if the request is one that an honest server would send now."""
        cohort, least = asked.cohort, max(self.files.allow.least_cohort, plan.plan.least_cohort)
        if list(cohort) != sorted(set(cohort)) or cohort[-1] >= plan.plan.population or self.number not in cohort:
            raise RefusedError("malformed", "Expected a cohort of enrolled sites that includes this one.")
        if len(cohort) < least:
            raise RefusedError("policy", f"Expected a cohort of at least {least} sites, got {len(cohort)}.")
        last = plan.method.rounds - (verb == TRAIN)  # an evaluation follows the last round
        if asked.round > last:
            raise RefusedError("policy", f"The plan has {plan.method.rounds} rounds, got round {asked.round + 1}.")
        frame = frames.unpack(asked.frame, FrameKind.VIEW)
        if frame.parts.keys() & _first_parts(asked).keys():  # else it could replace one site's model
            raise RefusedError("malformed", "What is sent once must not replace what is sent in every round.")
        if (frame.round, frame.cohort) != (asked.round, len(cohort)):
            raise RefusedError("malformed", "The broadcast is of another round or cohort than the request.")
        if asked.first and wire.digest_of(asked.first) != asked.first_digest:
            raise RefusedError("malformed", "What is sent once has another digest than announced.")
        if not asked.first and plan.progress.first != asked.first_digest:
            raise RefusedError("protocol", "This site has not received what is sent once, or received something else.")
        if bool(asked.talk) != isinstance(plan.method.channel, SecureSum):
            raise RefusedError("malformed", "Expected the first request of the plan's channel.")
        return frame

    def _begin(self, plan: _Plan, asked: SiteRequest, verb: str) -> SiteProgress:
        """Note the attempt, durably, so that it is never answered again, and leave the conversation before it."""
        limit = plan.plan.max_evaluations
        if verb == TRAIN:
            most = max_participations(plan.method.mechanism.price(asked.round), plan.layout.dim)
            limit = plan.plan.max_answers if most is None else min(most, plan.plan.max_answers)
        begun = plan.progress.begin(verb, asked, limit)
        plan.leave()
        plan.note(begun)
        return begun

    def _charge(self, plan: _Plan, asked: SiteRequest, now: ClientRound) -> None:
        """Charge the attempt to the site's own ledger, before any noise is drawn."""
        budget = self.files.allow.budget
        if budget is None:
            return
        counts = charged(plan.method, asked.round, int(plan.own.sizes[0]))
        if not counts:
            raise RefusedError("policy", "This plan has no proved ε, which this site requires.")
        from tacit.privacy.accountants import default_accountant
        from tacit.privacy.ledger import Ledger
        from tacit.privacy.record_accounting import RecordCharge

        ((release, times),) = counts.items()
        run, label = f"{asked.plan.hex()[:16]} {asked.run.hex()}", plan.plan.method_name
        of_record = release.unit is Unit.RECORD
        terms = () if self.files.ledger.exists() else (default_accountant(*(() if of_record else (release,))),)
        with Ledger.open(self.files.ledger, budget, *terms) as ledger:
            charge = RecordCharge({0: Repeated(release, times)}) if of_record else release
            ledger.reserve(run, asked.round + 1, charge, label, now.clients.of(0).digest)
            used = (ledger.records if of_record else ledger.accounting).epsilon(budget.delta)
        self.journal.append("charged", **_round_of(asked), unit=release.unit.value, epsilon=round(used, 6))

    def _keep(self, plan: _Plan, progress: SiteProgress, asked: SiteRequest, memory: ClientMemory) -> None:
        """Store what the client keeps, and what it has received that is sent only once."""
        if memory.mask is not None or asked.first:
            plan.keep(memory)
        if progress.first != asked.first_digest:
            plan.note(replace(progress, first=asked.first_digest))

    def _check_finite(self, plan: _Plan, found: Messages) -> None:
        """Refuse to send a row that the server would reject."""
        kept, _ = reject_unusable(found, plan.method.max_norm(found.rows.dim))
        if kept.rows.count == 0:
            raise RefusedError("training", "The update is not finite, or longer than the method accepts.")


@torch.no_grad()
def evaluate(model: nn.Module, layout: Layout, weights: Tensor, loss: Any, held_out: Samples) -> HeldOut:
    """The metrics of these weights on held-out samples; of several hypotheses, those of the best one."""
    x, y = held_out
    stack = []
    with single_thread():
        for each in weights.view(-1, layout.dim):
            layout.load(model, each)
            model.eval()
            stack.append(torch.cat([model(part) for part in torch.split(x, EVALUATED_AT_ONCE)]))
        outputs = best_outputs(loss, torch.stack(stack), y, None)
        losses = float(loss.per_sample(outputs, y).double().sum())
        accuracy = loss.metrics(outputs, y).get("accuracy")
    return HeldOut(losses, -1 if accuracy is None else round(accuracy * len(y)), len(y))


def _round_of(asked: SiteRequest) -> dict[str, Any]:
    return {"plan": asked.plan.hex(), "round": asked.round + 1, "attempt": asked.attempt}


def _first_parts(asked: SiteRequest) -> Any:
    return frames.unpack(asked.first, FrameKind.VIEW).parts if asked.first else {}


def _reason(error: Exception) -> tuple[RefusalCode, str]:
    """Why a request is refused; texts of foreign errors may quote data, so that only their type is named."""
    match error:
        case BudgetError():
            return "budget", "This site's privacy budget does not allow another round."
        case WireError():
            return "malformed", str(error)
        case ProtocolError():
            return "protocol", str(error)
        case StorageError() | LedgerError():
            return "storage", f"{type(error).__name__}: the site could not record it."
        case UserError() | TacitError():
            return "error", type(error).__name__
    return "error", type(error).__name__
