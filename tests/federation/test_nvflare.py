"""The transport over real NVFLARE processes on 127.0.0.1, and strangers who try to take part."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from federation.processes import Processes, processes
from tacit.errors import UserError
from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.nvflare.kits import PARTICIPANTS, Participants, make_kits
from tacit.federation.transport.nvflare.process import site_command

SITES = ("ash", "birch", "cedar")
ADMINS = {"admin@x.org": "project_admin", "member@x.org": "member"}


@pytest.fixture(scope="module")
def running() -> Iterator[Processes]:
    with processes(*SITES, admins=ADMINS) as started:
        started.start("server", *SITES)
        started.wait_for(SITES)
        yield started


def reasons(got):
    return {name: reply.reason if isinstance(reply, Failure) else reply for name, reply in got.items()}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def server_log(running: Processes) -> str:
    return (running.kit("server") / "nvflare.log").read_text()


def port(running: Processes) -> int:
    return int(tomllib.loads((running.study / PARTICIPANTS).read_text())["port"])


def test_every_site_gets_its_own_request_and_bytes_pass_unchanged(running):
    requests = {name: os.urandom(number) for name, number in zip(SITES, (0, 1, 3_000_000), strict=True)}
    assert running.transport.ask("echo", requests, 30.0) == requests


def test_whoever_fails_costs_the_others_nothing(running):
    got = running.transport.ask("echo", {"ash": b"x", "nobody": b"x"}, 30.0)
    assert reasons(got) == {"ash": b"x", "nobody": "absent"}
    assert reasons(running.transport.ask("garbage", {"ash": b""}, 30.0)) == {"ash": "error"}


def test_the_server_does_not_learn_why_a_site_failed(running):
    (failure,) = running.transport.ask("raise", {"birch": b""}, 30.0).values()
    assert failure.reason == "error"
    assert "private" not in failure.text
    assert "ValueError: a private reason" in (running.study / "birch.out").read_text()
    assert "a private reason" not in server_log(running)


def test_a_late_site_is_given_up_and_its_late_answer_reaches_nobody(running):
    assert reasons(running.transport.ask("sleep", {"ash": b"2.5"}, 0.5)) == {"ash": "late"}
    assert running.transport.ask("echo", {"ash": b"next"}, 30.0) == {"ash": b"next"}


def test_no_other_port_is_open_and_folders_are_private(running):
    pids = {running.pid(name) for name in ("server", *SITES)}
    assert listening(pids) == {port(running)}
    private = [path for path in running.study.rglob("*") if path.stat().st_mode & 0o077 and path.is_dir()]
    assert private == []
    keys = [*running.study.rglob("*.key"), *running.study.rglob("cert.json"), *running.study.rglob("nvflare.log")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
    assert len(keys) == 4 + len(ADMINS) + 1 + 4


def listening(pids: set[int]) -> set[int]:
    """The TCP ports on which these processes listen."""
    found = set()
    for pid in pids:
        links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink())
        inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_a_site_that_dies_at_work_is_noticed_at_once_and_takes_part_again_after_a_restart(running):
    got = running.transport.ask("exit", {"birch": b""}, 600.0)  # the test would time out, not this timeout
    assert reasons(got) == {"birch": "absent"}
    assert running.transport.sites() == ("ash", "cedar")
    running.start("birch")
    running.wait_for(SITES)
    assert running.transport.ask("echo", dict.fromkeys(SITES, b"x"), 30.0) == dict.fromkeys(SITES, b"x")


def test_with_the_ca_certificate_only_nobody_connects(running):
    context = ssl.create_default_context(cafile=running.kit("ash") / "startup" / "rootCA.pem")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        converse(context, port(running))


def converse(context: ssl.SSLContext, port: int) -> None:
    """Begin as HTTP/2 does; with TLS 1.3 a client learns only from the first answer that it was refused."""
    with socket.create_connection(("localhost", port)) as plain:  # noqa: SIM117
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            if not secure.recv(100):
                raise ConnectionError("closed")


def test_with_another_sites_certificate_nobody_takes_its_place(running):
    thief = running.study / "thief"
    shutil.copytree(running.kit("birch"), thief, ignore=shutil.ignore_patterns("internal"))
    config = json.loads((thief / "startup" / "fed_client.json").read_text())
    config["client"]["fqsn"] = "ash"
    (thief / "startup" / "fed_client.json").write_text(json.dumps(config))
    process = running.spawn("thief", site_command(thief, thief, "federation.echo:open_echo"))
    until(lambda: "authenticated as 'birch' but claimed endpoint 'ash'" in server_log(running))
    process.kill()
    assert "Connected" not in (running.study / "thief.out").read_text()
    assert running.transport.ask("echo", {"ash": b"x"}, 30.0) == {"ash": b"x"}


def job(folder: Path, marker: Path, *, foreign: bool) -> Path:
    """A job for NVFLARE: one that names a class of NVFLARE's, or one that brings its own code."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    path = "foreign.Code" if foreign else "nvflare.app_common.np.np_trainer.NPTrainer"
    if foreign:
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "foreign.py").write_text(
            f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
            "from nvflare.apis.executor import Executor\nclass Code(Executor):\n    pass\n"
        )
    flow = {"id": "flow", "path": "nvflare.app_common.workflows.cyclic_ctl.CyclicController", "args": {}}
    executor = {"tasks": ["*"], "executor": {"path": path, "args": {}}}
    meta = {"name": "job", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    (folder / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps({"format_version": 2, "workflows": [flow]}))
    (config / "config_fed_client.json").write_text(json.dumps({"format_version": 2, "executors": [executor]}))
    return folder


def submit(running: Processes, user: str, folder: Path) -> str:
    script = Path(__file__).with_name("stranger.py")
    kit = running.study / "admins" / user
    done = subprocess.run(
        [sys.executable, str(script), user, str(kit), str(folder)], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("user", ADMINS)
def test_nobody_can_log_in_and_submit_a_job(running, tmp_path, user):
    output = submit(running, user, job(tmp_path / "job", tmp_path / "marker", foreign=True))
    assert "no answer: FLCommunicationError" in output, output
    assert not (tmp_path / "marker").exists()
    assert f"Refused a message of {user!r}: 'task', 'challenge'" in (running.study / "server.out").read_text()


@pytest.mark.campaign  # a minute and gigabytes of memory
def test_a_hundred_megabytes_pass_in_both_directions(running):
    size = 100_000_000
    assert running.transport.ask("length", dict.fromkeys(SITES, bytes(size)), 300.0) == dict.fromkeys(
        SITES, b"100000000"
    )
    got = running.transport.ask("bytes", dict.fromkeys(SITES, str(size).encode()), 300.0)
    assert {name: len(reply) for name, reply in got.items()} == dict.fromkeys(SITES, size)


def test_a_server_that_restarts_knows_its_sites_refuses_disabled_ones_and_sites_refuse_its_jobs(running, tmp_path):
    running.kill("server")
    rules = running.kit("server") / "local" / "authorization.json"
    rules.write_text(json.dumps({"format_version": "1.0", "permissions": {"project_admin": "any"}}))
    (running.kit("server") / "disabled_clients.json").write_text('{"disabled_clients": ["cedar"]}')
    running.start("server", hostile="forwarding")
    others = ("ash", "birch")
    (early,) = running.transport.ask("echo", {"ash": b"x"}, 60.0).values()  # waits for the process, not for the site
    assert early == b"x" or isinstance(early, Failure)
    running.wait_for(others)
    assert running.transport.ask("echo", dict.fromkeys(others, b"x"), 30.0) == dict.fromkeys(others, b"x")

    output = submit(running, "admin@x.org", job(tmp_path / "job", tmp_path / "marker", foreign=True))
    assert "accepted" in output, output  # by this server, whose operator has changed its rules and its software
    for name in others:  # they refuse it, whatever the server's rules are
        out = running.study / f"{name}.out"
        until(lambda out=out: "Refused a message of 'server': 'admin'" in out.read_text())  # type: ignore[misc]
    assert not (tmp_path / "marker").exists()
    assert running.transport.ask("echo", dict.fromkeys(others, b"y"), 30.0) == dict.fromkeys(others, b"y")
    assert running.transport.sites() == others  # many heartbeats later


def test_new_sites_get_kits_of_the_same_authority_and_existing_kits_are_unchanged(tmp_path):
    def write(*sites: str) -> None:
        names = ", ".join(f'"{site}"' for site in sites)
        (tmp_path / PARTICIPANTS).write_text(f'host = "localhost"\nport = 1\nsites = [{names}]\n')

    write("a")
    assert make_kits(tmp_path) == [tmp_path / "server", tmp_path / "sites" / "a"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.key")}
    write("a", "b")
    assert make_kits(tmp_path) == [tmp_path / "sites" / "b"]
    assert make_kits(tmp_path) == []
    assert {path: path.read_bytes() for path in before} == before
    authorities = {path.read_bytes() for path in tmp_path.rglob("rootCA.pem")}
    assert len(authorities) == 1
    kept = json.loads((tmp_path / "authority" / "cert.json").read_text())
    assert sorted(kept) == ["root_cert", "root_pri_key"]  # nobody else's key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": ("a", "a")}, "different names"),
        ({"sites": ()}, "different names"),
        ({"sites": ("Clinic A",)}, "lower-case"),
        ({"sites": ("server",)}, "lower-case"),
        ({"port": 0}, "port=0 in 1 to 65535"),
        ({"host": ""}, "server's name"),
        ({"days": 0}, "days=0 > 0"),
    ],
)
def test_participants_are_checked(change, message):
    with pytest.raises(UserError, match=message):
        Participants(**{"host": "localhost", "port": 1, "sites": ("a",), **change})
