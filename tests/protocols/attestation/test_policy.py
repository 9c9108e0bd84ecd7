from pathlib import Path

import pytest

from tacit.errors import UserError
from tacit.protocols.attestation import Policy


def test_a_policy_comes_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('measurements = ["AB12"]\nstatuses = ["UpToDate", "SWHardeningNeeded"]\ncollateral_days = 7\n')
    policy = Policy.load(file)
    assert (policy.measurements, policy.collateral_days, policy.simulation) == (("ab12",), 7.0, False)
    assert policy.statuses == ("UpToDate", "SWHardeningNeeded")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('measurement = ["ab"]', "Did you mean 'measurements'"),
        ('measurements = ["xyz"]', "Expected measurements in hex"),
        ("collateral_days = 0", "Expected collateral_days=0 > 0"),
        ("simulation = 3", "true or false"),
        ("measurements = [", "is not TOML"),
    ],
)
def test_a_bad_policy_is_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=why.replace("(", r"\(")):
        Policy.load(file)


def test_a_missing_policy_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Could not read the policy"):
        Policy.load(tmp_path / "none.toml")
