"""Exactly the tensors that an adversary holds after a round, by where it stands.

| vantage | `Plain` | a channel that shows only the sum |
|---|---|---|
| `server` | every message, the models | the sum as it leaves the channel, the models |
| `network` | every message, the models (nothing, if the transport is encrypted) | the models |
| `client` | the models and what is told beside them | the same |
| `recipient` | the models | the same |

The round is really played: `client_side` and the server's half are those of `tacit.core.round`, and what the
adversary does not see is thrown away before any attack is given the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from tacit.core import DenseRows, Descent, Key, Messages, Method, Perturbation, Round, Rows, State, View, Wave
from tacit.core.round import broadcast, client_side, close, receive, refuse, released
from tacit.core.state import SERVER
from tacit.core.wave import Shapes
from tacit.errors import UserError

Vantage = Literal["server", "network", "client", "recipient"]
VANTAGES: tuple[Vantage, ...] = get_args(Vantage)
NOBODY_KNOWS = Key(bytes(32))  # in the place of secrets


@dataclass(frozen=True, eq=False)
class Observation:
    """What an adversary holds after one round.

    Attributes:
        vantage: where it stands.
        method: the protocol, which is public.
        now: the round, without its secret.
        before: the model that was broadcast, with the server's memory where the adversary is the server.
        after: the model that came of it.
        messages: every client's message; None if the vantage shows none.
        total: the sum of the messages as it left the channel; None if it is not seen.
        count: how many clients contributed to what came out; known to everybody.
    """

    vantage: Vantage
    method: Method
    now: Round
    before: State
    after: Tensor
    messages: Messages | None
    total: Tensor | None
    count: int

    @cached_property
    def view(self) -> View:
        """What was broadcast."""
        return self.method.codec.view(self.before, self.now)

    def single(self) -> "tuple[Trace, ...]":
        """What it holds of single clients; empty where every tensor mixes several of them."""
        return tuple(self._single())

    def _single(self) -> Iterator["Trace"]:
        if self.messages is not None:
            rows = self.messages.rows.dense()
            for client, row in zip(self.messages.clients.tolist(), rows, strict=True):
                yield Trace(self, client, row, self._nearest(row))
        elif self.count == 1 and self.total is not None:  # a sum of one hides nothing
            yield Trace(self, 0, self.total, self._nearest(self.total))
        elif self.count == 1:
            moved = _stack(self.after) - _stack(self.before.weights)
            which = int(moved.norm(dim=1).argmax())
            yield Trace(self, 0, moved[which], _stack(self.before.weights)[which], decoded=True)

    def _nearest(self, row: Tensor) -> Tensor:
        """The hypothesis that a message most likely comes from: the only one, or the nearest to it."""
        hypotheses = _stack(self.before.weights)
        return hypotheses[int((hypotheses - row).norm(dim=1).argmin())] if len(hypotheses) > 1 else hypotheses[0]

    def __str__(self) -> str:
        held = ["the models before and after the round"]
        if self.messages is not None:
            count = self.messages.rows.count
            held.append(f"{count} single message{'s' * (count != 1)}")
        if self.total is not None:
            held.append(f"the sum of {self.count} message{'s' * (self.count != 1)}")
        return f"{self.vantage}: {', '.join(held)}"


@dataclass(frozen=True, eq=False)
class Trace:
    """What one client left in an adversary's view: its message, or a model moved by it alone.

    Attributes:
        seen: where it was seen.
        client: whose it is.
        values: the tensor itself.
        start: the model that the client began with, as far as the adversary can tell.
        decoded: whether it is in the model's coordinates already.
    """

    seen: Observation
    client: int
    values: Tensor
    start: Tensor
    decoded: bool = False

    def would_be(self, update: Tensor) -> Tensor:
        """What would stand in `values` if the client's update were this one, without blur; differentiable.

        Weights that are exactly zero were pruned, and say nothing about the update.
        """
        seen = self.seen
        weights = seen.method.trainer.sends == "weights" and not self.decoded
        row = (update + self.start) * (self.values != 0) if weights else update
        said = seen.method.codec.encode(DenseRows(row[None]), seen.view, seen.now).dense()[0]
        if not self.decoded:
            return said
        return seen.method.codec.decode(said, seen.before, seen.now)

    def broadcast_parts(self, coordinates: Tensor) -> bool:
        """Whether the codec says these coordinates of an update as they are."""
        update = torch.zeros_like(self.start).index_fill_(0, coordinates, 1.0)
        again = replace(self, values=self.would_be(update)).update()
        return bool(torch.allclose(again[coordinates], update[coordinates], atol=1e-4))

    def update(self) -> Tensor:
        """The adversary's best guess of the client's update, in the model's coordinates."""
        seen = self.seen
        whole = self.values if self.decoded else seen.method.codec.decode(self.values, seen.before, seen.now)
        weights = seen.method.trainer.sends == "weights" and not self.decoded
        return whole - self.start if weights else whole


def observe(method: Method, state: State, wave: Wave, now: Round, vantage: Vantage) -> Observation:
    """Play a round with these clients, and keep what is seen from this vantage point."""
    if vantage not in VANTAGES:
        raise UserError(f"Expected a vantage point in {', '.join(VANTAGES)}, got {vantage!r}.")
    sent = client_side(method, broadcast(method, state, now), wave, now)
    kept, receipt = refuse(sent)
    total = receive(method, state, kept, now)
    out = released(method, total, now)
    after = close(method, state, total, now).weights
    public = replace(now, secret=NOBODY_KNOWS)
    memory = {name: value for name, value in state.memory.items() if vantage == "server" or not name.startswith(SERVER)}
    shown = method.channel.server_sees == "messages"
    summed = vantage == "server" and not shown
    return Observation(
        vantage=vantage,
        method=method,
        now=public,
        before=replace(state, memory=memory),
        after=after,
        messages=sent if shown and vantage in ("server", "network") else None,
        total=out.total if summed and out.weight > 0 else None,
        count=len(receipt.delivered) if out.weight > 0 else 0,
    )


def recipe(method: Method, state: State, now: Round) -> Descent:
    """How a client descends, as the protocol says: known to everybody, and found without anybody's data."""
    probe = _Probe(state.shapes)
    method.trainer.train(method.codec.view(state, now), probe, now)
    if probe.how is None:
        raise UserError(f"Expected a trainer that descends, but {type(method.trainer).__name__} did not.")
    return probe.how


class _Probe:
    """A wave of one client that has no data, and only notes what it is asked to do."""

    def __init__(self, shapes: Shapes) -> None:
        self.how: Descent | None = None
        self.clients = self.samples = torch.zeros(1, dtype=torch.int64)
        self.shapes = shapes

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        """It does not move; what it is asked first is the descent on its data, before any pruning."""
        self.how = self.how or how
        return DenseRows(weights.new_zeros(1, weights.shape[-1]))

    def perturbed_scores(self, weights: Tensor, nudge: Perturbation) -> Tensor:
        """Nothing changes anything."""
        return weights.new_zeros(1, 1 + nudge.count, dtype=torch.float64)

    def losses(self, hypotheses: Tensor) -> Tensor:
        """All are alike to it."""
        return hypotheses.new_zeros(1, len(hypotheses))

    def only(self, which: Tensor) -> Wave:
        """Itself."""
        return self


def _stack(weights: Tensor) -> Tensor:
    """Hypotheses, (k, dim), also if there is only one."""
    return weights.view(-1, weights.shape[-1])
