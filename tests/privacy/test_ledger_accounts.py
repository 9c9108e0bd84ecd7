"""What runs for different units, or with other partitions, release together about one client, record or person."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
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
from tacit.core.prices import NO_LIMIT, ClientUnits, Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.data import Population
from tacit.errors import BudgetError, LedgerError, UserError
from tacit.pieces.mechanisms import CentralGaussian, MedianClip
from tacit.privacy.accountants import FAST_PLD, Accounting, Rdp
from tacit.privacy.client_choices import drop_dominated
from tacit.privacy.guarantee import AT_SEVERAL, Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_accounts import LedgerAccounts
from tacit.privacy.ledger_head import NO_CLIENTS, NO_PROOF
from tacit.privacy.planned_charges import charge_of
from tacit.privacy.renyi import bounds_of_replacement
from tacit.privacy.unit_accounting import Charge, UnitAccounting
from tacit.runs.data_key import client_identities

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
    assert list(drop_dominated([less, more, other])) == [more, other]
    assert UnitAccounting(Unit.RECORD, {0: less}).epsilon(DELTA) < UnitAccounting(Unit.RECORD, {0: more}).epsilon(DELTA)


def _counter(each: Iterable[Repeated]) -> Counter[Release]:
    return sum((Counter({one.release: one.times}) for one in each), Counter())


def run_of(unit: Unit = Unit.RECORD, copies: int = 0, **steps: int) -> Charge:
    """A run by the identities of its clients' data, which it numbers in this order."""
    clients = {number: Repeated(step(), count) for number, count in enumerate(steps.values())}
    return Charge(unit, clients, copies, identities=dict(enumerate(steps)))


@pytest.mark.parametrize(
    ("runs", "steps"),
    [
        ([run_of(a=40, b=10), run_of(b=40, a=10)], 50),  # the same data under other numbers
        ([run_of(a=40, b=10), run_of(a=10, b=20, c=45)], 50),  # a hospital joins: its records were in no earlier run
        ([run_of(a=40, b=10), run_of(a=10, b=20, c=60)], 60),
        ([run_of(a=40, b=10), run_of(a=10, changed=30)], 50),  # records of b may be at the client that changed
        ([run_of(a=40, b=30), run_of(a=10, changed=30)], 60),
        ([run_of(a=40, b=10), run_of(other=30, another=20)], 70),  # nothing shows that they are disjoint
        ([run_of(a=40, b=10), records(30)], 70),  # a run that does not know its data
        ([run_of(a=40, b=10), run_of(b=40, a=10), run_of(b=40, a=10)], 90),
        ([run_of(a=40, b=10), run_of(b=40, a=10), records(30)], 80),
        ([run_of(Unit.PERSON, 1, a=40, b=10), run_of(Unit.PERSON, 1, b=40, a=10)], 50),
        ([run_of(Unit.PERSON, 0, a=40, b=10), run_of(Unit.PERSON, 0, b=40, a=10)], 80),  # who may be at several
        ([run_of(Unit.PERSON, 1, a=40, b=10), run_of(Unit.PERSON, 2, b=40, a=10)], 120),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_equal_data_are_the_same_client_and_different_ones_never_disjoint(
    runs: list[Charge], steps: int, backwards: bool, tmp_path: Path
) -> None:
    named = [(f"run {number}", charge) for number, charge in enumerate(runs[:: -1 if backwards else 1])]
    found = accounts(*named)
    unit = runs[0].unit
    assert found[unit].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, steps, False)), rel=1e-3)
    with Ledger.open(tmp_path / "ledger.db", Budget(1000, DELTA)) as ledger:
        for name, charge in named:
            ledger.reserve(name, 1, charge)
    with Ledger.open(tmp_path / "ledger.db") as ledger:  # as it was written
        assert ledger.use.epsilons[unit] == pytest.approx(composed((1.0, 0.1, steps, False)), rel=1e-3)


def test_three_runs_that_have_data_in_common_two_by_two_are_never_charged_too_little() -> None:
    """A record of `a` costs 40 + 10 steps, and 50 more if it is at `new`; in another order, the bound is less tight."""
    runs = [run_of(a=40, b=10), run_of(a=10, changed=30), run_of(b=5, new=50)]
    for order, steps in (([0, 1, 2], 100), ([2, 1, 0], 120)):
        found = accounts(*[(f"run {number}", runs[number]) for number in order])
        assert found[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, steps, False)), rel=1e-3)


def test_names_are_no_identities() -> None:
    """Two runs of clients with the same names: a record of one may be at the other in the second run."""
    assert ClientUnits((80, 10), identities=("0123456789abcdef", "f" * 16)).identities
    for names in (("Charité", "Vall d'Hebron"), ("0123456789abcdef",), ("0123456789ABCDEF", "f" * 16)):
        with pytest.raises(UserError, match="A name shows neither that data are equal nor that they are disjoint"):
            ClientUnits((80, 10), identities=names)
    populations = [
        Population.split(torch.randn(4, 2), torch.zeros(4), [torch.arange(2), torch.arange(2, 4)], ("north", "south"))
        for _ in range(2)
    ]
    one, other = map(client_identities, populations)
    assert not set(one) & set(other)  # whatever the clients are called
    assert client_identities(replace(populations[0], names=())) == one


def test_two_clients_with_equal_data_are_no_identity() -> None:
    """Which of them is which in another run is not known."""
    twins = Charge(Unit.RECORD, {0: Repeated(step(), 40), 1: Repeated(step(), 10)}, identities={0: "same", 1: "same"})
    found = accounts(("one", twins), ("other", run_of(same=40)))
    assert found[Unit.RECORD].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, 80, False)), rel=1e-3)


def test_runs_on_the_same_hospitals_are_known_by_the_digests_of_their_data(tmp_path: Path) -> None:
    """In whichever order they come; with another partition of the same rows, each run counts at its worst client."""
    torch.manual_seed(0)
    parts = [(torch.randn(size, 3), torch.arange(size) % 2) for size in (10, 80)]
    options = {"rounds": 1, "cohort": 2, "noise": 2.0, "epsilon": None, "delta": DELTA, "batch_size": 5, "epochs": 1}
    method = tacit.methods.make("dp-sgd", options)
    path = tmp_path / "ledger.db"
    Ledger.open(path, Budget(100.0, DELTA)).close()
    used = []
    for order in ([0, 1], [1, 0]):
        task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=[parts[each] for each in order])
        run = tacit.train(method, task, workers=1, ledger=path)
        assert run.ledger is not None
        used.append(run.ledger.epsilons[Unit.RECORD] or 0.0)
    charged = charge_of(run.spec.method, ClientUnits((80, 10)), 0, (0, 1))
    twice = UnitAccounting.of(Unit.RECORD, [charged] * 2)
    assert used[1] == pytest.approx(twice.epsilon(DELTA), rel=1e-3)
    x, y = (torch.cat(each) for each in zip(*parts, strict=True))
    mixed = tacit.Task(model=lambda: nn.Linear(3, 2), clients=[(x[::2], y[::2]), (x[1::2], y[1::2])])
    third = tacit.train(method, mixed, workers=1, ledger=path).ledger
    assert third is not None
    assert (third.epsilons[Unit.RECORD] or 0.0) > 1.03 * used[1]
    assert not any(digest_without_key(*part) in path.read_bytes() for part in parts)


def digest_without_key(*tensors: torch.Tensor) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16].encode()


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


@pytest.mark.parametrize("order", [1, -1])
def test_a_person_whose_clients_one_run_knows_counts_at_as_many_in_the_others(tmp_path: Path, order: int) -> None:
    """A population on disk does not say at how many clients a person is; another run on the same data does."""
    known, unknown = (records(20, unit=Unit.PERSON, copies=copies) for copies in (2, 0))
    summed = records(20, unit=Unit.PERSON, copies=0, summed=True)
    found = accounts(*[("known", known), ("unknown", unknown), ("summed", summed)][::order])
    expected = composed((1.0, 0.1, 80, False), (1 / 2, 1 - 0.9**2, 20, False))
    assert found[Unit.PERSON].epsilon(DELTA) == pytest.approx(expected, rel=1e-3)
    alone = accounts(("unknown", unknown))
    assert alone[Unit.PERSON].epsilon(DELTA) == pytest.approx(composed((1.0, 0.1, 20, False)), rel=1e-3)
    with Ledger.open(tmp_path / "ledger.db", Budget(1000, DELTA)) as ledger:
        for number, charge in enumerate([unknown, known][::order]):
            ledger.reserve(f"run {number}", 1, charge)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.use.epsilons[Unit.PERSON] == pytest.approx(composed((1.0, 0.1, 80, False)), rel=1e-3)


def test_what_is_not_proved_is_not_added_to_what_is(tmp_path: Path) -> None:
    """With a bound that is the median of private norms, ε is nominal; a ledger would state it as that of all runs."""
    torch.manual_seed(0)
    task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=[(torch.randn(9, 3), torch.arange(9) % 2)] * 4)
    mechanism = CentralGaussian(clip=MedianClip(), noise_multiplier=4.0)
    method = replace(tacit.methods.geyer(rounds=1, cohort=4), mechanism=mechanism, budget=None)
    Ledger.open(tmp_path / "ledger.db", Budget(8.0, DELTA)).close()
    with pytest.raises(UserError, match=r"Expected no ledger of several runs for geyer: .* median"):
        tacit.train(method, task, workers=1, ledger=tmp_path / "ledger.db")
    assert not tacit.train(method, task, workers=1, out=tmp_path / "run").privacy.proved  # with a ledger of its own


def test_a_ledger_that_is_not_limited_takes_the_limit_of_whoever_opens_it(tmp_path: Path) -> None:
    path, without = tmp_path / "ledger.db", Budget(NO_LIMIT, DELTA)
    with Ledger.open(path, limit=without) as ledger:
        for number in range(10):
            ledger.reserve("clients", number + 1, CLIENTS)
    with Ledger.open(path, limit=Budget(3.9, DELTA)) as ledger:
        assert ledger.use.epsilons[Unit.CLIENT] == pytest.approx(3.9, abs=5e-3)
        with pytest.raises(BudgetError, match=r"budget of ε = 3\.9"):
            ledger.reserve("clients", 11, CLIENTS)
    with Ledger.open(path, limit=without) as ledger:
        ledger.reserve("not proved", 1, Charge.of_clients(Release(Gaussian(0.0))))
    with Ledger.open(path, limit=Budget(1e6, DELTA)) as ledger:
        assert str(ledger.use) == f"Ledger {path}: {NO_PROOF}"
        with pytest.raises(BudgetError):
            ledger.reserve("clients", 11, CLIENTS)
    Ledger.open(tmp_path / "own.db", Budget(2.0, DELTA)).close()
    with pytest.raises(LedgerError, match="A ledger has only one budget"):
        Ledger.open(tmp_path / "own.db", limit=without)


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
    found: NDArray[np.float64] = bounds_of_replacement(0.3 * orders)
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
