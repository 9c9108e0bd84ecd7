"""Faults, in one process: each is refused or survived, by name, and the others go on."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from federation.consortium import SERVER, Consortium, server, transport
from federation.faulty import DP, Faulty, Tamper, at, final, refusal, secure
from tacit.core.prices import Unit
from tacit.errors import TooFewClientsError
from tacit.federation import messages as wire
from tacit.federation.journal import AuditLog, read_journal
from tacit.federation.messages import CONTINUE, EVALUATE, REGISTER, TRAIN, Answer, Refusal
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.endpoints import Failure, Handler, InProcess
from tacit.privacy.ledger import Ledger
from tacit.runs import checkpoint
from tacit.runs.training import follow
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Part

# Sites that fail


@pytest.mark.parametrize("verb", [TRAIN, CONTINUE])
@pytest.mark.parametrize("reason", ["absent", "late", "error"])
def test_a_round_ends_with_those_who_deliver(tmp_path: Path, verb: str, reason: Any) -> None:
    consortium, plan = secure(tmp_path)
    way = Faulty(consortium.sites(seeded=True))
    way.before = lambda name, what, data: Failure(reason) if (name, what) == ("site-2", verb) else data
    here = server(plan, way, seeded=True)
    state, history = final(here)
    assert [report.rejected for report in history] == [(2,), (2,)]
    assert here.sites.excluded == {"site-2"}
    assert reason in here.sites.problems["site-2"]
    others = [number for number in range(5) if number != 2]
    assert torch.equal(state.weights, without(tmp_path / "other", 2, others))


def without(folder: Path, absent: int, others: list[int]) -> torch.Tensor:
    """The weights of an undisturbed run in which that site uploads nothing."""
    consortium, plan = secure(folder)
    way = Faulty(consortium.sites(seeded=True))

    def lost(name: str, verb: str, data: bytes) -> bytes | None:
        return None if name == f"site-{absent}" and verb == TRAIN else data

    way.after = lost
    state, history = final(server(plan, way, seeded=True))
    assert [set(report.clients) - set(report.rejected) for report in history] == [set(others)] * 2
    return state.weights


def test_every_phase_of_secure_aggregation_survives_the_loss_of_one_of_eight(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path, 8, args={"rounds": 5}, policy={"min_cohort": 5}, min_cohort=5)
    way, count = Faulty(consortium.sites()), {"site-3": 0}

    def lost(name: str, verb: str, data: bytes) -> bytes | None:
        """The site is lost in another phase of every second round: it delivers in between."""
        if name != "site-3":
            return data
        count[name] += verb != REGISTER
        return None if count[name] in {2, 10, 17} else data

    way.after = lost
    state, history = final(server(plan, way))
    assert state.round == 5
    assert sum(len(report.rejected) for report in history) >= 2
    assert all(len(report.clients) - len(report.rejected) >= 7 for report in history)


def test_two_failures_in_a_row_strike_a_site_out_until_it_connects_again(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, args={"rounds": 6})
    sites = consortium.sites()
    handlers: dict[str, Handler] = {name: site.handle for name, site in sites.items()}
    way = InProcess(handlers)
    handlers["site-4"] = lambda verb, data: b"nonsense" if verb == TRAIN else sites["site-4"].handle(verb, data)
    here = server(plan, way)
    steps = follow(here.run_spec, source=here)
    runs = [next(steps) for _ in range(4)]
    assert [report.clients for report in runs[-1].history] == [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3)]
    assert here.sites.excluded == {"site-4"}
    del handlers["site-4"]
    assert next(steps).history[-1].clients == (0, 1, 2, 3)
    handlers["site-4"] = sites["site-4"].handle
    assert next(steps).history[-1].clients == (0, 1, 2, 3, 4)
    steps.close()


def test_too_many_losses_end_an_attempt_and_the_next_is_charged_in_both_ledgers(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, "fl-std-dp", args=DP, policy={"epsilon": 50.0}, public="acme:public", retries=2)
    way, losses = Faulty(consortium.sites()), {"left": 3}

    def lost(name: str, verb: str, data: bytes) -> bytes | None:
        if verb == TRAIN and name in ("site-1", "site-2", "site-3") and losses["left"]:
            losses["left"] -= 1
            return None
        return data

    way.after = lost
    here = server(plan, way)
    *_, run = follow(here.run_spec, source=here)
    assert run.state.round == 2
    assert run.charges[Unit.CLIENT].retries == 1
    assert (run.charges[Unit.CLIENT].rounds, run.charges[Unit.CLIENT].accounting.rounds) == (2, 3)
    for name in consortium.names:
        with Ledger.open(consortium.home(name) / "state" / "ledger.db") as ledger:
            assert [(entry.round, entry.attempt) for entry in ledger.entries] == [(1, 1), (1, 2), (2, 1)]
            assert len({entry.key for entry in ledger.entries}) == 3


def test_a_run_ends_when_no_attempt_is_left(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path, retries=1)
    way = Faulty(consortium.sites())
    way.before = lambda _, verb, data: data if verb == REGISTER else Failure("late")
    with pytest.raises(TooFewClientsError):
        final(server(plan, way))


def test_a_run_waits_for_sites_before_anything_is_charged(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, "fl-std-dp", args=DP, public="acme:public", min_cohort=4)
    sites = consortium.sites()
    few = {name: sites[name] for name in consortium.names[:3]}
    with pytest.raises(TooFewClientsError, match="at least 4 of 5 sites, got 3"):
        final(server(plan, transport(few)))


def test_the_time_that_silent_sites_take_counts_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = at(tmp_path)
    clock = [0.0]

    class Silent(InProcess):
        def sites(self) -> tuple[str, ...]:
            clock[0] += 30.0
            return ()

    monkeypatch.setattr("tacit.federation.server.server.time", SimpleNamespace(monotonic=lambda: clock[0]))
    here = FederationServer(plan, Silent({}), SERVER, sleep=lambda _: None)
    with pytest.raises(TooFewClientsError, match="Start those that are absent"):
        here.ready()
    assert clock == [plan.timeouts.message]


# A crash between a site's charge and its answer


def test_a_site_that_crashes_after_its_charge_never_answers_that_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium, plan = at(tmp_path, "fl-std-dp", args=DP, policy={"epsilon": 50.0}, public="acme:public")
    sites = consortium.sites()
    handlers: dict[str, Handler] = {name: site.handle for name, site in sites.items()}
    crashes, lost = [True], []

    def crash(*_: object) -> None:
        if crashes:
            crashes.pop()
            raise KeyboardInterrupt  # as SIGKILL would: nothing is caught, nothing is written after it

    monkeypatch.setattr(sites["site-1"], "_keep", crash)

    def handle(verb: str, data: bytes) -> bytes:
        try:
            return sites["site-1"].handle(verb, data)
        except KeyboardInterrupt:
            lost.append(data)
            sites["site-1"] = consortium.site("site-1")  # the process starts again
            raise OSError from None

    handlers["site-1"] = handle
    here = server(plan, InProcess(handlers))
    _, history = final(here)
    assert history[0].rejected == (1,)
    assert history[1].rejected == ()
    assert refusal(sites["site-1"].handle(TRAIN, lost[0])).code == "replay"
    with Ledger.open(consortium.home("site-1") / "state" / "ledger.db") as ledger:
        assert [entry.round for entry in ledger.entries] == [1, 2]


def test_a_site_that_restarts_between_messages_goes_on(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path)
    sites = consortium.sites()

    def restarting(name: str) -> Callable[[str, bytes], bytes]:
        def handle(verb: str, data: bytes) -> bytes:
            sites[name] = consortium.site(name)
            return sites[name].handle(verb, data)

        return handle

    handlers: dict[str, Handler] = {name: site.handle for name, site in sites.items()}
    handlers["site-0"] = restarting("site-0")
    _, history = final(server(plan, InProcess(handlers)))
    assert [report.rejected for report in history] == [(), ()]


# Messages that are late, repeated, swapped, truncated, of another round or of another plan


def test_replies_swapped_between_two_sites_count_for_neither(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, args={"rounds": 1})
    way = transport(consortium.sites())
    swapped = {"site-0": "site-1", "site-1": "site-0"}

    class Swapping:
        def sites(self) -> tuple[str, ...]:
            return way.sites()

        def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
            found = way.ask(verb, requests, timeout)
            return found if verb == REGISTER else {name: found[swapped.get(name, name)] for name in found}

    here = server(plan, Swapping())
    _, history = final(here)
    assert history[0].rejected == (0, 1)
    assert "Expected a reply of site 0, got one of site 1" in here.sites.problems["site-0"]


def first(data: bytes) -> bytes:
    return data[: len(data) // 2]


def half(data: bytes) -> bytes:
    return data.replace(b"\xc4\x20", b"\xd9\x20", 1)  # 32 bytes as text of 32 bytes


@pytest.mark.parametrize(
    "change",
    [first, lambda data: data + b"\0", lambda _: b"", lambda data: bytes(len(data)), lambda _: b"\xc1" * 40, half],
    ids=["truncated", "extended", "empty", "zeros", "garbage", "half a character"],
)
def test_a_reply_that_is_damaged_costs_only_its_site(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    consortium, plan = at(tmp_path, args={"rounds": 1})
    way = Faulty(consortium.sites())
    way.after = lambda name, verb, data: change(data) if (name, verb) == ("site-0", TRAIN) else data
    _, history = final(server(plan, way))
    assert history[0].rejected == (0,)


def test_a_request_that_is_damaged_is_refused(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path, 3, args={"rounds": 1})
    way = Faulty(consortium.sites())
    final(server(plan, way))
    site = consortium.site("site-0")
    for verb in (REGISTER, TRAIN, CONTINUE, EVALUATE, "shutdown"):
        sent = next((data for _, what, data, _ in way.seen if what == verb), b"\x80")
        for damaged in (first(sent), sent + b"\0", b"", b"\xc1" * 40, half(sent) if verb == CONTINUE else b"\xff"):
            assert refusal(site.handle(verb, damaged)).code == "malformed"


def test_late_answers_of_an_earlier_round_are_dropped_by_their_session(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, args={"rounds": 2})
    way, kept = Faulty(consortium.sites()), dict[str, bytes]()

    def delayed(name: str, verb: str, data: bytes) -> bytes | None:
        if (name, verb) != ("site-0", TRAIN):
            return data
        earlier, kept["late"] = kept.get("late"), data
        return earlier

    way.after = delayed
    here = server(plan, way)
    _, history = final(here)
    assert [report.rejected for report in history] == [(0,), (0,)]
    assert "belongs to another conversation" in here.sites.problems["site-0"]


def test_a_repeated_request_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path)
    sites = consortium.sites()
    way, codes = Faulty(sites), set[str]()

    def twice(name: str, verb: str, data: bytes) -> bytes:
        request = way.seen[-1][2]
        if verb != REGISTER:
            codes.add(refusal(sites[name].handle(verb, request)).code)
        return data

    way.after = twice
    _, history = final(server(plan, way))
    assert [report.rejected for report in history] == [(), ()]
    assert codes == {"replay"}


# Bad updates

BAD = {
    "NaN": lambda row: row.fill_(torch.nan),
    "infinite": lambda row: row.fill_(torch.inf),
    "huge": lambda row: row.fill_(1e30),
    "one NaN": lambda row: row.index_fill_(0, torch.tensor([3]), torch.nan),
    "longer": lambda row: torch.cat([row, row[:1]]),
    "shorter": lambda row: row[:-1],
    "one number": lambda row: row[:1],
    "nothing": lambda row: row[:0],
    "double": lambda row: row.double(),
    "integers": lambda row: row.long(),
    "bytes": lambda row: row.to(torch.uint8),
}


def test_a_bad_update_costs_only_its_site(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, args={"rounds": 1}, retries=len(BAD))

    def without_site_1(after: Tamper) -> torch.Tensor:
        way = Faulty(consortium.sites(seeded=True))
        way.after = lambda name, verb, data: after(name, verb, data) if (name, verb) == ("site-1", TRAIN) else data
        state, history = final(server(plan, way, seeded=True))
        assert history[0].rejected == (1,)
        for name in consortium.names:  # a ledger would refuse the seeded keys under another run, and a log its absence
            for file in (*(consortium.home(name) / "state").glob("l*.db*"), consortium.home(name) / "state/log.jsonl"):
                file.unlink()
        return state.weights

    expected = without_site_1(lambda *_: None)
    for change in BAD.values():
        assert torch.equal(without_site_1(partial(changed, consortium, change)), expected)


def changed(
    consortium: Consortium, change: Callable[[torch.Tensor], torch.Tensor], name: str, verb: str, data: bytes
) -> bytes:
    """A site's answer with another row, signed by the site: it is the site that is bad."""
    answer = msgspec.msgpack.decode(data, type=Answer | Refusal)
    assert isinstance(answer, Answer)
    frame = frames.unpack(answer.body, FrameKind.MESSAGE)
    row = change(frame.parts[Part.ROW].clone())
    body = frames.pack(FrameKind.MESSAGE, frame.round, {Part.ROW: row}, frame.cohort)
    return wire.pack(wire.sign_reply(verb, wire.Answer(1, answer.session, body), consortium.identity(name)))


# What is recorded


def test_logs_of_both_sides_hold_what_happened_and_nothing_private(tmp_path: Path) -> None:
    consortium, plan = secure(tmp_path)
    here = server(plan, transport(consortium.sites()), journal=AuditLog(tmp_path / "log.jsonl"))
    final(here)
    theirs = [entry["event"] for entry in read_journal(consortium.home("site-0") / "state" / "log.jsonl")]
    assert theirs == ["accepted", "started", "joined", *["charged", "trained"] * 2]
    ours = [entry["event"] for entry in read_journal(tmp_path / "log.jsonl")]
    assert ours == ["started", *["joined"] * 5, "asked", "closed", "asked", "closed"]
    secret = consortium.identity("site-0").hex()
    assert secret not in (consortium.home("site-0") / "state" / "log.jsonl").read_text()


def test_a_server_s_budget_stops_the_run_as_a_simulation_s_does(tmp_path: Path) -> None:
    consortium, plan = at(
        tmp_path,
        "fl-std-dp",
        args={"rounds": 50, "noise": 4.0, "epsilon": 2.5, "delta": 1e-5},
        public="acme:public",
    )
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert 0 < run.state.round < 50
    assert run.charges[Unit.CLIENT].epsilon <= 2.5
    assert run.history[-1].epsilons[Unit.CLIENT] == run.charges[Unit.CLIENT].epsilon


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, "fl-std-dp", args={**DP, "rounds": 3}, public="acme:public")
    sites = consortium.sites()
    first_server = server(plan, transport(sites))
    steps = follow(first_server.run_spec, source=first_server, out=tmp_path / "run")
    assert [next(steps).state.round for _ in range(3)] == [0, 1, 2]
    written = checkpoint.read(tmp_path / "run" / "checkpoint.safetensors")
    assert written is not None
    assert written.round == 2  # every round is written before anybody sees it
    steps.close()
    second = server(plan, transport(sites))
    *_, run = follow(second.run_spec, source=second, out=tmp_path / "run", resume=True)
    assert run.state.round == 3
    assert len(run.history) == 3
