"""Noise by importance: what matters least to a client's model gets more of it, or what matters most.

Every client finds for itself and in every round which groups of weights matter, by how far training moved them or by
what happens to its accuracy when they are moved. A base mechanism blurs all weights alike; on top of it some groups get
more noise, so that theirs is a multiple of the base's.

Reference: Talaei, Izadi. Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach. arXiv
2401.02453, 2024. VIANN, the variance that Eq. 6 is made after: de Sá. Variance-Based Feature Importance in Neural
Networks. DS 2019.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from tacit.core import Bounded, Key, Messages, Perturbation, Round, State, Sum, Turnout, View, Wave
from tacit.core.pieces import Content, DryRun, Mechanism, Visibility, nominal
from tacit.errors import UserError, expect
from tacit.pieces.mechanisms.groups import EachWeight, Grouping, Groups, Inputs
from tacit.pieces.mechanisms.nbafl import NOISE, NOMINAL, blurred
from tacit.wire.frames import Part

Which = Literal["least", "most"]
_TIES = Key.from_seed(0, "ties")


class Importance(Protocol):
    """How much each group of weights matters to each client."""

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        """(clients, groups), the larger the more important.

        `weights` are the clients' trained ones, (clients, dim), `received` those they began with, and `deviation` is
        the noise that is coming.
        """
        ...


@dataclass(frozen=True)
class Variance:
    """How far training moved a group's weights: Σ Var(w)·|w| (Eq. 6).

    The variance is that of the received and the new weight, (Δ/2)².
    """

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        """One pass over the weights."""
        return groups.sums(((weights - received) / 2).square() * weights.abs())


@dataclass(frozen=True)
class Sensitivity:
    """What a client's own accuracy loses or wins when a group's weights grow by the noise to be expected, σ·√(2/π).

    Many groups may come out equal; an input that is always zero has no importance at all. With too little noise to
    change any accuracy all groups are equal, and chance decides.

    Args:
        times: σ is so many times the noise of the base.
    """

    times: float = 1.0

    def __post_init__(self) -> None:
        expect(0 < self.times < float("inf"), f"times={self.times} > 0 and finite")

    def of(self, weights: Tensor, received: Tensor, data: Wave, groups: Groups, deviation: float) -> Tensor:
        """One question to the engine for all groups."""
        scores = data.perturbed_scores(
            weights, Perturbation(groups.of, groups.count, self.times * deviation * sqrt(2 / pi))
        )
        return (scores[:, 1:] - scores[:, :1]).abs()


MEASURES: Mapping[str, Importance] = {"variance": Variance(), "sensitivity": Sensitivity()}


class Allocation(Protocol):
    """How many times the base's noise each group gets."""

    def factors(self, importance: Tensor) -> Tensor:
        """(clients, groups), at least 1."""
        ...

    @property
    def most(self) -> float:
        """The largest factor."""
        ...

    @property
    def whom(self) -> str:
        """Who gets that, in words."""
        ...


@dataclass(frozen=True)
class Share:
    """A share of the groups, the least or the most important ones, gets `factor` times the noise.

    Args:
        factor: how many times; ε_high/ε_low of the paper.
        share: of the groups, rounded to whole ones.
        which: the `least` or the `most` important.
    """

    factor: float
    share: float = 0.2
    which: Which = "least"

    def __post_init__(self) -> None:
        expect(0 <= self.share <= 1, f"share={self.share} in [0, 1]")
        _check(self.factor, self.which)

    def factors(self, importance: Tensor) -> Tensor:
        """`factor` or 1."""
        count = importance.shape[1]
        chosen = _ranks(importance, self.which) < round(self.share * count)
        return torch.where(chosen, self.factor, 1.0).to(importance.dtype)

    @property
    def most(self) -> float:
        """The factor."""
        return self.factor

    @property
    def whom(self) -> str:
        """So many percent of the groups."""
        return f"{self.share:.0%} {self.which} important"


@dataclass(frozen=True)
class Graded:
    """Every group has noise by its own rank: from `factor` times down to once, in equal ratios.

    This is the paper's outlook: not one noise for a part of the features, but each by its importance.

    Args:
        factor: how many times the noise the first one gets.
        which: who is first, the `least` or the `most` important.
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
    def most(self) -> float:
        """The factor."""
        return self.factor

    @property
    def whom(self) -> str:
        """The first."""
        return f"the {self.which} important one"


@runtime_checkable
class ClientNoise(Protocol):
    """A mechanism whose clients blur their own rows, all coordinates alike."""

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of what a client adds to every coordinate of its row."""
        ...


@dataclass(frozen=True, kw_only=True)
class ByImportance:
    """A base mechanism, and on top of it more noise for the groups that matter least, or most, to each client.

    Args:
        base: blurs all coordinates alike: `NbaflGaussian`, or `DistributedGaussian(at_once=False)`.
        importance: `Variance()` or `Sensitivity()`.
        allocation: `Share(...)` or `Graded(...)`.
        groups: what weights belong together, `Inputs()` or `EachWeight()`; weights in no group have the base's noise.
        takes: whether rows are `weights` or `updates`, as the trainer sends them.

    Formal guarantees: none. Which groups get more noise is read from private data and shows in the messages; and a
    vector is hidden no better than its least blurred coordinate, so that more noise elsewhere adds nothing to any
    guarantee that the base may have.

    Sees: as the base says; and from the noise in each message, which groups matter to that client.
    """

    base: Mechanism
    importance: Importance
    allocation: Allocation
    groups: Grouping = Inputs()
    takes: Content = "weights"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = True
    needs_noise: ClassVar[bool] = False
    per_layer: ClassVar[bool] = True
    bits: ClassVar[int | None] = None
    against: ClassVar[str] = "nobody"

    def __post_init__(self) -> None:
        if not isinstance(self.base, ClientNoise) or getattr(self.base, "at_once", False):
            raise UserError(
                f"Expected a base whose clients add their own noise, got {self.base}. Use NbaflGaussian, or "
                "DistributedGaussian(at_once=False)."
            )
        expect(self.base.bits is None, f"a base that blurs with real numbers, got {self.base}", "Use Reals().")
        expect(not self.base.needs_noise, "a base with its noise given: a budget cannot size it, as nothing is proved")
        if isinstance(self.importance, Sensitivity) and isinstance(self.groups, EachWeight):
            raise UserError("Expected Variance for single weights: Sensitivity would try every one. Or use Inputs.")

    @property
    def reads(self) -> Visibility:
        """What the base must see."""
        return self.base.reads

    @property
    def shares(self) -> bool:
        """Whether the base's noise is in shares."""
        return self.base.shares

    @property
    def unproved(self) -> str:
        """The base's reasons, and those of the choice."""
        own = (
            "which weights get more noise is chosen from private data and shows in the noise; "
            "the least noise of any coordinate decides, and more elsewhere proves nothing"
        )
        return f"{self.base.unproved}; {own}" if self.base.unproved else own

    @property
    def nominal(self) -> Mapping[str, float]:
        """The base's figures: ε by the formula and the noise at both ends, and the exact ones of the least noise."""
        told, whom, most = dict(nominal(self.base)), self.allocation.whom, self.allocation.most
        if NOMINAL not in told:
            return told
        epsilon, noise = told.pop(NOMINAL), told.pop(NOISE)
        levels = {f"{NOMINAL}, {whom}": epsilon / most, f"{NOMINAL}, all others": epsilon}
        return {**levels, f"{NOISE}, {whom}": noise * most, f"{NOISE}, all others": noise, **told}

    def event(self, index: int, turnout: Turnout | None = None) -> None:
        """Nothing is proved."""

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """What the base prepares."""
        return self.base.prepare(state, rehearse)

    def broadcast_parts(self, state: State) -> Mapping[Part, Tensor]:
        """What the base tells."""
        return self.base.broadcast_parts(state)

    def importances(self, messages: Messages, view: View, data: Wave, now: Round) -> Tensor:
        """How much each group matters to each client, (clients, groups)."""
        rows = messages.rows.dense()
        weights = rows if self.takes == "weights" else rows + view.weights
        return self.importance.of(weights, view.weights, data, self.groups.of(data.shapes), self._deviation(view, now))

    def deviations(self, messages: Messages, view: View, data: Wave, now: Round) -> Tensor:
        """The standard deviation of the noise in every coordinate of every client's message, (clients, dim)."""
        factors = self.allocation.factors(self.importances(messages, view, data, now))
        return self.groups.of(data.shapes).spread(factors, 1.0) * self._deviation(view, now)

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """The base's messages with more noise where it is due."""
        once = self._deviation(view, now)
        more = (self.deviations(messages, view, data, now).square() - once**2).clamp(min=0).sqrt()
        sent = self.base.at_client(messages, view, data, now)
        return replace(sent, rows=blurred(sent.rows, sent, more, now.secret.child("noise by importance")))

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        """As the base does."""
        return self.base.before_sum(messages, state, now)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """As the base does."""
        return self.base.after_sum(total, now)

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """As the base does."""
        return self.base.remember(state, total, now)

    def _deviation(self, view: View, now: Round) -> float:
        assert isinstance(self.base, ClientNoise)  # or it could not have been built
        return self.base.deviation(view, now)


def _ranks(importance: Tensor, first: Which) -> Tensor:
    """Each group's place, from 0, for every client; equal groups stand in a random order that is always the same."""
    order = torch.randperm(importance.shape[1], generator=_TIES.torch())
    shuffled = importance[:, order]
    places = torch.argsort(shuffled, dim=1, descending=first == "most", stable=True)
    return torch.empty_like(places).scatter_(1, order[places], torch.arange(len(order)).expand_as(places))


def _check(factor: float, which: str) -> None:
    expect(1 <= factor < float("inf"), f"factor={factor:g} >= 1 and finite", "The base's noise is the least.")
    expect(which in ("least", "most"), f"which={which!r} to be 'least' or 'most'")
