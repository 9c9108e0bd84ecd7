"""What runs for different units, or with other partitions, release together about one client, record or person."""

import math
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

import tacit
from tacit.core import Budget
from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import BudgetError
from tacit.privacy.accountants import FAST_PLD, Accounting, Rdp
from tacit.privacy.client_choices import undominated
from tacit.privacy.guarantee import AT_SEVERAL, Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_accounts import LedgerAccounts
from tacit.privacy.ledger_head import NO_CLIENTS
from tacit.privacy.renyi import removed_and_added
from tacit.privacy.unit_accounting import Charge, UnitAccounting

DELTA = 1e-5
CLIENTS = Charge.of_clients(Release(Gaussian(3.495)))  # ε = 3.9 for a client after ten rounds of everyone


def step(noise: float = 1.0, rate: float = 0.1) -> Release:
    return Release(Gaussian(noise), sampling=Sampling("poisson", rate))


def records(steps: int, client: int = 0, unit: Unit = Unit.RECORD, *, copies: int = 1, summed: bool = False) -> Charge:
    return Charge(unit, {client: Repeated(step(), steps)}, copies, summed)


def accounts(*charges: tuple[str, Charge]) -> LedgerAccounts:
    return LedgerAccounts.of(FAST_PLD, charges)


def composed(*events: tuple[float, float, int, bool]) -> float:
    """By a second hand: ε of (noise, rate, count, whether a unit is replaced) through `dp_accounting` alone."""
    parts = [
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=1e-3,
            neighboring_relation=getattr(dp.NeighboringRelation, "REPLACE_ONE" if replaced else "ADD_OR_REMOVE_ONE"),
        ).self_compose(count)
        for noise, rate, count, replaced in events
    ]
    return float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(DELTA))


# What is released about clients, for a record


def test_what_is_released_about_a_client_costs_its_records_twice_the_distance() -> None:
    """Removing a record replaces its client's row by another one within the bound."""
    found = accounts(*[("run", CLIENTS)] * 10)
    mu = math.sqrt(10) / 3.495
    assert found.epsilon(Unit.CLIENT, DELTA) == pytest.approx(3.9, abs=5e-3)
    assert found[Unit.RECORD].epsilon(DELTA) == pytest.approx(8.84, abs=1e-2)
    epsilon = found[Unit.RECORD].epsilon(DELTA)  # as for two Gaussians at distance 2μ
    assert norm.cdf(mu - epsilon / (2 * mu)) - math.exp(epsilon) * norm.cdf(-mu - epsilon / (2 * mu)) <= DELTA * 1.001


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_sampling_of_clients_is_accounted_for_replaced_rows(rate: float) -> None:
    release = Charge.of_clients(Release(Gaussian(2.0), sampling=Sampling("poisson", rate)))
    found = accounts(*[("run", release)] * 30)[Unit.RECORD].epsilon(DELTA)
    assert found == pytest.approx(composed((2.0, rate, 30, True)), rel=1e-3)
    assert found > 1.5 * accounts(*[("run", release)] * 30).epsilon(Unit.CLIENT, DELTA)


def test_runs_for_clients_and_for_records_add_up_for_a_record() -> None:
    both = accounts(*[("clients", CLIENTS)] * 10, ("records", records(40)))
    assert both[Unit.RECORD].epsilon(DELTA) == pytest.approx(
        composed((3.495, 1.0, 10, True), (1.0, 0.1, 40, False)), 1e-3
    )
    assert both.units == (Unit.CLIENT, Unit.RECORD)
    assert math.isinf(both.epsilon(Unit.CLIENT, DELTA))


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.PERSON])
def test_a_ledger_holds_a_record_to_one_budget_whatever_runs_protect(tmp_path: Path, unit: Unit) -> None:
    with Ledger.open(tmp_path / "ledger.db", Budget(8.0, DELTA)) as ledger:
        ledger.reserve("records", 1, records(40, unit=unit))
        allowed = _rounds_until_refused(ledger, unit)
        assert composed((3.495, 1.0, allowed, True), (1.0, 0.1, 40, False)) <= 8.0 * 1.001
        assert composed((3.495, 1.0, allowed + 1, True), (1.0, 0.1, 40, False)) > 8.0
        assert ledger.use.epsilons[Unit.CLIENT] is None
        assert ledger.use.epsilons[unit] == pytest.approx(ledger.accounts[Unit.RECORD].epsilon(DELTA))
        assert NO_CLIENTS in str(ledger.use)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert _rounds_until_refused(ledger, unit, allowed) == allowed  # the same after it was read


def _rounds_until_refused(ledger: Ledger, unit: Unit, first: int = 0) -> int:
    """How many rounds for clients the ledger allows, of which the first ones were charged before."""
    for number in range(first, 20):
        try:
            ledger.reserve("clients", number + 1, CLIENTS)
        except BudgetError:
            break
    why = f"for a {unit}: ε = .* counts for a {unit}, too, at twice its distance"
    with pytest.raises(BudgetError, match=why):
        ledger.reserve("clients", number + 1, CLIENTS)
    return number


def test_records_that_come_second_are_refused_as_well(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", Budget(8.0, DELTA)) as ledger:
        for number in range(10):
            ledger.reserve("clients", number + 1, CLIENTS)  # 3.9 for a client, 8.84 for a record
        with pytest.raises(BudgetError, match=r"for a record: ε = 8\.84. is already used"):
            ledger.reserve("records", 1, records(1))
        assert str(ledger.use).count("ε = ") == 1


def test_training_stops_at_the_budget_that_runs_for_both_units_share(tmp_path: Path) -> None:
    """Both runs fit by themselves; together they exceed the budget for a record."""
    torch.manual_seed(0)
    parts = [(torch.randn(40, 3), torch.arange(40) % 2) for _ in range(4)]
    task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts)
    clients = tacit.methods.fl_std_dp(rounds=4, cohort=4, clip=1.0, epsilon=3.9, delta=DELTA)
    within = tacit.methods.dp_fedsgd(rounds=4, epsilon=3.9, delta=DELTA, size=40)
    Ledger.open(tmp_path / "ledger.db", Budget(8.0, DELTA), Rdp()).close()
    assert len(tacit.train(within, task, workers=1, ledger=tmp_path / "ledger.db").history) == 4
    run = tacit.train(clients, task, workers=1, ledger=tmp_path / "ledger.db")
    assert len(run.history) == 2
    assert run.ledger is not None
    assert run.ledger.epsilons[Unit.CLIENT] is None
    assert 6.5 < (run.ledger.epsilons[Unit.RECORD] or 0.0) <= 8.0
    assert len(tacit.train(clients, task, workers=1).history) == 4


# Partitions that differ


def test_what_runs_cost_is_added_whichever_client_of_each_a_record_is_at() -> None:
    found = accounts(("one", records(20, client=0)), ("other", records(20, client=1)))
    assert found[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, 40, False)), rel=1e-3)
    within = accounts(("one", records(20, client=0)), ("one", records(20, client=1)))  # of one run, they are others
    assert within[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, 20, False)), rel=1e-3)


def test_the_worst_choice_of_one_client_of_each_run_is_found() -> None:
    """Neither run's worst client alone decides: the releases of different kinds compose unevenly."""
    kinds = [Repeated(step(1.0, 0.1), 20), Repeated(step(0.8, 0.02), 60), Repeated(step(2.0, 0.5), 9)]
    charge = Charge(Unit.RECORD, dict(enumerate(kinds)))
    found = accounts(("one", charge), ("other", charge))[Unit.RECORD].epsilon(DELTA)
    pairs = [(one, other) for one in kinds for other in kinds]
    each = [UnitAccounting(Unit.RECORD, {0: _counter(pair)}).epsilon(DELTA) for pair in pairs]
    assert found == pytest.approx(max(each), rel=1e-6)


def test_many_choices_are_bounded_by_one_that_costs_at_least_as_much() -> None:
    kinds = [Repeated(step(1.0 + 0.01 * n, 0.1), 20 + n) for n in range(12)]
    charge = Charge(Unit.RECORD, dict(enumerate(kinds)))
    found = accounts(*((f"run {number}", charge) for number in range(3)))[Unit.RECORD].epsilon(DELTA)
    largest = max(UnitAccounting(Unit.RECORD, {0: _counter([kind] * 3)}).epsilon(DELTA) for kind in kinds)
    assert largest <= found <= 1.2 * largest


def test_only_what_surely_costs_no_more_is_left_out() -> None:
    more, less, other = (
        _counter([Repeated(step(), 9)]),
        _counter([Repeated(step(rate=0.05), 9)]),
        _counter([Repeated(step(noise=0.9, rate=0.01), 1)]),
    )
    assert list(undominated([less, more, other])) == [more, other]
    assert UnitAccounting(Unit.RECORD, {0: less}).epsilon(DELTA) < UnitAccounting(Unit.RECORD, {0: more}).epsilon(DELTA)


def _counter(each: Iterable[Repeated]) -> Counter[Release]:
    return sum((Counter({one.release: one.times}) for one in each), Counter())


# A person at several clients


def test_a_person_is_at_the_worst_of_many_clients_and_not_at_all_of_them() -> None:
    """Clients of many sizes: the releases of two of them are composed, whichever they are."""
    sizes = range(20, 120)
    charge = Charge(Unit.PERSON, {n: Repeated(step(rate=10 / n), n // 10) for n in sizes}, copies=2)
    found = UnitAccounting.of(Unit.PERSON, [charge] * 3).epsilon(DELTA)
    worst = max(
        UnitAccounting(Unit.RECORD, {0: Counter({step(rate=10 / n): 6 * (n // 10)})}).epsilon(DELTA) for n in sizes
    )
    assert worst <= found <= 1.25 * worst


def test_a_person_at_several_clients_is_charged_for_all_of_them() -> None:
    for copies in (2, 3):
        local = accounts(("run", records(20, unit=Unit.PERSON, copies=copies)))
        assert local[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, 20 * copies, False)), rel=1e-3)
        summed = accounts(("run", records(20, unit=Unit.PERSON, copies=copies, summed=True)))
        drawn = 1 - 0.9**copies
        assert summed[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1 / copies, drawn, 20, False)), rel=1e-3)


def test_a_ledger_that_names_a_vast_number_of_clients_is_answered() -> None:
    """Its choices are bounded, and not listed one by one."""
    found = accounts(("run", records(1, unit=Unit.PERSON, copies=10**9)))
    assert found[Unit.RECORD].epsilon(DELTA) > 1e6


def test_runs_for_clients_count_for_a_person_at_every_client_it_is_at() -> None:
    found = accounts(*[("clients", CLIENTS)] * 3, ("persons", records(20, unit=Unit.PERSON, copies=2)))
    assert found[Unit.RECORD].epsilon(DELTA) == pytest.approx(
        composed((3.495 / 2, 1.0, 3, True), (1.0, 0.1, 40, False)), rel=1e-3
    )


def test_the_bound_for_several_clients_holds_for_the_true_mixture() -> None:
    """Each of two clients is drawn by its own coin: the sum is that of none, one or both of them."""
    rate, noise, order = 0.2, 1.5, 3
    chances = {0: (1 - rate) ** 2, 1: 2 * rate * (1 - rate), 2: rate**2}

    def density(x: float) -> float:
        return sum(chance * float(norm.pdf(x, moved, noise)) for moved, chance in chances.items())

    power = quad(lambda x: density(x) ** order * norm.pdf(x, 0, noise) ** (1 - order), -15, 25)[0]
    bound = Accounting.of(Rdp()).compose(Release(Gaussian(noise), sampling=Sampling("poisson", rate)).at_clients(2))
    orders = bound.composition.orders  # type: ignore[union-attr]
    divergences = bound.composition.divergences  # type: ignore[union-attr]
    assert math.log(power) / (order - 1) <= divergences[orders.index(float(order))]


@pytest.mark.parametrize("name", ["dp_sgd", "dp_fedsgd"])
def test_noise_is_sized_for_persons_at_several_clients(name: str) -> None:
    """Two hospitals share all of their patients."""
    torch.manual_seed(0)
    parts = [(torch.randn(30, 3), torch.arange(30) % 2) for _ in range(3)]

    def run(ids: list[torch.Tensor]) -> tacit.Run:
        task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts, person=ids)
        return tacit.train(getattr(tacit.methods, name)(rounds=2, epsilon=2.0), task, workers=1)

    apart = run([torch.arange(30) + 100 * client for client in range(3)])
    shared = run([torch.arange(30), torch.arange(30), torch.arange(30) + 100])
    (of_shared,), (of_apart,) = shared.guarantees.values(), apart.guarantees.values()
    assert isinstance(of_shared, Guarantee)
    assert isinstance(of_apart, Guarantee)
    assert (of_shared.copies, of_apart.copies) == (2, 1)
    assert (of_shared.epsilon or 9) <= 2
    assert "A person is at up to 2 clients, by equal ids" in str(of_shared)
    assert AT_SEVERAL.format(unit="person") not in of_shared.not_covered
    assert _noise(shared) > 1.3 * _noise(apart)


def _noise(run: tacit.Run) -> float:
    """The noise multiplier of the run's method, wherever its noise is added."""
    trainer, mechanism = run.spec.method.trainer, run.spec.method.mechanism
    found = getattr(trainer, "noise_multiplier", None) or getattr(mechanism, "noise_multiplier", None)
    assert isinstance(found, float)
    return found


# Noise of which only divergences are known


def test_to_replace_is_to_remove_and_to_add() -> None:
    orders = np.arange(2.0, 41)
    found: NDArray[np.float64] = removed_and_added(0.3 * orders)
    assert found == pytest.approx(4 * 0.3 * orders[: len(found)])
    assert Zcdp(0.3, 0.1).at_distance(2) == Zcdp(1.2, 0.1 * 7 / 3)
    assert Zcdp(0.3).at_distance(3).rho >= 9 * 0.3


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_the_bound_for_replaced_rows_is_at_least_that_of_the_gaussian(rate: float) -> None:
    """A Gaussian is such noise: what holds for all of it holds for the Gaussian."""
    sampling = Sampling.at(rate, "poisson")
    known = Release(Gaussian(2.0), sampling=sampling).within_client()
    bounded = Release(Zcdp(1 / 8), sampling=sampling).within_client()
    exact = composed((2.0, rate, 10, True))
    assert Accounting.of(FAST_PLD).compose(known, 10).epsilon(DELTA) == pytest.approx(exact, rel=1e-3)
    assert Accounting.of(Rdp()).compose(bounded, 10).epsilon(DELTA) >= exact
