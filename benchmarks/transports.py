"""A federation's transport, measured: `python benchmarks/federation.py --transport`.

A server and its sites as processes on this machine, without models: start, memory, asks of several sizes, hostile
messages, stopped and killed processes, cut lines, half-open connections, a stolen kit. The tests have the tools.
"""

# ruff: noqa: E402

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent  # its federation.py is not the tests' package
sys.path[:] = [str(HERE.parent / "tests"), *(place for place in sys.path if Path(place).resolve() != HERE)]

from federation.echo import HANDLED
from federation.line import Line
from federation.outsider import Peer
from federation.processes import TESTS, Processes, is_running, memory, processes, until
from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.grpc.frames import NUMBER, Kind, frames
from tacit.federation.transport.kits import SERVER_FILE

MEGABYTE = 10**6
HOSTILE, LARGE = 256 * MEGABYTE, 100 * MEGABYTE
OPENER = "federation.echo:open_count"
HALF_OPEN, SECONDS_LEFT_OPEN = 900, 15


class Started(Processes):
    """Processes of their own interpreters, as operators start them."""

    def start(self, *names: str, **_: object) -> None:
        """Start these, and write their numbers."""
        for name in names:
            with (self.study / f"{name}.out").open("ab") as out:
                child = subprocess.Popen(
                    self.command(name, OPENER), stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(TESTS)}
                )
            (self.study / f"{name}.pid").write_text(str(child.pid))
            threading.Thread(target=child.wait, daemon=True).start()


@contextmanager
def started(names: tuple[str, ...]) -> Iterator[tuple[Started, Line]]:
    """A server and its sites, which reach it over one line; all end afterwards."""
    with processes(*names) as made:
        running, line = Started(made.study), Line(made.port)
        for name in names:
            file = running.kit(name).folder / SERVER_FILE
            file.write_text(file.read_text().replace(f"port = {running.port}\n", f"port = {line.entry}\n"))
        try:
            yield running, line
        finally:
            line.close()
            for file in running.study.glob("*.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


def seconds(act: Callable[[], object]) -> float:
    """How long this takes."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def mebibytes(running: Started, name: str, key: str = "VmRSS") -> int:
    """Memory of a process."""
    return round(memory(running.pid(name), key) / 2**20)


def measure(sites: int) -> dict[str, object]:
    """All rows of the table."""
    names = tuple(f"site-{number}" for number in range(1, sites + 1))
    with started(names) as (running, line):
        found: dict[str, object] = {"sites": sites}

        def all_listed() -> None:
            until(lambda: running.transport.sites() == names, running.output)

        found["start_seconds"] = seconds(lambda: (running.start("server", *names), all_listed()))
        time.sleep(2)
        found["idle_MiB"] = {name: mebibytes(running, name) for name in ("server", "site-1")}
        found |= _asks(running, names)
        found |= _hostile(running)
        found |= _stopped_and_killed(running, names, all_listed)
        found |= _cuts(line, all_listed)
        found |= _half_open(running)
        found |= _stolen(running)
        found |= _disturbed(running, names, line)
        found["log_lines"] = len((running.study / "server.out").read_text().splitlines())
    return found


def _asks(running: Started, names: tuple[str, ...]) -> dict[str, object]:
    def ask(size: int, verb: str = "echo", content: bytes = b"") -> float:
        request = content or bytes(size)
        return seconds(lambda: _complete(running.transport.ask(verb, dict.fromkeys(names, request), 600.0)))

    found: dict[str, object] = {
        "sites_ms": 1000 * statistics.median(seconds(running.transport.sites) for _ in range(21)),
        "ask_1_kB_ms": 1000 * statistics.median(ask(1000) for _ in range(41)),
        "ask_1_MB_ms": 1000 * statistics.median(ask(MEGABYTE) for _ in range(11)),
        "ask_100_MB_down_seconds": ask(LARGE, "length"),
        "ask_100_MB_up_seconds": ask(0, "bytes", str(LARGE).encode()),
    }
    return {**found, "MiB_at_most": {name: mebibytes(running, name, "VmHWM") for name in ("server", "site-1")}}


def _complete(replies: object) -> None:
    assert isinstance(replies, dict)
    failed = {name: reply for name, reply in replies.items() if isinstance(reply, Failure)}
    assert not failed, failed


def _reset(running: Started, name: str) -> None:
    Path(f"/proc/{running.pid(name)}/clear_refs").write_text("5")


def _hostile(running: Started) -> dict[str, object]:
    """A reply of 256 MB to the server: as one message, in frames, and from a genuine site."""
    _reset(running, "server")
    before = mebibytes(running, "server")
    running.kill("site-1")
    peer = Peer.of(running.kit("site-1"))
    for said in ([bytes(HOSTILE)], frames(Kind.REPLY, bytes(NUMBER), bytes(HOSTILE))):
        asyncio.run(peer.say(*said))
    running.start("site-1")
    until(lambda: "site-1" in running.transport.sites(), running.output)
    (got,) = running.transport.ask("bytes", {"site-1": str(HOSTILE).encode()}, 60.0).values()
    assert isinstance(got, Failure), "a reply of 256 MB was accepted"
    until(lambda: "site-1" in running.transport.sites(), running.output)
    return {"hostile_256_MB_MiB": {"before": before, "at most": mebibytes(running, "server", "VmHWM")}}


def _stopped_and_killed(running: Started, names: tuple[str, ...], all_listed: Callable[[], None]) -> dict[str, object]:
    found: dict[str, object] = {}
    out = running.study / "server.out"
    before = out.read_text().count("site-2: disconnected")
    os.kill(running.pid("site-2"), signal.SIGSTOP)
    found["stopped_site_closed_seconds"] = seconds(
        lambda: until(lambda: out.read_text().count("site-2: disconnected") > before, running.output)
    )
    os.kill(running.pid("site-2"), signal.SIGCONT)
    found["stopped_site_back_seconds"] = seconds(all_listed)
    asked = threading.Thread(target=running.transport.ask, args=("sleep", dict.fromkeys(names, b"1"), 60.0))
    asked.start()
    time.sleep(0.5)
    began = time.monotonic()
    running.kill("site-2")
    asked.join()
    found["ask_of_a_killed_site_ends_seconds"] = time.monotonic() - began
    running.start("site-2")
    all_listed()
    back = []
    for _ in range(3):
        running.kill("server")
        running.start("server")
        back.append(seconds(all_listed))
    return {**found, "killed_server_all_back_seconds": back}


def _cuts(line: Line, all_listed: Callable[[], None]) -> dict[str, object]:
    found: dict[str, object] = {}
    for cut in (10, 60):
        line.cut()
        time.sleep(cut)
        line.mend()
        found[f"cut_{cut}_all_back_seconds"] = seconds(all_listed)
    return found


def _half_open(running: Started) -> dict[str, object]:
    opened = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(HALF_OPEN)]
    meanwhile = 1000 * seconds(running.transport.sites)
    time.sleep(SECONDS_LEFT_OPEN)
    left = 0
    for connection in opened:
        connection.setblocking(False)
        try:
            left += connection.recv(1) != b""
        except BlockingIOError:
            left += 1
        except OSError:
            pass
        connection.close()
    return {"half_open_left": left, "sites_ms_with_half_open": meanwhile}


def _stolen(running: Started) -> dict[str, object]:
    """Someone has site-3's kit without its identity key, and connects all the time."""
    kit, stop, refused = running.kit("site-3"), asyncio.Event(), 0

    async def attack() -> None:
        nonlocal refused
        thief = Peer(kit.server(), kit.keyring.keys()[0])
        async with thief.channel() as channel:
            while not stop.is_set():
                refused += await thief.say_over(channel) == "UNAUTHENTICATED"

    async def play() -> int:
        attacks = [asyncio.ensure_future(attack()) for _ in range(4)]
        asked = [await asyncio.to_thread(running.transport.ask, "echo", {"site-3": b"x"}, 30.0) for _ in range(20)]
        stop.set()
        await asyncio.gather(*attacks)
        return sum(each == {"site-3": b"x"} for each in asked)

    return {"stolen_kit_20_asks_answered": asyncio.run(play()), "stolen_kit_refused": refused}


def _disturbed(running: Started, names: tuple[str, ...], line: Line) -> dict[str, object]:
    """200 asks; at every tenth a site or the server is killed, or the line is cut or dropped."""
    source, lost, slowest = random.Random(0), 0, 0.0
    for number in range(200):
        victim = source.choice([*names, "server", "server", "cut", "drop"]) if number % 10 == 5 else ""
        replies: list[object] = []
        request = dict.fromkeys(names, f"n{number}".encode())
        asked = threading.Thread(target=lambda: replies.append(running.transport.ask("count", request, 60.0)))  # noqa: B023
        asked.start()
        time.sleep(source.uniform(0, 0.15))
        if victim in ("cut", "drop"):
            line.cut() if victim == "cut" else line.drop()
            time.sleep(2)
            line.mend()
        elif victim:
            running.kill(victim)
            running.start(victim)
        asked.join()
        (got,) = replies
        assert isinstance(got, dict)
        lost += sum(isinstance(got[name], Failure) and victim not in (name, "server") for name in names)
        if victim:
            slowest = max(slowest, seconds(lambda: until(lambda: running.transport.sites() == names, running.output)))
    handled = [
        [each for each in (running.kit(name).folder / HANDLED).read_text().split() if each[0] == "n"] for name in names
    ]
    twice = sum(len(each) - len(set(each)) for each in handled)
    assert is_running(running.pid("server"))
    return {"disturbed_asks": 200, "lost": lost, "handled_twice": twice, "slowest_return_seconds": slowest}
