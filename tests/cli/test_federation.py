"""`tacit federation` and `tacit site serve`, without processes; `tests/federation` has those."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from federation.consortium import Consortium, transport
from tacit import cli
from tacit.federation.transport.nvflare import process
from tacit.federation.transport.relay import SOCKET, Relay


def study(folder: Path, *more: str) -> int:
    return cli.main(["federation", "init", str(folder), *more])


def test_init_makes_kits_and_says_what_to_do_with_them(tmp_path, capsys):
    assert study(tmp_path / "s", "--host", "localhost", "--port", "7001", "--sites", "a", "b") == 0
    out = capsys.readouterr().out
    assert f"kit  {tmp_path}/s/sites/b" in out
    assert "over a channel that you trust" in out
    assert study(tmp_path / "s") == 0
    assert "Nothing was made." in capsys.readouterr().out


def test_init_explains_what_is_missing(tmp_path, capsys):
    assert study(tmp_path / "s") == 2
    assert "--host fl.example.org" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    assert study(tmp_path / "s", "--host", "h", "--sites", "Not A Name") == 2
    assert "lower-case" in capsys.readouterr().err


def test_status_needs_a_server(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study(Path("s"), "--host", "localhost", "--sites", "site-0", "site-1")
    assert cli.main(["federation", "status", "s"]) == 2
    assert "tacit federation serve" in capsys.readouterr().err


def serve(consortium: Consortium, folder: Path) -> None:
    """A server's local socket with the sites behind it, in this process."""
    (folder / "server").mkdir(exist_ok=True)
    relay = Relay(transport(consortium.sites()), folder / "server" / SOCKET)
    threading.Thread(target=relay.serve_forever, daemon=True).start()


def test_status_and_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    consortium = Consortium.at(tmp_path, 4)
    plan = consortium.plan("fl-std", args={"cohort": 4, "channel": "SecureSum()"})
    consortium.accept(plan)
    study(Path(), "--host", "localhost", "--sites", *consortium.names, "site-9")
    serve(consortium, Path())
    capsys.readouterr()
    assert cli.main(["federation", "status", ".", "--json"]) == 1
    connected = json.loads(capsys.readouterr().out)["connected"]
    assert connected == {**dict.fromkeys(consortium.names, True), "site-9": False}
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
    assert "fed_client.json" in capsys.readouterr().err


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
