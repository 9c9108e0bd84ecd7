"""The public rule of a fit: how many rounds, of which order, from the number of persons, of coefficients, and ε.

Newton's method needs a Hessian whose noise is well below what a person adds to it on average; then its estimate is that
of the pooled rows but for noise of a known size, and has intervals. With fewer persons, the Hessian costs more than it
is worth: a few steps along noisy gradients predict better. They end before they converge, so that coefficients are
drawn towards zero and have no intervals. `DescentRule` decides about those steps, as it does for `dp-fedsgd`. Where
means and variances of the inputs can be told from the noise, a first round buys them, and steps are those of
standardised inputs; with still fewer persons, inputs are scaled by their declared ranges alone.
"""

from dataclasses import replace
from math import floor, sqrt
from typing import TypeVar

from tacit.analyses.boosting import GROUPS, BoostTerms
from tacit.analyses.fitting import FLOOR, FitPlan
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.regression import RegressionTerms
from tacit.analyses.sums import SumRelease
from tacit.core.descent_rule import DescentRule, noise_at_once
from tacit.errors import UserError

MIN_VARIANCE = 0.1  # of an input, as most have that are not rare; an assumption of the rule, not of the intervals
TYPICAL_WEIGHT = {
    "logistic": 0.1,
    "linear": 1.0,
    "poisson": 0.1,
    "cox": 0.1,
}  # of a person in the Hessian
LARGEST_WEIGHT = {"logistic": 0.25, "linear": 1.0, "poisson": 1.0, "cox": 0.1}
NEWTON_FITS = {
    "logistic": FitPlan(8, 4, histogram=True),
    "linear": FitPlan(1),
    "poisson": FitPlan(8, 4),
    "cox": FitPlan(8, 4, preliminary=True),
}
EXACT_FITS = {
    "logistic": FitPlan(30, histogram=True, damped=True),
    "linear": FitPlan(3),
    "poisson": FitPlan(30, damped=True),
    "cox": FitPlan(30, preliminary=True, damped=True),
}
MIN_DISTANCE = 2.5  # that steps along noisy gradients must be able to travel: in less, noise exceeds any effect
BOOST_ROUNDS, BOOST_RATE = 60, 0.2  # of Newton's step of a group in its first round
BOOST_NOISE = 1.0  # norm of the noise in a score, at most
MIN_BOOST = 1.0  # sum of the rates of all rounds, in less of which scores hardly move
BASE_WEIGHT = 0.15  # of a person in Newton's step, for about a fifth of events
STANDARD_STEPS, LARGEST_STANDARD_STEP = 7, 30.0  # steps, and the learning rate, of standardised logistic regression
_FitQuery = TypeVar("_FitQuery", RegressionTerms, HazardTerms)


def noise_of_shares(release: SumRelease) -> float:
    """About the noise multiplier of all shares of a single release: those that may be known or lost are more."""
    assert release.budget is not None  # what is exact has no noise
    remaining = release.clients - floor(release.dropouts * release.clients) - 1  # whose shares must suffice
    return noise_at_once(release.budget) * sqrt(release.clients / remaining)


def plan_fit(query: _FitQuery, release: SumRelease) -> _FitQuery:
    """The query with its rounds.

    Args:
        query: of any plan.
        release: the budget and the public sizes.
    """
    family, budget = query.family, release.budget
    if budget is None:
        return replace(query, exact=True, plan=replace(EXACT_FITS[family], why="Newton's method on exact sums."))
    persons, once, newton = release.about, noise_of_shares(release), NEWTON_FITS[family]
    query = replace(query, plan=newton)
    noise = once * sqrt(newton.releases) * query.bound
    of_matrix = query.layout.matrix_noise(noise / query.matrix_scale) / sqrt(newton.averaged)
    needed = FLOOR * of_matrix / (TYPICAL_WEIGHT[family] * query.largest * MIN_VARIANCE)
    sizes = (
        f"about {persons:,.0f} persons, {query.layout.size} coefficients and ε = {budget.epsilon:g}, all of them public"
    )
    if persons >= needed:
        words = f"{newton.rounds} rounds of Newton's method" if newton.rounds > 1 else "one release of all products"
        why = f"The rule chose {words} for {sizes}. It does so from about {needed:,.0f} persons on."
        return replace(query, plan=replace(newton, persons=persons, noise=noise, why=why))
    standardised = family != "cox" and _can_standardise(query.design.squared_norm, persons, once)
    query = replace(query, plan=FitPlan(1, lr=1.0, preliminary=standardised or newton.preliminary))
    plan = _plan_descent(query, persons, once, standardised=standardised)
    if plan.rounds * plan.lr * query.largest / 2 < MIN_DISTANCE:
        raise UserError(
            f"Expected more persons, fewer columns or a larger ε, got {sizes}: any coefficient would be noise. "
            "Nothing was released."
        )
    why = (
        f"The rule chose {plan.rounds} steps along the gradient{' of standardised inputs' * standardised} for {sizes}. "
        f"Newton's method, which has intervals, would need about {needed:,.0f} persons."
    )
    return replace(query, plan=replace(plan, why=why))


def _can_standardise(squared_norm: float, persons: float, once: float) -> bool:
    """Whether a variance of inputs that are not rare is well above the noise in it."""
    return once * sqrt((STANDARD_STEPS + 2) * 2 * squared_norm) / persons < MIN_VARIANCE / 2


def _plan_descent(query: RegressionTerms | HazardTerms, persons: float, once: float, *, standardised: bool) -> FitPlan:
    """Steps by the rule of noisy descent, in units in which the largest outcome is 1."""
    rule = DescentRule.of(persons, query.layout.size, once * query.bound / query.largest)
    weight, histogram = LARGEST_WEIGHT[query.family], query.family == "logistic"
    if standardised:
        steepest = LARGEST_STANDARD_STEP * LARGEST_WEIGHT["logistic"] / weight
        rounds, rate = STANDARD_STEPS, min(rule.lr * rule.rounds / STANDARD_STEPS, steepest)
    else:
        steepest = 4 / (weight * query.largest * query.design.squared_norm)
        rounds, rate = rule.rounds, min(rule.lr / query.largest, steepest) * query.largest
    plan = FitPlan(
        rounds, preliminary=query.plan.preliminary, histogram=histogram, lr=rate / query.largest, persons=persons
    )
    return replace(plan, noise=once * sqrt(plan.releases) * query.bound)


def plan_boosting(query: BoostTerms, release: SumRelease) -> BoostTerms:
    """The query with its rounds: always as many, with rates as large as the noise in scores allows."""
    rounds, rate, budget = BOOST_ROUNDS, BOOST_RATE, release.budget
    plan = FitPlan(rounds, preliminary=True, histogram=True, lr=rate, persons=release.about)
    if budget is None:
        return replace(query, plan=replace(plan, why=f"{rounds} rounds on exact sums."))
    columns, persons = query.columns.count, release.about
    noise = noise_of_shares(release) * sqrt(plan.releases) * query.bound
    of_score = noise * sqrt(columns * rounds) / 2 / (BASE_WEIGHT * persons / GROUPS)  # for a rate of 1
    rate = min(rate, BOOST_NOISE / of_score)
    sizes = f"about {persons:,.0f} persons, {columns} columns and ε = {budget.epsilon:g}, all of them public"
    if rate * rounds / 2 < MIN_BOOST:
        raise UserError(
            f"Expected more persons, fewer columns or a larger ε, got {sizes}: any curve would be noise. Nothing was "
            "released."
        )
    why = f"The rule chose {rounds} rounds with a first rate of {rate:.2g} for {sizes}."
    return replace(query, plan=replace(plan, lr=rate, noise=noise, why=why))
