"""`tacit federation explain` and `tacit site`: what a plan means, and what a site says to it."""

import json
import os
from pathlib import Path

import pytest

from federation.consortium import Consortium, server, transport
from tacit.cli import main
from tacit.core import Traffic
from tacit.core.prices import Unit
from tacit.runs.training import follow

DP = {"cohort": 5, "noise": 4.0, "epsilon": "none"}


def test_check_says_what_a_plan_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Consortium.at(tmp_path).plan("fl-std-dp", args=DP, public="acme:public")
    assert main(["federation", "explain", str(tmp_path / "plan.toml")]) == 0
    out = capsys.readouterr().out
    for sentence in (
        "fl-std-dp, 2 rounds, 5 sites: site-0, site-1, site-2, site-3, site-4",
        "at δ = 1e-05 for every client of a site that takes part in all rounds, against the server.",
        "The server learns the sum of the sites' messages in every round, who took part, and when; no message.",
        "7 messages to a site",
        "A round survives the loss of 1 of 5 sites. Messages stay hidden if no more than 1 of them collude",
        "For few sites, use a method whose unit is the record.",
    ):
        assert sentence in out
    assert "Nothing of acme:net and acme:public was run, because only the plan names it." in out
    assert "acme:net, not run" in out
    assert main(["federation", "explain", str(tmp_path / "plan.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1.0 < found["epsilon"] < 2.0
    assert (found["parameters"], found["up"], found["down"]) == (None, None, None)
    assert main(["federation", "explain", str(tmp_path / "plan.toml"), "--trust", "--json"]) == 0
    trusted = json.loads(capsys.readouterr().out)
    assert trusted["parameters"] == 131
    assert trusted["up"] > 131
    known = {name: value for name, value in found.items() if name not in ("parameters", "up", "down", "notes")}
    assert known.items() <= trusted.items()


def test_the_bytes_of_a_check_are_those_of_a_round(tmp_path: Path) -> None:
    from tacit.federation.plan.explain import explain_plan

    consortium = Consortium.at(tmp_path)
    plan = consortium.plan("fl-std-dp", args=DP, public="acme:public")
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    found, rounds = explain_plan(plan), run.history
    up, down = (sum(sum(getattr(each, way)) for each in rounds) for way in ("up", "down"))
    envelope = sum((each.overhead["envelope"] for each in rounds), Traffic())
    assert found.up is not None
    assert found.down is not None
    times = 5 * len(rounds)  # the means, rounded up: only the first round has a set-up, and one site shares noise keys
    assert 0 <= times * found.up - (up - envelope.up) < times
    assert 0 <= times * found.down - (down - envelope.down) < times


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fl-stt"}, "Expected method"),
        ({"args": {"round": 3}}, "round"),
        ({"model": "net"}, "Expected the model as one of logistic, mlp, standardised, or as package.module:function"),
        ({"min_cohort": 9}, "min_cohort=9 of at most 5 sites"),
        ({"timeouts": {"train": -1}}, "timeouts.train"),
        ({"patients": 3}, "patients"),
        ({"loss": "Path()"}, "Path"),
        ({"method": "esmfl"}, "messages to an enclave, and the plan names none"),
        ({"sites": "nowhere.toml"}, "nowhere.toml"),
    ],
)
def test_a_wrong_plan_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    from federation.consortium import MODEL, table

    Consortium.at(tmp_path)
    content = {"method": "fl-std", "args": {"rounds": 1, "cohort": 5}, "model": MODEL, "sites": "directory.toml"}
    (tmp_path / "plan.toml").write_text(table({**content, **changes}))
    assert main(["federation", "explain", str(tmp_path / "plan.toml")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tacit: ")
    assert message in error


def test_init_writes_a_file_and_a_private_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "site.toml"
    before = os.umask(0)
    try:
        assert main(["site", "init", str(path), "--json"]) == 0
    finally:
        os.umask(before)
    modes = [each.stat().st_mode & 0o777 for each in (path.parent, path, path.parent / "identity.key")]
    assert modes == [0o700, 0o600, 0o600]
    first = json.loads(capsys.readouterr().out)
    text = path.read_text()
    assert "never taken from the server" in text
    path.write_text(text.replace('data = "patients.csv"', 'data = "acme:load_7"'))
    assert main(["site", "init", str(path)]) == 0
    out = capsys.readouterr().out
    assert first["public_key"] in out
    assert "12 samples; inputs of shape (12,)" in out


def test_a_table_is_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["site", "init", str(tmp_path / "site.toml")])
    rows = "".join(f"{n},{n % 3}.5,a,{n % 2}\n" for n in range(20))
    (tmp_path / "patients.csv").write_text("age,dose,hospital,outcome\n" + rows)
    capsys.readouterr()
    assert main(["site", "init", str(tmp_path / "site.toml")]) == 0
    assert "20 rows with the columns age, dose, hospital, outcome" in capsys.readouterr().out


def test_a_site_reviews_accepts_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consortium = Consortium.at(tmp_path, epsilon=1.5, min_cohort=3)
    plan = consortium.plan("fl-std-dp", args=DP, public="acme:public")
    site, file = consortium.home("site-0") / "site.toml", str(tmp_path / "plan.toml")
    assert main(["site", "review", str(site), file]) == 0
    out = capsys.readouterr().out
    assert "of 1.5 that this site allows" in out
    assert "Nothing was recorded." in out
    assert main(["site", "review", str(site), file, "--accept"]) == 0
    assert "Recorded as accepted, and signed" in capsys.readouterr().out
    assert consortium.site("site-0").files.accepted_plan(plan.digest) == plan
    assert main(["site", "review", str(site), file, "--refuse"]) == 0
    assert consortium.site("site-0").files.accepted_plan(plan.digest) is None
    consortium.plan("fl-std-dp", args={**DP, "rounds": 20}, public="acme:public")
    capsys.readouterr()
    assert main(["site", "review", str(site), file]) == 1
    assert "20 rounds cost ε = " in capsys.readouterr().out
    assert main(["site", "review", str(site), file, "--accept"]) == 2
    assert "This site's policy refuses the plan" in capsys.readouterr().err


def test_ledger_and_log_say_what_was_spent_and_what_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    consortium = Consortium.at(tmp_path, epsilon=5.0)
    plan = consortium.plan("fl-std-dp", args=DP, public="acme:public")
    site = str(consortium.home("site-0") / "site.toml")
    assert main(["site", "ledger", site]) == 0
    assert "Nothing has been charged" in capsys.readouterr().out
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert main(["site", "ledger", site, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilons"] == {"client": pytest.approx(run.charges[Unit.CLIENT].epsilon, rel=1e-3)}
    assert [(each["method"], each["rounds"], each["charges"]) for each in found["runs"]] == [("fl-std-dp", 2, 2)]
    assert main(["site", "log", site]) == 0
    out = capsys.readouterr().out
    assert "charged: plan " in out
    assert "entries, none changed" in out
    log = consortium.home("site-0") / "state" / "log.jsonl"
    log.write_text(log.read_text().replace('"round": 1', '"round": 2', 1))
    assert main(["site", "log", site]) == 2
    assert "was changed, or lines before it are missing" in capsys.readouterr().err


def test_pin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "pin", "acme:net"]) == 0
    assert capsys.readouterr().out.startswith('"acme:net" = "sha256:')
    assert main(["site", "pin", "no.such:thing"]) == 2


def test_records_are_charged_where_a_method_protects_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consortium = Consortium.at(tmp_path, epsilon=5.0, methods=["dp-fedsgd"])
    plan = consortium.plan("dp-fedsgd", args={"rounds": 2, "noise": 3.0, "epsilon": "none", "size": 8})
    file, site = str(tmp_path / "plan.toml"), str(consortium.home("site-0") / "site.toml")
    assert main(["federation", "explain", file]) == 0
    out = capsys.readouterr().out
    assert "for every record of a site that takes part in all rounds, against the server" in out
    assert "For few sites" not in out
    assert main(["site", "review", site, file, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["unit"], planned["accepted"]) == ("record", True)
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert main(["site", "ledger", site, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilons"] == {"record": pytest.approx(run.charges[Unit.RECORD].epsilon, rel=1e-3)}
    assert found["epsilons"] == {"record": pytest.approx(planned["epsilon"], rel=1e-3)}


def test_a_rate_that_depends_on_the_number_of_records_needs_it_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Consortium.at(tmp_path).plan("dp-sgd", args={"cohort": 5, "noise": 3.0, "epsilon": "none"})
    assert main(["federation", "explain", str(tmp_path / "plan.toml")]) == 2
    assert "records = …" in capsys.readouterr().err
