"""Who else than the server asks a site, or asks it what was meant for another moment: nobody is answered or charged.

Every attacker here has what travelled: all requests that the genuine server has signed, for all sites.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from federation.consortium import NAMES, SERVER, Consortium, as_server, send, server, signed_by_server, transport
from federation.faulty import DP, Faulty, at, final, refusal
from federation.test_strangers import asked, charges
from tacit.errors import TooFewClientsError, UserError
from tacit.federation import messages as wire
from tacit.federation.journal import read_journal
from tacit.federation.messages import CONTINUE, EVALUATE, PREPARE, REGISTER, TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.plan.directory import Directory, new_identity
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.service import MAX_LOGGED, Site
from tacit.federation.transport.endpoints import Failure, InProcess
from tacit.protocols import crypto

POLICY: dict[str, Any] = {"epsilon": 50.0, "min_cohort": 3, "metrics": "plain"}


def private(folder: Path, **changes: Any) -> tuple[Consortium, FederationPlan]:
    """Sites that charge every round, and sum securely."""
    args = {**DP, "rounds": 3}
    return at(folder, "fl-std-dp", args=args, policy=POLICY, public="acme:public", **changes)


def reply_of(data: bytes) -> Answer | Refusal:
    found: Answer | Refusal = msgspec.msgpack.decode(data, type=Answer | Refusal)
    return found


def trained(site: Site) -> int:
    return sum(entry["event"] == "trained" for entry in read_journal(site.files.log))


def requests_of(consortium: Consortium, plan: FederationPlan) -> list[tuple[str, str, bytes]]:
    """All that travels to sites in a whole run."""
    way = Faulty(consortium.sites())
    final(server(plan, way))
    return [(name, verb, sent) for name, verb, sent, _ in way.seen]


class Lost(InProcess):
    """A network that records what it does not deliver."""

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        if verb == REGISTER:
            return InProcess.ask(self, verb, requests, timeout)
        self.kept.extend((name, verb, data) for name, data in requests.items())
        return {name: Failure("late") for name in requests}

    @property
    def kept(self) -> list[tuple[str, str, bytes]]:
        kept: list[tuple[str, str, bytes]] = self.__dict__.setdefault("_kept", [])
        return kept


def test_a_request_without_the_server_s_signature_is_refused(tmp_path: Path) -> None:
    consortium, plan = private(tmp_path)
    site, request = consortium.site("site-0"), asked(plan)
    genuine = wire.read_request(as_server(site, TRAIN, request), SiteRequest)
    other_site = consortium.identity("site-1")
    for signature in (
        b"",
        bytes(64),
        wire.sign_request(TRAIN, genuine, 0, other_site).signature,  # another site asks as if it were the server
        wire.sign_request(TRAIN, genuine, 1, SERVER).signature,  # made for another site
        wire.sign_request(EVALUATE, genuine, 0, SERVER).signature,  # and for another phase
    ):
        found = refusal(site.handle(TRAIN, wire.pack(msgspec.structs.replace(genuine, signature=signature))))
        assert (found.code, found.session) == (
            "signature",
            wire.unread(wire.pack(msgspec.structs.replace(genuine, signature=signature))),
        )
    assert (charges(consortium), trained(site)) == (0, 0)
    assert isinstance(reply_of(site.handle(TRAIN, wire.pack(genuine))), Answer)
    assert charges(consortium) == 1


@pytest.mark.parametrize(
    "change", ["run", "round", "attempt", "cohort", "frame", "first_digest", "opening", "ticket", "first"]
)
def test_every_field_of_a_request_is_signed(tmp_path: Path, change: str) -> None:
    consortium, plan = private(tmp_path)
    site = consortium.site("site-0")
    genuine = wire.read_request(as_server(site, TRAIN, asked(plan)), SiteRequest)
    others: dict[str, object] = {
        "run": b"r" * 16, "round": 1, "attempt": 2, "cohort": (0, 1, 2, 3), "frame": genuine.frame + b"\0",
        "first_digest": b"d" * 32, "opening": genuine.opening[::-1], "ticket": b"t" * 32, "first": b"once",
    }  # fmt: skip
    found = refusal(site.handle(TRAIN, wire.pack(msgspec.structs.replace(genuine, **{change: others[change]}))))
    assert found.code == "signature"
    assert charges(consortium) == 0


def test_whoever_has_all_requests_of_a_run_can_use_none_of_them(tmp_path: Path) -> None:
    """Nor another site's, under another verb, at a site that has started again since."""
    consortium, plan = private(tmp_path, evaluate_every=1)
    kept = requests_of(consortium, plan)
    assert {verb for _, verb, _ in kept} >= {REGISTER, TRAIN, CONTINUE}
    site = consortium.site("site-0")
    before = charges(consortium), trained(site)
    codes = set()
    for name, _, data in kept:
        for verb in (TRAIN, CONTINUE, EVALUATE, PREPARE):
            found = refusal(site.handle(verb, data))
            codes.add((name == "site-0", found.code))
    assert codes == {
        (True, "replay"),
        (True, "policy"),  # it holds no samples out, and says so to the server
        (True, "malformed"),
        (True, "signature"),
        (False, "malformed"),
        (False, "signature"),
    }
    assert (charges(consortium), trained(site)) == before


def test_a_request_that_was_kept_back_does_not_work_once_the_server_is_in_another_run(tmp_path: Path) -> None:
    """Not even with the registration of its run, delivered again."""
    consortium, plan = private(tmp_path)
    sites = consortium.sites()
    first = server(plan, Faulty(sites))
    steps = first.rounds(first.run_spec.simulation.initial_state, 2, first.keys(None))
    first.ready()
    next(steps)
    lost = Lost({name: site.handle for name, site in sites.items()})
    first.sites.transport = lost
    with pytest.raises(TooFewClientsError):
        next(steps)
    requests = [(verb, data) for name, verb, data in lost.kept if name == "site-0"]
    assert [verb for verb, _ in requests] == [TRAIN]
    final(server(plan, transport(sites)))  # the server starts again, and trains all three rounds in a new run
    before = charges(consortium), trained(sites["site-0"])
    register = wire.sign_request(REGISTER, wire.Registration(plan.digest, first.run), 0, SERVER)
    assert isinstance(reply_of(sites["site-0"].handle(REGISTER, wire.pack(register))), Answer)
    assert refusal(sites["site-0"].handle(TRAIN, requests[0][1])).code == "run"
    assert (charges(consortium), trained(sites["site-0"])) == before


def test_a_registration_that_is_delivered_again_displaces_no_run(tmp_path: Path) -> None:
    consortium, plan = private(tmp_path)
    sites = consortium.sites()
    old = server(plan, transport(sites))
    old.ready()  # registered, but never trained
    way = Faulty(sites)

    def disturbed(name: str, verb: str, data: bytes) -> bytes:
        register = wire.Registration(plan.digest, old.run)
        assert isinstance(reply_of(send(sites[name], REGISTER, register)), Answer)
        return data

    way.before = disturbed
    _, history = final(server(plan, way))
    assert [report.rejected for report in history] == [(), (), ()]


def test_an_older_attempt_is_refused_after_a_later_one(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path)
    site, request = consortium.site("site-0"), asked(plan)
    first, second = (as_server(site, TRAIN, msgspec.structs.replace(request, attempt=n)) for n in (1, 2))
    assert isinstance(reply_of(site.handle(TRAIN, second)), Answer)
    assert refusal(site.handle(TRAIN, first)).code == "replay"
    assert refusal(send(site, TRAIN, msgspec.structs.replace(request, attempt=1))).code == "replay"


def test_a_replayed_phase_does_not_end_the_conversation(tmp_path: Path) -> None:
    """Of secure aggregation: an older step of the same conversation is refused, and the round goes on."""
    consortium, plan = private(tmp_path)
    sites = consortium.sites()
    way, steps = Faulty(sites), list[bytes]()

    def replayed(name: str, verb: str, data: bytes) -> bytes:
        if name == "site-0" and verb == CONTINUE:
            for earlier in steps:
                assert refusal(sites[name].handle(CONTINUE, earlier)).code == "replay"
            steps.append(data)
        return data

    way.before = replayed
    _, history = final(server(plan, way))
    assert len(steps) > 6
    assert [report.rejected for report in history] == [(), (), ()]


def test_a_server_with_another_key_cannot_start(tmp_path: Path) -> None:
    consortium, plan = at(tmp_path)
    with pytest.raises(UserError, match="Sites answer no other server"):
        FederationServer(plan, transport(consortium.sites()), bytes(32))


def test_another_server_s_key_is_another_plan(tmp_path: Path) -> None:
    _, plan = at(tmp_path)
    other = Directory(plan.directory.identities, new_identity(tmp_path / "other.key"))
    assert msgspec.json.decode(plan.canonical)["server"] == crypto.public_identity(SERVER).hex()
    assert Directory(plan.directory.identities, plan.directory.server) == plan.directory != other


def test_a_server_and_a_site_do_not_share_a_key() -> None:
    with pytest.raises(UserError, match="two share one"):
        Directory({"a": bytes(32)}, server=bytes(32))


def test_a_refusal_of_an_unread_request_belongs_to_its_bytes(tmp_path: Path) -> None:
    """So nobody can keep one, and hand it to the server later in place of an answer."""
    consortium, plan = at(tmp_path)
    site, request = consortium.site("site-0"), asked(plan)
    kept = site.handle(TRAIN, b"garbage")
    way = Faulty(consortium.sites())
    way.after = lambda name, verb, data: kept if (name, verb) == ("site-0", TRAIN) else data
    here = server(plan, way)
    final(here)
    assert "belongs to another conversation" in here.sites.problems["site-0"]
    assert "refused" not in here.sites.problems["site-0"]
    assert request.round == 0


def test_a_flood_of_requests_does_not_fill_the_log(tmp_path: Path) -> None:
    consortium, _ = at(tmp_path)
    site = consortium.site("site-0")
    for number in range(4 * MAX_LOGGED):
        assert refusal(site.handle(TRAIN, b"garbage %d" % number)).code == "malformed"
    times = [entry["times"] for entry in read_journal(site.files.log) if entry["event"] == "refused"]
    assert times == [*range(1, MAX_LOGGED + 1), 2 * MAX_LOGGED, 4 * MAX_LOGGED]


def test_a_site_s_progress_is_its_own(tmp_path: Path) -> None:
    """Whoever can write to its folder, but has not its key, cannot make it begin a round again."""
    consortium, plan = at(tmp_path)
    site, request = consortium.site("site-0"), asked(plan)
    sent = as_server(site, TRAIN, request)
    assert isinstance(reply_of(site.handle(TRAIN, sent)), Answer)
    (file,) = (site.files.state / "runs").glob("*/progress.json")
    text = file.read_text()
    assert '"train": 1' in text
    file.write_text(text.replace('"train": 1', '"train": 0').replace('"begun": {"train": [0, 1]}', '"begun": {}'))
    assert refusal(site.handle(TRAIN, sent)).code == "error"
    assert "is not signed by this site" in (site.files.state / "last-error.txt").read_text()


def test_a_closed_list_of_what_a_request_makes_a_site_do(tmp_path: Path) -> None:
    """Whoever adds a verb decides here who may ask it: all are asked with the server's signature only."""
    consortium, plan = at(tmp_path)
    site = consortium.site("site-0")
    assert set(wire.REQUESTS) == set(site._acts) == {REGISTER, TRAIN, CONTINUE, EVALUATE, PREPARE}
    unsigned: dict[str, wire.Request] = {
        REGISTER: wire.Registration(plan.digest, bytes(16)),
        TRAIN: asked(plan),
        EVALUATE: asked(plan),
        CONTINUE: wire.Continuation(plan.digest, bytes(32), 1, b"r"),
        PREPARE: wire.Preparation(plan.digest, bytes(16), 0, 1, 1, b"r"),
    }
    for verb, request in unsigned.items():
        assert refusal(site.handle(verb, wire.pack(request))).code == "signature"
        stranger = signed_by_server(verb, request, NAMES[1])
        assert refusal(site.handle(verb, stranger)).code == "signature"
    assert refusal(site.handle("shutdown", b"")).code == "malformed"
