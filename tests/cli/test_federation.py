"""`tacit federation` and `tacit site serve`, without processes; `tests/federation` has those."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from federation.consortium import Consortium, transport
from tacit import cli
from tacit.federation.transport import process
from tacit.federation.transport.kits import SERVER_FILE, ServerKit, SiteKit
from tacit.federation.transport.relay import SOCKET, Relay


def init(folder: Path, *more: str) -> int:
    return cli.main(["federation", "init", str(folder), *more])


def enrol(consortium: Consortium, folder: Path, *names: str) -> None:
    """By the commands that operators give."""
    for name in names:
        config = consortium.home(name) / "site.toml"
        assert cli.main(["site", "init", str(config)]) == 0
        assert cli.main(["federation", "add", str(folder), name, str(config.parent / "kit" / "enrolment.toml")]) == 0


def test_init_and_add_make_public_files_and_say_what_to_do_with_them(tmp_path, capsys):
    consortium, folder = Consortium.at(tmp_path, 2), tmp_path / "s"
    assert init(folder, "--host", "localhost", "--port", "7001") == 0
    assert f"give {folder}/server.toml to every site; it is not secret" in capsys.readouterr().out
    enrol(consortium, folder, "site-0", "site-1")
    out = capsys.readouterr().out
    assert "Compare the public key with the site's operator" in out
    assert consortium.plan("fl-std", args={"cohort": 2}, min_cohort=2).directory.identities["site-1"].hex() in out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    assert len(before) == 3
    assert init(folder) == 0  # again: nothing is lost
    assert {path: path.read_bytes() for path in before} == before
    assert all(b"PRIVATE KEY" in content for content in before.values())
    public = [folder / "server.toml", *(folder / "sites").iterdir()]
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in public)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*before, *(path.parent for path in before)))


def test_init_explains_what_is_missing(tmp_path, capsys):
    assert init(tmp_path / "s") == 2
    assert "--host for a new federation" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    assert init(tmp_path / "s", "--host", "localhost", "--days", "0") == 2
    assert "days=0" in capsys.readouterr().err
    assert init(tmp_path / "s", "--host", "localhost") == 0
    assert init(tmp_path / "s", "--host", "elsewhere") == 2
    assert "Edit the file if the server has moved" in capsys.readouterr().err


def test_a_site_is_added_once_and_removed(tmp_path, capsys):
    consortium, folder = Consortium.at(tmp_path, 2), tmp_path / "s"
    init(folder, "--host", "localhost")
    enrol(consortium, folder, "site-0")
    enrolment = str(consortium.home("site-0") / "kit" / "enrolment.toml")
    capsys.readouterr()
    assert cli.main(["federation", "add", str(folder), "other", enrolment]) == 2
    assert "is enrolled as site-0" in capsys.readouterr().err
    cli.main(["site", "init", str(consortium.home("site-1") / "site.toml")])
    capsys.readouterr()
    assert cli.main(["federation", "add", str(folder), "site-0", enrolment.replace("site-0", "site-1")]) == 2
    assert "run tacit federation remove first" in capsys.readouterr().err
    assert cli.main(["federation", "add", str(folder), "../x", enrolment]) == 2
    assert cli.main(["federation", "remove", str(folder), "../server/x"]) == 2
    assert "Expected one of the enrolled sites site-0" in capsys.readouterr().err
    assert cli.main(["federation", "remove", str(folder), "site-0"]) == 0
    assert ServerKit(folder).enrolments() == {}


def test_renewals(tmp_path, capsys):
    consortium, folder = Consortium.at(tmp_path, 1, min_cohort=1), tmp_path / "s"
    init(folder, "--host", "localhost", "--days", "40")
    enrol(consortium, folder, "site-0")
    capsys.readouterr()
    assert cli.main(["federation", "renew", str(folder)]) == 0
    assert "The server then changes to its new certificate" in capsys.readouterr().out
    assert len(ServerKit(folder).address().certificates) == 2
    assert cli.main(["federation", "renew", str(folder), "--now"]) == 0
    assert "without it, none connects again" in capsys.readouterr().out
    assert len(ServerKit(folder).address().certificates) == 1
    config, kit = consortium.home("site-0") / "site.toml", SiteKit(consortium.home("site-0") / "kit")
    first = kit.keyring.keys()
    assert cli.main(["site", "renew", str(config), "--days", "10"]) == 0
    assert "connects with the earlier one" in capsys.readouterr().out
    assert kit.keyring.keys()[1:] == first
    assert cli.main(["site", "renew", str(config), "--now"]) == 0
    assert "earlier one" not in capsys.readouterr().out
    assert len(kit.keyring.keys()) == 1
    assert cli.main(["federation", "add", str(folder), "site-0", str(kit.enrolment)]) == 0


def test_status_needs_a_server(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(Path("s"), "--host", "localhost")
    assert cli.main(["federation", "status", "s"]) == 2
    assert "tacit federation serve" in capsys.readouterr().err


def serve(consortium: Consortium, folder: Path) -> None:
    """A server's local socket with the sites behind it, in this process."""
    relay = Relay(transport(consortium.sites()), folder / "server" / SOCKET)
    threading.Thread(target=relay.serve_forever, daemon=True).start()


def test_status_and_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    consortium = Consortium.at(tmp_path, 4)
    plan = consortium.plan("fl-std", args={"cohort": 4, "channel": "SecureSum()"})
    consortium.accept(plan)
    init(Path(), "--host", "localhost")
    enrol(consortium, Path(), *consortium.names)
    others = Consortium.at(tmp_path / "others", 1)
    cli.main(["site", "init", str(others.home("site-0") / "site.toml")])
    ServerKit(Path()).add("site-9", others.home("site-0") / "kit" / "enrolment.toml")
    serve(consortium, Path())
    capsys.readouterr()
    assert cli.main(["federation", "status", ".", "--json"]) == 1
    connected = json.loads(capsys.readouterr().out)["connected"]
    assert connected == {**dict.fromkeys(consortium.names, True), "site-9": False}
    assert cli.main(["federation", "status", "."]) == 1
    assert "certificate until" in capsys.readouterr().out
    assert cli.main(["federation", "run", "plan.toml", "--trust"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:4] == ["method", "task", "seed", "rounds"]
    assert "Results: runs/fl-std" in out
    assert (tmp_path / "runs" / "fl-std" / "model.safetensors").exists()
    again = ["federation", "run", "plan.toml", "--trust", "--resume", "runs/fl-std"]
    assert cli.main(again) == 0  # there is nothing left to do
    capsys.readouterr()
    assert cli.main(["federation", "run", "plan.toml", "--trust", "--json", "--out", "other"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["rounds"] == 2


def test_a_run_without_a_server_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Consortium.at(tmp_path, 4).plan("fl-std", args={"cohort": 4})
    assert cli.main(["federation", "run", "plan.toml", "--trust"]) == 2
    assert "tacit federation serve" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_site_needs_its_kit(tmp_path, capsys):
    Consortium.at(tmp_path, 3)
    assert cli.main(["site", "serve", str(tmp_path / "site-0" / "site.toml")]) == 2
    assert SERVER_FILE in capsys.readouterr().err


def test_a_process_that_ends_is_started_again_and_one_that_cannot_start_is_not(tmp_path, monkeypatch, capsys):
    codes = iter([1, -9, 2])
    slept: list[float] = []
    monkeypatch.setattr(process, "_run", lambda _: next(codes))
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(os, "umask", lambda _: None)
    assert process.keep_running(["x"]) == 2
    assert slept == [2.0, 4.0]
    assert "ended with code -9" in capsys.readouterr().out


@pytest.mark.parametrize("line", [["--sites", "3"], ["--rounds", "2"]])
def test_the_demo_needs_sites_and_rounds(line, capsys):
    assert cli.main(["federation", "demo", *line]) == 2
    assert "so that" in capsys.readouterr().err
