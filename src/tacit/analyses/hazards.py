"""Cox regression as piecewise-exponential hazards: a sum over patients, without risk sets across sites.

The hazard of a patient at time t is exp(α_k + β·x) in the k-th piece of a declared grid. A patient with the exposure
w_k in each piece and the cumulative hazard Λ = Σ w_k·exp(α_k + β·x) adds (w_k·exp(α_k + β·x) − d_k) to the gradient by
α, with d_k = 1 in the piece of an event, and (Λ − Σ d_k)·x to that by β: it is Poisson regression of events, with
exposure as offset. With many pieces it is Cox regression with Breslow's ties. Who is followed beyond the grid is
censored at its end.

A preliminary round releases events and exposure of each piece, from which baseline hazards start. With noise, Λ counts
as at most `MAX_HAZARD`, so that terms are bounded.

References: Holford 1980, Laird and Olivier 1981 (piecewise exponential and Poisson regression); Cox 1972.
"""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.analyses.fitting import FitLayout, FitPlan, FitStart, FitStep
from tacit.analyses.regression import NO_BOUND, Design
from tacit.analyses.sums import Sums64, clip_terms, one_hot, places_in_grid
from tacit.core import Query
from tacit.errors import whole

MAX_HAZARD = 3.0  # cumulative, of a patient: 5 % of patients have more, if all are followed up to the event
MATRIX_SHARE = 0.5  # the norm of a Hessian over that of a gradient, in a vector of terms
CLIP = (0.25, 0.5)  # of gradients in a descent: over the largest norm of covariates, and at least
MAX_LOG = 30.0  # of a hazard in units of a piece


@dataclass(frozen=True, kw_only=True)
class HazardStart(FitStart):
    """Baseline hazards from sums of exposure and events in each piece.

    Args:
        pieces: of the grid.
        scale: what was multiplied by.
        noise: of a sum, before it is divided by that.
        persons: about how many there are; public.
    """

    pieces: int
    scale: float
    noise: float
    persons: float

    def begin(self, layout: FitLayout, total: Sums64, state: Sums64) -> None:
        exposure, events = (np.maximum(total[part][: self.pieces] / self.scale, 0.0)
                            for part in (layout.gradient, layout.means))  # fmt: skip
        noise = 2 * self.noise / self.scale
        mean = max(float(events.sum()), noise, 0.5) / max(float(exposure.sum()), noise, 1.0)
        prior = max(noise, 0.5 / mean)
        logs = np.log((events + prior * mean) / (exposure + prior))
        state[layout.coefficients] = 0.0
        state[layout.coefficients][: self.pieces] = np.where(events + self.noise > 0, logs, -MAX_LOG)
        state[layout.gradient] = np.append(self.persons, np.zeros(layout.size - 1))
        state[layout.means] = 1.0


@dataclass(frozen=True, kw_only=True)
class HazardTerms(Query):
    """Gradient and Hessian of piecewise-exponential hazards; in the preliminary round, exposure and events.

    Args:
        design: which inputs are covariates.
        time: the input that is the time; its range has one piece more than the grid at both ends.
        missing: that which marks a missing time.
        event: that which marks an event.
        unknown: that which marks an unknown event.
        pieces: of the grid.
        plan: the rounds of the fit.
        exact: nothing is cut off.
    """

    design: Design
    time: int
    missing: int
    event: int
    unknown: int
    pieces: int
    plan: FitPlan
    exact: bool = False
    family: ClassVar[Literal["cox"]] = "cox"
    largest: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        whole(1, pieces=self.pieces)

    @property
    def second_order(self) -> bool:
        """Whether Hessians are released."""
        return self.plan.second_order

    @property
    def layout(self) -> FitLayout:
        """Where the parts of a vector of terms are: log hazards of the pieces, then effects."""
        return FitLayout(self.pieces + self.design.size - 1, self.second_order)

    @property
    def length(self) -> int:
        return self.layout.length

    @property
    def row_bound(self) -> float:
        """The largest norm of 1 and the covariates."""
        return sqrt(self.design.squared_norm)

    @property
    def matrix_scale(self) -> float:
        """What a Hessian is multiplied by, so that noise is shared well."""
        return MATRIX_SHARE / self.row_bound

    @property
    def bound(self) -> float:
        if self.exact:
            return NO_BOUND
        if self.second_order:
            return MAX_HAZARD * self.row_bound * sqrt(1 + MATRIX_SHARE**2)
        return max(CLIP[0] * sqrt(self.design.squared_norm - 1), CLIP[1])

    @property
    def start_scale(self) -> float:
        """What exposure, at most 1 in each piece, and an event are multiplied by."""
        return 1.0 if self.exact else self.bound / sqrt(self.pieces + 1)

    @property
    def step(self) -> FitStep:
        """The server's part."""
        start = HazardStart(
            pieces=self.pieces, scale=self.start_scale, noise=self.plan.noise, persons=self.plan.persons
        )
        return FitStep(
            layout=self.layout,
            plan=self.plan,
            matrix_scale=self.matrix_scale,
            start=start if self.plan.preliminary else None,
        )

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        rows, known = self.design.rows(x)
        place = places_in_grid(x[:, self.time], self.pieces)
        known = known & (place >= 0) & (x[:, self.missing] < 0.5) & (x[:, self.unknown] < 0.5)
        exposure = (place[:, None] - torch.arange(self.pieces)).clamp(0, 1)
        had_event = (x[:, self.event] > 0.5) & (place <= self.pieces)
        events = one_hot(torch.where(had_event, (place.ceil().long() - 1).clamp(min=0), -1), self.pieces)
        layout = self.layout
        terms = rows.new_zeros(len(x), layout.length)
        if round(float(state[0])) < self.plan.preliminary:
            terms[:, layout.gradient.start : layout.gradient.start + self.pieces] = exposure * self.start_scale
            terms[:, layout.means.start : layout.means.start + self.pieces] = events * self.start_scale
        else:
            self._add_derivatives(terms, state[layout.coefficients], rows[:, 1:], exposure, events)
        return torch.where(known[:, None], terms, 0.0)

    def _add_derivatives(
        self, terms: Tensor, coefficients: Tensor, covariates: Tensor, exposure: Tensor, events: Tensor
    ) -> None:
        layout, count = self.layout, self.pieces
        logs = coefficients[:count] + (covariates @ coefficients[count:])[:, None]
        hazards = exposure * logs.clamp(max=MAX_LOG).exp()
        if not self.exact:
            hazards = hazards * (MAX_HAZARD / hazards.sum(1, keepdim=True).clamp(min=MAX_HAZARD))
        excess = hazards - events
        gradient = torch.cat([excess, excess.sum(1, keepdim=True) * covariates], 1)
        if not self.second_order:
            terms[:, layout.gradient] = clip_terms(gradient, self.bound)
            return
        terms[:, layout.gradient] = gradient
        whole_rows = torch.cat([torch.ones_like(hazards), covariates], 1)
        weights = torch.cat([hazards, hazards.sum(1, keepdim=True).expand(-1, covariates.shape[1])], 1)
        terms[:, layout.hessian] = layout.pack_blocks(whole_rows, weights * self.matrix_scale, count)
