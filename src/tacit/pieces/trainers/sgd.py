"""Stochastic gradient descent on the client's own data (McMahan et al. 2017, FederatedAveraging)."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core import DenseRows, Descent, Round, Rows, View, Wave
from tacit.core.pieces import Content
from tacit.errors import expect


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Local SGD for a number of steps or epochs.

    Args:
        lr: learning rate in round 0.
        steps: gradient steps per round; give either this or `epochs`.
        epochs: passes over the client's data per round; the last batch of a pass may be smaller.
        batch_size: samples per step, reshuffled every pass; None, or no fewer than the client has: full batches.
        decay: the learning rate of round t is `lr * decay**t`.
        momentum: classical momentum within a round; the buffer starts at zero in each.
        weight_decay: L2 penalty.
        clip: gradients longer than this are scaled down to it at every step. It bounds no update, and proves nothing.
        sends: `updates` (trained minus received weights) or the trained `weights`.
    """

    lr: float
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    sends: Content = "updates"
    masked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        expect(self.lr > 0, f"lr={self.lr} > 0")
        expect((self.steps is None) != (self.epochs is None), "either steps or epochs, and not both")
        expect((self.steps or self.epochs or 0) >= 1, f"steps={self.steps} or epochs={self.epochs} >= 1")
        expect(self.batch_size is None or self.batch_size >= 1, f"batch_size={self.batch_size} >= 1")
        expect(0 < self.decay <= 1, f"decay={self.decay} in (0, 1]")
        expect(0 <= self.momentum < 1, f"momentum={self.momentum} in [0, 1)")
        expect(self.weight_decay >= 0, f"weight_decay={self.weight_decay} >= 0")
        expect(self.clip is None or self.clip > 0, f"clip={self.clip} > 0")
        expect(self.sends in ("updates", "weights"), f"sends={self.sends!r} to be 'updates' or 'weights'")

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One row per client, after its own descent from the view's weights."""
        rows = data.descend(view.weights, self.descent(now))
        return rows if self.sends == "updates" else DenseRows(rows.dense() + view.weights)

    def descent(self, now: Round) -> Descent:
        """What a client does in this round."""
        return Descent(
            lr=self.lr * self.decay**now.index,
            steps=self.steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            key=now.secret.child("batches"),
            clip=self.clip,
        )
