"""Noise in shares is never claimed to cost less than it does: ε against the true divergence of what is released.

A cohort of n clients of which l are lost has noise of variance z²·(n − l)/n in all coordinates, if no losses are
tolerated; up to ⌊dropouts · n⌋ tolerated ones, it is z². Whoever knows the others' updates sees the sum along the
client's own, and the variance in all other coordinates.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, chi2, norm

from played import played
from tacit.core.prices import Adjacency, ClientUnits, Gaussian, Release, Sampling, Zcdp
from tacit.core.state import Bound, Report, Turnout
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


def variance(z: float, cohort: int, lost: int) -> float:
    return z**2 * (cohort - lost) / cohort


def sampled_pair(z: float, rate: float, others: int, lost: int) -> tuple[list[Outcome], list[Outcome]]:
    """A client that is drawn at this rate beside these others, with its update and with zeros; the others lose some."""
    without = Outcome(1 - rate, 0.0, variance(z, others, lost))
    pair = [Outcome(rate, mean, variance(z, others + 1, lost)) for mean in (1.0, 0.0)]
    return [without, pair[0]], [without, pair[1]]


def settled(z: float, rate: float, turnout: Turnout, dropouts: float = 0.0) -> Release:
    """The release of a round with this turnout, for a channel that goes on."""
    mechanism = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=z, dropouts=dropouts)
    method = replace(fl_std_dp(clip=1.0, noise=z), mechanism=mechanism, channel=IdealSum())
    found = release_of(method, 6000, 0, turnout)
    assert found is not None
    return found.sampled(Sampling.at(rate, "poisson"))


def settled_epsilon(z: float, rate: float, others: int, lost: int, *, drawn: bool, dropouts: float = 0.0) -> float:
    """The ε that is claimed after a round with this turnout."""
    release = settled(z, rate, Turnout(others + drawn, others + drawn - lost), dropouts)
    return Accounting.of(default_accountant(release)).compose(release).epsilon(DELTA)


def alike(charges: Charges) -> Accounting:
    """What was released about every client."""
    composed = charges.accounting.composed
    assert composed is not None
    return composed


def test_the_published_counterexample_with_everyone() -> None:
    """One of ten clients is offline, z = 5: whether the tenth belongs to the population shows in the variance."""
    member, stranger = [Outcome(1.0, 1.0, variance(5, 10, 1))], [Outcome(1.0, 0.0, variance(5, 9, 1))]
    assert true_epsilon(member, stranger, 100_100) > 2.14
    zeros = [replace(member[0], mean=0.0)]
    claimed = settled_epsilon(5.0, 1.0, 9, 1, drawn=True)
    assert claimed >= true_epsilon(member, zeros, 1) * (1 - 1e-4)
    assert claimed == pytest.approx(
        0.7686, abs=1e-3
    )  # for zero-out; with all shares it was 0.7255, without amplification
    release = Release(Gaussian(5.0), constant=False)
    with pytest.raises(UserError, match="the noise of clients' shares can reveal how many"):
        Accounting.of(FAST_PLD).compose(release)


def test_the_published_counterexample_with_poisson_cohorts() -> None:
    """Claimed was 1.685: ten others, of whom one is lost, q = 0.1, z = 1."""
    amplified = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.1))
    assert Accounting.of(Pld(), [amplified]).epsilon(DELTA) == pytest.approx(1.685, abs=1e-3)
    true = true_epsilon(*sampled_pair(1.0, 0.1, 10, 1), 100_100)
    assert 3.4 < true < 4.03
    for drawn in (False, True):
        assert settled_epsilon(1.0, 0.1, 10, 1, drawn=drawn) >= true


def revealed_epsilon(z: float, rate: float, others: int, lost: int) -> float:
    """The true ε in the limit of many coordinates, where the variance shows whether the client was drawn."""
    root = math.sqrt(variance(z, others + 1, lost))

    def excess(epsilon: float) -> float:
        gap, half = epsilon * root, 1 / (2 * root)
        return rate * float(norm.cdf(half - gap) - math.exp(epsilon) * norm.cdf(-half - gap)) - DELTA

    return float(brentq(excess, 0.0, 60.0)) if excess(0.0) > 0 else 0.0


@pytest.mark.law
@pytest.mark.parametrize("z", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(("others", "lost"), [(3, 0), (3, 1), (10, 0), (10, 1), (10, 5), (60, 0), (60, 1)])
def test_no_claim_is_below_the_truth(z: float, rate: float, others: int, lost: int) -> None:
    """The turnout is public, so the claim that counts is the smallest: with the client drawn, or not."""
    claimed = min(settled_epsilon(z, rate, others, lost, drawn=drawn) for drawn in (False, True) if lost or drawn)
    pair = sampled_pair(z, rate, others, lost)
    truths = [true_epsilon(*pair, 1)]
    if lost:
        truths += [true_epsilon(*pair, 1001), revealed_epsilon(z, rate, others, lost)]
        amplified = Release(Gaussian(z), sampling=Sampling("poisson", rate))
        assert max(truths) > Accounting.of(FAST_PLD, [amplified]).epsilon(DELTA)  # what was claimed before
    assert claimed >= max(truths) * (1 - 1e-4)


def summed_variance(z: float, cohort: int, lost: int, dropouts: float) -> float:
    """The variance of a sum with these losses, of which the components that are not needed were removed."""
    noise = SharedNoise(Bound((1.0,)), z, 1 - dropouts, dropouts)
    needed = range(min(lost, noise.tolerated(cohort)) + 1)
    kept = sum(noise.component(k, cohort) for k in needed)
    return z**2 / noise.of_cohort(cohort) * kept * (cohort - lost)


@pytest.mark.law
@pytest.mark.parametrize("z", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(
    ("others", "lost", "dropouts", "amplified"),
    [
        (10, 0, 0.3, True),
        (11, 1, 0.1, True),
        (11, 3, 0.3, True),
        (61, 6, 0.1, True),
        (60, 20, 0.34, True),
        (9, 1, 0.1, False),  # of ten clients, one may be lost, but of nine none: the variance shows how many there were
        (19, 10, 0.5, False),
        (10, 2, 0.1, False),
    ],
)
def test_no_claim_with_tolerated_losses_is_below_the_truth(
    z: float, rate: float, others: int, lost: int, dropouts: float, amplified: bool
) -> None:
    """Within tolerance, the variance is the same with and without the client, who may be absent or send zeros."""
    variances = [summed_variance(z, others + drawn, lost, dropouts) for drawn in (0, 1)]
    without, absent = Outcome(1 - rate, 0.0, variances[0]), Outcome(1.0, 0.0, variances[0])
    drawn, zeros = (Outcome(rate, mean, variances[1]) for mean in (1.0, 0.0))
    for turnout in (Turnout(n, n - lost) for n in (others, others + 1)):
        found = settled(z, rate, turnout, dropouts)
        assert found.constant == amplified
        assert (found.adjacencies[0] is Adjacency.ADD_OR_REMOVE) == (found.amplification.rate < 1) == amplified
    pair = [without, drawn], [without, zeros]
    truths = [true_epsilon(*pair, 1)]
    if amplified:  # other coordinates show nothing
        assert variances == pytest.approx([z**2, z**2], rel=1e-12)
        truths.append(true_epsilon([without, drawn], [absent], 1))
    else:
        truths.append(true_epsilon(*pair, 1001))
    claims = [settled_epsilon(z, rate, others, lost, drawn=each, dropouts=dropouts) for each in (False, True)]
    assert min(claims) >= max(truths) * (1 - 1e-4)
    if not amplified and others == 9:  # where the noise is nearly that of tolerated losses, amplification would not do
        wrong = Release(Gaussian(z), sampling=Sampling("poisson", rate))
        many = true_epsilon(*pair, 100_100)
        assert Accounting.of(FAST_PLD, [wrong]).epsilon(DELTA) < many <= min(claims)


def test_fixed_sizes_have_a_bound_for_a_row_of_zeros() -> None:
    """Never below the truth for the worst others, never above the price without amplification."""
    rate, z = 0.05, 2.0
    release = Release(Gaussian(z), sampling=Sampling("fixed", rate))
    assert default_accountant(release, replace(release, constant=False)) == Rdp(Adjacency.ZERO_OUT)
    claimed = Accounting.of(Rdp(Adjacency.ZERO_OUT), [release]).epsilon(DELTA)
    other = Outcome(1 - rate, -1.0, z**2)  # another client takes its place, on the opposite side
    pair = ([other, Outcome(rate, 1.0, z**2)], [other, Outcome(rate, 0.0, z**2)])
    shifted = [[replace(each, mean=each.mean + 1) for each in side] for side in pair]
    assert true_epsilon(shifted[0], shifted[1], 1) <= claimed
    assert claimed <= Accounting.of(Rdp(Adjacency.ZERO_OUT), [replace(release, constant=False)]).epsilon(DELTA)
    with pytest.raises(UserError, match="pld has no bound for fixed sizes and zero-out"):
        Accounting.of(Pld(Adjacency.ZERO_OUT)).compose(release)


def distributed(**changes: object) -> DistributedGaussian:
    options = {"clip": FixedClip(1.0), "noise_multiplier": 1.0, "arithmetic": Grid(), **changes}
    return DistributedGaussian(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "turnout", "constant"),
    [
        ({}, None, True),
        ({"dropouts": 0.1}, None, True),
        ({"colluding": 0.1}, None, False),
        ({}, Turnout(10, 10), True),
        ({}, Turnout(0, 0), True),
        ({}, Turnout(10, 9), False),
        ({"dropouts": 0.1}, Turnout(10, 10), True),
        ({"dropouts": 0.1}, Turnout(10, 9), True),
        ({"dropouts": 0.1}, Turnout(9, 8), False),
        ({"dropouts": 0.1}, Turnout(10, 8), False),
        ({"colluding": 0.1}, Turnout(10, 10), False),
        ({"dropouts": 0.1, "colluding": 0.1}, Turnout(10, 9), False),
    ],
)
def test_only_constant_noise_is_amplified(changes: dict[str, object], turnout: Turnout | None, constant: bool) -> None:
    for noise in ("gaussian", "skellam"):
        price = distributed(arithmetic=Grid(noise=noise), **changes).price(0, turnout)
        assert isinstance(price, Release)
        assert price.constant == constant
        assert price.adjacencies[0] is (Adjacency.ADD_OR_REMOVE if constant else Adjacency.ZERO_OUT)
        drawn = Sampling("poisson", 0.1)
        assert price.sampled(drawn).amplification == (drawn if constant else Sampling())


def test_noise_is_sized_without_amplification_if_clients_may_collude() -> None:
    """And with amplification if they may drop out: surplus noise makes the variance the same."""
    for changes, rate in (({"colluding": 0.1}, 1.0), ({"dropouts": 0.1}, 1 / 60)):
        planned = replace(fl_std_dp(rounds=50, clip=1.0), mechanism=distributed(noise_multiplier=None, **changes))
        method = calibrate(planned, ClientUnits.whole(6000))
        sized = method.mechanism
        assert isinstance(sized, DistributedGaussian)
        assert sized.noise_multiplier is not None
        gaussian = Release(Gaussian(sized.noise_multiplier), sampling=Sampling.at(rate, "poisson"))
        assert Accounting.of(Pld()).compose(gaussian, 50).epsilon(1e-5) == pytest.approx(1.0, rel=2e-3)
        expected = Adjacency.ZERO_OUT if rate == 1 else Adjacency.ADD_OR_REMOVE
        assert accountant_for(method, 6000) == replace(FAST_PLD, adjacency=expected)


def test_the_guarantee_names_the_adjacency_and_the_rounds_that_count_in_full() -> None:
    method = fl_std_dp(rounds=3, epsilon=None, delta=1e-4, noise=5.0, clip=1.0)
    without = replace(method, channel=IdealSum(), mechanism=distributed(noise_multiplier=5.0, arithmetic=Reals()))
    turnouts = [Turnout(100, 100), Turnout(100, 99)]
    history = [report(index, turnout) for index, turnout in enumerate(turnouts)]
    tolerated, charges = (Charges.begin(each, ClientUnits.whole(6000), played(*turnouts)) for each in (method, without))
    kept, found = tolerated.guarantee(history), charges.guarantee(history)
    assert (kept.adjacency, kept.delta, kept.amplified, kept.full_rounds) == ("add-or-remove", 1e-4, True, 0)
    assert (found.adjacency, found.delta, found.amplified, found.full_rounds) == ("zero-out", 1e-4, True, 1)
    text = str(found)
    assert "(zero-out)" in text
    assert "Zero-out: What is released would be about as likely if the client had sent zeros instead" in text
    assert "(add-or-remove)" in str(kept)
    for each in (kept, found):
        assert "The number of clients, 6000, is public." in each.not_covered
        assert any("too many drop out is not covered" in sentence for sentence in each.not_covered)
    in_full = replace(release(without, 1), constant=False)
    unamplified = Accounting.of(alike(charges).accountant, [in_full] * 2)
    assert tolerated.epsilon < charges.epsilon < unamplified.epsilon(1e-4)


def report(index: int, turnout: Turnout) -> Report:
    """A round whose last clients were lost."""
    clients = tuple(range(turnout.cohort))
    return Report(index + 1, clients, clients[turnout.delivered :], (), (), None, None, None, {}, 0.0)


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
