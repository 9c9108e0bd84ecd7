"""Fits of regressions by sums over persons: what the server broadcasts, what it receives, and its step.

Every round releases the gradient of all persons and, where the rule allows it, the Hessian, at coefficients that all
know. Newton's steps use the Hessian as it was released, in which directions that cannot be told from its noise are
damped. Gradients and Hessians of the last rounds are averaged, and the estimate is one Newton step from the mean of
their coefficients, so that noise in each of these rounds counts only in the mean. All that a result needs is in the
state.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analyses.sums import Sums64
from tacit.core import State
from tacit.core.descent_rule import step_size
from tacit.core.interfaces import Payload, ServerUpdate
from tacit.errors import at_least, whole

FLOOR = 2.0  # an eigenvalue of a Hessian is at least this many times the norm of the noise in it
LONGEST_STEP = 8.0  # of a private fit: the most by which the linear predictor of any person may change in a round
SINGULAR = 2e-7  # an eigenvalue of an exact Hessian, over the largest, that is zero but for messages in float32


@dataclass(frozen=True)
class FitLayout:
    """Where the parts of a fit are in the state, and in a vector of terms.

    Attributes:
        size: the number of coefficients.
        second_order: whether there is a Hessian.
        cells: numbers beside them, such as a histogram of scores.
    """

    size: int
    second_order: bool = True
    cells: int = 0

    def __post_init__(self) -> None:
        whole(1, size=self.size)
        whole(0, cells=self.cells)

    @property
    def pairs(self) -> int:
        """The numbers of a symmetric matrix, which is packed by its upper triangle."""
        return self.size * (self.size + 1) // 2 if self.second_order else 0

    @property
    def length(self) -> int:
        """The length of a state, and of a vector of terms."""
        return 1 + 3 * self.size + self.pairs + self.cells

    @property
    def coefficients(self) -> slice:
        """Where gradients are computed."""
        return slice(1, 1 + self.size)

    @property
    def gradient(self) -> slice:
        """The gradient, or the mean of those that are averaged."""
        return slice(1 + self.size, 1 + 2 * self.size)

    @property
    def means(self) -> slice:
        """The mean of the coefficients at which those that are averaged were computed."""
        return slice(1 + 2 * self.size, 1 + 3 * self.size)

    @property
    def hessian(self) -> slice:
        """The packed Hessian, or the mean of those that are averaged."""
        return slice(1 + 3 * self.size, 1 + 3 * self.size + self.pairs)

    @property
    def others(self) -> slice:
        """The numbers beside them."""
        return slice(1 + 3 * self.size + self.pairs, self.length)

    @cached_property
    def _triangle(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.triu_indices(self.size)

    def pack_products(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The packed matrix w·v·vᵀ of each row v; its norm is w·‖v‖²."""
        first, second = (torch.from_numpy(index) for index in self._triangle)
        scale = torch.where(first == second, 1.0, sqrt(2)).double()
        return rows[:, first] * rows[:, second] * (weights[:, None] * scale)

    def unpack(self, packed: Sums64) -> Sums64:
        """The symmetric matrix."""
        matrix = np.zeros((self.size, self.size))
        first, second = self._triangle
        values = packed / np.where(first == second, 1.0, sqrt(2))
        matrix[first, second] = matrix[second, first] = values
        return matrix

    def matrix_noise(self, deviation: float) -> float:
        """About the largest eigenvalue of a packed matrix of independent noise."""
        return deviation * sqrt(2 * self.size)


@dataclass(frozen=True)
class FitPlan:
    """The rounds of a fit, by a public rule.

    Attributes:
        rounds: with gradients.
        averaged: the last of them, whose gradients and Hessians are averaged.
        histogram: whether a round follows that releases a histogram of scores.
        damped: whether steps are short as long as coefficients change much, so that each decreases an exact loss.
        lr: of first-order steps, of the mean gradient; 0: steps are Newton's.
        persons: about how many there are; public.
        noise: about the standard deviation of the noise in each number of a sum; 0: it is exact.
        why: the rule and its result, as a sentence.
    """

    rounds: int
    averaged: int = 1
    histogram: bool = False
    damped: bool = False
    lr: float = 0.0
    persons: float = 1.0
    noise: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        whole(1, rounds=self.rounds, averaged=self.averaged)
        at_least(0, lr=self.lr, noise=self.noise)

    @property
    def releases(self) -> int:
        """The number of rounds in all."""
        return self.rounds + self.histogram

    @property
    def second_order(self) -> bool:
        """Whether steps are Newton's."""
        return self.lr == 0


@dataclass(frozen=True, kw_only=True)
class FitStep(ServerUpdate):
    """A step of a fit: Newton's, or one along the gradient.

    Args:
        layout: where the parts are.
        plan: the rounds.
        matrix_scale: what a Hessian is multiplied by in a vector of terms.
    """

    layout: FitLayout
    plan: FitPlan
    matrix_scale: float = 1.0
    expects: ClassVar[Payload] = "terms"

    @property
    def counts(self) -> tuple[tuple[float, str], ...]:
        return ((self.plan.persons, "at all clients"),) if self.plan.persons > 1 else ()

    def apply(self, state: State, aggregate: Tensor) -> State:
        before, total = (each.double().cpu().numpy() for each in (state.weights, aggregate))
        after = self.step(before.copy(), total)
        return replace(state, weights=torch.from_numpy(after).to(state.weights))

    def step(self, state: Sums64, total: Sums64) -> Sums64:
        """The next state, in place."""
        at, done = self.layout, round(float(state[0]))
        state[0] = done + 1
        state[at.others] = total[at.others]
        if done >= self.plan.rounds:
            return state
        if not self.plan.second_order:
            rate = step_size(self.plan.lr, done, self.plan.rounds) / self.plan.persons
            state[at.gradient] = total[at.gradient]
            state[at.coefficients] -= rate * total[at.gradient]
            return state
        count = max(1, done - (self.plan.rounds - self.plan.averaged) + 1)
        for part, value in (
            (at.means, state[at.coefficients]),
            (at.gradient, total[at.gradient]),
            (at.hessian, total[at.hessian] / self.matrix_scale),
        ):
            state[part] += (value - state[part]) / count
        step = -FitState(state, self).covariance_root @ state[at.gradient]
        start = state[at.coefficients].copy()
        step += state[at.means] - start
        state[at.coefficients] = start + step * self._part_of_step(float(np.abs(step).sum()))
        return state

    def _part_of_step(self, change: float) -> float:
        """The part of a step that is made, for the largest change of a linear predictor of inputs of at most 1."""
        if self.plan.damped:
            return float(np.log1p(change)) / change if change > 1e-3 else 1.0
        return 1.0 if self.plan.rounds == 1 else min(1.0, LONGEST_STEP / max(change, 1e-300))


@dataclass(frozen=True, eq=False)
class FitState:
    """A state of a fit, as its parts.

    Attributes:
        values: the state.
        step: the server's piece.
    """

    values: Sums64
    step: FitStep

    @classmethod
    def of(cls, state: State, step: FitStep) -> Self:
        """The parts of a run's state."""
        return cls(state.weights.double().cpu().numpy().copy(), step)

    @property
    def estimate(self) -> Sums64:
        """The coefficients."""
        return self.values[self.step.layout.coefficients]

    @property
    def others(self) -> Sums64:
        """The numbers beside gradient and Hessian, of the last round."""
        return self.values[self.step.layout.others]

    @property
    def count(self) -> int:
        """How many gradients and Hessians are in their means."""
        done, plan = round(float(self.values[0])), self.step.plan
        return max(1, min(done, plan.rounds) - (plan.rounds - plan.averaged))

    @cached_property
    def _spectrum(self) -> tuple[Sums64, Sums64]:
        layout = self.step.layout
        matrix = layout.unpack(self.values[layout.hessian])
        values, vectors = np.linalg.eigh(np.nan_to_num(matrix, posinf=0.0, neginf=0.0))
        return values, vectors

    @property
    def threshold(self) -> float:
        """The eigenvalue of the Hessian below which a direction cannot be told from the noise, or is singular."""
        noise = self.step.layout.matrix_noise(self.step.plan.noise / self.step.matrix_scale) / sqrt(self.count)
        return max(FLOOR * noise, SINGULAR * float(np.abs(self._spectrum[0]).max(initial=0.0)), 1e-300)

    @property
    def determined(self) -> NDArray[np.bool_]:
        """Which coefficients the sums determine: no direction that they do not determine moves them."""
        values, vectors = self._spectrum
        unknown = vectors[:, values < self.threshold]
        result: NDArray[np.bool_] = (unknown**2).sum(1) < 1e-3
        return result

    @cached_property
    def covariance_root(self) -> Sums64:
        """The inverse of the Hessian, without directions that are singular, and with those in its noise damped."""
        values, vectors = self._spectrum
        known = values >= self.threshold
        inverse = np.where(known, 1 / np.where(known, values, 1.0), 1 / self.threshold if self.step.plan.noise else 0.0)
        root: Sums64 = (vectors * inverse) @ vectors.T
        return root

    def noise_covariance(self, deviation: float) -> Sums64:
        """The covariance of the noise in the estimate, for noise of this deviation in every number of a sum.

        The error is H⁻¹(ξ − E·d): ξ is the noise in the mean gradient, E that in the mean Hessian, and d the distance
        of the estimate from the mean of the coefficients at which they were computed.
        """
        root, layout = self.covariance_root, self.step.layout
        distance = self.values[layout.means] - self.estimate
        of_matrix = (deviation / self.step.matrix_scale) ** 2 / 2
        spread = deviation**2 * np.eye(layout.size)
        spread += of_matrix * (distance @ distance * np.eye(layout.size) + np.outer(distance, distance))
        result: Sums64 = root @ (spread / self.count) @ root
        return result
