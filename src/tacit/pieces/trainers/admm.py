"""Pruning by the alternating direction method of multipliers, on the client (ESMFL, Equations 1 to 4).

To minimise the loss over weights W of which each layer may have only so many, copies Z of the weights carry the
constraint, and duals U add up how far they are apart::

    W ← argmin loss(W) + ρ/2·‖W − Z + U‖²      some gradient steps on the client's data, usually a pass over them
    Z ← Π(W + U)                               the largest magnitudes of each layer
    U ← U + W − Z

A client's round begins at Z = Π(W), U = 0, does the three a few times, and ends with Π(W), which is sent. The pull
makes the client put into the weights that will be kept what the others would have carried.

Some of it is lost at the end of every round nevertheless. So after some rounds the choice may be settled, as Zhang et
al. settle it before they train on: the weights that the aggregated model has are kept, and no others move.

The penalty follows from one number that is the same for all models, learning rates and batch sizes: with every step,
weights go a given share of the way to Z − U. One step of the gradient of the penalty goes lr·ρ of the way, and with
momentum m steps add up to 1/(1 − m) of themselves; so ρ = share·(1 − m)/lr. Any share below 1 is stable. After n
steps a weight that is pulled to zero, and that the loss does not hold, has (1 − share)ⁿ of itself left: at 0.01 and
60 steps, 55 %.

Reference: Lin et al., ESMFL: Efficient and Secure Models for Federated Learning, 2020, Section 2.3; Zhang et al., A
Systematic DNN Weight Pruning Framework using Alternating Direction Method of Multipliers, ECCV 2018.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import DenseRows, Descent, ProximalTerm, Round, Rows, State, View, Wave
from tacit.core.pieces import Content
from tacit.core.wave import Shapes
from tacit.errors import expect
from tacit.pieces.trainers.pruning import Keep, check_pruning
from tacit.pieces.trainers.sgd import Sgd


@dataclass(frozen=True, kw_only=True)
class AdmmPrune:
    """Train towards few weights, and send only these: at most as many non-zero ones in each layer as `keep` says.

    Args:
        sgd: how to descend in a round. Its `sends` must be `weights`; momentum starts at zero after each update.
        keep: how many weights of each layer are sent.
        warm_up: rounds before so few weights are sent, in which clients train as usual and send all.
        approach: how many of the last rounds of the warm-up already prune, each leaving fewer weights than the one
            before (`Keep.along`).
        settled: rounds, with those of the warm-up, after which the choice is settled: clients then train the largest
            weights of the model that they receive, and no others. None: never.
        pull: the share of the way to their targets that weights go with every step. It fixes the penalty coefficient:
            ρ = pull·(1 − momentum)/lr.
        updates: how often Z and U are renewed in a round, each time after an equal part of the descent; None: after
            every epoch.
    """

    sgd: Sgd
    keep: Keep
    warm_up: int = 0
    approach: int = 0
    settled: int | None = None
    pull: float = 0.01
    updates: int | None = None
    sends: ClassVar[Content] = "weights"
    masked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_pruning(self.sgd, self.warm_up, self.approach)
        expect(0 < self.pull < 1, f"pull={self.pull} in (0, 1)")
        known = self.settled is None or self.settled >= self.warm_up
        expect(
            known, f"settled={self.settled} >= warm_up={self.warm_up}", "Weights are chosen in the warm-up or later."
        )
        whole, updates = self.sgd.steps or self.sgd.epochs or 0, self.updates
        if updates is None:
            expect(self.sgd.epochs is not None, "updates to be given for a descent in steps", "Give updates or epochs.")
        else:
            expect(updates >= 1 and whole % updates == 0, f"updates={updates} to divide the descent of {whole}")

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One pruned row per client; as long as nothing is pruned a whole one."""
        keep = self.keep.after(now.index, warm_up=self.warm_up, approach=self.approach)
        if keep is None:
            return self.sgd.train(view, data, now)
        if self.settled is not None and now.index >= self.settled:
            return self._train_on(view, data, now)
        return DenseRows(keep.project(self.solve(view, data, now, keep), data.shapes))

    def solve(self, view: View, data: Wave, now: Round, keep: Keep) -> Tensor:
        """Every client's W after the last update, near to few weights but not yet pruned, (clients, dim)."""
        how, shapes, rows = self._part(now), data.shapes, view.weights
        strengths = tuple(0.0 if count is None else self.penalty(how.lr) for count in keep.of(shapes))
        target = keep.project(rows, shapes).expand(len(data.clients), -1)
        dual = torch.zeros_like(target)
        for update in range(self._updates):
            step = replace(how, key=how.key.child("update", update), proximal=ProximalTerm(target, strengths))
            rows = data.descend(rows, step).dense().add(rows)
            dual = dual + rows
            copies = keep.project(dual, shapes)
            dual = dual - copies
            target = copies - dual
        return rows

    def _train_on(self, view: View, data: Wave, now: Round) -> Rows:
        """One row per client, in which no others than the weights that are kept have moved."""
        start = self.keep.project(view.weights, data.shapes)
        mask = self.keep.coordinates(start, data.shapes)
        return DenseRows(data.descend(start, replace(self.sgd.descent(now), mask=mask)).dense() + start)

    @property
    def _updates(self) -> int:
        return self.updates or self.sgd.epochs or 0

    def _part(self, now: Round) -> Descent:
        """What a client does between two updates."""
        how = self.sgd.descent(now)
        steps, epochs = (None if whole is None else whole // self._updates for whole in (how.steps, how.epochs))
        return replace(how, steps=steps, epochs=epochs)

    def penalty(self, lr: float) -> float:
        """The coefficient ρ at a learning rate.

        Example:
            >>> sgd = Sgd(lr=0.02, epochs=5, momentum=0.5, sends="weights")
            >>> AdmmPrune(sgd=sgd, keep=Keep(compression=10), pull=0.01).penalty(0.02)
            0.25
        """
        return self.pull * (1 - self.sgd.momentum) / lr

    def kept(self, shapes: Shapes) -> tuple[int | None, ...]:
        """As `keep` says."""
        return self.keep.of(shapes)

    def pruned(self, state: State, shapes: Shapes) -> Tensor | None:
        """The aggregated model pruned like a client's."""
        return self.keep.project(state.weights, shapes) if state.round > self.warm_up else None
