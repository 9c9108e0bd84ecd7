"""An accepted plan at a site: the client's half, data and model, and the state on disk.

Before it answers, a site writes to disk what must survive a crash: the attempts that it has begun, the client state,
and the state of the current conversation.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.core import ClientKeys, ClientMemory, Key, files
from tacit.core.client_half import ClientHalf
from tacit.core.keys import RunKeys
from tacit.core.losses import best_outputs
from tacit.core.serialization import HexBytes, Source, read_json
from tacit.data import Samples
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.waves import EVALUATED_AT_ONCE, AutoLearner, StackedClients, single_thread
from tacit.federation.channels.interface import Member
from tacit.federation.messages import RefusedError, SiteRequest
from tacit.federation.metrics import HeldOut
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.data import SiteData
from tacit.federation.site.files import SiteFiles
from tacit.wire import frames

Secrets = Callable[[], ClientKeys]  # the keys of one attempt


def fresh_secrets() -> ClientKeys:
    """Fresh keys of this client from the operating system."""
    return ClientKeys(Key.from_entropy(), single=True)


def seeded_secrets(seed: int, client: int) -> Secrets:
    """Keys from a seed, as in a simulation: for tests only, since anyone with the seed can subtract noise."""
    return lambda: RunKeys.from_seed(seed).clients.site(client)


@dataclass(frozen=True)
class SiteProgress:
    """A site's progress under a plan.

    Attributes:
        answers: how often it trained and evaluated.
        begun: for each run of the server, by verb, the last round and attempt that it began.
        first: the digest of the one-time broadcast, in hexadecimal, once received.
    """

    answers: dict[str, int]
    begun: dict[str, tuple[int, int]]
    first: HexBytes

    def begin(self, verb: str, asked: SiteRequest, limit: int) -> "SiteProgress":
        """Progress with one more attempt, which must be the latest of its run; at most `limit` attempts."""
        count, run = self.answers.get(verb, 0), f"{verb} {asked.run.hex()}"
        if (asked.round, asked.attempt) <= self.begun.get(run, (-1, 0)):
            raise RefusedError("replay", f"Round {asked.round + 1}, attempt {asked.attempt}, was begun before.")
        if count >= limit:
            raise RefusedError("policy", f"This site has answered {count} times under this plan, and does no more.")
        begun = {**self.begun, run: (asked.round, asked.attempt)}
        return replace(self, answers={**self.answers, verb: count + 1}, begun=begun)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> "SiteProgress":
        if not path.exists():
            return cls({}, {}, "")
        advice = "Restore it: it says which rounds this site has begun, which are not begun again."
        return read_json(files.read(path), cls, Source(label=str(path), advice=advice))


class AcceptedPlan:
    """A plan while it runs at a site."""

    def __init__(self, site: SiteFiles, plan: FederationPlan, data: SiteData) -> None:
        self.plan, self.method, self.folder = plan, plan.method, site.folder_of(plan.digest)
        self.number, self.data = site.number, data
        self.channel = plan.channel.at_site(Member(plan, site.number, site.identity, site.allow, self.folder))
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
        return SiteProgress.read(self.folder / "progress.json")

    def note(self, progress: SiteProgress) -> None:
        files.write(self.folder / "progress.json", progress.to_bytes(), private=True)

    def memory(self) -> ClientMemory:
        """The client state; the one-time broadcast holds for all runs of the plan."""
        path = self.folder / "memory"
        if path.exists():
            return ClientMemory.read(files.read(path, limit=frames.MAX_FRAME_BYTES), self.models)
        return self.half(fresh_secrets()).join(self.initial_weights)

    def keep(self, memory: ClientMemory) -> None:
        files.write(self.folder / "memory", memory.pack(), private=True)

    def conversation(self) -> tuple[bytes, bytes] | None:
        """The client's current conversation, and its state."""
        path = self.folder / "conversation"
        if not path.exists():
            return None
        content = files.read(path, limit=frames.MAX_FRAME_BYTES)
        return content[:32], content[32:]

    def store(self, session: bytes, state: bytes) -> None:
        """Store a conversation's state, before the reply leaves."""
        files.write(self.folder / "conversation", session + state, private=True)

    def leave(self) -> None:
        """Erase the conversation's state, so that it cannot continue."""
        (self.folder / "conversation").unlink(missing_ok=True)

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
        return HeldOut(losses, -1 if accuracy is None else round(accuracy * len(y)), len(y))
