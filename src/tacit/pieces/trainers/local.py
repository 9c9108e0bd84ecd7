"""Local training: SGD on the client's own data, on masked coordinates only, or on the best of several hypotheses.

References: McMahan et al. 2017 (FederatedAveraging); Kerkouche et al. 2021, Algorithm 2 (masked training); Ghosh et al.
2020 and Galli et al. 2023, Algorithm 1 (IFCA: each client chooses a hypothesis by its own loss).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import ClientRound, DenseRows, Descent, Rows, View, Wave
from tacit.core.interfaces import Payload, Trainer
from tacit.core.prices import RecordPrice, Unproved
from tacit.core.schema import instead_of
from tacit.errors import UserError, at_least, expect, one_of, positive, whole, within


@dataclass(frozen=True, repr=False)
class Schedule:
    """A learning rate that depends on the round: any function of the round's index, from 0.

    The canonical form of a method has a digest of its code, so that a resumed run detects another one.

    Example:
        >>> Sgd(lr=Schedule(lambda index: 0.1 / (1 + index)), steps=1).rate(1)
        0.05
    """

    function: Callable[[int], float]

    def __call__(self, index: int) -> float:
        rate = float(self.function(index))
        expect(0 < rate < inf, f"a learning rate > 0 in round {index + 1}, got {rate}", "Correct the schedule.")
        return rate

    def __repr__(self) -> str:
        return f"Schedule({getattr(self.function, '__name__', type(self.function).__name__)})"


@dataclass(frozen=True, kw_only=True)
class Sgd(Trainer):
    """Local SGD for a number of steps or epochs.

    Args:
        lr: learning rate in round 0; or a function of the round's index (`Schedule`).
        steps: gradient steps per round; give either this or `epochs`.
        epochs: passes over the client's data per round; the last batch of a pass may be smaller.
        batch_size: samples per step, reshuffled in every pass; None, or at least the client's samples: full batches.
        decay: the learning rate of round t is `lr * decay**t`.
        momentum: classical momentum within a round; the buffer starts at zero in each round.
        weight_decay: coefficient of the L2 penalty.
        clip: gradients with a larger norm are scaled down to it at every step. This bounds no update, and gives no
            privacy guarantee.
        sends: `updates` (trained minus received weights) or the trained `weights`.
    """

    lr: float | Schedule
    steps: int | None = instead_of("epochs")
    epochs: int | None = instead_of("steps")
    batch_size: int | None = None
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    sends: Payload = "updates"

    def __post_init__(self) -> None:
        lr: object = self.lr
        if callable(lr) and not isinstance(lr, Schedule):
            object.__setattr__(self, "lr", Schedule(lr))
        expect((self.steps is None) != (self.epochs is None), "either steps or epochs, and not both")
        whole(1, steps=self.steps, epochs=self.epochs)
        whole(1, batch_size=self.batch_size)
        within("(0, 1]", decay=self.decay)
        within("[0, 1)", momentum=self.momentum)
        at_least(0, weight_decay=self.weight_decay)
        positive(lr=self.lr(0) if isinstance(self.lr, Schedule) else self.lr)
        positive(clip=self.clip)
        one_of(("updates", "weights"), sends=self.sends)

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        rows = data.descend(view.weights, self.descent(now))
        return rows if self.sends == "updates" else DenseRows(rows.dense() + view.weights)

    def rate(self, index: int) -> float:
        """The learning rate of round `index`."""
        start = self.lr(index) if isinstance(self.lr, Schedule) else self.lr
        return start * self.decay**index

    def descent(self, now: ClientRound) -> Descent:
        """The local training of this round, for the engine."""
        return Descent(
            lr=self.rate(now.index),
            steps=self.steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            keys=now.clients.child("batches"),
            clip=self.clip,
        )


@dataclass(frozen=True)
class Masked(Trainer):
    """SGD that changes only the weights under the codec's mask; all others keep exactly the received values.

    Without it, clients train all weights and send those under the mask.

    Args:
        sgd: the local SGD. Its `sends` must be `updates`.
    """

    sgd: Sgd
    masked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sgd.sends != "updates":
            raise UserError("Expected Masked to send updates: weights outside the mask are not sent at all.")

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One row per client; as long as there is no mask, all weights are trained."""
        return data.descend(view.weights, replace(self.sgd.descent(now), mask=view.mask))


@dataclass(frozen=True)
class BestOf(Trainer):
    """Every client trains the hypothesis with the smallest loss on its own data.

    The choice is not sent. With a single hypothesis there is no choice.

    Args:
        trainer: how the chosen hypothesis is trained.

    Sees: only the client knows its choice; the server can infer it as far as the message reveals it.
    """

    trainer: Trainer
    chooses: ClassVar[bool] = True

    @property
    def sends(self) -> Payload:
        return self.trainer.sends

    @property
    def masked(self) -> bool:
        return self.trainer.masked

    def choose(self, view: View, data: Wave) -> Tensor:
        """The index of the hypothesis with the smallest loss for each client; ties go to the first."""
        hypotheses = _hypotheses(view)
        if len(hypotheses) == 1:
            return torch.zeros(len(data.clients), dtype=torch.int64)
        return data.losses(hypotheses).argmin(1).cpu()

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One row per client, trained from the hypothesis that it chose."""
        hypotheses, choice = _hypotheses(view), self.choose(view, data)
        if len(hypotheses) == 1:
            return self.trainer.train(replace(view, weights=hypotheses[0]), data, now)
        values = hypotheses.new_empty(len(choice), hypotheses.shape[1])
        for number in set(choice.tolist()):
            members = choice == number
            own = replace(view, weights=hypotheses[number])
            values[members] = self.trainer.train(own, data.keep(members), now).dense()
        return DenseRows(values)

    def record_price(self, samples: int) -> RecordPrice | None:
        if self.trainer.record_price(samples) is None:
            return None
        return Unproved("every client chooses a hypothesis by the loss on its records, which gets no noise")


def _hypotheses(view: View) -> Tensor:
    """The view's weights as a stack, (k, dim)."""
    return view.weights.view(-1, view.weights.shape[-1])
