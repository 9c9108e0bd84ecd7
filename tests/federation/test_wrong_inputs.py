"""Mistakes of operators: each message says what was expected, what came and what to do; no charge is lost."""

from pathlib import Path

import pytest

from federation.consortium import MODEL, Consortium, server, transport
from federation.faulty import DP, Faulty
from tacit import cli
from tacit.core.prices import Unit
from tacit.errors import DataError, UserError
from tacit.federation.messages import TRAIN
from tacit.federation.plan import entry_points
from tacit.federation.plan.explain import explain_plan
from tacit.federation.transport.nvflare.kits import name_in_kit
from tacit.federation.transport.nvflare.process import claim
from tacit.runs.training import follow


def test_a_refused_init_leaves_nothing_behind(tmp_path, capsys):
    assert cli.main(["federation", "init", str(tmp_path / "s"), "--host", "h", "--sites", "Not A Name"]) == 2
    assert not (tmp_path / "s").exists()
    assert cli.main(["federation", "serve", str(tmp_path / "s")]) == 2
    assert "Give the folder that tacit federation init made." in capsys.readouterr().err


def test_data_that_the_model_does_not_fit_are_noticed_in_the_review(tmp_path):
    consortium = Consortium.at(tmp_path, 3)
    plan = consortium.plan("fl-std", args={"cohort": 3})
    site = consortium.home("site-0") / "site.toml"
    site.write_text(site.read_text().replace('data = "acme:load_0"', 'data = "acme:narrow"'))
    found = consortium.site("site-0").files.review(plan)
    assert f"The model {MODEL} does not fit this site's data, whose inputs have the shape (2,)" in found.problems[0]
    assert consortium.site("site-1").files.review(plan).accepted


def test_a_plan_without_the_public_samples_that_it_needs(tmp_path):
    plan = Consortium.at(tmp_path, 3).plan("fl-top", args={"cohort": 3, "ratio": 0.3})
    with pytest.raises(DataError, match=r'Add public = "package\.module:function"'):
        explain_plan(plan)


def test_a_function_that_raises_is_named(tmp_path):
    (tmp_path / "broken_package.py").write_text("def load():\n    raise RuntimeError('no such disk')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(UserError, match="broken_package:load raised RuntimeError: no such disk"):
            entry_points.call("broken_package:load", "the data")


def test_a_pin_of_what_does_not_exist_is_refused(capsys):
    assert cli.main(["site", "pin", "acme:nett"]) == 2
    assert "correct the name" in capsys.readouterr().err


def test_names_that_no_kit_has_are_refused_before_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Consortium.at(tmp_path, 3).plan("fl-std", args={"cohort": 3})
    assert cli.main(["federation", "init", ".", "--host", "localhost", "--sites", "site-0", "site-1", "other"]) == 0
    monkeypatch.setattr("tacit.federation.transport.relay.RelayTransport.validate", lambda _: None)
    assert cli.main(["federation", "run", "plan.toml", "--trust"]) == 2
    assert "got site-2. Sites connect with the names of their start-up kits" in capsys.readouterr().err


def test_a_kit_of_another_is_refused(tmp_path, capsys):
    consortium = Consortium.at(tmp_path, 2)
    assert (
        cli.main(["federation", "init", str(tmp_path / "s"), "--host", "localhost", "--sites", *consortium.names]) == 0
    )
    config, kits = str(consortium.home("site-0") / "site.toml"), tmp_path / "s" / "sites"
    assert name_in_kit(kits / "site-1") == "site-1"
    assert cli.main(["site", "serve", config, "--kit", str(kits / "site-1")]) == 2
    assert "Expected the start-up kit of site-0" in capsys.readouterr().err
    assert cli.main(["site", "serve", config, "--kit", str(tmp_path / "s" / "server")]) == 2
    assert "got that of the server" in capsys.readouterr().err
    assert cli.main(["site", "serve", config]) == 2
    assert "with --kit" in capsys.readouterr().err


def test_a_second_process_with_the_same_kit_is_refused(tmp_path):
    claim(tmp_path)
    with pytest.raises(UserError, match=r"Expected nobody to run .* Stop that one first"):
        claim(tmp_path, timeout=0.2)


def test_an_attempt_that_a_crash_has_ended_is_charged_without_a_budget_too(tmp_path: Path) -> None:
    """Its sum may have been seen: ε of the resumed run includes it."""
    consortium = Consortium.at(tmp_path, 5)
    plan = consortium.plan("fl-std-dp", args={**DP, "cohort": 5, "rounds": 3}, public="acme:public")
    consortium.accept(plan)
    sites = consortium.sites()
    way, asks = Faulty(sites), {"left": 2 * 5 + 1}

    def crash(name: str, verb: str, data: bytes) -> bytes:
        asks["left"] -= verb == TRAIN
        if asks["left"] < 0:
            raise KeyboardInterrupt
        return data

    way.after = crash
    first = server(plan, way)
    with pytest.raises(KeyboardInterrupt):
        list(follow(first.run_spec, source=first, out=tmp_path / "run"))
    second = server(plan, transport(sites))
    *_, run = follow(second.run_spec, source=second, out=tmp_path / "run", resume=True)
    assert run.state.round == 3
    assert (
        run.charges[Unit.CLIENT].rounds,
        run.charges[Unit.CLIENT].retries,
        run.charges[Unit.CLIENT].accounting.rounds,
    ) == (3, 1, 4)


def test_an_empty_file_is_not_a_ledger_yet(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, epsilon=50.0)
    plan = consortium.plan("fl-std-dp", args={**DP, "cohort": 5}, public="acme:public")
    consortium.accept(plan)
    (consortium.home("site-0") / "state" / "ledger.db").touch(0o600)  # as a crash leaves it
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert [report.rejected for report in run.history] == [(), ()]
