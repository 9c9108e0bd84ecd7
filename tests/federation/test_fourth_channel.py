"""A channel of your own: a piece and its federated halves, which nothing else in the federation knows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from federation.consortium import Consortium, server, transport
from tacit import methods
from tacit.core import Messages, Method, Plain, Round
from tacit.errors import UserError
from tacit.federation.channels import interface
from tacit.federation.channels.interface import Member, SiteReply, channel_of, register
from tacit.federation.channels.plain import FederatedPlain, PlainSite
from tacit.federation.messages import SiteRequest
from tacit.federation.plan.explain import explain_plan
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.files import read_site
from tacit.runs.training import follow


@dataclass(frozen=True)
class Postcard(Plain):
    """Messages in the clear, of which sites keep a copy."""


@dataclass(frozen=True)
class CopyingSite(PlainSite):
    """A site that keeps a copy of what it sends."""

    folder: Path

    def reply(self, asked: SiteRequest, found: Messages, now: Round) -> SiteReply:
        sent = PlainSite.reply(self, asked, found, now)
        (self.folder / f"copy-{asked.round}").write_bytes(sent.body)
        return sent


@dataclass(frozen=True)
class FederatedPostcard(FederatedPlain):
    """`Postcard` between sites."""

    words: ClassVar[tuple[str, ...]] = ("postcard",)
    notes: ClassVar[tuple[str, ...]] = ("Sites keep a copy of every message.",)

    def reveals(self, method: Method) -> Iterator[str]:
        yield "The postman reads every message."

    def at_site(self, member: Member) -> CopyingSite:
        return CopyingSite(self.channel, member.folder)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_registered", dict(interface._registered))
    register(Postcard)(FederatedPostcard)


@pytest.fixture
def postcards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans of fl-std use the channel, which a method of another package would name itself."""
    make = methods.make

    def changed(name: str, args: Mapping[str, Any] = {}) -> Method:
        return replace(make(name, args), channel=Postcard())

    monkeypatch.setattr(methods, "make", changed)


def plan_of(consortium: Consortium) -> FederationPlan:
    return consortium.plan("fl-std", args={"cohort": 5})


@pytest.mark.usefixtures("registered", "postcards")
def test_a_channel_is_one_piece_and_one_record_of_its_halves(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, channels=["postcard"])
    plan = plan_of(consortium)
    found = explain_plan(plan)
    assert (found.channel, found.reveals[0]) == ("postcard", "The postman reads every message.")
    assert "Sites keep a copy of every message." in found.notes
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites(seeded=True)), seeded=True)
    *_, run = follow(here.run_spec, source=here)
    assert [len(report.clients) for report in run.history] == [5, 5]
    assert not torch.equal(run.state.weights, run.spec.simulation.initial_state.weights)
    assert {path.name for path in consortium.folder.rglob("copy-*")} == {"copy-0", "copy-1"}


@pytest.mark.usefixtures("registered", "postcards")
def test_a_policy_allows_it_by_its_word_only(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, channels=["plain"])
    (objection,) = read_site(consortium.home("site-0") / "site.toml").review(plan_of(consortium)).objections
    assert objection == "The channel postcard is not among those that this site allows: plain."
    consortium.change("site-0", '"plain"]', '"telegram"]')
    with pytest.raises(UserError, match=r"Expected channels in .*, got telegram") as refusal:
        read_site(consortium.home("site-0") / "site.toml")
    assert all(word in str(refusal.value) for word in ("plain", "enclave", "postcard"))


@pytest.mark.usefixtures("postcards")
def test_a_channel_without_halves_is_refused() -> None:
    with pytest.raises(UserError, match=r"fl-std assumes Postcard, .* Use channel = \"SecureSum\(\)\"\."):
        channel_of(methods.make("fl-std"))
