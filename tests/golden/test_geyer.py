"""Privacy figures of Geyer et al. (2017), Table 1, with their accountant: orders 2 to 33, one or three sums."""

import pytest
from scipy.optimize import brentq

from tacit.core.prices import Gaussian, Release, Sampling
from tacit.privacy.accountants import Accounting, Pld, RdpClassic

THEIRS = RdpClassic(orders=tuple(range(2, 34)))
EPSILON = 8
ROWS = {100: (0.5, 11, 1e-3), 1000: (0.22, 54, 1e-5), 10_000: (0.0508495, 412, 1e-6)}


def delta_of(noise: float, rate: float, rounds: int, sums: int) -> float:
    release = Release(Gaussian(noise), sampling=Sampling("poisson", rate))
    return Accounting.of(THEIRS).compose(release, sums * rounds).delta(EPSILON)


def test_the_first_row_stops_at_round_11_with_550_contributions():
    """They check the budget after the round that exceeds it; we check it before, so ten rounds are released."""
    release = Release(Gaussian(1.8), sampling=Sampling("poisson", 50 / 100))
    accounting, contributions, rounds = Accounting.of(THEIRS), 0, 0
    while accounting.delta(EPSILON) <= 1e-3:
        accounting, contributions, rounds = accounting.compose(release, 3), contributions + 50, rounds + 1
    assert (rounds, contributions) == (11, 550)
    assert f"{delta_of(1.8, 0.5, 10, 3):.3e}" == "5.355e-04"
    assert f"{delta_of(1.8, 0.5, 11, 3):.4e}" == "1.2488e-03"
    assert Accounting.of(THEIRS).remaining_rounds(release, EPSILON, 1e-3) // 3 == 10


@pytest.mark.parametrize(
    ("clients", "sums", "low", "high"),
    [
        (100, 1, 1.154, 1.193),
        (1000, 1, 1.428, 1.436),
        (10_000, 1, 1.092, 1.092),
        (100, 3, 1.748, 1.818),
        (1000, 3, 2.124, 2.141),
        (10_000, 3, 1.545, 1.547),
    ],
)
def test_the_noise_that_gives_the_printed_number_of_rounds(clients, sums, low, high):
    """Lower limit: the second to last round fits the budget. Upper limit: the last round does not."""
    rate, rounds, delta = ROWS[clients]

    def noise_at(count: int) -> float:
        return float(brentq(lambda noise: delta_of(noise, rate, count, sums) - delta, 0.8, 4, xtol=1e-9))

    assert noise_at(rounds - 1) == pytest.approx(low, abs=0.001)
    assert noise_at(rounds) == pytest.approx(high, abs=0.001)


@pytest.mark.parametrize(
    ("clients", "noise", "epsilon"), [(100, 1.2, 5.890), (1000, 1.436, 6.462), (10_000, 1.092, 6.645)]
)
def test_one_sum_a_round_by_the_tight_accountant(clients, noise, epsilon):
    """Golden numbers of the tight accountant at sampling rates up to 0.5, which no other test has."""
    rate, rounds, delta = ROWS[clients]
    release = Release(Gaussian(noise), sampling=Sampling("poisson", rate))
    assert round(Accounting.of(Pld()).compose(release, rounds).epsilon(delta), 3) == epsilon


@pytest.mark.parametrize(("clients", "noise", "classic"), [(100, 1.8, 10.28)])
def test_three_matrices_share_one_cohort(clients, noise, classic):
    """So they are one sum with less noise, not three independently sampled sums."""
    rate, rounds, delta = ROWS[clients]
    release = Release(Gaussian(noise / 3**0.5), sampling=Sampling("poisson", rate))
    assert Accounting.of(RdpClassic()).compose(release, rounds).epsilon(delta) == pytest.approx(classic, abs=0.01)
    assert Accounting.of(Pld()).compose(release, rounds).epsilon(delta) == pytest.approx(7.34, abs=0.01)
