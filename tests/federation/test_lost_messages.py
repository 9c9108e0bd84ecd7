"""Messages that NVFLARE loses, and slow sites: what is lost is sent again, handled once, and silence is waited for."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.nvflare import components
from tacit.federation.transport.nvflare.accepted_messages import ALIVE, ASK
from tacit.federation.transport.nvflare.components import NvflareTransport, SiteComponent


class Engine:
    """NVFLARE's server engine with one site, which loses messages on the way there or back."""

    def __init__(self, lost: dict[str, int]) -> None:
        self.lost, self.handled, self.checked = lost, 0, 0
        self.site = SiteComponent()
        self.site._handle = self.handle

    def handle(self, verb: str, data: bytes) -> bytes:
        self.handled += 1
        return data[::-1]

    def get_clients(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="ash")]

    def get_client_from_name(self, name: str) -> str:
        return name

    @contextmanager
    def new_context(self):
        yield SimpleNamespace(put=lambda **_: None)

    def send_aux_request(self, names, topic, message, timeout, ctx):
        if topic == ALIVE:
            self.checked += 1
            if self.loses("check"):
                return self.silence(timeout)
            return {names[0]: self.site._alive(message)}
        assert topic == ASK
        if self.loses("request"):
            return self.silence(timeout)
        reply = self.site._answer(message)
        return self.silence(timeout) if self.loses("reply") else {names[0]: reply}

    def loses(self, what: str) -> bool:
        self.lost[what] = self.lost.get(what, 0) - 1
        return self.lost[what] >= 0

    def silence(self, timeout: float):
        time.sleep(timeout)
        return {"ash": make_reply(ReturnCode.TIMEOUT)}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "SECONDS_BETWEEN_CHECKS", 0.01)
    monkeypatch.setattr(components, "SECONDS_TO_TRAVEL", 0.05)
    monkeypatch.setattr(components, "SECONDS_TO_BE_ALIVE", (0.01, 0.01, 0.01, 0.01))


@pytest.mark.parametrize("lost", [{"request": 1}, {"reply": 1}, {"request": 1, "reply": 2}])
def test_what_is_lost_is_sent_again_and_handled_once(lost):
    engine = Engine(lost)
    assert NvflareTransport(engine).ask("echo", {"ash": b"abc"}, 30.0) == {"ash": b"cba"}
    assert engine.handled == 1


def test_a_site_that_never_answers_is_late():
    engine = Engine({"reply": 10**6})
    (found,) = NvflareTransport(engine).ask("echo", {"ash": b"abc"}, 0.3).values()
    assert isinstance(found, Failure)
    assert found.reason == "late"
    assert engine.handled == 1


def test_another_request_is_handled_even_if_it_holds_the_same_bytes():
    engine = Engine({})
    transport = NvflareTransport(engine)
    for _ in range(2):
        assert transport.ask("echo", {"ash": b"abc"}, 30.0) == {"ash": b"cba"}
    assert engine.handled == 2


@pytest.mark.parametrize(("lost", "connected"), [(3, ("ash",)), (4, ())])
def test_a_site_that_is_slow_to_answer_is_asked_again_before_it_counts_as_gone(lost, connected):
    assert NvflareTransport(Engine({"check": lost})).sites() == connected


def test_a_site_that_stays_silent_costs_less_every_further_time_and_is_found_again():
    engine = Engine({"check": 6})
    transport = NvflareTransport(engine)
    assert transport.sites() == ()
    assert transport.sites() == ()
    assert engine.checked == 4 + 2
    assert transport.sites() == ("ash",)
