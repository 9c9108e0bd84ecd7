"""An accepted plan at a site: the client's half, data and model, and the state on disk.

Before it answers, a site writes to disk what must survive a crash: the attempts that it has begun, the client state,
and the state of the current conversation.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from msgspec import Struct
from torch import Tensor, nn

from tacit.core import ClientKeys, ClientMemory, Key, files
from tacit.core.client_half import ClientHalf
from tacit.core.event_metrics import count_cells
from tacit.core.keys import RunKeys
from tacit.core.losses import best_outputs
from tacit.core.serialization import HexBytes, Source, read_json
from tacit.data import Samples
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.waves import EVALUATED_AT_ONCE, AutoLearner, StackedClients, single_thread
from tacit.errors import ProtocolError, UserError
from tacit.federation.channels.interface import Member
from tacit.federation.messages import RefusedError
from tacit.federation.metrics import HeldOut
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.data import SiteData
from tacit.federation.site.files import SiteFiles
from tacit.protocols import crypto
from tacit.wire import frames
from tacit.wire.packing import Reader, pack_number

Secrets = Callable[[], ClientKeys]  # the keys of one attempt


def fresh_secrets() -> ClientKeys:
    """Fresh keys of this client from the operating system."""
    return ClientKeys(Key.from_entropy(), single=True)


def seeded_secrets(seed: int, client: int) -> Secrets:
    """Keys from a seed, as in a simulation: for tests only, since anyone with the seed can subtract noise."""
    return lambda: RunKeys.from_seed(seed).clients.site(client)


@dataclass(frozen=True)
class SiteProgress:
    """A site's progress under a plan, signed by it.

    A run of the server is joined by a ticket, which the site derives from its own key and from the number of runs that
    it has left. It leaves a run for good when the server, with a fresh ticket, begins another: a request of an earlier
    run, which somebody kept back, brings a ticket that no longer holds.

    Attributes:
        answers: how often it trained and evaluated.
        begun: the last request of the current run that it began, by verb: the round, the attempt, the step.
        first: the digest of the one-time broadcast, in hexadecimal, once received.
        run: the server's current run, in hexadecimal; empty before the first.
        left: how many runs it has joined, the current one included.
    """

    answers: dict[str, int]
    begun: dict[str, tuple[int, ...]]
    first: HexBytes
    run: HexBytes = ""
    left: int = 0

    def ticket(self, identity: bytes, plan: bytes, run: bytes) -> bytes:
        """The ticket for this run of the server, current or new."""
        left = self.left - (self.run == run.hex())
        return crypto.derive(identity, "federation ticket", crypto.digest("run", plan, run, pack_number(left)))

    def join(self, run: bytes) -> "SiteProgress":
        """Progress in this run, after its ticket was checked."""
        return self if run.hex() == self.run else replace(self, begun={}, run=run.hex(), left=self.left + 1)

    def begin(self, verb: str, place: tuple[int, ...], limit: int | None = None) -> "SiteProgress":
        """Progress with one more attempt, which must be the latest of its run; at most `limit` attempts."""
        count, round, attempt = self.answers.get(verb, 0), place[0] + 1, place[1]  # noqa: A001
        if place <= self.begun.get(verb, (-1, 0)):
            raise RefusedError("replay", f"Round {round}, attempt {attempt}, was begun before.")
        if limit is not None and count >= limit:
            raise RefusedError("policy", f"This site has answered {count} times under this plan, and does no more.")
        return replace(self, answers={**self.answers, verb: count + 1}, begun={**self.begun, verb: place})

    def to_bytes(self, identity: bytes) -> bytes:
        content = asdict(self)
        return json.dumps({**content, "signature": crypto.sign(identity, _statement(content)).hex()}).encode()

    @classmethod
    def read(cls, path: Path, identity: bytes) -> "SiteProgress":
        """The progress in a file; raises `UserError` for one that this site did not write."""
        if not path.exists():
            return cls({}, {}, "")
        advice = "Restore it: it says which rounds this site has begun, which are not begun again."
        signed = read_json(files.read(path), _SignedProgress, Source(label=str(path), advice=advice))
        progress = cls(**{name: getattr(signed, name) for name in cls.__dataclass_fields__})
        try:
            public = crypto.public_identity(identity)
            crypto.verify(public, bytes.fromhex(signed.signature), _statement(asdict(progress)))
        except ProtocolError:
            raise UserError(f"{path} is not signed by this site. {advice}") from None
        return progress


class _SignedProgress(Struct, frozen=True):
    """The file of a site's progress."""

    answers: dict[str, int]
    begun: dict[str, tuple[int, ...]]
    first: HexBytes
    run: HexBytes
    left: int
    signature: HexBytes


def _statement(content: Mapping[str, object]) -> bytes:
    return crypto.digest("federation progress", json.dumps(content, sort_keys=True).encode())


@dataclass(frozen=True)
class StoredConversation:
    """A conversation of secure aggregation at a site: its digest, the last step, and the client's state.

    `lasting`: whether later conversations continue from the state.
    """

    session: bytes
    step: int
    state: bytes
    lasting: bool = False


class AcceptedPlan:
    """A plan while it runs at a site."""

    def __init__(self, site: SiteFiles, plan: FederationPlan, data: SiteData) -> None:
        self.plan, self.method, self.folder = plan, plan.method, site.folder_of(plan.digest)
        self.number, self.identity, self.data = site.number, site.identity, data
        self.channel = plan.channel.at_site(
            Member(plan, site.number, site.identity, site.allow, self.folder, self.state_to_keep)
        )
        self.task = plan.task_of(data.own)
        self.model: nn.Module = make_model(self.task, plan.seed)
        self.layout = Layout.of(self.model)
        learner = AutoLearner(make_model(self.task, plan.seed), self.task.loss, like=data.train)
        self.wave = StackedClients(torch.tensor([0]), data.own, learner)

    @cached_property
    def initial_weights(self) -> Tensor:
        return initial_weights(make_model(self.task, self.plan.seed), self.task, self.plan.seed, self.models)

    @property
    def models(self) -> int:
        """How many hypotheses the method trains."""
        return self.method.aggregator.models

    def half(self, keys: ClientKeys) -> ClientHalf:
        """The client's half of a round with these keys."""
        shared = Key.from_seed(self.plan.seed, "shared")
        return ClientHalf(self.method, self.plan.population, shared, keys)

    @property
    def progress(self) -> SiteProgress:
        return SiteProgress.read(self.folder / "progress.json", self.identity)

    def note(self, progress: SiteProgress) -> None:
        files.write(self.folder / "progress.json", progress.to_bytes(self.identity), private=True)

    def memory(self) -> ClientMemory:
        """The client state; the one-time broadcast holds for all runs of the plan."""
        path = self.folder / "memory"
        if path.exists():
            return ClientMemory.read(files.read(path, limit=frames.MAX_FRAME_BYTES), self.models)
        return self.half(fresh_secrets()).join(self.initial_weights)

    def keep(self, memory: ClientMemory) -> None:
        files.write(self.folder / "memory", memory.pack(), private=True)

    def conversation(self) -> StoredConversation | None:
        """The client's current conversation."""
        path = self.folder / "conversation"
        if not path.exists():
            return None
        reader = Reader(files.read(path, limit=frames.MAX_FRAME_BYTES))
        session, step, lasting = reader.take(crypto.KEY), reader.number(), bool(reader.number(1))
        return StoredConversation(session, step, bytes(reader.rest()), lasting)

    def store(self, conversation: StoredConversation) -> None:
        """Store a conversation's state, before the reply leaves; of lasting states, only the latest exists."""
        numbers = pack_number(conversation.step) + pack_number(conversation.lasting, 1)
        files.write(self.folder / "conversation", conversation.session + numbers + conversation.state, private=True)
        if conversation.lasting:
            self._kept.unlink(missing_ok=True)

    def leave(self) -> None:
        """End the conversation, so that it cannot continue; a lasting state is kept for later ones."""
        conversation = self.conversation()
        if conversation is not None and conversation.lasting:
            files.write(self._kept, conversation.state, private=True)
        (self.folder / "conversation").unlink(missing_ok=True)

    def state_to_keep(self) -> bytes:
        """The latest lasting state; empty: there is none."""
        conversation = self.conversation()
        if conversation is not None and conversation.lasting:
            return conversation.state
        return files.read(self._kept, limit=frames.MAX_FRAME_BYTES) if self._kept.exists() else b""

    @property
    def _kept(self) -> Path:
        return self.folder / "kept"

    @torch.no_grad()
    def evaluate(self, weights: Tensor, held_out: Samples) -> HeldOut:
        """The metrics of these weights on held-out samples; for several hypotheses, the best one's."""
        (x, y), loss, stack = held_out, self.task.loss, []
        with single_thread():
            for each in weights.view(-1, self.layout.dim):
                self.layout.load(self.model, each)
                self.model.eval()
                stack.append(torch.cat([self.model(part) for part in torch.split(x, EVALUATED_AT_ONCE)]))
            outputs = best_outputs(loss, torch.stack(stack), y, None)
            losses = float(loss.per_sample(outputs, y).double().sum())
            accuracy = loss.metrics(outputs, y).get("accuracy")
            event = None if self.plan.method.terms.adds_noise else loss.logits(outputs, y)
        cells = () if event is None else tuple(count_cells(*event).flatten().tolist())
        return HeldOut(losses, -1 if accuracy is None else round(accuracy * len(y)), len(y), cells)
