"""Strangers, in one process: what a server may not do is refused, and so is what belongs to another."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from federation.consortium import MODEL, Consortium, send, server, signed_by_server, transport
from federation.faulty import DP, Faulty, at, final, refusal, secure
from tacit.core.client_half import empty_messages, read_broadcast
from tacit.errors import TooFewClientsError
from tacit.federation import messages as wire
from tacit.federation.channels.secure_sum import session_of, training_parameters
from tacit.federation.messages import EVALUATE, REGISTER, TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.plan.directory import Directory, new_identity, write_directory
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.accepted_plan import fresh_secrets
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Failure
from tacit.pieces.channels import SecureSum
from tacit.privacy.ledger import Ledger
from tacit.protocols.secagg import secagg_messages
from tacit.protocols.secagg.secagg_messages import Direction, Phase
from tacit.runs.training import follow
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Part
from tacit.wire.packing import pack_number


def asked(plan: FederationPlan, /, **changes: Any) -> SiteRequest:
    """A request as an honest server sends it in the first round, before anything is changed."""
    recorded: list[SiteRequest] = []

    class Recording:
        def sites(self) -> tuple[str, ...]:
            return plan.directory.names

        def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
            raise AssertionError

    here = server(plan, Recording())
    here.sites._welcome.update(dict.fromkeys(plan.directory.names, wire.NO_TICKET))

    def ask(verb: str, session: bytes, requests: Mapping[int, SiteRequest], *_: object) -> dict[int, bytes]:
        recorded.extend(requests.values())
        raise TooFewClientsError("recorded")

    here.sites._ask = ask  # type: ignore[method-assign,assignment]
    with pytest.raises(TooFewClientsError, match="recorded"):
        next(here.rounds(here.run_spec.simulation.initial_state, 1, here.keys(None)))
    return msgspec.structs.replace(recorded[0], **changes)


def addressed(site: Site, request: SiteRequest, **changes: Any) -> SiteRequest:
    """A changed request, with the first request of secure aggregation that an honest server would send with it."""
    changed = msgspec.structs.replace(request, **changes)
    plan = site._find_accepted(request.plan)
    now = plan.half(fresh_secrets()).round(changed.round, len(changed.cohort))
    view, _ = read_broadcast(plan.method, parts_of(changed), plan.memory(), now)
    like = empty_messages(plan.method, view, plan.layout.shapes, now)
    channel = plan.method.channel
    assert isinstance(channel, SecureSum)
    parameters = training_parameters(channel, plan.plan.min_cohort, like, now)
    session = session_of(plan.plan, changed, TRAIN, parameters)
    opening = secagg_messages.pack(Phase.ANNOUNCE, Direction.REQUEST, changed.round, site.number, session.context, b"")
    return msgspec.structs.replace(changed, opening=pack_number(0) + opening)  # the first round of an epoch


def parts_of(request: SiteRequest) -> dict[Part, torch.Tensor]:
    return frames.unpack(request.frame, FrameKind.VIEW).parts


def framed(request: SiteRequest, parts: Mapping[Part, torch.Tensor]) -> bytes:
    """A broadcast of the same round and cohort with these parts."""
    return frames.pack(FrameKind.VIEW, request.round, parts, len(request.cohort))


def charges(consortium: Consortium, name: str = "site-0") -> int:
    path = consortium.home(name) / "state" / "ledger.db"
    if not path.exists():
        return 0
    with Ledger.open(path) as ledger:
        return ledger.accounts.clients.rounds


def refused(site: Site, request: SiteRequest, verb: str = TRAIN) -> Refusal:
    return refusal(send(site, verb, request))


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
        return signed_by_server(TRAIN, msgspec.structs.replace(request, attempt=request.attempt + 1), name)

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
        reply = send(site, TRAIN, msgspec.structs.replace(request, attempt=attempt))
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
    assert addressed(site, request) == request
    answers = []
    for attempt in range(1, 8):
        reply = send(site, TRAIN, addressed(site, request, attempt=attempt))
        answers.append(msgspec.msgpack.decode(reply, type=Answer | Refusal))
    over = [answer for answer in answers if isinstance(answer, Refusal) and answer.code == "budget"]
    assert len(over) >= 2
    assert answers[-len(over) :] == over
    with Ledger.open(consortium.home("site-0") / "state" / "ledger.db") as ledger:
        assert ledger.accounts.clients.rounds == len(answers) - len(over) > 0
        assert ledger.accounts.clients.epsilon(1e-5) <= 2.0


def test_another_directory_is_refused(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path, count=3)
    stranger = new_identity(tmp_path / "stranger.key")
    others = {**consortium.plan("fl-std").directory.identities, "site-2": stranger}
    write_directory(tmp_path / "other.toml", Directory(others, plan.directory.server))
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
        ({"opening": b"anything"}, "malformed"),
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


GARBAGE: dict[str, Callable[[SiteRequest], dict[str, Any]]] = {
    "no request of the protocol": lambda _: {"opening": b"anything"},
    "one that is too long": lambda _: {"opening": bytes(1 << 20)},
    "one that was cut": lambda asked: {"opening": asked.opening[:-1]},
    "one of another attempt": lambda asked: {"attempt": asked.attempt + 1},
    "one of another cohort": lambda asked: {"cohort": asked.cohort[:4], "frame": _other_cohort(asked)},
    "no model": lambda asked: {"frame": framed(asked, {})},
    "a short model": lambda asked: {"frame": _with(asked, Part.WEIGHTS, torch.zeros(130))},
    "another type of number": lambda asked: {"frame": _with(asked, Part.WEIGHTS, torch.zeros(131).double())},
    "a model that is not finite": lambda asked: {"frame": _with(asked, Part.WEIGHTS, torch.full((131,), torch.nan))},
    "no clipping bound": lambda asked: {"frame": _without(asked, Part.BOUND)},
    "a clipping bound of zero": lambda asked: {"frame": _with(asked, Part.BOUND, torch.zeros(1).double())},
    "a part of a message": lambda asked: {"frame": _with(asked, Part.ROW, torch.zeros(131))},
    "a broadcast that is too long": lambda asked: {"frame": _with(asked, Part.ROW, torch.zeros(100_000))},
    "another once": lambda _: {"first": bytes(100_000), "first_digest": wire.digest_of(bytes(100_000))},
}


def _other_cohort(asked: SiteRequest) -> bytes:
    return frames.pack(FrameKind.VIEW, asked.round, parts_of(asked), 4)


def _with(asked: SiteRequest, part: Part, values: torch.Tensor) -> bytes:
    return framed(asked, {**parts_of(asked), part: values})


def _without(asked: SiteRequest, part: Part) -> bytes:
    return framed(asked, {each: values for each, values in parts_of(asked).items() if each is not part})


def test_garbage_costs_a_site_nothing_and_leaves_its_attempts_and_its_conversation(tmp_path: Path) -> None:
    """Not a charge, not an attempt, and not the conversation that the site is in."""
    policy = {"epsilon": 50.0, "min_cohort": 3}
    consortium, plan = at(tmp_path, "fl-std-dp", args={**DP, "rounds": 3}, policy=policy, public="acme:public")
    request, site = asked(plan), consortium.site("site-0")
    assert parts_of(request).keys() == {Part.WEIGHTS, Part.BOUND}
    reply = send(site, TRAIN, request)
    assert isinstance(msgspec.msgpack.decode(reply, type=Answer | Refusal), Answer)
    here = site._plans[plan.digest]
    progress, conversation = here.progress, (here.folder / "conversation").read_bytes()
    assert charges(consortium) == 1
    later = addressed(site, request, attempt=2)
    for name, change in GARBAGE.items():
        found = refused(site, msgspec.structs.replace(later, **change(later)))
        assert found.code in ("malformed", "protocol"), (name, found)
    assert charges(consortium) == 1
    assert here.progress == progress
    assert (here.folder / "conversation").read_bytes() == conversation
    reply = send(site, TRAIN, later)  # the same attempt, asked for as it should be
    assert isinstance(msgspec.msgpack.decode(reply, type=Answer | Refusal), Answer)
    assert charges(consortium) == 2
    assert refused(site, later).code == "replay"


def test_garbage_does_not_use_up_evaluations(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, held_out=0.4)
    plan = consortium.plan("fl-std", args={"cohort": 5, "channel": "SecureSum()"}, evaluate_every=1)
    consortium.accept(plan)
    request, site = asked(plan), consortium.site("site-0")
    assert refused(site, request, EVALUATE).code == "protocol"  # its `opening` is that of training
    for name in ("no request of the protocol", "no model"):
        found = refused(site, msgspec.structs.replace(request, **GARBAGE[name](request)), EVALUATE)
        assert found.code in ("malformed", "protocol"), found
    assert not site._plans[plan.digest].progress.answers


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
    steps = follow(here.run_spec, source=here)
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
    reply = refusal(send(consortium.site("site-1"), REGISTER, wire.Registration(plan.digest, bytes(16))))
    assert reply.code == "error"
