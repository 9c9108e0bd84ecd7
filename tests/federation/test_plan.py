"""Plans, site files and policies: read strictly, known by their digest, and refused with sentences."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.consortium import Consortium
from tacit import methods
from tacit.core.prices import Unit
from tacit.errors import UserError
from tacit.federation.channels.interface import channel_of
from tacit.federation.journal import AuditLog, read_journal
from tacit.federation.plan.directory import new_identity, read_directory, read_identity
from tacit.federation.plan.plan import FederationPlan, Timeouts, adapt_to_sites, read_plan
from tacit.federation.site.files import read_site
from tacit.federation.site.policy import SitePolicy, review
from tacit.pieces.channels import SecureSum

DP = {"cohort": 5, "noise": 4.0, "epsilon": "none"}


def test_the_digest_names_all_of_a_plan(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path)
    plan = consortium.plan(args={"cohort": 5})
    assert read_plan(tmp_path / "plan.toml").digest == plan.digest
    stranger = replace(
        plan.directory, identities={**plan.directory.identities, "site-0": new_identity(tmp_path / "other.key")}
    )
    others: list[dict[str, Any]] = [
        {"method_name": "fedavg"},
        {"args": {"cohort": 4, "rounds": 2}},
        {"model": "acme:larger"},
        {"directory": stranger},
        {"loss": "MeanSquared()"},
        {"public": "acme:public"},
        {"seed": 6},
        {"evaluate_every": 3},
        {"min_cohort": 4},
        {"retries": 11},
        {"unit": Unit.PERSON},
        {"timeouts": Timeouts(train=1)},
    ]
    assert len({plan.digest, *(replace(plan, **other).digest for other in others)}) == 1 + len(others)
    for each in (plan, replace(plan, unit=Unit.PERSON)):
        assert FederationPlan.from_canonical(json.loads(each.canonical)) == each


@pytest.mark.parametrize("sites", range(3, 65))
def test_few_sites_survive_a_loss_and_a_colluding_site(sites: int) -> None:
    method = adapt_to_sites(methods.make("fl-std-dp", {**DP, "cohort": sites}), sites)
    assert isinstance(method.channel, SecureSum)
    parameters = method.channel.parameters_for(sites)
    parameters.graph(sites)  # there is a threshold that is both secure and reachable
    if sites >= 4:
        assert parameters.min_survivors < sites
        assert int(parameters.corrupt * sites) >= 1
    assert not channel_of(method).exposure(method)


def test_what_sites_add_costs_nothing_more_than_what_a_simulation_adds() -> None:
    simulated = methods.make("fl-std-dp", {**DP, "cohort": 8})
    assert adapt_to_sites(simulated, 8).terms.prices == simulated.terms.prices


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("held_out = 0.0", "held_out = 1.5", "held_out"),
        ("held_out = 0.0", "heldout = 0.1", "heldout"),
        ("epsilon = inf", 'epsilon = "four"', "epsilon"),
        ("epsilon = inf", "epsilon = -1.0", "epsilon"),
        ('"plain", ', '"pigeon", ', "channels in plain"),
        ("sha256:", "md5:", "Expected the pin of acme:net"),
        ('metrics = "plain"', 'metrics = "all"', "metrics"),
    ],
)
def test_a_wrong_site_file_is_refused_with_a_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = Consortium.at(tmp_path, 3).home("site-0") / "site.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        read_site(path)


def test_a_policy_names_everything_it_objects_to(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path)
    plan = consortium.plan("fl-std", args={"cohort": 5})
    strict = SitePolicy(methods=("geyer",), models={}, channels=("secure-sum/active_server",), epsilon=1.0)
    found = review(plan, strict)
    assert not found.accepted
    text = " ".join(found.objections)
    for part in ("The method fl-std", "The model acme:net", "The channel plain", "ε against the server"):
        assert part in text
    assert "requires 5 in a sum" in text


def test_the_cost_against_the_server_has_no_amplification(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path)
    allow = read_site(consortium.home("site-0") / "site.toml").allow
    everyone = consortium.plan("fl-std-dp", args=DP, public="acme:public")
    some = consortium.plan("fl-std-dp", args={**DP, "cohort": 3}, public="acme:public")
    assert some.method.sampler.sampling(5, 0).rate == pytest.approx(0.6)
    assert review(some, allow).cost.epsilon == review(everyone, allow).cost.epsilon


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    new_identity(tmp_path / "identity.key")
    (tmp_path / "identity.key").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_identity(tmp_path / "identity.key")


def test_a_site_that_the_directory_does_not_list_is_told_so(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 3)
    (consortium.home("site-0") / "identity.key").unlink()
    new_identity(consortium.home("site-0") / "identity.key")
    with pytest.raises(UserError, match="does not list the public key of this site"):
        consortium.site("site-0")


@pytest.mark.parametrize(
    "content", ['[sites]\na = "12"\n', "[sites]\n", "sites = 3\n", '[sites]\n"a b" = "' + "0" * 64 + '"\n']
)
def test_a_wrong_directory_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "directory.toml").write_text(content)
    with pytest.raises(UserError, match="Expected"):
        read_directory(tmp_path / "directory.toml")


def test_a_journal_notices_changes_and_survives_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    journal = AuditLog(path)
    for number in range(3):
        journal.append("charged", round=number)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 3, "ti')
    AuditLog(path).append("charged", round=3)
    assert [entry["round"] for entry in read_journal(path)] == [0, 1, 2, 3]
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in (lines[1:], [lines[0], *lines[2:]], [lines[1], lines[0], *lines[2:]]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(UserError, match="was changed, or lines before it are missing"):
            read_journal(path)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e300, float("nan"), float("inf")])
def test_a_timeout_is_a_month_at_most(tmp_path: Path, seconds: float) -> None:
    """The server's threads could not wait longer: its first ask would fail with an error of Python."""
    with pytest.raises(UserError):
        Consortium.at(tmp_path, 5).plan("fl-std", args={"cohort": 5}, timeouts={"train": seconds})


def test_noise_for_very_many_rounds_is_not_computed_for_a_review(tmp_path: Path) -> None:
    """Every site that is sent the plan would compute for minutes, before it could refuse."""
    plan = Consortium.at(tmp_path, 5).plan("fl-std-dp", args={"rounds": 100_000, "cohort": 5})
    with pytest.raises(UserError, match="at most 10000 rounds in a plan whose noise follows from ε, got 100000"):
        _ = plan.method


@pytest.mark.parametrize(("one", "other"), [({"rounds": 5}, {"rounds": 5.0}), ({"descent.lr": 1}, {"descent.lr": 1.0})])
def test_a_number_has_one_form(tmp_path: Path, one: dict[str, object], other: dict[str, object]) -> None:
    """A plan with 5.0 rounds was another than one with 5, which the same people had agreed on."""
    consortium = Consortium.at(tmp_path, 5)
    plans = [consortium.plan("fl-std", args={"cohort": 5, **args}) for args in (one, other)]
    assert plans[0].digest == plans[1].digest
    assert plans[0].method.digest == plans[1].method.digest
    read = FederationPlan.with_digest(plans[0].digest, json.loads(plans[1].canonical))
    assert read is not None
    assert read.method.digest == plans[0].method.digest
