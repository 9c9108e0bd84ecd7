"""Mistakes of operators: each message says what was expected, what came and what to do; no charge is lost."""

from pathlib import Path

import pytest

from federation.consortium import MODEL, Consortium, server, transport
from federation.faulty import DP, Faulty
from tacit import cli
from tacit.core import files
from tacit.core.prices import Unit
from tacit.errors import DataError, UserError
from tacit.federation.messages import TRAIN
from tacit.federation.plan import entry_points
from tacit.federation.plan.directory import SERVER_KEY
from tacit.federation.plan.explain import explain_plan
from tacit.federation.transport.kits import SERVER_FILE, ServerKit, SiteKit
from tacit.federation.transport.process import claim
from tacit.runs.training import follow


def test_a_refused_init_leaves_nothing_behind(tmp_path, capsys):
    assert cli.main(["federation", "init", str(tmp_path / "s"), "--host", "Not A Name"]) == 2
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


def enrol(consortium: Consortium, folder: Path, *names: str) -> ServerKit:
    """The folder of a federation with these sites of the consortium."""
    server = ServerKit(folder)
    files.write(folder / SERVER_KEY, (consortium.folder / SERVER_KEY).read_bytes(), parents=True, private=True)
    server.make("localhost", 7001)
    for name in names:
        kit = SiteKit(consortium.home(name) / "kit")
        kit.make(consortium.identity(name))
        server.add(name, kit.enrolment)
    return server


def test_sites_that_cannot_connect_are_named_before_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    consortium = Consortium.at(tmp_path, 3)
    consortium.plan("fl-std", args={"cohort": 3})
    server = enrol(consortium, tmp_path, "site-0", "site-1")
    monkeypatch.setattr("tacit.federation.transport.relay.RelayTransport.validate", lambda _: None)
    assert cli.main(["federation", "run", "plan.toml", "--trust"]) == 2
    assert "but site-2 is not. Add it with tacit federation add" in capsys.readouterr().err
    server.remove("site-1")
    with pytest.raises(UserError, match=r"Expected site-2 to have the public key of .*directory.toml"):
        server.add("site-2", consortium.home("site-1") / "kit" / "enrolment.toml")


def test_a_kit_of_another_is_refused(tmp_path, capsys):
    consortium = Consortium.at(tmp_path, 2)
    server = enrol(consortium, tmp_path / "s", *consortium.names)
    config = str(consortium.home("site-0") / "site.toml")
    kits = {name: consortium.home(name) / "kit" for name in consortium.names}
    assert cli.main(["site", "serve", config]) == 2
    assert f"Expected {SERVER_FILE} of the federation's server" in capsys.readouterr().err
    for kit in kits.values():
        (kit / SERVER_FILE).write_bytes(server.address_file.read_bytes())
    assert cli.main(["site", "serve", config, "--kit", str(kits["site-1"])]) == 2
    assert "got that of another one" in capsys.readouterr().err
    assert cli.main(["site", "serve", config, "--kit", str(tmp_path / "nothing")]) == 2
    assert "Ask the server's operator for it" in capsys.readouterr().err


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
