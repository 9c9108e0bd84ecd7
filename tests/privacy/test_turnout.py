"""Noise in shares is never claimed to cost less than it does: ε against the true divergence of what is released.

Whoever knows the others' updates sees the sum along the client's own, and the variance in all other coordinates. Those
who receive the models do not know the cohort, so the variance must not show it. The server and the cohort's clients
know it, and each client knows its own share.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom, chi2, norm

import zoo
from played import played
from tacit.core import DenseRows, Key, Messages, SimulatedRound, State, Sum, View
from tacit.core.prices import Adjacency, ClientUnits, Gaussian, Release, Sampling, Unproved, Zcdp
from tacit.core.rows import to_remove
from tacit.core.state import Bound, Turnout
from tacit.errors import UserError
from tacit.methods import fl_std_dp
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, Grid, Reals
from tacit.pieces.mechanisms.arithmetic import SharedNoise
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.privacy.accountants import FAST_PLD, Accounting, Pld, Rdp, default_accountant
from tacit.privacy.charging import Charges
from tacit.privacy.cohorts import check_cohorts, failure, smallest_cohort
from tacit.privacy.planned_charges import accountant_for, calibrate, release_of
from tacit.privacy.release_json import from_json, to_json

Array = npt.NDArray[np.float64]
DELTA = 1e-5


@dataclass(frozen=True)
class Outcome:
    """A cohort with probability `weight`: the sum is at `mean`, with noise of this variance."""

    weight: float
    mean: float
    variance: float


def density(outcomes: list[Outcome], y: Array, rest: Array, dim: int) -> Array:
    """The density of the sum along the client's update, and of the squared norm in the other coordinates."""
    found = np.zeros(np.broadcast_shapes(y.shape, rest.shape))
    for each in outcomes:
        along = norm.pdf(y, each.mean, math.sqrt(each.variance))
        across = chi2.pdf(rest / each.variance, dim - 1) / each.variance if dim > 1 else 1.0
        found = found + each.weight * along * across
    return found


def true_epsilon(p: list[Outcome], q: list[Outcome], dim: int, delta: float = DELTA) -> float:
    """The ε of this pair at δ, in both directions, by integrating the hockey-stick divergence."""
    variances = [each.variance for each in (*p, *q)]
    wide = 9 * math.sqrt(max(variances))
    y, step = np.linspace(-wide, 1 + wide, 601 if dim > 1 else 40_001, retstep=True)
    rest, height = np.zeros(1), 1.0
    if dim > 1:
        spread = 8 * math.sqrt(2 * dim)
        low, high = min(variances) * max(dim - spread, 1e-9), max(variances) * (dim + spread)
        rest, height = np.linspace(low, high, 1001, retstep=True)
    first, second = (density(each, y[:, None], rest[None, :], dim) * step * height for each in (p, q))

    def excess(epsilon: float) -> float:
        pairs = ((first, second), (second, first))
        return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in pairs) - delta

    return float(brentq(excess, 0.0, 30.0))


def shared_noise(z: float, dropouts: float, colluding: float, secret_mean: int) -> SharedNoise:
    return SharedNoise(Bound((1.0,)), z, 1 - dropouts - colluding, dropouts, secret_mean=secret_mean)


def summed_shares(noise: SharedNoise, cohort: int, delivered: int) -> float:
    """The variance of the shares in a sum, from which those that are not needed were removed."""
    removed = to_remove(noise.max_losses(cohort), cohort - delivered, range(delivered))
    return noise.multiplier**2 / noise.of_cohort(cohort) * (delivered - len(removed))


def alike(charges: Charges) -> Accounting:
    """What was released about every client."""
    composed = charges.accounting.composed
    assert composed is not None
    return composed


def released_variance(mechanism: DistributedGaussian, cohort: int, delivered: int, mean: float) -> float:
    """The variance of what a mechanism releases, measured on many coordinates of rows that are zero."""
    now = SimulatedRound.of(0, 10 * cohort, mean, cohort, Key.from_seed(cohort), Key.from_seed(delivered, "secret"))
    view = View(torch.zeros(1), mechanism.broadcast_parts(State(0, torch.zeros(1))))
    rows = Messages(torch.arange(cohort), DenseRows(torch.zeros(cohort, 40_000)))
    sent = mechanism.at_client(rows, view, zoo.wave(), now).keep(torch.arange(cohort) < delivered)
    bound = Bound((1.0,))
    total = Sum(sent.rows.sum(), float(delivered), bound, surplus=sent.surplus)
    return float(mechanism.after_sum(total, now).total.double().var())


@pytest.mark.parametrize("single_draw", [True, False])
@pytest.mark.parametrize(("dropouts", "colluding"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.2, 0.2)])
def test_the_variance_of_what_is_released_shows_neither_cohort_nor_losses(
    dropouts: float, colluding: float, single_draw: bool
) -> None:
    """For cohorts of ten on average, of any size and after any number of losses, also intolerable ones."""
    mechanism = distributed(
        dropouts=dropouts, colluding=colluding, single_draw=single_draw, arithmetic=Reals(), noise_multiplier=1.0
    )
    noise = shared_noise(1.0, dropouts, colluding, 10)
    expected = noise.min_delivered(10) / noise.of_cohort(10)
    for cohort, delivered in ((10, 10), (11, 10), (9, 9), (5, 5), (10, 5), (10, 1), (30, 30)):
        assert noise.min_delivered(cohort) / noise.of_cohort(cohort) == pytest.approx(expected, rel=1e-12)
        found = released_variance(mechanism, cohort, delivered, 10.0)
        assert found == pytest.approx(expected, rel=0.04)  # five standard errors


@pytest.mark.law
@pytest.mark.parametrize("z", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(
    ("mean", "dropouts", "colluding"), [(10, 0.0, 0.0), (10, 0.3, 0.2), (3, 0.0, 0.4), (60, 0.1, 0.1)]
)
def test_no_claim_against_those_who_receive_the_models_is_below_the_truth(
    z: float, rate: float, mean: int, dropouts: float, colluding: float
) -> None:
    """A client is drawn or not, and the others may number anything: the noise is the same, so sampling amplifies."""
    claimed = Accounting.of(FAST_PLD, [priced(z, rate, dropouts, colluding)]).epsilon(DELTA)
    noise = shared_noise(z, dropouts, colluding, mean)
    variance = z**2 * noise.min_delivered(mean) / noise.of_cohort(mean)
    assert variance >= z**2 * (1 - 1e-12)
    without, drawn = Outcome(1 - rate, 0.0, variance), Outcome(rate, 1.0, variance)
    assert claimed >= true_epsilon([without, drawn], [Outcome(1.0, 0.0, variance)], 1) * (1 - 1e-4)


def priced(z: float, rate: float, dropouts: float, colluding: float) -> Release:
    mechanism = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=z, dropouts=dropouts, colluding=colluding)
    method = replace(fl_std_dp(clip=1.0, noise=z), mechanism=mechanism, channel=IdealSum())
    found = release_of(method, 6000, 0)
    assert found is not None
    return found.sampled(Sampling.at(rate, "poisson"))


def shares_sized_for_all(cohort: int) -> float:
    """As shares were sized: those of all clients together amount to the declared noise."""
    return (cohort - 1) / cohort


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8, 20])
def test_a_client_that_knows_its_own_share_learns_no_more_than_is_claimed(clients: int) -> None:
    """One round of everyone at z = 1.265: at three clients, ε was 3.88 against each of them where 3 was claimed."""
    z = 1.265
    claimed = in_full(z)
    for part, holds in (
        (shares_sized_for_all(clients), False),
        (clients / shared_noise(z, 0, 0, 0).of_cohort(clients), True),
    ):
        left = z**2 * (part if not holds else part * (clients - 1) / clients)
        true = true_epsilon([Outcome(1.0, 1.0, left)], [Outcome(1.0, 0.0, left)], 1)
        assert (true <= claimed * (1 + 1e-4)) == holds


def in_full(z: float) -> float:
    return Accounting.of(FAST_PLD, [Release(Gaussian(z))]).epsilon(DELTA)


@pytest.mark.law
@pytest.mark.parametrize("z", [0.7, 3.0])
@pytest.mark.parametrize(("dropouts", "colluding"), [(0.0, 0.0), (0.3, 0.0), (0.1, 0.3), (0.5, 0.0), (0.0, 0.05)])
@pytest.mark.parametrize("secret_mean", [0, 3, 10])
@pytest.mark.parametrize("cohort", [1, 2, 3, 9, 10, 11, 20])
def test_no_claim_against_those_who_know_the_cohort_is_below_the_truth(
    z: float, dropouts: float, colluding: float, secret_mean: int, cohort: int
) -> None:
    """For every number of losses: the shares of the others than those who collude, or than any one client."""
    noise = shared_noise(z, dropouts, colluding, secret_mean)
    mechanism = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=z, dropouts=dropouts, colluding=colluding)
    for delivered in range(1, cohort + 1):
        known = min(max(1, int(Fraction(str(colluding)) * cohort)), delivered - 1)
        in_sum = summed_shares(noise, cohort, delivered)
        unknown = max(in_sum - known * z**2 / noise.of_cohort(cohort), 0.0)
        price = mechanism.price(0, Turnout(cohort, delivered, secret_mean))
        if unknown < 1e-9:  # one share had to suffice, and another client knows it
            assert price == Unproved("no noise is added", noisy=False)
            continue
        assert isinstance(price, Release)
        assert isinstance(price.loss, Gaussian)
        assert price.loss.noise_multiplier**2 <= unknown * (1 + 1e-9)
        assert price.loss.noise_multiplier**2 == pytest.approx(min(unknown, z**2), rel=1e-9)
        if not secret_mean and noise.min_delivered(cohort) > 1 and delivered >= cohort - noise.max_losses(cohort):
            assert price.loss == Gaussian(z)  # to the last bit: otherwise the difference would be charged


Row = tuple[float, float, float]  # of a client that takes the place of the replaced one, and the two of that one


def replaced_pair(rate: float, z: float, rows: Row) -> tuple[list[Outcome], list[Outcome]]:
    other, first, second = rows
    sides = [[Outcome(1 - rate, other, z**2), Outcome(rate, own, z**2)] for own in (first, second)]
    return sides[0], sides[1]


def twice(first: list[Outcome], second: list[Outcome], x: Array, y: Array) -> Array:
    """The density of two rounds."""
    one, two = (
        sum(e.weight * norm.pdf(at, e.mean, math.sqrt(e.variance)) for e in side)
        for at, side in ((x, first), (y, second))
    )
    return np.outer(one, two)


@pytest.mark.law
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize(("rate", "z"), [(0.05, 1.0), (0.05, 2.0), (0.3, 1.5), (0.9, 3.0)])
def test_fixed_sizes_have_a_tight_bound_for_a_client_that_is_replaced(
    adjacency: Adjacency, rate: float, z: float
) -> None:
    """Never below the truth, whatever the rows are: for one round, and for two whose worst directions differ."""
    release = Release(Gaussian(z), sampling=Sampling("fixed", rate))
    one, two = (Accounting.of(Pld(adjacency)).compose(release, rounds).epsilon(DELTA) for rounds in (1, 2))
    seconds = (0.0,) if adjacency is Adjacency.ZERO_OUT else (-1.0, -0.3, 0.0, 1.0)
    rows = [(other, 1.0, second) for other in (-1.0, -0.5, 0.0, 0.7, 1.0) for second in seconds]
    truths = []
    for each in rows:
        pair = replaced_pair(rate, z, each)
        shifted = [[replace(outcome, mean=outcome.mean + 1) for outcome in side] for side in pair]
        truths.append(true_epsilon(shifted[0], shifted[1], 1) if each[1] != each[2] else 0.0)
    assert max(truths) <= one * (1 + 1e-4)
    if adjacency is Adjacency.REPLACE_ONE:
        assert one <= max(truths) * 1.001
    x, step = np.linspace(-1 - 7 * z, 1 + 7 * z, 1501, retstep=True)
    worst = []
    for given in ((-1.0, 1.0, -1.0), (1.0, 1.0, -1.0)) if adjacency is Adjacency.REPLACE_ONE else ((-1.0, 1.0, 0.0),):
        for after in (
            ((-1.0, 1.0, -1.0), (1.0, 1.0, -1.0)) if adjacency is Adjacency.REPLACE_ONE else ((-1.0, 1.0, 0.0),)
        ):
            pairs = replaced_pair(rate, z, given), replaced_pair(rate, z, after)
            p, q = (twice(pairs[0][side], pairs[1][side], x, x) * step**2 for side in (0, 1))
            deltas = [float(np.maximum(a - math.exp(two) * b, 0).sum()) for a, b in ((p, q), (q, p))]
            worst.append(max(deltas))
    assert max(worst) <= DELTA * 1.001
    if adjacency is Adjacency.REPLACE_ONE:
        assert max(worst) >= DELTA * 0.9


def test_what_a_client_of_a_fixed_cohort_releases_about_its_records_is_accounted_for_tightly() -> None:
    """A ledger that holds both was accounted for by Rényi divergences, which were 1.4 to 1.8 times as large."""
    release = Release(Gaussian(2.0), sampling=Sampling("fixed", 0.1))
    assert default_accountant(release.within_client()) == FAST_PLD
    tight, loose = (
        Accounting.of(accountant).compose(release.within_client(), 100).epsilon(DELTA) for accountant in (Pld(), Rdp())
    )
    assert 1.7 * tight < loose


def distributed(**changes: object) -> DistributedGaussian:
    options = {"clip": FixedClip(1.0), "noise_multiplier": 1.0, "arithmetic": Grid(), **changes}
    return DistributedGaussian(**options)  # type: ignore[arg-type]


def test_noise_is_sized_with_amplification_whoever_may_collude_or_drop_out() -> None:
    for changes in ({"colluding": 0.1}, {"dropouts": 0.1}):
        planned = replace(fl_std_dp(rounds=50, clip=1.0), mechanism=distributed(noise_multiplier=None, **changes))
        method = calibrate(planned, ClientUnits.whole(6000))
        sized = method.mechanism
        assert isinstance(sized, DistributedGaussian)
        assert sized.noise_multiplier is not None
        gaussian = Release(Gaussian(sized.noise_multiplier), sampling=Sampling.at(1 / 60, "poisson"))
        assert Accounting.of(Pld()).compose(gaussian, 50).epsilon(1e-5) == pytest.approx(1.0, rel=2e-3)
        assert accountant_for(method, 6000) == FAST_PLD


def release(method: object, index: int) -> Release:
    found = release_of(method, 6000, index)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_ledger_remembers_how_noise_depends_on_the_turnout() -> None:
    sampling = Sampling("poisson", 0.1)
    for each in (
        Release(Gaussian(1.0), sampling=sampling),
        Release(Gaussian(1.0), 1e-9, sampling, constant=False, failure=1e-12),
        Release(Zcdp(0.5), sampling=sampling, constant=False),
    ):
        assert from_json(to_json(each)) == each
    with pytest.raises(UserError, match="Expected the description of a release"):
        from_json({**to_json(Release(Gaussian(1.0))), "constant": "no"})


@pytest.mark.parametrize(("population", "cohort", "too_small"), [(100, 10, 0.19), (20, 10, 0.02)])
def test_cohorts_that_may_be_too_small_are_refused(population: int, cohort: int, too_small: float) -> None:
    rate = cohort / population
    assert 100 * (binom.cdf(2, population, rate) - binom.pmf(0, population, rate)) == pytest.approx(too_small, rel=0.02)
    charged = failure(Sampling("poisson", rate), population, 3)
    assert charged >= binom.pmf(2, population - 1, rate)  # with exactly two others, a client decides about the round
    method = fl_std_dp(rounds=100, cohort=cohort, epsilon=8.0, delta=1e-3, clip=1.0)
    with pytest.raises(
        UserError, match=r"fewer than the 3 clients.* Use Poisson cohorts of at least \d+ clients"
    ) as caught:
        calibrate(method, ClientUnits.whole(population))
    smallest = smallest_cohort(population, 3, 1e-4 / 100)
    assert smallest is not None
    assert f"at least {smallest} clients" in str(caught.value)
    check_cohorts(replace(method, sampler=Poisson(smallest)), population)
    with pytest.raises(UserError, match="fewer than the 3 clients"):
        check_cohorts(replace(method, sampler=Poisson(smallest - 1)), population)
    for sampler in (Everyone(), FixedSize(cohort)):
        check_cohorts(replace(method, sampler=sampler), population)


def test_small_cohorts_are_charged_to_delta() -> None:
    method = fl_std_dp(rounds=10, cohort=20, epsilon=None, delta=1e-3, noise=2.0, clip=1.0)
    charges = Charges.begin(method, ClientUnits.whole(100), played(*[Turnout(20, 20)] * 10))
    per_round = failure(Sampling("poisson", 0.2), 100, 3)
    assert alike(charges).failure == pytest.approx(10 * per_round)
    assert charges.guarantee().failure == alike(charges).failure
    without = Accounting.of(
        alike(charges).accountant,
        [replace(release(method, 0), failure=0.0, sampling=Sampling("poisson", 0.2))] * 10,
    )
    assert charges.epsilon == pytest.approx(without.epsilon(1e-3 - 10 * per_round), rel=1e-6)
    stuffed = replace(alike(charges), failure=6e-4)
    assert math.isinf(stuffed.epsilon(1e-3))


def test_no_poisson_cohort_is_large_enough_for_a_tiny_population() -> None:
    method = fl_std_dp(rounds=100, cohort=3, epsilon=8.0, delta=1e-5, clip=1.0)
    with pytest.raises(UserError, match=r"may be at most 1e-06\. Use Everyone or FixedSize"):
        check_cohorts(method, 4)


def test_every_stage_of_a_growing_cohort_is_named() -> None:
    growing = Growing(((2, Poisson(100)), (1, Poisson(300))))
    method = replace(fl_std_dp(rounds=4, epsilon=None, noise=5.0, clip=1.0), sampler=growing)
    found = Charges.begin(method, ClientUnits.whole(6000), played(*[Turnout(100, 100)] * 4)).guarantee()
    stages = [f"in 2 rounds Poisson cohorts, each client with probability {rate}" for rate in ("0.01667", "0.05")]
    assert found.sampling == "; ".join(stages)
