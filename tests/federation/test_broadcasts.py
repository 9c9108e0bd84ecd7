"""A server that lies in its broadcast: no site makes its row another than the method says, and nothing is charged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from federation.consortium import Consortium, send, server, signed_by_server, transport
from federation.faulty import Faulty, at, final
from federation.test_strangers import asked, refused
from tacit.errors import TooFewClientsError
from tacit.federation import messages as wire
from tacit.federation.journal import read_journal
from tacit.federation.messages import TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Failure
from tacit.wire import frames, indices
from tacit.wire.frames import FrameKind, Part, Parts

DIM, COUNT = 131, 39  # of the model's weights, 0.3 are trained
RECORDS = {"rounds": 3, "noise": 2.0, "epsilon": "none", "size": 4, "ratio": 0.3}
POLICY: dict[str, Any] = {"methods": ["fl-top", "fl-top-record-dp"], "channels": ["plain", "secure-sum/active_server"]}
Lie = Callable[[dict[Part, torch.Tensor], dict[Part, torch.Tensor]], tuple[Parts, Parts]]


def record_federation(folder: Path) -> tuple[Consortium, FederationPlan]:
    consortium = Consortium.at(folder, 5, epsilon=9.0, **POLICY)
    plan = consortium.plan("fl-top-record-dp", args=RECORDS, public="acme:public")
    consortium.accept(plan)
    return consortium, plan


def changed(request: SiteRequest, lie: Lie) -> SiteRequest:
    """The request with another broadcast, as a server would send it that means it."""
    frame = frames.unpack(request.frame, FrameKind.VIEW)
    first = dict(frames.unpack(request.first, FrameKind.VIEW).parts) if request.first else {}
    parts, once = lie(dict(frame.parts), first)
    sent = frames.pack(FrameKind.VIEW, 0, once) if once else b""
    return msgspec.structs.replace(
        request,
        frame=frames.pack(FrameKind.VIEW, frame.round, parts, frame.cohort),
        first=sent,
        first_digest=wire.digest_of(sent) if sent else b"",
    )


def mask_of(*coordinates: int) -> torch.Tensor:
    return indices.pack(torch.tensor(coordinates), DIM)


def without(*parts: Part) -> Lie:
    return lambda every, once: tuple({k: v for k, v in each.items() if k not in parts} for each in (every, once))  # type: ignore[return-value]


def with_mask(count: int) -> Lie:
    """Another mask, with as many values as it has coordinates."""
    return lambda every, _: ({**every, Part.VALUES: torch.zeros(count)}, {Part.MASK: mask_of(*range(count))})


def with_part(part: Part, values: torch.Tensor) -> Lie:
    return lambda every, once: ({**every, part: values}, once)


LIES: dict[str, Lie] = {
    "mask withheld": without(Part.MASK),
    "mask and values withheld": without(Part.MASK, Part.VALUES),
    "nothing but the bound, and all weights": lambda every, _: (
        {Part.BOUND: every[Part.BOUND], Part.WEIGHTS: torch.zeros(DIM)},
        {},
    ),
    "shrunk mask": with_mask(1),
    "enlarged mask": with_mask(DIM),
    "mask beyond the model": lambda every, _: (every, {Part.MASK: indices.pack(torch.arange(300, 339), 999)}),
    "values withheld": without(Part.VALUES),
    "bound withheld": without(Part.BOUND),
    "larger bound": with_part(Part.BOUND, torch.tensor([1e3], dtype=torch.float64)),
    "smaller bound": with_part(Part.BOUND, torch.tensor([1e-3], dtype=torch.float64)),
    "bound that is NaN": with_part(Part.BOUND, torch.tensor([float("nan")], dtype=torch.float64)),
    "weights that are NaN": with_part(Part.VALUES, torch.full((COUNT,), float("nan"))),
    "huge weights": with_part(Part.VALUES, torch.full((COUNT,), 1e30)),
    "infinite weights": with_part(Part.VALUES, torch.full((COUNT,), float("inf"))),
    "weights of another type": with_part(Part.VALUES, torch.zeros(COUNT, dtype=torch.float64)),
    "a whole model beside": with_part(Part.WEIGHTS, torch.zeros(DIM)),
    "two models beside": with_part(Part.WEIGHTS, torch.zeros(2 * DIM)),
    "a part that nobody reads": with_part(Part.SAMPLES, torch.tensor([3])),
}


def events(consortium: Consortium, name: str = "site-0") -> list[object]:
    return [entry["event"] for entry in read_journal(consortium.home(name) / "state" / "log.jsonl")]


def reply_of(site: Site, request: SiteRequest) -> Answer | Refusal:
    found: Answer | Refusal = msgspec.msgpack.decode(send(site, TRAIN, request), type=Answer | Refusal)
    return found


@pytest.mark.law
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_refused_before_anything_is_charged(tmp_path: Path, lie: Lie) -> None:
    consortium, plan = record_federation(tmp_path)
    site, honest = consortium.site("site-0"), asked(plan)
    assert refused(site, changed(honest, lie)).code == "malformed"
    assert {"charged", "trained"}.isdisjoint(events(consortium))
    assert not site.files.has_ledger
    assert isinstance(reply_of(site, honest), Answer)  # which the site still answers
    assert events(consortium).count("charged") == 1


@pytest.mark.parametrize("lie", [LIES["mask withheld"], LIES["enlarged mask"]], ids=["withheld", "enlarged"])
def test_a_server_that_lies_to_all_sites_gets_no_row(tmp_path: Path, lie: Lie) -> None:
    consortium, plan = record_federation(tmp_path)
    way = Faulty(consortium.sites())

    def lying(name: str, verb: str, data: bytes) -> bytes | Failure:
        if verb != TRAIN:
            return data
        return signed_by_server(TRAIN, changed(wire.read_request(data, SiteRequest), lie), name)

    way.before = lying
    with pytest.raises(TooFewClientsError):
        final(server(plan, way))
    for name in consortium.names:
        assert {"charged", "trained"}.isdisjoint(events(consortium, name))


def test_a_mask_is_not_exchanged_later_not_even_in_another_run(tmp_path: Path) -> None:
    consortium, plan = record_federation(tmp_path)
    site, honest = consortium.site("site-0"), asked(plan)
    assert isinstance(reply_of(site, honest), Answer)
    for changes in ({"attempt": 2}, {"run": bytes(16)}):
        swapped = changed(msgspec.structs.replace(honest, **changes), with_mask(COUNT))
        found = refused(site, swapped)
        assert (found.code, found.text) == (
            "malformed",
            "Expected the mask that this client has received before, got another.",
        )
    assert events(consortium).count("charged") == 1


def test_an_honest_federation_for_records_trains_and_charges_every_round(tmp_path: Path) -> None:
    consortium, plan = record_federation(tmp_path)
    state, history = final(server(plan, transport(consortium.sites())))
    assert (state.round, [report.rejected for report in history]) == (3, [(), (), ()])
    assert events(consortium).count("charged") == 3


def voting(folder: Path) -> tuple[Consortium, FederationPlan]:
    args = {"rounds": 3, "ratio": 0.3, "codec.selection": "Vote(size=Size(ratio=0.3))"}
    return at(folder, "fl-top", args=args, policy=POLICY)


def test_clients_vote_in_the_first_round_and_train_in_the_others(tmp_path: Path) -> None:
    consortium, plan = voting(tmp_path)
    _, history = final(server(plan, transport(consortium.sites())))
    assert [report.rejected for report in history] == [(), (), ()]
    assert [min(report.up) > 4 * DIM for report in history] == [True, False, False]


def test_clients_vote_in_no_other_round(tmp_path: Path) -> None:
    """Not if the mask is withheld, and not before a round in which it is not due."""
    consortium, plan = voting(tmp_path)
    site, first = consortium.site("site-0"), asked(plan)
    assert not first.first  # nothing but the initial weights, which sites have
    for index in (1, 2):
        frame = frames.pack(FrameKind.VIEW, index, {}, len(first.cohort))
        later = msgspec.structs.replace(first, round=index, frame=frame)
        assert "Expected the mask with the first broadcast" in refused(site, later).text
    early = changed(first, lambda *_: ({Part.VALUES: torch.zeros(COUNT)}, {Part.MASK: mask_of(*range(COUNT))}))
    assert "in the round in which clients vote on the mask" in refused(site, early).text
    assert "trained" not in events(consortium)
    assert isinstance(reply_of(site, first), Answer)
