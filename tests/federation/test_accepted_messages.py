"""Enrolled parties who use NVFLARE's own messages against others, over real processes: none of them has an effect."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from federation.hostile import ATTACK, ATTACK_SITE, CALLED, REGISTERED
from federation.processes import Processes, is_running, processes
from tacit.federation.transport.nvflare import process
from tacit.federation.transport.nvflare.accepted_messages import (
    AT_SERVER,
    AT_SITE,
    LINES,
    SECONDS,
    Accepted,
    Refusals,
)

SITES = ("ash", "birch", "cedar")
HOSTILE, WATCHED = "federation.hostile:open_hostile", "federation.hostile:open_watched"
COMMANDS = [topic for each in ClientRequestProcessors.request_processors for topic in each.get_topics()]
STREAMS = {"sm__STREAM:sm__DATA", "sm__STREAM:sm__ACK", "sm__STREAM:sm__ERROR"}
CALLED_AT_SITE = {*STREAMS, "aux_communication:tacit.ask", "aux_communication:tacit.alive"}
CALLED_AT_SERVER = {*STREAMS, "task:challenge", "task:register", "task:heart_beat", "return_only:*"}
FORGED = ("cn__origin", "cn__from", "client_name")  # the headers that name a sender


@pytest.fixture(scope="module")
def honest() -> Iterator[Processes]:
    """ash attacks; the server and birch are as they should be, and watched."""
    with started(server="watched") as running:
        yield running


@pytest.fixture(scope="module")
def lawless() -> Iterator[Processes]:
    """ash and the server attack, and the server forwards; cedar receives everything that comes."""
    with started(server="forwarding", cedar="forwarding") as running:
        yield running


@contextmanager
def started(server: str, cedar: str = "") -> Iterator[Processes]:
    with processes(*SITES) as running:
        running.start("server", hostile=server)
        running.start("ash", opener=HOSTILE)
        running.start("birch", opener=WATCHED)
        running.start("cedar", hostile=cedar)
        connect(running)
        assert "Refused" not in running.output()  # what a federation needs is accepted
        yield running


def connect(running: Processes) -> None:
    """Wait for all; what was called until then is forgotten: a site that is not ready yet answers otherwise."""
    running.wait_for(SITES)
    for file in running.study.rglob(CALLED):
        file.unlink()


def lines(running: Processes, name: str, file: str) -> set[str]:
    path = running.kit(name) / file
    return set(path.read_text().splitlines()) if path.exists() else set()


def output(running: Processes, name: str) -> str:
    return (running.study / f"{name}.out").read_text()


def registered(running: Processes, name: str) -> list[tuple[str, str]]:
    """All that a process answers, from NVFLARE's own registries there."""
    pairs = [tuple(line.split(":", 1)) for line in sorted(lines(running, name, REGISTERED))]
    assert len(pairs) > 30
    return [(channel, "anything" if topic == "*" else topic) for channel, topic in pairs]


def every(running: Processes, target: str, accepted: Accepted) -> list[dict[str, Any]]:
    """Every kind of message that the target answers and does not need, in every way in which one can be sent."""
    orders: list[dict[str, Any]] = []
    for channel, topic in registered(running, target):
        pair = {"channel": channel, "topic": topic}
        orders += [{**pair, "kind": kind, "target": target} for kind in ("reply", "return")]
        orders.append({"channel": "cellnet.channel", "topic": "bulk", "target": target, "body": pair})
        if (channel, topic) not in accepted.requests:
            orders.append({**pair, "target": target})
        if (channel, topic) not in accepted.streams:
            orders.append({**pair, "target": target, "streamed": True})
    return orders


def commands(running: Processes, target: str) -> list[dict[str, Any]]:
    """Every administrator's command; two of them with arguments that would have a visible effect."""
    bodies = {
        "sys.shell": {"text": f"cat {running.kit(target)}/startup/client.key"},
        "train.delete_run": {"job": "startup"},
    }
    assert bodies.keys() <= set(COMMANDS)
    assert len(COMMANDS) >= 20
    order = {"channel": "admin", "target": target, "cn__reply_expected": True}
    return [{**order, "topic": topic, "body": bodies.get(topic, {})} for topic in COMMANDS]


def asked(number: str, target: str = "birch") -> dict[str, Any]:
    """What the server asks a site, sent by another: the site's process would end."""
    body = {"verb": "exit", "data": "", "number": number}
    return {"channel": "aux_communication", "topic": "tacit.ask", "target": target, "streamed": True, "body": body}


def send(running: Processes, orders: list[dict[str, Any]], verb: str = ATTACK, name: str = "ash") -> None:
    got = running.transport.ask(verb, {name: json.dumps(orders).encode()}, 120.0)
    assert got == {name: b"done"}, running.output()


def assert_untouched(running: Processes, name: str, allowed: set[str]) -> None:
    """Nothing was called that an undisturbed run does not call, and the process is as it was."""
    time.sleep(0.5)
    assert lines(running, name, CALLED) <= allowed
    kit = running.kit(name)
    assert (kit / "startup").is_dir()
    assert is_running(running.pid(name)), running.output()
    running.wait_for(SITES)
    assert running.transport.ask("echo", dict.fromkeys(SITES, b"x"), 30.0) == dict.fromkeys(SITES, b"x")


def test_nothing_that_a_site_sends_reaches_a_neighbour(honest: Processes) -> None:
    before = output(honest, "birch")
    send(honest, [*every(honest, "birch", AT_SITE), *commands(honest, "birch"), asked("a")])
    assert_untouched(honest, "birch", CALLED_AT_SITE)
    assert_untouched(honest, "server", CALLED_AT_SERVER)
    assert "Refused" not in output(honest, "birch")[len(before) :]  # nothing was forwarded to it
    said = output(honest, "server")
    assert "Refused a message of 'ash'" in said
    assert "for 'birch': it is for another, and nothing is forwarded." in said


def test_nobody_sends_in_another_s_name(honest: Processes) -> None:
    for origin in ("server", "birch"):
        names = dict.fromkeys(FORGED, origin)
        send(honest, [{**order, **names} for order in [*commands(honest, "birch"), asked("b")]])
        send(honest, [{**order, "cn__origin": origin} for order in every(honest, "server", AT_SERVER)])
    quits = {"channel": "task", "topic": "quit", "target": "server", "client_name": "birch"}
    send(honest, [quits, {**quits, "cn__origin": "birch"}, {**quits, "cn__from": "birch"}])
    assert_untouched(honest, "birch", CALLED_AT_SITE)
    assert_untouched(honest, "server", CALLED_AT_SERVER)


def test_the_server_does_nothing_that_a_site_asks_of_nvflare(honest: Processes) -> None:
    send(honest, every(honest, "server", AT_SERVER))
    send(honest, [{"channel": "task", "topic": "heart_beat", "target": "server", "cn__secure": True}])
    assert_untouched(honest, "server", CALLED_AT_SERVER)
    refused = [line for line in output(honest, "server").splitlines() if "Refused" in line]
    assert 0 < len(refused) <= LINES  # of some hundreds
    assert sum("Further ones are only counted." in line for line in refused) == 1


def test_a_server_has_no_command_of_nvflare_at_a_site(lawless: Processes) -> None:
    shell = [order for order in commands(lawless, "birch") if order["topic"] == "sys.shell"]
    send(lawless, shell, ATTACK_SITE, "birch")
    send(lawless, [*commands(lawless, "birch"), *every(lawless, "birch", AT_SITE)], ATTACK_SITE, "birch")
    assert_untouched(lawless, "birch", CALLED_AT_SITE)
    said = output(lawless, "birch")
    assert "Refused a message of 'server': 'admin', 'sys.shell' for 'birch'" in said
    assert said.count("Refused") <= LINES


def test_a_site_refuses_what_a_server_forwards(lawless: Processes) -> None:
    lawless.kill("birch")
    lawless.start("birch", opener=WATCHED)
    connect(lawless)
    send(lawless, [*commands(lawless, "birch"), asked("c"), *every(lawless, "birch", AT_SITE)])
    assert_untouched(lawless, "birch", CALLED_AT_SITE)
    assert "for 'birch': it is in another's name." in output(lawless, "birch")


def test_only_the_server_asks_a_site_even_where_all_messages_are_accepted(lawless: Processes) -> None:
    send(lawless, [asked("d", "cedar"), {**asked("e", "cedar"), "streamed": False}])
    assert is_running(lawless.pid("cedar")), lawless.output()
    assert "a request of 'ash': only the server asks." in output(lawless, "cedar")
    assert lawless.transport.ask("echo", {"cedar": b"x"}, 30.0) == {"cedar": b"x"}


def message(**changes: object) -> Message:
    usual: dict[str, object] = {
        "cn__origin": "ash",
        "cn__from": "ash",
        "cn__destination": "server",
        "cn__channel": "task",
        "cn__topic": "heart_beat",
        "cn__msg_type": "req",
        "client_name": "ash",
    }
    return Message({**usual, **changes}, b"")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"client_name": None}, ""),
        ({"cn__origin": "birch"}, "another's name"),
        ({"cn__from": "server"}, "another's name"),
        ({"client_name": "birch"}, "another's name"),
        ({"cn__destination": "birch"}, "nothing is forwarded"),
        ({"cn__destination": "server.job"}, "nothing is forwarded"),
        ({"cn__topic": "report_job_failure"}, "no kind"),
        ({"cn__topic": ["heart_beat"]}, "no kind"),
        ({"cn__msg_type": "reply"}, "no kind"),
        ({"cn__msg_type": "return"}, "no kind"),
        ({"cn__msg_type": None}, "no kind"),
        ({"cn__secure": True}, "exchange of certificates"),
        ({"cn__encrypted": True}, "exchange of certificates"),
    ],
)
def test_what_the_server_accepts_of_a_site(changes: dict[str, object], problem: str) -> None:
    found = AT_SERVER.objection("server", "ash", message(**changes))
    assert problem in found
    assert bool(problem) == bool(found)


def test_headers_that_are_none_are_refused() -> None:
    broken = message()
    broken.headers = ["cn__origin"]
    assert AT_SERVER.objection("server", "ash", broken)
    assert AT_SERVER.objection("server", None, message())


def test_nobody_ends_a_stream_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server numbers its streams one after the other, so that a site can guess those to its neighbours."""
    monkeypatch.setitem(ByteStreamer.tx_task_map, 7, SimpleNamespace(target="birch"))
    for topic in ("sm__ACK", "sm__ERROR"):
        about = message(cn__channel="sm__STREAM", cn__topic=topic, sm__id=7)
        assert "about another's message" in AT_SERVER.objection("server", "ash", about)
        about.set_header("sm__id", 8)  # of a stream that has ended
        assert AT_SERVER.objection("server", "ash", about) == ""
        about.set_header("sm__fd", "birch")
        assert "about another's message" in AT_SERVER.objection("server", "ash", about)


def test_who_sends_is_known_by_the_connection() -> None:
    def connection(mode: Mode, **properties: object) -> Any:
        return SimpleNamespace(get_conn_properties=lambda: properties, connector=SimpleNamespace(mode=mode))

    def named(name: str) -> Any:
        return SimpleNamespace(name=name)

    assert AT_SERVER.sender(named("ash"), connection(Mode.PASSIVE, peer_cn="ash")) == "ash"
    assert AT_SERVER.sender(named("ash.job"), connection(Mode.PASSIVE, peer_cn="ash")) is None
    assert AT_SERVER.sender(named("_admin_1"), connection(Mode.PASSIVE, peer_cn="ash")) is None
    assert AT_SERVER.sender(named("server.job"), connection(Mode.PASSIVE)) is None
    assert AT_SITE.sender(named("server"), connection(Mode.ACTIVE)) == "server"
    assert AT_SITE.sender(named("server"), connection(Mode.PASSIVE)) is None
    assert AT_SITE.sender(named("ash"), connection(Mode.ACTIVE)) is None


def test_a_flood_of_refusals_is_counted_and_hides_nobody_else_s() -> None:
    said: list[str] = []
    now = [0.0]
    refusals = Refusals(said.append, lambda: now[0])
    for number in range(1000):
        refusals.report("ash", f"{number // 2}.")
    refusals.report("birch", "something.")
    assert len(said) == LINES + 1
    assert said[-1] == "Refused a message of 'birch': something."
    now[0] = SECONDS + 1.0
    refusals.report("ash", "again.")
    assert said[-1] == f"Refused a message of 'ash': again. {1000 - LINES} more were refused before."


def test_texts_of_others_stay_on_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    process.say("one\n2026-01-01 00:00:00  two\u202e\udc00" + "x" * 10_000)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "one\\n2026-01-01 00:00:00  two\\u202e\\udc00xxx" in said
    assert len(said) < 1100
