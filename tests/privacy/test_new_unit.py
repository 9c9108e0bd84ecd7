"""A new unit is one value: here a household, all records of which are at one client, from charge to guarantee file."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import tacit
from tacit.core import Budget
from tacit.core.prices import ClientUnits, Unit
from tacit.errors import LedgerError
from tacit.privacy.charging import Charges, begin_charges
from tacit.privacy.ledger import Ledger
from tacit.runs import guarantee_file
from tacit.runs.run import calibrate_method, guarantees_of

SIZES = (20, 10, 30)
CACHE = "__msgspec_cache__"  # attribute of a type: what msgspec knows of it


@pytest.fixture
def household() -> Iterator[Unit]:
    """As if `HOUSEHOLD = "household"` were a line of `Unit`, of which msgspec keeps the values that it has seen."""
    _forget_values()
    made = str.__new__(Unit, "household")
    made._name_, made._value_ = "HOUSEHOLD", "household"
    Unit._member_names_.append("HOUSEHOLD")
    Unit._member_map_["HOUSEHOLD"] = Unit._value2member_map_["household"] = made
    yield made
    _forget_values()
    Unit._member_names_.remove("HOUSEHOLD")
    del Unit._member_map_["HOUSEHOLD"], Unit._value2member_map_["household"]


def _forget_values() -> None:
    for kind in (Unit, *filter(is_dataclass, vars(guarantee_file).values())):
        if CACHE in vars(kind):
            delattr(kind, CACHE)


def test_a_new_unit_is_charged_guaranteed_and_stored(household: Unit, tmp_path: Path) -> None:
    method = calibrate_method(tacit.methods.dp_sgd(rounds=2, epsilon=1.0), len(SIZES), ClientUnits(SIZES, household))
    of_records = Charges.begin(method, ClientUnits(SIZES)).reserve("key", [0, 1, 2])
    with Ledger.open(tmp_path / "ledger.db", Budget(2.0, 1e-5)) as ledger:
        charged = begin_charges(method, len(SIZES), ClientUnits(SIZES, household), ledger=ledger, run="run")
        charges = charged[household].reserve("key", [0, 1, 2])
        assert charges.epsilon == of_records.epsilon > 0
        with pytest.raises(LedgerError, match="has charges for households, and this run would charge records"):
            Charges.begin(method, ClientUnits(SIZES), ledger=ledger, run="other").reserve("other", [0])
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.use.epsilons == {household: pytest.approx(charges.epsilon)}
        assert "for every household" in str(ledger.use)
    found = guarantees_of(method, household, (), {household: charges}, None)
    text = str(found[household])
    assert "for every household (add-or-remove)" in text
    assert "A household with records at several clients is protected at each of them by itself" in text
    guarantee_file.write(tmp_path / "guarantee.json", found)
    assert guarantee_file.read(tmp_path / "guarantee.json") == found
