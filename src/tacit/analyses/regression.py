"""Logistic, linear and Poisson regression: what a person adds to gradient and Hessian, and to a histogram of scores.

Inputs are scaled by declared ranges, numbers to [−1, 1] and categories to 0 or 1, so that no row is longer than a
public bound R. A row's gradient is a residual times the row, and its Hessian a weight times the row's products:

- logistic: |μ − y| < 1 and the weight μ(1 − μ). Multiplied by 3.2/R, the Hessian costs nothing: the norm of both
  together is R·√(μ² + (3.2·μ(1 − μ))²) < R.
- linear: one release at coefficients of zero has all that least squares needs, with the sum of
  squared residuals.
- Poisson: means are cut off at the largest declared count M, so that |μ − y| ≤ M, and the weight is μ ≤ M.

With a preliminary round, which releases moments of the rows, gradients are those of standardised rows, each clipped to
the norm of the rule of noisy descent (`tacit.core.descent_rule`).

Rows with a missing value, or with a category that is not listed, add nothing.

References: McCullagh, Nelder 1989 (generalised linear models); Hanley, McNeil 1982 (AUROC).
"""

from dataclasses import dataclass
from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor

from tacit.analyses.fitting import FitLayout, FitPlan, FitStep, MomentStart
from tacit.analyses.sums import clip_terms, one_hot
from tacit.core import Query
from tacit.core.descent_rule import CLIP_NORM
from tacit.errors import one_of, positive

Family = Literal["logistic", "linear", "poisson"]
FAMILIES = ("logistic", "linear", "poisson")
SCORE_CELLS = (
    20,
    10,
)  # of the histogram of scores, for each outcome: where their spread is known, and otherwise
SPREAD = 3.0  # standard deviations of the scores to each side that the histogram has
NO_BOUND = 1e150  # of exact sums


@dataclass(frozen=True, kw_only=True)
class Design:
    """Which inputs of an encoding make a row of a regression.

    Attributes:
        numbers: the inputs that are numbers.
        missing: those that mark a missing one.
        categories: those of the values of each categorical column; the first is the reference.
    """

    numbers: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    categories: tuple[tuple[int, ...], ...] = ()

    @property
    def size(self) -> int:
        """The length of a row, with its first element, which is 1."""
        return 1 + len(self.numbers) + sum(len(each) - 1 for each in self.categories)

    @property
    def squared_norm(self) -> float:
        """The largest squared norm of a row."""
        return 1.0 + len(self.numbers) + len(self.categories)

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, and which of them are complete."""
        wide = x.double()
        parts = [wide.new_ones(len(x), 1), 2 * wide[:, list(self.numbers)] - 1]
        parts += [wide[:, list(each[1:])] for each in self.categories]
        known = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for place in self.missing:
            known &= wide[:, place] < 0.5
        for each in self.categories:
            known &= wide[:, list(each)].sum(1) == 1
        return torch.cat(parts, 1), known


@dataclass(frozen=True, kw_only=True)
class RegressionTerms(Query):
    """Gradient and Hessian of the loss of a regression, or, after the rounds of the fit, a histogram of scores.

    Args:
        family: of the outcome.
        design: which inputs make a row.
        target: the input that is the outcome: 1 or 0, or a number scaled to [0, 1].
        unknown: the input that marks a missing outcome.
        plan: the rounds of the fit.
        largest: the largest count, for Poisson.
        exact: nothing is cut off.
    """

    family: Family
    design: Design
    target: int
    unknown: int
    plan: FitPlan
    largest: float = 1.0
    exact: bool = False

    def __post_init__(self) -> None:
        one_of(FAMILIES, family=self.family)
        positive(largest=self.largest)

    @property
    def second_order(self) -> bool:
        """Whether Hessians are released."""
        return self.plan.second_order

    @property
    def score_cells(self) -> int:
        """The cells of the histogram of scores, for each outcome."""
        return SCORE_CELLS[not self.second_order and not self.plan.preliminary]

    @property
    def step(self) -> FitStep:
        """The server's part."""
        start = None
        if self.plan.preliminary:
            start = MomentStart(
                numbers=len(self.design.numbers),
                scale=self.moment_scale,
                noise=self.plan.noise,
                persons=self.plan.persons,
                link=self.family,
                largest=self.largest,
            )
        return FitStep(layout=self.layout, plan=self.plan, matrix_scale=self.matrix_scale, start=start)

    @property
    def layout(self) -> FitLayout:
        """Where the parts of a vector of terms are."""
        cells = {"logistic": 2 * self.score_cells, "linear": int(self.second_order), "poisson": 0}
        return FitLayout(self.design.size, self.second_order, cells[self.family])

    @property
    def length(self) -> int:
        return self.layout.length

    @property
    def row_bound(self) -> float:
        """The largest norm of a row of the design."""
        return sqrt(self.design.squared_norm)

    @property
    def matrix_scale(self) -> float:
        """What a Hessian is multiplied by, so that noise is shared well."""
        return {"logistic": 3.2, "linear": 1.0, "poisson": 0.5}[self.family] / self.row_bound

    @property
    def square_scale(self) -> float:
        """What the squared residual of a linear regression is multiplied by."""
        return self.row_bound / 2

    @property
    def moment_scale(self) -> float:
        """What moments are multiplied by: a row, its squares and the outcome are at most √2 rows long together."""
        return self.bound / (sqrt(2) * self.row_bound)

    @property
    def bound(self) -> float:
        if self.exact:
            return NO_BOUND
        if self.plan.preliminary:
            return CLIP_NORM * self.largest
        if self.family == "logistic":
            return self.row_bound
        if self.family == "linear":
            return self.row_bound * (1.5 if self.second_order else 2.0)
        return self.largest * self.row_bound * (sqrt(1.25) if self.second_order else 1.0)

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        rows, known = self.design.rows(x)
        outcome = x[:, self.target].double()
        known = known & (x[:, self.unknown] < 0.5)
        layout, done = self.layout, round(float(state[0]))
        terms = rows.new_zeros(len(x), layout.length)
        if self.plan.preliminary and done == 0:
            terms[:, layout.gradient], terms[:, layout.means] = rows, rows.square()
            terms[:, layout.means.start] = outcome
            terms *= self.moment_scale
        elif done >= self.plan.fitted:
            terms[:, layout.others] = self.bound * self._cells(state, rows, outcome)
        else:
            residual, weight = self._loss(
                rows @ state[layout.coefficients], outcome, first=done == 0 and self.second_order
            )
            terms[:, layout.gradient] = residual[:, None] * rows
            if self.plan.preliminary:
                terms[:, layout.gradient] = clip_terms(residual[:, None] * self._standardise(rows, state), self.bound)
            if self.second_order:
                terms[:, layout.hessian] = layout.pack_products(rows, weight * self.matrix_scale)
                if self.family == "linear":
                    terms[:, layout.others] = residual.square()[:, None] * self.square_scale
        return torch.where(known[:, None], terms, 0.0)

    def _standardise(self, rows: Tensor, state: Tensor) -> Tensor:
        """The rows by the centres and scales of the preliminary round."""
        centre, scale = state[self.layout.gradient][1:].double(), state[self.layout.means][1:].double()
        return torch.cat([rows[:, :1], (rows[:, 1:] - centre) * scale], 1)

    def _loss(self, score: Tensor, outcome: Tensor, *, first: bool) -> tuple[Tensor, Tensor]:
        """The first and the second derivative of the loss by the linear predictor."""
        if self.family == "logistic":
            mean = torch.sigmoid(score)
            return mean - outcome, mean * (1 - mean)
        if self.family == "linear":
            return score - (2 * outcome - 1), torch.ones_like(score)
        count = outcome * self.largest
        if first:  # from the counts themselves, as least squares of their logarithms
            mean = count + 0.5
            return mean - count - mean * mean.log(), mean
        mean = (score if self.exact else score.clamp(max=log(self.largest))).exp()
        return mean - count, mean

    def _cells(self, state: Tensor, rows: Tensor, outcome: Tensor) -> Tensor:
        """The cell of a person in the histogram of scores by outcome."""
        centre, width = score_range(state, self.layout)
        score, count = rows @ state[self.layout.coefficients], self.score_cells
        place = ((score - centre) / width * count + count / 2).nan_to_num().floor()
        return one_hot(place.clamp(0, count - 1).long() + count * (outcome > 0.5), 2 * count)


def score_range(state: Tensor, layout: FitLayout) -> tuple[float, float]:
    """The centre and the width of the histogram of scores, from what is public: the coefficients and the Hessian."""
    coefficients = state[layout.coefficients].double()
    centre, variance = float(coefficients[0]), float(coefficients[1:].square().sum()) / 4
    if not layout.second_order and float(state[layout.means.start]) > 0:  # standardised: centres and scales are there
        means, scales = state[layout.gradient][1:].double(), state[layout.means][1:].double()
        centre = float(coefficients[0] + coefficients[1:] @ means)
        variance = float((coefficients[1:] / scales).square().sum())
    if layout.second_order:
        matrix = torch.from_numpy(layout.unpack(state[layout.hessian].double().numpy()))
        if float(matrix[0, 0]) > 0:
            centre = float(matrix[0] @ coefficients / matrix[0, 0])
            second = float(coefficients @ matrix @ coefficients / matrix[0, 0])
            variance = max(second - centre**2, variance / 16)
    return centre, 2 * SPREAD * sqrt(max(variance, 1e-4))
