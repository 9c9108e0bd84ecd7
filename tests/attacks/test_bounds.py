"""Bounds compared with `jax_privacy` 2.0.0 (pinned values) and with their definitions."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacit.attacks.bounds import ErrorCounts, OneRunGuesses, PrivacyProfile, epsilon_of_gaussian
from tacit.attacks.claims import AuditEvidence
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
    errors = ErrorCounts.at(threshold, MEMBERS, OTHERS)
    assert errors.epsilon_lower_bound(1e-5) == pytest.approx(clopper_pearson, abs=1e-6)
    correct, wrong = int((threshold <= MEMBERS).sum()), int((threshold <= OTHERS).sum())
    guesses = OneRunGuesses(2000, correct + wrong, correct)
    assert guesses.epsilon_lower_bound(1e-5) == pytest.approx(one_run, abs=1e-5)


def test_the_gaussian_bound_is_that_of_jax_privacy() -> None:
    """Which takes the best of 76 thresholds with a Bonferroni correction."""
    best = ErrorCounts(283, 1000, 334, 1000, confidence=1 - 0.05 / 76)
    assert best.gaussian_lower_bound(1e-5) == pytest.approx(2.996031942753003, abs=1e-5)


def test_the_profile_of_a_gaussian_is_the_analytic_one() -> None:
    for mu in (0.3, 1.0, 4.0):
        epsilon = epsilon_of_gaussian(mu, 1e-5)
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-4)
    assert epsilon_of_gaussian(1e-6, 1e-5) == 0
    assert epsilon_of_gaussian(50.0, 1e-5) == 100


def test_error_rates_hold_with_the_stated_confidence() -> None:
    """Of 4000 experiments with a true rate of 0.1, at most one in forty has an upper bound below it."""
    counts = np.random.default_rng(0).binomial(50, 0.1, 4000)
    below = [ErrorCounts(int(count), 50, 0, 50).rates[0] < 0.1 for count in counts]
    assert np.mean(below) <= 0.025 + 3 * math.sqrt(0.025 / 4000)
    assert np.mean(below) > 0.002


def test_the_one_run_bound_holds_with_the_stated_confidence() -> None:
    """Guesses with the highest accuracy that ε = 1 allows refute it in at most one of twenty runs."""
    q = math.e / (1 + math.e)
    correct = np.asarray(binom.rvs(100, q, size=2000, random_state=1))
    bounds = {int(count): OneRunGuesses(100, 100, int(count)).epsilon_lower_bound(0.0) for count in np.unique(correct)}
    refuted = [bounds[int(count)] > 1 for count in correct]
    assert 0.01 < np.mean(refuted) <= 0.05 + 3 * math.sqrt(0.05 / 2000)


def test_the_gaussian_one_run_bound_is_that_of_its_recursion_and_sharper() -> None:
    """By hand for two guesses; for Gaussian noise it is above the bound for any mechanism."""
    two = OneRunGuesses(2, 2, 2, confidence=0.95)
    r1, h1 = 0.05, float(norm.cdf(norm.ppf(0.05) - 0.5))  # after one step: r = 0.05·2/2 + 1·(h − 0)
    assert two.refutes_gaussian(0.5) == (2 * h1 + r1 + float(norm.cdf(norm.ppf(r1 + h1) - 0.5)) - h1 > 1)
    many = OneRunGuesses(1000, 200, 190)
    assert many.gaussian_lower_bound(1e-5) > many.epsilon_lower_bound(1e-5) > 1


def test_the_gaussian_one_run_bound_holds_with_the_stated_confidence() -> None:
    """Of 200 runs with 100 canaries and μ = 1, at most one in twenty refutes μ = 1."""
    rng = np.random.default_rng(0)
    refuted = 0
    for _ in range(200):
        included = rng.random(100) < 0.5
        order = np.argsort(-(rng.standard_normal(100) + included))
        correct = int(included[order[:20]].sum() + (~included[order[-20:]]).sum())
        refuted += OneRunGuesses(100, 40, correct).refutes_gaussian(1.0)
    assert refuted <= 0.05 * 200 + 3 * math.sqrt(0.05 * 200)


def test_the_bootstrap_is_an_estimate_above_the_bound() -> None:
    counts = ErrorCounts(30, 300, 20, 300)
    for gaussian in (False, True):
        bound = counts.gaussian_lower_bound(1e-5) if gaussian else counts.epsilon_lower_bound(1e-5)
        assert bound < counts.bootstrap_lower_bound(1e-5, gaussian=gaussian) < 3 * bound
    assert ErrorCounts(0, 300, 0, 300).bootstrap_lower_bound(1e-5, gaussian=False) < 10


def test_random_guesses_prove_nothing() -> None:
    random = ErrorCounts(50, 100, 50, 100)
    assert random.epsilon_lower_bound(1e-5) == random.gaussian_lower_bound(1e-5) == 0
    assert OneRunGuesses(100, 50, 25).epsilon_lower_bound(1e-5) == 0
    assert ErrorCounts(100, 100, 0, 100).epsilon_lower_bound(1e-5) == 0


def test_only_a_privacy_profile_that_is_too_low_is_refuted() -> None:
    errors = ErrorCounts(160, 1000, 160, 1000)  # two standard deviations apart

    def gaussian(mu: float) -> PrivacyProfile:
        return lambda e: float(norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu))

    assert errors.refutes(gaussian(1.5))
    assert not errors.refutes(gaussian(2.0))
    assert not errors.refutes(gaussian(3.0))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(UserError, match="false_negatives=3"):
        ErrorCounts(3, 2, 0, 2)
    with pytest.raises(UserError, match="correct=3"):
        OneRunGuesses(10, 2, 3)


def test_each_kind_of_guesses_names_its_bounds() -> None:
    counts = ErrorCounts(false_negatives=10, included=1000, false_positives=20, excluded=900)
    evidence = AuditEvidence("canary", "model", "energy", counts)
    assert evidence.lower_bounds(1e-5, gaussian=False) == {"Clopper-Pearson": counts.epsilon_lower_bound(1e-5)}
    assert evidence.lower_bounds(1e-5, gaussian=True)["Gaussian"] == counts.gaussian_lower_bound(1e-5)
    assert str(counts) == "wrong for 10 of 1000 runs with the canary and 20 of 900 without"
    guesses = OneRunGuesses(canaries=1000, guesses=200, correct=180)
    assert guesses.lower_bounds(1e-5, gaussian=False) == {"one run": guesses.epsilon_lower_bound(1e-5)}
    gaussian = guesses.lower_bounds(1e-5, gaussian=True)["one run, Gaussian"]
    assert gaussian == guesses.gaussian_lower_bound(1e-5)
    assert not guesses.refutes(lambda _: 0.0)
    assert str(guesses) == "180 of 200 correct, for 1000 canaries"
