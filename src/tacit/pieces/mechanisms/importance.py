"""Noise by importance: more noise on the weights that matter least to a client's model, or on those that matter most.

In every round, every client measures the importance of each group of weights, by how much training changed them or by
how its accuracy reacts when they are perturbed. A base mechanism adds equal noise to all weights; some groups get
additional noise, so that their total is a multiple of the base's.

Reference: Talaei, Izadi. Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach. arXiv
2401.02453, 2024. VIANN, the variance that Eq. 6 is modelled on: de Sá. Variance-Based Feature Importance in Neural
Networks. DS 2019.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from tacit.core.interfaces import DryRun, Mechanism, Payload, Visibility
from tacit.core.keys import Key
from tacit.core.prices import Price, Uncalibrated, Unproved
from tacit.core.provenance import read_parts
from tacit.core.state import BoundedMessages, ClientRound, Messages, Round, ServerRound, State, Sum, Turnout, View
from tacit.core.wave import Perturbation, Wave
from tacit.errors import UserError, at_least, expect, one_of, positive, within
from tacit.pieces.mechanisms.groups import Grouping, Groups, InputFeatures, SingleWeights
from tacit.pieces.mechanisms.nbafl import NOISE_STD, NOMINAL, add_gaussian
from tacit.wire.frames import Part, Parts

Which = Literal["least", "most"]
_TIES = Key.from_seed(0, "ties")


class Importance(Protocol):
    """A measure of how much each group of weights matters to each client."""

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        """(clients, groups): larger values are more important.

        Args:
            weights: the clients' trained weights, (clients, dim).
            received: the weights that they received.
            data: the clients' data.
            groups: the groups of weights.
            deviation: standard deviation of the base's noise.
        """


@dataclass(frozen=True)
class WeightVariance:
    """How much training changed a group's weights: Σ Var(w)·|w| (Eq. 6).

    The variance is that of the received and the trained weight, (Δ/2)².
    """

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        return groups.sums(((weights - received) / 2).square() * weights.abs())


@dataclass(frozen=True)
class AccuracySensitivity:
    """How much a client's own accuracy changes if a group's weights grow by the noise's mean magnitude, σ·√(2/π).

    Many groups may have equal importance; an input that is always zero has none. If the noise is too small to change
    any accuracy, all groups are equal and their order is random.

    Args:
        noise_factor: σ as a multiple of the base's noise.
    """

    noise_factor: float = 1.0

    def __post_init__(self) -> None:
        positive(noise_factor=self.noise_factor)

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        size = self.noise_factor * deviation * sqrt(2 / pi)
        scores = data.perturbed_scores(weights, Perturbation(groups.of, groups.count, size))
        return (scores[:, 1:] - scores[:, :1]).abs()


MEASURES: Mapping[str, Importance] = {"variance": WeightVariance(), "sensitivity": AccuracySensitivity()}


class Allocation(Protocol):
    """The noise of each group as a multiple of the base's noise."""

    def factors(self, importance: Tensor) -> Tensor:
        """(clients, groups): the multiples, at least 1."""

    @property
    def factor(self) -> float:
        """The largest multiple."""

    @property
    def label(self) -> str:
        """A short description of the groups that get it."""


@dataclass(frozen=True)
class TwoLevel:
    """A share of the groups, the least or the most important ones, gets `factor` times the noise.

    Args:
        factor: the multiple; ε_high/ε_low of the paper.
        share: the share of the groups, rounded to a whole number of groups.
        which: the `least` or the `most` important.
    """

    factor: float
    share: float = 0.2
    which: Which = "least"

    def __post_init__(self) -> None:
        within("[0, 1]", share=self.share)
        _check(self.factor, self.which)

    def factors(self, importance: Tensor) -> Tensor:
        count = importance.shape[1]
        chosen = _ranks(importance, self.which) < round(self.share * count)
        return torch.where(chosen, self.factor, 1.0).to(importance.dtype)

    @property
    def label(self) -> str:
        return f"{self.share:.0%} {self.which} important"


@dataclass(frozen=True)
class Graded:
    """Every group gets noise by its rank: from `factor` times the base's noise down to once, in a geometric sequence.

    The paper proposes this as future work.

    Args:
        factor: the multiple of the first group.
        which: which group is first, the `least` or the `most` important.
    """

    factor: float
    which: Which = "least"

    def __post_init__(self) -> None:
        _check(self.factor, self.which)

    def factors(self, importance: Tensor) -> Tensor:
        """factor^(1 − rank/last)."""
        last = max(importance.shape[1] - 1, 1)
        return torch.pow(self.factor, 1 - _ranks(importance, self.which).to(importance.dtype) / last)

    @property
    def label(self) -> str:
        return f"the {self.which} important one"


@runtime_checkable
class ClientNoise(Protocol):
    """A mechanism whose clients add noise to their own rows, equal in all coordinates."""

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of the noise that a client adds to every coordinate of its row."""


@dataclass(frozen=True, kw_only=True)
class ByImportance(Mechanism):
    """A base mechanism, and additional noise on the groups that matter least, or most, to each client.

    Args:
        base: adds equal noise to all coordinates: `NbaflGaussian`, or `DistributedGaussian(single_draw=False)`.
        importance: `WeightVariance()` or `AccuracySensitivity()`.
        allocation: `TwoLevel(...)` or `Graded(...)`.
        groups: `InputFeatures()` or `SingleWeights()`; weights in no group get the base's noise only.
        expects: whether rows are `weights` or `updates`, as the trainer sends them.

    Formal guarantees: none. Which groups get more noise depends on private data and is visible in the messages. The
    coordinate with the least noise limits the guarantee of a vector, so more noise elsewhere adds nothing to any
    guarantee that the base may have. Bounded for clients only: records decide where noise is added.

    Sees: as with the base; and from the noise in each message, which groups matter to that client.
    """

    base: Mechanism
    importance: Importance
    allocation: Allocation
    groups: Grouping = InputFeatures()
    expects: Payload = "weights"
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of(get_args(Payload), expects=self.expects)
        if not isinstance(self.base, ClientNoise) or getattr(self.base, "single_draw", False):
            raise UserError(
                f"Expected a base whose clients add their own noise, got {self.base}. Use NbaflGaussian, or "
                "DistributedGaussian(single_draw=False)."
            )
        expect(self.base.bits is None, f"a base with real-valued noise, got {self.base}", "Use Reals().")
        expect(
            not isinstance(self.base.price(0), Uncalibrated),
            "a base with a given noise multiplier: no budget can determine it, as nothing is proved",
        )
        if isinstance(self.importance, AccuracySensitivity) and isinstance(self.groups, SingleWeights):
            raise UserError(
                "Expected WeightVariance for single weights, because AccuracySensitivity would evaluate the model once "
                "per weight. Use WeightVariance, or InputFeatures."
            )

    @property
    def requires(self) -> Visibility:
        return self.base.requires

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        own = (
            "which weights get more noise depends on private data and is visible in the messages; "
            "the coordinate with the least noise limits any guarantee, and more noise elsewhere adds none"
        )
        base = self.base.price(index, turnout)
        return Unproved("; ".join(filter(None, (base.reason, own))), figures=self._figures(base))

    def _figures(self, base: Price) -> Mapping[str, float]:
        """The base's figures: nominal ε and noise at both ends of the allocation, exact ε for the least noise."""
        figures, label, factor = dict(base.figures), self.allocation.label, self.allocation.factor
        if NOMINAL not in figures:
            return figures
        epsilon, noise = figures.pop(NOMINAL), figures.pop(NOISE_STD)
        levels = {f"{NOMINAL}, {label}": epsilon / factor, f"{NOMINAL}, all others": epsilon}
        return {**levels, f"{NOISE_STD}, {label}": noise * factor, f"{NOISE_STD}, all others": noise, **figures}

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.base.prepare(state, dry_run)

    def broadcast_parts(self, state: State) -> Parts:
        return self.base.broadcast_parts(state)

    @property
    def reads(self) -> tuple[Part, ...]:
        return read_parts(self.base)

    def check_broadcast(self, view: View) -> None:
        self.base.check_broadcast(view)

    def importances(self, messages: Messages, view: View, data: Wave, now: Round) -> Tensor:
        """The importance of each group to each client, (clients, groups)."""
        rows = messages.rows.dense()
        weights = rows if self.expects == "weights" else rows + view.weights
        return self.importance.of(weights, view.weights, data, self.groups.of(data.shapes), self._deviation(view, now))

    def deviations(self, messages: Messages, view: View, data: Wave, now: Round) -> Tensor:
        """The standard deviation of the noise in every coordinate of every client's message, (clients, dim)."""
        factors = self.allocation.factors(self.importances(messages, view, data, now))
        return self.groups.of(data.shapes).spread(factors, 1.0) * self._deviation(view, now)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        """The base's messages, with additional noise up to `deviations`."""
        base = self._deviation(view, now)
        added = (self.deviations(messages, view, data, now).square() - base**2).clamp(min=0).sqrt()
        sent = self.base.at_client(messages, view, data, now)
        keys = now.clients.child("noise by importance")
        return replace(sent, rows=add_gaussian(sent.rows, sent.clients, added, keys))

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return self.base.before_sum(messages, state)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return self.base.after_sum(total, now)

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return self.base.update_state(state, total, now)

    def _deviation(self, view: View, now: Round) -> float:
        assert isinstance(self.base, ClientNoise)  # checked in __post_init__
        return self.base.deviation(view, now)


def _ranks(importance: Tensor, first: Which) -> Tensor:
    """Each group's rank, from 0, for every client; ties are broken by one fixed random order."""
    order = torch.randperm(importance.shape[1], generator=_TIES.public_generator())
    shuffled = importance[:, order]
    ranked = torch.argsort(shuffled, dim=1, descending=first == "most", stable=True)
    return torch.empty_like(ranked).scatter_(1, order[ranked], torch.arange(len(order)).expand_as(ranked))


def _check(factor: float, which: str) -> None:
    at_least(1, "No group gets less than the base's noise.", factor=factor)
    one_of(("least", "most"), which=which)
