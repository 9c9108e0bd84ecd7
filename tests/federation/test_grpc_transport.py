"""The transport over real processes on 127.0.0.1: what is asked arrives, whoever fails costs the others nothing."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.echo import HANDLED
from federation.line import Line
from federation.processes import Processes, memory, processes, until
from scale import scaled
from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.kits import SERVER_FILE

LARGE = 200_000_000  # bytes, more than the processes accept
SITES = ("ash", "birch", "cedar")
COUNT = "federation.echo:open_count"


@pytest.fixture(scope="module")
def line() -> Iterator[list[Line]]:
    """The line of cedar."""
    lines: list[Line] = []
    yield lines
    for each in lines:
        each.close()


@pytest.fixture(scope="module")
def running(line) -> Iterator[Processes]:
    with processes(*SITES) as started:
        line.append(Line(started.port))
        through(started, "cedar", line[0])
        started.start("server", *SITES, opener=COUNT)
        started.wait_for(SITES)
        yield started


def through(running: Processes, name: str, line: Line) -> None:
    """Let a site reach the server over this line only."""
    file = running.kit(name).folder / SERVER_FILE
    file.write_text(file.read_text().replace(f"port = {running.port}\n", f"port = {line.entry}\n"))


def reasons(got):
    return {name: reply.reason if isinstance(reply, Failure) else reply for name, reply in got.items()}


def output(running: Processes, name: str) -> str:
    return (running.study / f"{name}.out").read_text()


def handled(running: Processes, name: str) -> list[str]:
    file = running.kit(name).folder / HANDLED
    return file.read_text().split() if file.exists() else []


def in_background(running: Processes, *args):
    """An ask in a thread; call what is returned for its result."""
    found: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: found.append(dict(running.transport.ask(*args))))
    thread.start()

    def result() -> dict[str, object]:
        thread.join()
        return found[0]

    return result


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
    assert "ValueError: a private reason" in output(running, "birch")
    assert "a private reason" not in output(running, "server")


def test_a_late_site_is_given_up_and_its_late_answer_reaches_nobody(running):
    assert reasons(running.transport.ask("sleep", {"ash": b"1.5"}, 0.5)) == {"ash": "late"}
    assert running.transport.ask("echo", {"ash": b"next"}, 30.0) == {"ash": b"next"}


def test_what_nobody_waits_for_any_more_is_not_begun(running):
    """A late request to train would be a charge for nobody."""
    busy = in_background(running, "sleep", {"ash": b"1.5"}, 30.0)
    until(lambda: "ash" in running.transport.sites(), running.output)
    assert reasons(running.transport.ask("count", {"ash": b"forgotten"}, 0.3)) == {"ash": "late"}
    assert busy() == {"ash": b"slept"}
    assert running.transport.ask("count", {"ash": b"wanted"}, 30.0) == {"ash": b"wanted"}
    assert "forgotten" not in handled(running, "ash")


def test_more_requests_than_a_site_accepts_wait_for_each_other(running):
    asked = [in_background(running, "count", dict.fromkeys(SITES, f"q{number}".encode()), 30.0) for number in range(12)]
    for number, each in enumerate(asked):
        assert each() == dict.fromkeys(SITES, f"q{number}".encode())
    for name in SITES:
        assert sorted(each for each in handled(running, name) if each[0] == "q") == sorted(f"q{n}" for n in range(12))


def test_requests_given_up_in_masses_leave_room_for_the_next(running):
    for _ in range(10):
        assert reasons(running.transport.ask("bytes", {"birch": b"50000000"}, 0.01)) == {"birch": "late"}
    assert running.transport.ask("echo", {"birch": b"next"}, 60.0) == {"birch": b"next"}


def test_no_other_port_is_open_and_secrets_are_private(running):
    assert listening(running.pid("server")) == {running.port}
    assert [listening(running.pid(name)) for name in SITES] == [set()] * 3
    secret = [*running.study.rglob("*.pem"), *running.study.rglob("identity.key"), *running.study.rglob("relay.sock")]
    assert len(secret) == 4 + 3 + 1
    folders = {path.parent for path in secret}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*secret, *folders))


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    found = set()
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink())
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_a_site_that_dies_at_work_is_noticed_at_once_and_takes_part_again_after_a_restart(running):
    got = running.transport.ask("exit", {"birch": b""}, 600.0)  # the test would time out, not this timeout
    assert reasons(got) == {"birch": "absent"}
    assert running.transport.sites() == ("ash", "cedar")
    running.start("birch", opener=COUNT)
    running.wait_for(SITES)
    assert running.transport.ask("echo", dict.fromkeys(SITES, b"x"), 30.0) == dict.fromkeys(SITES, b"x")


def test_a_killed_server_loses_what_was_asked_and_finds_its_sites_again(running):
    lost = in_background(running, "sleep", dict.fromkeys(SITES, b"1"), 30.0)
    time.sleep(0.3)
    running.kill("server")
    assert set(reasons(lost()).values()) == {"error"}
    running.start("server")
    assert reasons(running.transport.ask("echo", {"nobody": b"x"}, 60.0)) == {
        "nobody": "absent"
    }  # waits for the process
    running.wait_for(SITES)
    assert running.transport.ask("echo", dict.fromkeys(SITES, b"x"), 30.0) == dict.fromkeys(SITES, b"x")


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_an_ask_goes_on_over_a_new_connection_and_is_handled_once(running, line, when):
    """The line breaks while the request travels, while the site works, and while the reply travels."""
    size = 20_000_000
    verb, request = {
        "before": ("length", bytes(size)),
        "in": ("sleep", b"1.0"),
        "after": ("bytes", str(size).encode()),
    }[when]
    before = output(running, "cedar").count(f"{verb}: received")
    line[0].rate = 0 if when == "in" else 10 * size
    asked = in_background(running, verb, {"cedar": request}, 60.0)
    time.sleep(0.06)
    line[0].drop()
    line[0].rate = 0
    (got,) = asked().values()
    assert isinstance(got, bytes), got
    assert got in (str(size).encode(), b"slept", bytes(size))
    assert output(running, "cedar").count(f"{verb}: received") == before + 1


def test_a_cut_line_is_noticed_and_the_ask_goes_on_when_it_is_whole(running, line):
    """Nothing ends the connections: only their silence shows that the line is cut."""
    asked = in_background(running, "count", dict.fromkeys(SITES, b"briefly"), 120.0)
    line[0].cut()
    assert running.transport.sites() == ("ash", "birch")
    line[0].mend()
    assert asked() == dict.fromkeys(SITES, b"briefly")
    running.wait_for(SITES)


@pytest.mark.campaign  # seven minutes
def test_after_a_cut_of_six_minutes_a_site_is_back_and_has_handled_nothing_twice(running, line):
    asked = in_background(running, "count", dict.fromkeys(SITES, b"long"), 600.0)
    line[0].cut()
    assert reasons(asked()) == {"ash": b"long", "birch": b"long", "cedar": "absent"}
    time.sleep(360)
    line[0].mend()
    running.wait_for(SITES)
    assert running.transport.ask("count", {"cedar": b"later"}, 30.0) == {"cedar": b"later"}
    assert handled(running, "cedar").count("long") <= 1


def test_disturbed_asks_are_answered_once_or_fail_for_a_reason(running, line):
    """Sites and the server are killed, and the line of one is cut or dropped, at random moments of many asks."""
    import random

    source, asks = random.Random(0), scaled(8, campaign=200)
    every = scaled(4, campaign=10)
    for number in range(asks):
        victim = source.choice([*SITES, "server", "cut", "drop"]) if number % every == every // 2 else ""
        asked = in_background(running, "count", dict.fromkeys(SITES, f"n{number}".encode()), 60.0)
        time.sleep(source.uniform(0.0, 0.1))
        if victim in (*SITES, "server"):
            running.kill(victim)
            running.start(victim, opener=COUNT)
        elif victim:
            line[0].cut() if victim == "cut" else line[0].drop()
            time.sleep(scaled(0.5, campaign=2.0))
            line[0].mend()
        got = asked()
        for name in SITES:
            if victim not in (name, "server"):
                assert got[name] == f"n{number}".encode(), (number, victim, got)
        if victim:
            running.wait_for(SITES)
    for name in SITES:
        found = [each for each in handled(running, name) if each[0] == "n"]
        assert len(found) == len(set(found)), name


@pytest.mark.campaign  # gigabytes of memory
def test_a_hundred_megabytes_pass_in_both_directions(running):
    size = 100_000_000
    requests = dict.fromkeys(SITES, bytes(size))
    assert running.transport.ask("length", requests, 300.0) == dict.fromkeys(SITES, b"100000000")
    got = running.transport.ask("bytes", dict.fromkeys(SITES, str(size).encode()), 300.0)
    assert {name: len(reply) for name, reply in got.items()} == dict.fromkeys(SITES, size)


def test_what_has_arrived_is_not_kept(running):
    """Of 18 messages of 40 MB, the allocator may keep the space of a few."""
    before, size = {name: memory(running.pid(name), "VmRSS") for name in ("server", *SITES)}, 40_000_000
    for _ in range(3):
        running.transport.ask("length", dict.fromkeys(SITES, bytes(size)), 60.0)
        running.transport.ask("bytes", dict.fromkeys(SITES, str(size).encode()), 60.0)

    def kept() -> dict[str, int]:
        return {name: memory(running.pid(name), "VmRSS") - earlier for name, earlier in before.items()}

    until(lambda: max(kept().values()) < 6 * size, lambda: f"{kept()}")


def test_a_slow_line_is_not_a_broken_one(running, line):
    line[0].rate = 2_000_000
    try:
        assert running.transport.ask("echo", {"cedar": bytes(4_000_000)}, 60.0) == {"cedar": bytes(4_000_000)}
    finally:
        line[0].rate = 0


def test_a_request_that_is_longer_than_a_site_accepts_is_not_sent(running):
    (got,) = running.transport.ask("length", {"ash": bytes(LARGE)}, 60.0).values()
    assert isinstance(got, Failure)
    assert "ash accepts at most" in got.text
