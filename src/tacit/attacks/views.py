"""Exactly the tensors that an adversary observes in a round, by its position.

| adversary | `Plain` channel | a channel that reveals only the sum |
|---|---|---|
| `server` | every message, the models | the sum as the channel releases it, the models |
| `network` | every message, the models (nothing if the transport is encrypted) | the models |
| `client` | the models and what is broadcast with them | the same |
| `recipient` | the models | the same |

The two halves of `tacit.core` execute the round; an attack receives only what its adversary observes.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from tacit.core import (
    ClientKeys,
    ClientRound,
    DenseRows,
    Descent,
    Key,
    Messages,
    Method,
    Round,
    SimulatedRound,
    State,
    View,
    Wave,
)
from tacit.core.client_half import make_messages
from tacit.core.lengths import row_limit
from tacit.core.server_half import (
    broadcast,
    client_view,
    reject_unusable,
    server_side,
)
from tacit.core.state import SERVER
from tacit.core.wave import EmptyWave
from tacit.errors import UserError
from tacit.pieces.trainers import DpSgd, RecordGradient

Adversary = Literal["server", "network", "client", "recipient"]
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
WITHHELD = ClientKeys(Key(bytes(32)))  # in place of the clients' keys


@dataclass(frozen=True, eq=False)
class Observation:
    """What an adversary observes in one round.

    Attributes:
        adversary: who observes.
        method: the protocol, which is public.
        now: the round, without anybody's keys.
        before: the state that was broadcast, with the server's memory if the adversary is the server.
        after: the models after the round.
        messages: every client's message; None if they are not observed.
        total: the sum of the messages as the channel released it; None if it is not observed.
        contributors: number of clients in the sum; known to everybody.
    """

    adversary: Adversary
    method: Method
    now: Round
    before: State
    after: Tensor
    messages: Messages | None
    total: Tensor | None
    contributors: int

    @cached_property
    def view(self) -> View:
        """The view of clients."""
        sent = broadcast(self.method, self.before, self.now)
        return client_view(self.method, sent, self.before, self.now)

    def per_client(self) -> "tuple[ClientObservation, ...]":
        """Observations of single clients; empty if every tensor combines several clients."""
        if self.messages is not None:
            rows = zip(self.messages.clients.tolist(), self.messages.rows.dense(), strict=True)
            return tuple(ClientObservation(self, client, row, self._nearest_hypothesis(row)) for client, row in rows)
        if self.contributors != 1:
            return ()
        if self.total is not None:  # a sum of one message is that message
            return (ClientObservation(self, 0, self.total, self._nearest_hypothesis(self.total)),)
        change = _hypotheses(self.after) - _hypotheses(self.before.weights)
        changed = int(change.norm(dim=1).argmax())
        return (ClientObservation(self, 0, change[changed], _hypotheses(self.before.weights)[changed], decoded=True),)

    def _nearest_hypothesis(self, row: Tensor) -> Tensor:
        """The hypothesis from which a message was most likely trained."""
        hypotheses = _hypotheses(self.before.weights)
        return hypotheses[int((hypotheses - row).norm(dim=1).argmin())] if len(hypotheses) > 1 else hypotheses[0]

    def __str__(self) -> str:
        parts = ["the models before and after the round"]
        if self.messages is not None:
            count = self.messages.rows.count
            parts.append(f"{count} single message{'s' * (count != 1)}")
        if self.total is not None:
            parts.append(f"the sum of {self.contributors} message{'s' * (self.contributors != 1)}")
        return f"{self.adversary}: {', '.join(parts)}"


@dataclass(frozen=True, eq=False)
class ClientObservation:
    """What an adversary observes of one client: its message, or a model that it alone changed.

    Attributes:
        round: the observation of the whole round.
        client: the client's number.
        values: the observed tensor.
        start: the weights that the client started from, as far as the adversary can infer them.
        decoded: whether `values` are in the model's coordinates already.
    """

    round: Observation
    client: int
    values: Tensor
    start: Tensor
    decoded: bool = False

    def predict(self, update: Tensor) -> Tensor:
        """What `values` would be for this update, without noise; differentiable.

        Weights that are exactly zero were pruned and carry no information about the update.
        """
        method, now = self.round.method, self.round.now
        row = (update + self.start) * (self.values != 0) if self._has_weights else update
        encoded = method.codec.encode(DenseRows(row[None]), self.round.view, now).dense()[0]
        return method.codec.decode(encoded, self.round.before, now)[0] if self.decoded else encoded

    def reveals(self, coordinates: Tensor) -> bool:
        """Whether the codec transmits these coordinates of an update unchanged."""
        update = torch.zeros_like(self.start).index_fill_(0, coordinates, 1.0)
        estimate = replace(self, values=self.predict(update)).estimate_update()
        return bool(torch.allclose(estimate[coordinates], update[coordinates], atol=1e-4))

    def estimate_update(self) -> Tensor:
        """The adversary's best estimate of the client's update, in the model's coordinates."""
        observation = self.round
        decoded = self.values
        if not self.decoded:
            decoded, _ = observation.method.codec.decode(self.values, observation.before, observation.now)
        return decoded - self.start if self._has_weights else decoded

    @property
    def _has_weights(self) -> bool:
        """Whether `values` are encoded weights instead of an update."""
        return self.round.method.trainer.sends == "weights" and not self.decoded


def observe(method: Method, state: State, wave: Wave, now: SimulatedRound, adversary: Adversary) -> Observation:
    """Run a round with these clients; returns what the adversary observes."""
    if adversary not in ADVERSARIES:
        raise UserError(f"Expected adversary in {', '.join(ADVERSARIES)}, got {adversary!r}.")
    messages = make_messages(method, client_view(method, broadcast(method, state, now), state, now), wave, now)
    _, report = reject_unusable(messages, row_limit(method, messages, state, now))
    after, released = server_side(method, state, messages, now)
    is_server = adversary == "server"
    memory = {name: value for name, value in state.memory.items() if is_server or not name.startswith(SERVER)}
    messages_visible = method.channel.messages_seen_by == "server"
    sum_visible = is_server and not messages_visible
    return Observation(
        adversary=adversary,
        method=method,
        now=Round(now.index, now.population, now.expected_cohort, now.cohort, now.shared),
        before=replace(state, memory=memory),
        after=after.weights,
        messages=messages if messages_visible and adversary in ("server", "network") else None,
        total=released.total if sum_visible and released.weight > 0 else None,
        contributors=len(report.delivered) if released.weight > 0 else 0,
    )


@dataclass(frozen=True)
class LocalSteps:
    """A client's local steps in full batches, as the protocol makes them public.

    Attributes:
        lr: learning rate.
        steps: number of steps.
        clip: the largest norm of a gradient; one that follows a quantile keeps its first value; None: any.
        expected: the divisor of sums of gradients clipped record by record: the expected number of records in a batch.
            None: a step is along the mean gradient, clipped as a whole.
        momentum: of the divided sums.
        weight_decay: coefficient of the L2 penalty.
        mask: the coordinates that are trained; None: all of them.
    """

    lr: float
    steps: int
    clip: float | None = None
    expected: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    mask: Tensor | None = None


def local_training(method: Method, state: State, now: Round, samples: int = 1) -> LocalSteps:
    """How a client with this many samples trains, which the protocol makes public; no client's data are used.

    Batches are assumed to contain all records, as they do for a small client.
    """
    trainer = method.trainer
    view = client_view(method, broadcast(method, state, now), state, now)
    match trainer:
        case RecordGradient():
            return LocalSteps(1.0, 1, trainer.clip, 1.0, mask=view.mask if trainer.masked else None)
        case DpSgd():
            lr, expected = trainer.lr * trainer.decay**now.index, trainer.rate(samples) * samples
            mask, steps = view.mask if trainer.masked else None, trainer.steps_of(samples)
            return LocalSteps(lr, steps, trainer.clip, expected, trainer.momentum, trainer.weight_decay, mask)
    at_client = ClientRound(now.index, now.population, now.expected_cohort, now.cohort, now.shared, WITHHELD)
    probe = _Untrained(state.shapes)
    trainer.train(view, probe, at_client)
    if not probe.asked:
        raise UserError(f"Expected a trainer that uses gradient descent, but {type(trainer).__name__} does not.")
    how = probe.asked[0]  # the first is the training on the client's data, before any pruning
    batch = min(how.batch_size or samples, samples)
    steps = (how.epochs or 0) * -(-samples // batch) if how.steps is None else how.steps
    return LocalSteps(how.lr, steps, how.clip, weight_decay=how.weight_decay, mask=how.mask)


@dataclass(frozen=True)
class _Untrained(EmptyWave):
    """A client whose updates are zero, and which remembers what it was asked for."""

    asked: list[Descent] = field(default_factory=list)
    clients: ClassVar[Tensor] = torch.zeros(1, dtype=torch.int64)
    samples: ClassVar[Tensor] = torch.ones(1, dtype=torch.int64)
    units: ClassVar[Tensor] = samples

    def descend(self, weights: Tensor, how: Descent) -> DenseRows:
        self.asked.append(how)
        return DenseRows(weights.new_zeros(1, weights.shape[-1]))


def _hypotheses(weights: Tensor) -> Tensor:
    """The models as (k, dim), even if there is only one."""
    return weights.view(-1, weights.shape[-1])
