"""Strangers, in one process: what a server may not do is refused, and so is what belongs to another."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from federation.consortium import MODEL, Consortium, server, transport
from federation.faulty import DP, Faulty, at, final, refusal, secure
from tacit.errors import TooFewClientsError
from tacit.federation import messages as wire
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.messages import HELLO, TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.site_directory import Directory, new_identity, write_directory
from tacit.federation.site_service import Site
from tacit.federation.transport import Failure
from tacit.privacy.ledger import Ledger
from tacit.runs.training import follow
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Part


def asked(plan: FederationPlan, /, **changes: Any) -> SiteRequest:
    """A request as an honest server sends it in the first round, before anything is changed."""
    recorded: list[bytes] = []

    class Recording:
        def sites(self) -> tuple[str, ...]:
            return plan.directory.names

        def ask(self, verb: str, requests: Mapping[str, bytes], patience: float) -> Mapping[str, bytes | Failure]:
            raise AssertionError

    here = server(plan, Recording())
    here.sites._welcome.update(plan.directory.names)

    def ask(verb: str, session: bytes, requests: Mapping[int, bytes], *_: object) -> dict[int, bytes]:
        recorded.extend(requests.values())
        raise TooFewClientsError("recorded")

    here.sites._ask = ask  # type: ignore[method-assign,assignment]
    with pytest.raises(TooFewClientsError, match="recorded"):
        next(here.rounds(here.run_plan.simulation.initial_state, 1, here.keys(None)))
    return msgspec.structs.replace(wire.read_request(recorded[0], SiteRequest), **changes)


def refused(site: Site, request: SiteRequest, verb: str = TRAIN) -> Refusal:
    return refusal(site.handle(verb, wire.pack(request)))


def test_a_server_that_changes_the_plan_between_sites_is_refused(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path)
    other = consortium.plan("fl-std", "other.toml", args={"cohort": 5, "descent.lr": 5.0})
    assert other.digest != plan.digest
    found = refused(consortium.site("site-0"), asked(other))
    assert found.code == "plan"
    assert "has not accepted" in found.text
    here = server(other, transport(consortium.sites()))
    with pytest.raises(TooFewClientsError, match="has not accepted the plan"):
        final(here)


def test_another_broadcast_for_one_site_gives_no_sum(tmp_path: Path) -> None:
    """A server that sends one site another model gets pads that do not cancel, and no agreement."""
    consortium, plan = secure(tmp_path, 3, args={"rounds": 1}, retries=0)
    way = Faulty(consortium.sites())

    def other(name: str, verb: str, data: bytes) -> bytes:
        if (name, verb) != ("site-0", TRAIN):
            return data
        request = wire.read_request(data, SiteRequest)
        return wire.pack(msgspec.structs.replace(request, attempt=request.attempt + 1))

    way.before = other
    with pytest.raises(TooFewClientsError):
        final(server(plan, way))


@pytest.mark.parametrize("make", [at, secure])
def test_a_replayed_session_is_refused(
    tmp_path: Path, make: Callable[[Path], tuple[Consortium, FederationPlan]]
) -> None:
    consortium, plan = make(tmp_path)
    way = Faulty(consortium.sites())
    final(server(plan, way))
    site = consortium.site("site-0")  # also after it has started again
    for name, verb, request, _ in way.seen:
        if name == "site-0" and verb == TRAIN:
            assert refusal(site.handle(verb, request)).code == "replay"


def test_one_round_too_many_is_refused(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, retries=1)
    request = asked(plan)
    frame = frames.unpack(request.frame, FrameKind.VIEW)
    later = frames.pack(FrameKind.VIEW, plan.method.rounds, frame.parts, frame.cohort)
    found = refused(consortium.site("site-0"), asked(plan, round=plan.method.rounds, frame=later))
    assert "The plan has 2 rounds, got round 3" in found.text
    site = consortium.site("site-1")
    for attempt in range(1, plan.max_answers + 1):
        reply = site.handle(TRAIN, wire.pack(msgspec.structs.replace(request, attempt=attempt)))
        assert isinstance(msgspec.msgpack.decode(reply, type=Answer | Refusal), Answer)
    found = refused(site, msgspec.structs.replace(request, attempt=plan.max_answers + 1))
    assert "answered 3 times under this plan" in found.text
    found = refused(site, asked(plan, run=bytes(16)))  # nor in a new run
    assert found.code == "policy"


def test_the_site_s_own_budget_ends_a_plan_whatever_the_server_says(tmp_path: Path) -> None:
    consortium, plan = at(
        tmp_path, "fl-std-dp", args={**DP, "rounds": 3}, policy={"epsilon": 2.0}, public="acme:public"
    )
    request, site = asked(plan), consortium.site("site-0")
    answers = []
    for attempt in range(1, 8):
        reply = site.handle(TRAIN, wire.pack(msgspec.structs.replace(request, attempt=attempt)))
        answers.append(msgspec.msgpack.decode(reply, type=Answer | Refusal))
    over = [answer for answer in answers if isinstance(answer, Refusal) and answer.code == "budget"]
    assert len(over) >= 2
    assert answers[-len(over) :] == over
    with Ledger.open(consortium.home("site-0") / "state" / "ledger.db") as ledger:
        assert ledger.accounting.rounds == len(answers) - len(over)
        assert ledger.accounting.epsilon(1e-5) <= 2.0


def test_another_directory_is_refused(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, count=3)
    stranger = new_identity(tmp_path / "stranger.key")
    others = {**consortium.plan("fl-std").directory.identities, "site-2": stranger}
    write_directory(tmp_path / "other.toml", Directory(others))
    other = consortium.plan("fl-std", "other-plan.toml", args={"cohort": 3}, sites="other.toml")
    site = consortium.site("site-0")
    assert "not those of this site's pinned directory" in " ".join(site.files.review(other).objections)
    assert refused(site, asked(other)).code == "plan"
    assert plan.digest != other.digest


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cohort": (0, 1)}, "policy"),
        ({"cohort": (1, 2, 3, 4)}, "malformed"),
        ({"cohort": (0, 0, 1, 2, 3)}, "malformed"),
        ({"cohort": (4, 3, 2, 1, 0)}, "malformed"),
        ({"cohort": (0, 1, 2, 3, 99)}, "malformed"),
        ({"cohort": (0, 1, 2, 3)}, "malformed"),
        ({"round": 1}, "malformed"),
        ({"talk": b"anything"}, "malformed"),
        ({"first": b"anything"}, "malformed"),
        ({"first_digest": bytes(32)}, "protocol"),
        ({"plan": bytes(32)}, "plan"),
        ({"frame": b""}, "malformed"),
    ],
)
def test_a_request_that_no_honest_server_sends_is_refused_before_anything_is_charged(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    consortium, plan = at(tmp_path)
    site = consortium.site("site-0")
    assert refused(site, asked(plan, **changes)).code == code
    assert site._plans == {} or not site._plans[plan.digest].progress.answers


def test_what_is_sent_once_cannot_replace_one_site_s_model(tmp_path: Path) -> None:
    """Its digest is the same for all sites, but only some are sent it again: it must hold nothing of the broadcast."""
    consortium, plan = at(tmp_path)
    other = frames.pack(FrameKind.VIEW, 0, {Part.WEIGHTS: torch.zeros(131)})
    found = refused(consortium.site("site-0"), asked(plan, first=other, first_digest=wire.digest_of(other)))
    assert "must not replace what is sent in every round" in found.text


def test_a_site_that_accepts_a_plan_later_takes_part_from_then_on(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path)
    plan = consortium.plan(args={"cohort": 5, "rounds": 3})
    consortium.accept(plan, *consortium.names[:4])
    here = server(plan, transport(consortium.sites()))
    steps = follow(here.run_plan, source=here)
    assert [next(steps).state.round for _ in range(2)] == [0, 1]
    consortium.accept(plan, "site-4")
    *_, run = steps
    assert [report.clients for report in run.history] == [(0, 1, 2, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)]


def test_unexpected_errors_stay_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consortium, plan = at(tmp_path)
    site = consortium.site("site-0")

    def broken(*_: object) -> None:
        raise RuntimeError("a patient's name")

    monkeypatch.setattr(site, "_charge", broken)
    found = refused(site, asked(plan))
    assert (found.code, found.text) == ("error", "RuntimeError")
    state = consortium.home("site-0") / "state"
    assert "a patient's name" not in (state / "log.jsonl").read_text()
    assert "a patient's name" in (state / "last-error.txt").read_text()
    assert (state / "last-error.txt").stat().st_mode & 0o777 == 0o600


def test_noise_that_the_server_draws_is_refused_without_trust(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, trust_server=False)
    plan = consortium.plan("geyer", args={"cohort": 5})
    found = consortium.site("site-0").files.review(plan)
    assert "the server sees this site's messages without noise" in " ".join(found.objections)


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 3, models={MODEL: "sha256:" + "0" * 64})
    plan = consortium.plan("fl-std", args={"cohort": 3})
    assert "The installed code of" in " ".join(consortium.site("site-0").files.review(plan).objections)


def test_the_verdict_of_another_is_not_a_verdict(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, count=3)
    (review,) = (consortium.home("site-0") / "state" / "reviews").iterdir()
    forged = consortium.home("site-1") / "state" / "reviews" / review.name
    forged.write_bytes(review.read_bytes())
    reply = refusal(consortium.site("site-1").handle(HELLO, wire.pack(wire.Hello(plan.digest, bytes(16)))))
    assert reply.code == "error"
