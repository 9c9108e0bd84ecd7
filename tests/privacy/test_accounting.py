import time

import dp_accounting as dp
import pytest

from tacit.errors import UserError
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.privacy.accountants import Adjacency, Pld, Rdp, RdpClassic
from tacit.privacy.accounting import MOST_ROUNDS, Accounting, Budget, last_that, weak_delta
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.planning import Cohorts

EVENT = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.2))
OTHER = dp.SampledWithoutReplacementDpEvent(100, 20, dp.GaussianDpEvent(5.0))
ALL = [RdpClassic(), Rdp(), Pld()]


@pytest.mark.parametrize("by", ALL, ids=str)
def test_a_book_of_rounds_is_the_fold_of_their_charges(by):
    events = [EVENT, OTHER, EVENT, EVENT, OTHER]
    folded = Accounting.of(by)
    for event in events:
        folded = folded.charge(event)
    for book in (Accounting.of(by, events), Accounting.of(by).charge(dp.ComposedDpEvent(events))):
        assert book.epsilon(1e-5) == pytest.approx(folded.epsilon(1e-5), rel=1e-5)
        assert book.delta(1.0) == pytest.approx(folded.delta(1.0), rel=1e-5)
    assert Accounting.of(by, events).rounds == folded.rounds == 5


def test_charging_leaves_the_old_book_as_it_was():
    book = Accounting.of(Rdp()).charge(EVENT)
    before = book.epsilon(1e-5)
    assert book.charge(EVENT).epsilon(1e-5) > before
    assert book.epsilon(1e-5) == before


@pytest.mark.parametrize("by", ALL, ids=str)
def test_a_budget_is_passed_by_the_round_after_the_last(by):
    book = Accounting.of(by)
    left = book.rounds_left(EVENT, 3.0, 1e-5)
    assert left == book.rounds_left(EVENT, 3.0, 1e-5, guess=2 * left) == book.rounds_left(EVENT, 3.0, 1e-5, guess=left)
    almost = book.charge(EVENT, left - 1)
    assert almost.charge(EVENT).epsilon(1e-5) <= 3.0 < almost.charge(EVENT, 2).epsilon(1e-5)
    assert almost.rounds_left(EVENT, 3.0, 1e-5) == 1


@pytest.mark.parametrize("last", [0, 1, 2, 7, 64, 100, MOST_ROUNDS - 1, MOST_ROUNDS, MOST_ROUNDS + 5])
@pytest.mark.parametrize("guess", [1, 2, 63, 100, MOST_ROUNDS])
def test_the_last_that_fits_is_found_from_any_guess(last, guess):
    assert last_that(lambda number: number <= last, guess) == min(last, MOST_ROUNDS)


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [
        (0, 1e-5, "epsilon=0 > 0"),
        (-1, 1e-5, "epsilon=-1"),
        (float("nan"), 1e-5, "epsilon"),
        (1, 0, "delta=0 in"),
        (1, 1, "1"),
    ],
)
def test_a_budget_must_make_sense(epsilon, delta, words):
    with pytest.raises(UserError, match=words):
        Budget(epsilon, delta)


def test_a_delta_is_weak_if_it_allows_to_hand_over_somebody():
    assert weak_delta(1e-5, 6000) is weak_delta(1e-3, 100) is None
    assert "1/1000" in (weak_delta(1e-3, 1000) or "")
    assert "one random client" in (weak_delta(1e-3, 500) or "")


def test_planning_two_of_three_gives_the_third():
    cohorts = Cohorts(Growing(((3, FixedSize(10)), (5, FixedSize(20)))), 200)
    for by in (*ALL, Rdp(Adjacency.REPLACE_ONE)):
        noise = cohorts.noise_for(Budget(2, 1e-4), 12, by)
        assert cohorts.epsilon(noise, 12, 1e-4, by) == pytest.approx(2, rel=1e-3)
        assert cohorts.epsilon(noise, 12, 1e-4, by) <= 2 < cohorts.epsilon(noise * 0.9999, 12, 1e-4, by)
        assert cohorts.rounds_within(Budget(2, 1e-4), noise, by) == 12


@pytest.mark.parametrize("by", ALL, ids=str)
def test_a_curve_ends_where_the_whole_does(by):
    cohorts = Cohorts(Growing(((3, Poisson(10)), (2, Poisson(20)))), 200)
    curve = cohorts.epsilons(1.5, 6, 1e-4, by)
    assert len(curve) == 6
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(cohorts.epsilon(1.5, 6, 1e-4, by), rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.02, 1.0, 30.0])
def test_the_grid_of_losses_suits_small_and_large_budgets(epsilon):
    found = Cohorts(Everyone(), 10).noise_for(Budget(epsilon, 1e-5), 4, Pld())
    assert found == pytest.approx(2 * dp.get_sigma_gaussian(epsilon, 1e-5), rel=2e-3)


def test_planning_is_quick():
    cohorts = Cohorts(Poisson(100), 6000)
    began = time.process_time()
    cohorts.epsilons(1.54, 200, 1e-5, Rdp())
    cohorts.epsilons(1.54, 200, 1e-5, RdpClassic())
    cohorts.noise_for(Budget(1, 1e-5), 200, Rdp())
    assert time.process_time() - began < 3  # 0.5 s on an idle machine


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: Cohorts(Everyone(), 9).epsilons(0.0, 3, 1e-5, Rdp()), "noise=0 > 0"),
        (lambda: Cohorts(Everyone(), 9).epsilons(1.0, 0, 1e-5, Rdp()), "rounds=0 >= 1"),
        (lambda: Cohorts(FixedSize(20), 9).epsilon(1.0, 3, 1e-5, Rdp()), "cohort of size=20 <= population=9"),
        (lambda: Cohorts(Everyone(), 9).noise_for(Budget(1e-3, 1e-5), 3, RdpClassic()), "that some noise can reach"),
        (lambda: Cohorts(Everyone(), 9).noise_for(Budget(1e9, 1e-5), 3, Rdp()), "that needs noise"),
    ],
)
def test_plans_that_make_no_sense(ask, words):
    with pytest.raises(UserError, match=words):
        ask()


def test_a_guarantee_says_what_it_rests_on():
    book = Accounting.of(Rdp()).charge(EVENT, 7)
    found = Guarantee.of(book, 1e-5, EVENT).but("The clip was tuned on the same data.")
    said = str(found)
    for words in ("1e-05", "every client", "add-or-remove", "7 rounds", "Poisson", "rdp", "server is trusted", "tuned"):
        assert words in said
    assert found.to_json()["guarantee"] is True
    assert found.to_json()["unaccounted"] == ["The clip was tuned on the same data."]
    assert found.epsilon == book.epsilon(1e-5)


def test_where_nothing_is_proved_it_says_none_and_why():
    book = Accounting.of(Rdp())
    exposed = book.charge(dp.GaussianDpEvent(0.0))
    for found in (
        Guarantee.of(book, 1e-5, None),
        Guarantee.of(exposed, 1e-5, EVENT),
        Guarantee.none("the median leaks."),
    ):
        assert not found.proved
        assert str(found).startswith("none: ")
        assert str(found).endswith(".")
        assert not str(found).endswith("..")
        assert found.to_json()["epsilon"] is None
    with pytest.raises(UserError, match="either an epsilon or the reason"):
        Guarantee(epsilon=1.0, reason="but")
