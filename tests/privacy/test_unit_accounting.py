import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tacit.core import Budget
from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import BudgetError, LedgerError, UserError
from tacit.privacy.accountants import FAST_PLD, Accounting, Rdp
from tacit.privacy.ledger import Ledger
from tacit.privacy.release_json import charge_from_json, charge_to_json
from tacit.privacy.unit_accounting import Charge, UnitAccounting

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "record_epsilons.json").read_text())


def step(rate: float = 0.02, noise: float = 1.0) -> Release:
    return Release(Gaussian(noise), sampling=Sampling.at(rate, "poisson"))


def charge(**times: int) -> Charge:
    """A round in which client 0, 1, … takes this many steps, at a rate of a fiftieth."""
    return Charge(Unit.RECORD, {int(name[1:]): Repeated(step(), count) for name, count in times.items()})


@pytest.mark.parametrize("setting", GOLDEN["settings"], ids=lambda each: f"{each['noise']}x{each['steps']}")
def test_epsilon_is_that_of_opacus_and_of_dp_accounting(setting: dict[str, Any]) -> None:
    release = step(setting["batch"] / setting["size"], setting["noise"])
    accounting = UnitAccounting(Unit.RECORD).compose(Charge(Unit.RECORD, {3: Repeated(release, setting["steps"])}))
    worst = accounting.worst(setting["delta"], fine=True)
    assert worst is not None
    assert (worst.client, worst.steps) == (3, setting["steps"])
    assert worst.epsilon == pytest.approx(setting["opacus"], abs=1e-3)
    assert worst.epsilon == pytest.approx(setting["dp_accounting"], abs=1e-3)


def test_each_client_is_accounted_for_by_itself_and_the_worst_is_named() -> None:
    sizes = [60, 100, 100, 250]
    charges = [
        Charge(Unit.RECORD, {client: Repeated(step(10 / sizes[client]), 5 * sizes[client] // 10) for client in cohort})
        for cohort in ([0, 1, 2, 3], [1, 2], [1, 3], [1])
    ]
    accounting = UnitAccounting.of(Unit.RECORD, charges)
    alone = {
        client: Accounting.of(FAST_PLD).compose(step(10 / size), rounds * 5 * size // 10).epsilon(1e-5)
        for client, (size, rounds) in enumerate(zip(sizes, (1, 4, 2, 2), strict=True))
    }
    worst = accounting.worst(1e-5)
    assert worst is not None
    assert alone[worst.client or 0] == max(alone.values()) == pytest.approx(worst.epsilon)
    assert worst.client == 1
    assert worst.steps == 200
    assert accounting.rounds == 4


def test_nothing_was_released_about_records_of_clients_that_never_took_part() -> None:
    assert UnitAccounting(Unit.RECORD).worst(1e-5) is None
    assert UnitAccounting(Unit.RECORD).epsilon(1e-5) == 0
    accounting = UnitAccounting(Unit.RECORD).compose(charge(c5=10))
    assert accounting.of_client(4).epsilon(1e-5) == 0
    assert accounting.of_client(5).epsilon(1e-5) == pytest.approx(accounting.epsilon(1e-5))


def test_other_noise_is_accounted_for_by_divergences() -> None:
    release = Release(Zcdp(0.01, 1e-6), sampling=Sampling("poisson", 0.1))
    accounting = UnitAccounting(Unit.RECORD).compose(Charge(Unit.RECORD, {0: Repeated(release, 30)}))
    expected = Accounting.of(Rdp()).compose(release, 30).epsilon(1e-5)
    assert accounting.epsilon(1e-5) == pytest.approx(expected)
    assert accounting.of_client(0).accountant.name == "rdp"


def test_a_price_of_records_is_always_about_records_and_never_for_batches_of_fixed_size() -> None:
    with pytest.raises(UserError, match="Expected batches that are drawn by Poisson sampling"):
        Charge(Unit.RECORD, {0: Repeated(step().sampled(Sampling("fixed", 0.1)), 2)})


def test_charges_are_read_as_they_were_written() -> None:
    written = Charge(Unit.RECORD, {0: Repeated(step(), 3), 2: Repeated(step(), 3), 1: Repeated(step(0.5), 1)})
    data = json.loads(json.dumps(charge_to_json(written)))
    assert charge_from_json(data, Unit.RECORD) == written
    assert [group["clients"] for group in data["groups"]] == [[0, 2], [1]]
    for wrong in ({}, {"kind": "records"}, {"kind": "release"}, {**data, "groups": [{"clients": ["0"]}]}):
        with pytest.raises(UserError, match="Expected the description of a charge for records"):
            charge_from_json(wrong, Unit.RECORD)


def test_a_run_that_charges_clients_and_records_has_an_account_of_each(tmp_path: Path) -> None:
    """What it releases about clients is computed from what it releases about records, which covers it."""
    release = Release(Gaussian(4.0), sampling=Sampling("poisson", 0.1))
    path, client = tmp_path / "ledger.db", Charge.of_clients(release)
    with Ledger.open(path, Budget(3.0, 1e-5)) as ledger:
        for number in (1, 2):
            for what in (client, charge(c0=40, c1=20)):
                ledger.release(ledger.reserve("run", number, what, key=f"key {number}"), "digest")
        clients, records = ledger.accounts.clients.epsilon(1e-5), ledger.accounts[Unit.RECORD].epsilon(1e-5)
    with Ledger.open(path) as ledger:
        assert [entry.unit for entry in ledger.entries] == [Unit.CLIENT, Unit.RECORD] * 2
        assert [entry.digest for entry in ledger.entries] == ["digest"] * 4
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(clients)
        assert ledger.accounts[Unit.RECORD].epsilon(1e-5) == pytest.approx(records)
        assert clients == pytest.approx(Accounting.of(FAST_PLD).compose(release, 2).epsilon(1e-5), abs=1e-3)
        assert records == pytest.approx(Accounting.of(FAST_PLD).compose(step(), 80).epsilon(1e-5), abs=1e-3)
        assert ledger.accounts[Unit.RECORD].released[1] == Counter({Repeated(step(), 1).release: 40})
        assert f"ε = {clients:.4g} of 3 at δ = 1e-05 for every client and ε = {records:.4g} of 3" in str(ledger.use)
        assert ledger.use.to_json()["epsilons"] == {"client": pytest.approx(clients), "record": pytest.approx(records)}


def test_a_costlier_round_is_charged_to_its_clients_also_where_others_are_exposed_more(tmp_path: Path) -> None:
    path, costlier = tmp_path / "ledger.db", Charge(Unit.RECORD, {1: Repeated(step(noise=0.95), 20)})
    with Ledger.open(path, Budget(3.0, 1e-5)) as ledger:
        ledger.reserve("run", 1, charge(c0=90), key="key 1")
        entry = ledger.reserve("run", 2, charge(c1=20), key="key 2")
        exposed = ledger.accounts[Unit.RECORD].worst(1e-5)
        ledger.increase(entry, charge(c1=10))  # no refunds
        assert ledger.accounts[Unit.RECORD].released[1] == Counter({Repeated(step(), 1).release: 20})
        ledger.increase(entry, costlier)
    with Ledger.open(path) as ledger:
        assert ledger.accounts[Unit.RECORD].worst(1e-5) == exposed
        assert ledger.accounts[Unit.RECORD].released[1] == Counter({costlier.clients[1].release: 20})


def test_the_budget_of_a_ledger_holds_for_each_unit(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", Budget(1.5, 1e-5)) as ledger:
        ledger.reserve("run", 1, charge(c0=100))
        used = ledger.accounts[Unit.RECORD].epsilon(1e-5)
        with pytest.raises(BudgetError, match=r"exceed the budget of ε = 1.5 at δ = 1e-05 for a record: ε = "):
            ledger.reserve("run", 2, charge(c0=100))
        assert ledger.accounts[Unit.RECORD].epsilon(1e-5) == used
        ledger.reserve("run", 2, charge(c1=100))  # another client has all of its budget
        assert ledger.accounts[Unit.RECORD].epsilon(1e-5) == used
        assert str(ledger.use).startswith(f"Ledger {tmp_path / 'ledger.db'}: ε = {used:.4g} of 1.5 at δ = 1e-05 for ")


def test_a_release_about_records_is_no_charge_for_clients(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", Budget(3.0, 1e-5)) as ledger:
        with pytest.raises(UserError, match="Expected one release about all clients alike"):
            ledger.reserve("run", 1, Charge(Unit.CLIENT, {0: Repeated(step(), 1)}))
        with pytest.raises(UserError, match="Expected a charge for clients, got one for records"):
            UnitAccounting(Unit.CLIENT).compose(charge(c0=4))
        with pytest.raises(UserError, match="Expected clients by their numbers"):
            Charge(Unit.RECORD, {-1: Repeated(step(), 1)})
        ledger.reserve("run", 1, charge(c0=4))
        assert ledger.reserve("run", 1, charge(c0=4)) == ledger.attempts("run", 1, Unit.RECORD)[0]
        with pytest.raises(LedgerError, match="start a new run"):
            ledger.reserve("run", 1, charge(c0=5))
        with pytest.raises(LedgerError, match="was never charged"):
            ledger.check_charged("run", 1)
        ledger.check_charged("run", 1, Unit.RECORD)
        increased = ledger.increase(ledger.attempts("run", 1, Unit.RECORD)[0], charge(c0=9))
        assert ledger.accounts[Unit.RECORD].released[0].total() == 9
        assert ledger.increase(increased, charge(c0=1)) == increased
