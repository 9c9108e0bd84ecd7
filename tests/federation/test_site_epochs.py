"""Sites set up secure aggregation once for all rounds, and again only where that is not enough."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from federation.consortium import Consortium, server
from tacit.core import Report
from tacit.federation.journal import read_journal
from tacit.federation.messages import TRAIN
from tacit.federation.plan import entry_points
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Handler, InProcess
from tacit.protocols.secagg import SecaggClientState
from tacit.runs.training import follow

ROUNDS = 7
MODEL = "acme:linear"
Events = Mapping[int, Callable[["Hospitals"], object]]  # what happens after this number of rounds


@dataclass
class Hospitals:
    """Four sites of 42 weights, and what the server asked them."""

    consortium: Consortium
    plan: FederationPlan
    sites: dict[str, Site]
    handlers: dict[str, Handler]
    asked: list[tuple[str, str, bytes]]

    @classmethod
    def at(cls, folder: Path, method: str = "fl-std-dp", **changes: object) -> "Hospitals":
        pinned = {MODEL: entry_points.pin(MODEL, "the model")}
        consortium = Consortium.at(folder, 4, methods=[method], models=pinned)
        args = {"cohort": 4, "rounds": ROUNDS, "epsilon": 8, "delta": 1e-3, **changes}
        plan = consortium.plan(method, args=args, model=MODEL, public="acme:public")
        consortium.accept(plan)
        self = cls(consortium, plan, consortium.sites(), {}, [])
        for name in consortium.names:
            self.connect(name)
        return self

    def connect(self, name: str) -> None:
        def handle(verb: str, request: bytes) -> bytes:
            self.asked.append((name, verb, request))
            return self.sites[name].handle(verb, request)

        self.handlers[name] = handle

    def restart(self, name: str) -> None:
        """The process ends, and another one opens the site's folder."""
        self.sites[name] = self.consortium.site(name)

    def forget(self, name: str) -> None:
        """The site loses the state of its conversations."""
        for file in ("conversation", "kept"):
            (self.folder(name) / file).unlink(missing_ok=True)

    def state_of(self, name: str) -> SecaggClientState:
        """A site's stored state of secure aggregation."""
        return SecaggClientState.from_bytes((self.folder(name) / "conversation").read_bytes()[37:])

    def folder(self, name: str) -> Path:
        return self.sites[name].files.state / "runs" / self.plan.digest.hex()[:32]

    def run(self, events: Events | None = None) -> list[Report]:
        here, reports = server(self.plan, InProcess(self.handlers)), list[Report]()
        for run in follow(here.run_spec, source=here):
            reports = list(run.history)
            (events or {}).get(len(reports), lambda _: None)(self)
        return reports


def set_ups(reports: list[Report]) -> list[int]:
    """The rounds that began with a set-up, counted from 1."""
    return [each.round for each in reports if "set-up" in each.overhead]


def delivered(reports: list[Report]) -> list[int]:
    return [len(each.clients) - len(each.rejected) for each in reports]


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospitals, list[Report]]:
    """A site restarts, another is away for a round, a third loses what it has set up."""
    events: dict[int, Callable[[Hospitals], object]] = {
        1: lambda here: here.restart("site-1"),
        2: lambda here: here.handlers.pop("site-2"),
        3: lambda here: here.connect("site-2"),
        4: lambda here: here.forget("site-3"),
    }
    here = Hospitals.at(tmp_path_factory.mktemp("epochs"))
    return here, here.run(events)


def test_sites_set_up_once_and_again_only_if_one_has_lost_its_state(eventful: tuple[Hospitals, list[Report]]) -> None:
    _, reports = eventful
    assert set_ups(reports) == [1, 6]
    assert delivered(reports) == [4, 4, 3, 4, 3, 4, 4]
    assert [each.grid_step is not None for each in reports] == [True] * ROUNDS
    assert all(each.dropped is False for each in reports)


def test_a_round_of_an_epoch_costs_four_sites_with_42_weights_less_than_two_kilobytes_each(
    eventful: tuple[Hospitals, list[Report]],
) -> None:
    """Everything: broadcast and update of 168 bytes, secure aggregation, envelopes, signatures; the set-up is apart."""
    _, reports = eventful
    later = {(sum(each.up) + sum(each.down)) / 4 for each in (reports[1], reports[3], reports[6])}
    assert 1700 < min(later) <= max(later) < 1850


def test_an_absent_site_is_asked_nothing(eventful: tuple[Hospitals, list[Report]]) -> None:
    here, reports = eventful
    trained = Counter(name for name, verb, _ in here.asked if verb == TRAIN)
    assert trained == {"site-0": ROUNDS, "site-1": ROUNDS, "site-2": ROUNDS - 1, "site-3": ROUNDS}
    assert reports[2].down[2] == 0


def test_at_the_end_of_an_epoch_no_site_keeps_its_secrets(eventful: tuple[Hospitals, list[Report]]) -> None:
    """The epoch that began in round 6 has as many rounds as the plan: it did not end, so its state is kept."""
    here, _ = eventful
    state = here.state_of("site-0")
    assert state.holds
    assert not (here.folder("site-0") / "kept").exists()  # of lasting states, only the latest exists
    short = Hospitals.at(here.consortium.folder / "short", channel="SecureSum(epoch=2)", rounds=2)
    assert set_ups(short.run()) == [1]
    for name in short.sites:
        ended = short.state_of(name)
        assert not any((ended.root, ended.identity, ended.holds, ended.deals, ended.vector))
        assert not (short.folder(name) / "kept").exists()


def test_a_plan_says_how_many_rounds_an_epoch_has(tmp_path: Path) -> None:
    reports = Hospitals.at(tmp_path, channel="SecureSum(epoch=2)", rounds=5).run()
    assert set_ups(reports) == [1, 3, 5]


def test_a_site_refuses_an_epoch_that_it_has_not_set_up(eventful: tuple[Hospitals, list[Report]]) -> None:
    """The one that had lost its state has said so, and the server's log says it."""
    here, _ = eventful
    entries = read_journal(here.sites["site-3"].journal.path)
    reasons = [entry["reason"] for entry in entries if entry["event"] == "refused"]
    assert reasons == ["This site has not set up an epoch of secure aggregation, or has lost it."]
