import math
import time

import dp_accounting as dp
import pytest

from tacit.core import Budget
from tacit.core.prices import Adjacency
from tacit.errors import UserError
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.privacy.accountants import FAST_PLD, Accountant, Pld, Rdp, RdpClassic
from tacit.privacy.calibration import CohortSampling, enough_noise

ALL: list[Accountant] = [RdpClassic(), Rdp(), FAST_PLD]


def test_two_of_noise_epsilon_and_rounds_give_the_third():
    """Only this checks the searches for noise and rounds against each other, for every accountant."""
    cohorts = CohortSampling(Growing(((3, FixedSize(10)), (5, FixedSize(20)))), 200)
    for accountant in (*ALL, Rdp(Adjacency.REPLACE_ONE)):
        noise = cohorts.noise_for(Budget(2, 1e-4), 12, accountant)
        assert cohorts.epsilon(noise, 12, 1e-4, accountant) == pytest.approx(2, rel=1e-3)
        assert cohorts.epsilon(noise, 12, 1e-4, accountant) <= 2 < cohorts.epsilon(noise * 0.9999, 12, 1e-4, accountant)
        assert cohorts.rounds_within(Budget(2, 1e-4), noise, accountant) == 12


@pytest.mark.parametrize("accountant", ALL, ids=str)
def test_the_last_epsilon_of_a_curve_is_that_of_all_rounds(accountant):
    cohorts = CohortSampling(Growing(((3, Poisson(10)), (2, Poisson(20)))), 200)
    curve = cohorts.epsilons(1.5, 6, 1e-4, accountant)
    assert len(curve) == 6
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(cohorts.epsilon(1.5, 6, 1e-4, accountant), rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.02, 1.0, 30.0])
def test_the_grid_of_privacy_losses_suits_small_and_large_budgets(epsilon):
    """Only this compares planned noise with a closed form; a wrong grid would lose precision or fill the memory."""
    noise = CohortSampling(Everyone(), 10).noise_for(Budget(epsilon, 1e-5), 4, Pld())
    assert noise == pytest.approx(2 * dp.get_sigma_gaussian(epsilon, 1e-5), rel=2e-3)


def test_planning_takes_at_most_seconds():
    cohorts = CohortSampling(Poisson(100), 6000)
    start = time.process_time()
    cohorts.epsilons(1.54, 200, 1e-5, Rdp())
    cohorts.epsilons(1.54, 200, 1e-5, RdpClassic())
    cohorts.noise_for(Budget(1, 1e-5), 200, Rdp())
    assert time.process_time() - start < 3  # 0.5 s on an idle machine


EVERYONE = CohortSampling(Everyone(), 9)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: EVERYONE.epsilons(0.0, 3, 1e-5, Rdp()), "noise=0 > 0"),
        (lambda: EVERYONE.epsilons(1.0, 0, 1e-5, Rdp()), "rounds=0 >= 1"),
        (lambda: CohortSampling(FixedSize(20), 9).epsilon(1.0, 3, 1e-5, Rdp()), "cohort of size=20 <= population=9"),
        (lambda: EVERYONE.noise_for(Budget(1e-3, 1e-5), 3, RdpClassic()), "that some noise can reach"),
        (lambda: EVERYONE.noise_for(Budget(1e9, 1e-5), 3, Rdp()), "that needs noise"),
    ],
)
def test_impossible_plans_are_refused(plan, message):
    with pytest.raises(UserError, match=message):
        plan()


@pytest.mark.parametrize("delta", [1e-300, 1e-15, 0.9e-12])
def test_a_delta_that_accountants_cannot_resolve_is_refused(delta: float) -> None:
    with pytest.raises(UserError, match="no smaller probability is accounted for"):
        Budget(1.0, delta)


def test_noise_that_never_suffices_is_refused() -> None:
    with pytest.raises(UserError, match="an epsilon that some noise can reach"):
        enough_noise(1.0, lambda _: math.inf, Budget(1.0, 1e-5))
