"""Bounds against `jax_privacy` 2.0.0 (its values are pinned) and against what they are defined by."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacit.attacks.bounds import Errors, Guesses, epsilon_of_gaussian
from tacit.errors import UserError

QUANTILES = norm.ppf((np.arange(1000) + 0.5) / 1000)
MEMBERS, OTHERS = QUANTILES + 1, QUANTILES  # one standard deviation apart: ε = 4.377 at δ = 1e-5


@pytest.mark.parametrize(
    ("threshold", "clopper_pearson", "one_run"),
    [
        (0.5, 0.6692057410822696, 0.6899191991586429),
        (1.0, 0.9392468766556564, 0.9922720074217486),
        (2.0, 1.3834220434162448, 1.5509132479168237),
    ],
)
def test_bounds_are_those_of_jax_privacy(threshold: float, clopper_pearson: float, one_run: float) -> None:
    errors = Errors.at(threshold, MEMBERS, OTHERS)
    assert errors.epsilon(1e-5) == pytest.approx(clopper_pearson, abs=1e-6)
    right, wrong = int((threshold <= MEMBERS).sum()), int((threshold <= OTHERS).sum())
    assert Guesses(2000, right + wrong, right).epsilon(1e-5) == pytest.approx(one_run, abs=1e-5)


def test_the_gaussian_bound_is_that_of_jax_privacy() -> None:
    """It takes the best of 76 thresholds, each with its share of the doubt."""
    best = Errors(missed=283, inside=1000, false=334, outside=1000, confidence=1 - 0.05 / 76)
    assert best.gaussian(1e-5) == pytest.approx(2.996031942753003, abs=1e-5)


def test_the_curve_of_a_gaussian_is_the_analytic_one() -> None:
    for mu in (0.3, 1.0, 4.0):
        epsilon = epsilon_of_gaussian(mu, 1e-5)
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-4)
    assert epsilon_of_gaussian(1e-6, 1e-5) == 0
    assert epsilon_of_gaussian(50.0, 1e-5) == 100


def test_rates_hold_as_often_as_they_say() -> None:
    """Of 4000 experiments with a true rate of 0.1, at most one in forty has an upper bound below it."""
    counts = np.random.default_rng(0).binomial(50, 0.1, 4000)
    below = [Errors(int(count), 50, 0, 50).rates[0] < 0.1 for count in counts]
    assert np.mean(below) <= 0.025 + 3 * math.sqrt(0.025 / 4000)
    assert np.mean(below) > 0.002


def test_one_run_holds_as_often_as_it_says() -> None:
    """Guesses that are right with the highest probability that ε = 1 allows refute it in one of twenty runs at most."""
    q = math.e / (1 + math.e)
    right = binom.rvs(100, q, size=2000, random_state=1)
    proved = {int(count): Guesses(100, 100, int(count)).epsilon(0.0) for count in np.unique(right)}
    refuted = [proved[count] > 1 for count in right]
    assert 0.01 < np.mean(refuted) <= 0.05 + 3 * math.sqrt(0.05 / 2000)


def test_nothing_is_proved_by_guessing() -> None:
    even = Errors(missed=50, inside=100, false=50, outside=100)
    assert even.epsilon(1e-5) == even.gaussian(1e-5) == 0
    assert Guesses(100, 50, 25).epsilon(1e-5) == 0
    assert Errors(missed=100, inside=100, false=0, outside=100).epsilon(1e-5) == 0


def test_a_curve_is_refuted_where_it_is_too_low_and_nowhere_else() -> None:
    errors = Errors(missed=160, inside=1000, false=160, outside=1000)  # two standard deviations apart

    def curve(mu: float) -> object:
        return lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)

    assert errors.refute(curve(1.5))
    assert not errors.refute(curve(2.0))
    assert not errors.refute(curve(3.0))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(UserError, match="missed=3"):
        Errors(3, 2, 0, 2)
    with pytest.raises(UserError, match="right=3"):
        Guesses(10, 2, 3)
