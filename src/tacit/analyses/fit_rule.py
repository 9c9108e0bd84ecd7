"""The public rule of a fit: how many rounds, of which order, from the number of persons, of coefficients, and ε.

Newton's method needs a Hessian whose noise is well below what a person adds to it on average; then its estimate is that
of the pooled rows but for noise of a known size, and has intervals. With fewer persons, the Hessian costs more than it
is worth: a few steps along noisy gradients predict better. They end before they converge, so that coefficients are
drawn towards zero and have no intervals. `DescentRule` decides about those steps, as it does for `dp-fedsgd`.
"""

from dataclasses import replace
from math import floor, sqrt

from tacit.analyses.fitting import FLOOR, FitPlan
from tacit.analyses.regression import RegressionTerms
from tacit.analyses.sums import SumRelease
from tacit.core.descent_rule import DescentRule, noise_at_once
from tacit.errors import UserError

MIN_VARIANCE = 0.1  # of an input, as most have that are not rare; an assumption of the rule, not of the intervals
TYPICAL_WEIGHT = {"logistic": 0.1, "linear": 1.0, "poisson": 0.1}  # of a person in the Hessian; of the largest count
LARGEST_WEIGHT = {"logistic": 0.25, "linear": 1.0, "poisson": 1.0}
NEWTON_FITS = {"logistic": FitPlan(8, 4, histogram=True), "linear": FitPlan(1), "poisson": FitPlan(8, 4)}
EXACT_FITS = {
    "logistic": FitPlan(30, histogram=True, damped=True),
    "linear": FitPlan(3),
    "poisson": FitPlan(30, damped=True),
}
MIN_DISTANCE = 2.5  # that steps along noisy gradients must be able to travel: in less, noise exceeds any effect


def plan_fit(query: RegressionTerms, release: SumRelease) -> RegressionTerms:
    """The query with its rounds.

    Args:
        query: of any plan.
        release: the budget and the public sizes.
    """
    family, budget = query.family, release.budget
    if budget is None:
        return replace(query, exact=True, plan=replace(EXACT_FITS[family], why="Newton's method on exact sums."))
    remaining = release.clients - floor(release.dropouts * release.clients) - 1  # whose shares must suffice
    persons, once = release.about, noise_at_once(budget) * sqrt(release.clients / remaining)
    newton = NEWTON_FITS[family]
    query = replace(query, plan=newton)
    noise = once * sqrt(newton.releases) * query.bound
    of_matrix = query.layout.matrix_noise(noise / query.matrix_scale) / sqrt(newton.averaged)
    needed = FLOOR * of_matrix / (TYPICAL_WEIGHT[family] * query.largest * MIN_VARIANCE)
    sizes = (
        f"about {persons:,.0f} persons, {query.design.size} coefficients and ε = {budget.epsilon:g}, all of them public"
    )
    if persons >= needed:
        words = f"{newton.rounds} rounds of Newton's method" if newton.rounds > 1 else "one release of all products"
        why = f"The rule chose {words} for {sizes}. It does so from about {needed:,.0f} persons on."
        return replace(query, plan=replace(newton, persons=persons, noise=noise, why=why))
    query = replace(query, plan=replace(newton, lr=1.0))
    bound = query.bound / query.largest  # of a gradient, in steps of which the largest count is the unit
    rule = DescentRule.of(persons, query.design.size, once * bound)
    steepest = 4 / (LARGEST_WEIGHT[family] * query.largest * query.design.squared_norm)
    histogram, rate = family == "logistic", min(rule.lr / query.largest, steepest)
    if rule.rounds * rate * query.largest / 2 < MIN_DISTANCE:
        raise UserError(
            f"Expected more persons, fewer columns or a larger ε, got {sizes}: any coefficient would be noise. "
            "Nothing was released."
        )
    why = (
        f"The rule chose {rule.rounds} steps along the gradient for {sizes}. Newton's method, which has "
        f"intervals, would need about {needed:,.0f} persons."
    )
    noise = once * sqrt(rule.rounds + histogram) * query.bound
    fit = FitPlan(rule.rounds, histogram=histogram, lr=rate, persons=persons, noise=noise, why=why)
    return replace(query, plan=fit)
