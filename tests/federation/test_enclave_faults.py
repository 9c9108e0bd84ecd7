"""What happens to a federation whose enclave dies, is refused, is rolled back, or is another one than was agreed on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.consortium import Consortium, send, server, table, transport
from federation.enclaves import ATTESTATION, MEASUREMENT, SITES, LocalEnclave, configured, enclave_plan
from tacit import methods
from tacit.enclave import enclave_messages
from tacit.enclave.configuration import Journal
from tacit.enclave.enclave_messages import MessageType
from tacit.errors import EnclaveRefusedError, EnclaveUnavailableError, TooFewClientsError, UserError
from tacit.federation.channels.enclave import EnclaveHost, EnclaveSite, configuration_of
from tacit.federation.channels.interface import channel_of
from tacit.federation.journal import read_journal
from tacit.federation.messages import (
    PREPARE,
    TRAIN,
    Answer,
    Preparation,
    Refusal,
    SiteRequest,
    pack,
    read_reply,
    read_request,
    sign_reply,
)
from tacit.federation.plan.explain import explain_plan
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.files import read_site
from tacit.federation.site.policy import review
from tacit.federation.transport.endpoints import Handler, InProcess
from tacit.pieces.channels import Enclave
from tacit.runs.run import Run
from tacit.runs.training import follow

ARGS = {"rounds": 3, "cohort": 5, "channel": "Enclave()"}
GEYER = {"channel": "Enclave()", "cohort": 5, "rounds": 3, "noise": 4.0, "epsilon": 8.0, "delta": 1e-5}


def prepared(folder: Path, method: str = "fedavg", **changes: Any) -> tuple[Consortium, FederationPlan, LocalEnclave]:
    args = changes.pop("args", ARGS)
    consortium = Consortium.at(folder, 5, methods=[method], **{**SITES, **changes})
    plan = enclave_plan(consortium, method, args=args)
    consortium.accept(plan)
    return consortium, plan, LocalEnclave.of(plan, Journal(folder / "journal"))


def started(consortium: Consortium, plan: FederationPlan, enclave: LocalEnclave) -> FederationServer:
    return server(plan, transport(consortium.sites()), connect=enclave)


def run(here: FederationServer, folder: Path, *, resume: bool = False) -> Run:
    *_, last = follow(here.run_spec, out=folder / "run", resume=resume, source=here)
    return last


def delivered(run: Run) -> list[int]:
    return [report.turnout.delivered for report in run.history]


def reasons(consortium: Consortium, name: str) -> list[str]:
    entries = read_journal(consortium.home(name) / "state" / "log.jsonl")
    return [str(entry["reason"]) for entry in entries if entry["event"] == "refused"]


def events(consortium: Consortium, name: str, event: str) -> int:
    return sum(entry["event"] == event for entry in read_journal(consortium.home(name) / "state" / "log.jsonl"))


@pytest.mark.parametrize("dies_at", [MessageType.FORWARD_UPLOAD, MessageType.CLOSE_ROUND])
def test_an_enclave_that_dies_ends_the_run_which_goes_on_after_its_restart(
    tmp_path: Path, dies_at: MessageType
) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    enclave.dies_at, enclave.after = dies_at, 5 if dies_at is MessageType.FORWARD_UPLOAD else 1
    with pytest.raises(EnclaveUnavailableError):
        run(started(consortium, plan, enclave), tmp_path)
    enclave.journal = Journal(tmp_path / "journal")
    enclave.restart()
    here = started(consortium, plan, enclave)  # sites have restarted, too
    done = run(here, tmp_path, resume=True)
    assert delivered(done) == [5, 0, 5]  # a site uploads once per round
    assert "one upload per round" in reasons(consortium, "site-0")[0]
    assert events(consortium, "site-0", "trained") == 3
    assert len(enclave.journal.entries) == 2


def test_a_server_that_dies_after_a_release_goes_on_with_the_next_round(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    here = started(consortium, plan, enclave)
    steps = follow(here.run_spec, out=tmp_path / "run", source=here)
    next(steps)
    first = next(steps).state
    with pytest.raises(RuntimeError):
        list(_dying_after_release(here, steps))
    steps.close()
    done = run(started(consortium, plan, enclave), tmp_path, resume=True)
    assert delivered(done) == [5, 0, 5]
    assert not torch.equal(done.state.weights, first.weights)


def _dying_after_release(here: FederationServer, steps: Any) -> Any:
    host = here._channel
    assert isinstance(host, EnclaveHost)
    gather = host.gather

    def dies(*args: Any) -> None:
        gather(*args)
        raise RuntimeError

    host.gather = dies  # type: ignore[assignment,method-assign]
    return steps


def test_an_enclave_without_its_journal_is_refused_by_sites_that_know_more(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    enclave.dies_at, enclave.after = MessageType.CLOSE_ROUND, 2
    with pytest.raises(EnclaveUnavailableError):
        run(started(consortium, plan, enclave), tmp_path)
    enclave.journal = None
    enclave.restart()
    with pytest.raises(EnclaveRefusedError, match="the enclave was rolled back"):
        run(started(consortium, plan, enclave), tmp_path, resume=True)
    assert events(consortium, "site-0", "trained") == 3


def test_a_site_with_another_memory_of_the_enclave_stops_nobody(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    sites = consortium.sites()
    member = sites["site-2"]._find_accepted(plan.digest).channel
    assert isinstance(member, EnclaveSite)
    member._path.write_bytes(replace(member._state, head=bytes(31) + b"1").to_bytes())
    here = server(plan, transport(sites), connect=enclave)
    *_, done = follow(here.run_spec, source=here)
    assert delivered(done) == [4, 4, 4]
    assert "remembers a release of the enclave" in here.sites.problems["site-2"]


def test_uploads_that_the_enclave_rejects_stop_nobody(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    sites = consortium.sites()

    def answering(name: str, upload: bytes) -> Handler:
        """A site that answers every round with these bytes, signed."""

        def handle(verb: str, request: bytes) -> bytes:
            reply = sites[name].handle(verb, request)
            if verb != TRAIN:
                return reply
            session = read_request(request, SiteRequest).session(TRAIN)
            number, identity = sites[name].number, consortium.identity(name)
            return pack(sign_reply(TRAIN, Answer(number, session, upload), identity))

        return handle

    other = enclave_messages.pack(MessageType.UPLOAD, bytes(500))
    handlers: dict[str, Handler] = {name: site.handle for name, site in sites.items()}
    handlers["site-1"] = answering("site-1", other)
    here = server(plan, InProcess(handlers), connect=enclave)
    *_, done = follow(here.run_spec, source=here)
    assert delivered(done) == [4, 4, 4]
    assert "the enclave rejected its upload" in here.sites.problems["site-1"]
    assert here.sites.excluded == {"site-1"}


def test_an_upload_that_would_close_the_connection_is_not_forwarded(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    here = started(consortium, plan, enclave)
    host = here._channel
    assert isinstance(host, EnclaveHost)
    assert [*host._short({0: bytes(100), 1: bytes(10_000)}, dim=10)] == [(0, bytes(100))]
    assert "at most" in here.sites.problems["site-1"]


def test_a_site_whose_policy_lists_another_measurement_is_a_dropout_by_name(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    path = consortium.home("site-3") / "site.toml"
    path.write_text(path.read_text().replace(MEASUREMENT, "ab" * 32))
    here = started(consortium, plan, enclave)
    done = run(here, tmp_path)
    assert delivered(done) == [4, 4, 4]
    assert "the policy lists " + "ab" * 32 in here.sites.problems["site-3"]
    assert "The enclave is rejected" in reasons(consortium, "site-3")[0]
    assert here.sites.excluded == {"site-3"}
    assert events(consortium, "site-3", "trained") == 0


def test_a_policy_that_changes_makes_the_site_verify_the_enclave_again(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    sites = consortium.sites()
    here = server(plan, transport(sites), connect=enclave)
    steps = follow(here.run_spec, source=here)
    next(steps)
    next(steps)
    path = consortium.home("site-0") / "site.toml"
    path.write_text(path.read_text().replace('"simulation" = true', '"simulation" = true, "min_svn" = 1'))
    sites["site-0"] = consortium.site("site-0")
    here.sites.transport = transport(sites)
    *_, done = steps
    assert delivered(done)[:2] == [5, 4]
    assert "Its security version is" in here.sites.problems["site-0"]


def test_a_site_that_accepts_no_simulation_refuses_the_plan(tmp_path: Path) -> None:
    consortium = Consortium.at(
        tmp_path, 5, methods=["fedavg"], channels=["enclave"], attestation={**ATTESTATION, "simulation": False}
    )
    plan = enclave_plan(consortium, "fedavg", args=ARGS)
    site = read_site(consortium.home("site-0") / "site.toml")
    found = site.review(plan)
    assert "a simulation, which isolates nothing" in " ".join(found.objections)
    with pytest.raises(UserError, match="policy refuses"):
        consortium.accept(plan)


def test_a_plan_for_hardware_accepts_a_simulation_nowhere(tmp_path: Path) -> None:
    consortium, _, _ = prepared(tmp_path)
    plan = hardware_plan(tmp_path)
    assert plan.method.channel.caveat == ""
    consortium.accept(plan)
    here = started(consortium, plan, LocalEnclave.of(plan))
    with pytest.raises(TooFewClientsError, match="does not allow simulations"):
        run(here, tmp_path)


def hardware_plan(folder: Path) -> FederationPlan:
    """The plan in this folder, for an enclave on hardware."""
    path = folder / "plan.toml"
    path.write_text(path.read_text().replace('"simulated" = true', '"simulated" = false'))
    return configured(path)


def test_a_simulated_enclave_that_adds_the_noise_must_be_trusted_like_the_server(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, methods=["geyer"], **SITES, trust_server=False, epsilon=8.0)
    plan = enclave_plan(consortium, "geyer", args=GEYER)
    site = read_site(consortium.home("site-0") / "site.toml")
    found = site.review(plan)
    (objection,) = found.objections
    assert "whoever runs it sees this site's messages without noise" in objection
    assert review(hardware_plan(tmp_path), site.allow).accepted


def test_a_simulated_enclave_must_be_trusted_unless_messages_are_protected_by_themselves() -> None:
    shares = {"channel": "Enclave()", "mechanism.arithmetic": "Reals()", "mechanism.dropouts": 0.0}
    trusted: dict[str, dict[str, object]] = {
        "geyer": GEYER,
        "dp-fedsgd": shares,
        "esmfl": {},
        "dp-sgd": {"channel": "Enclave()"},
    }
    made = {name: methods.make(name, args) for name, args in trusted.items()}
    found = {name: bool(channel_of(method).exposure(method)) for name, method in made.items()}
    assert found == {"geyer": True, "dp-fedsgd": True, "esmfl": False, "dp-sgd": False}


def test_noise_of_an_enclave_that_follows_from_a_seed_is_no_noise(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, methods=["geyer"], **SITES, epsilon=8.0)
    plan = enclave_plan(consortium, "geyer", seed=3, args=GEYER)
    (sentence,) = read_site(consortium.home("site-0") / "site.toml").review(plan).objections
    assert "a seed that everybody knows" in sentence
    with pytest.raises(UserError, match="has a seed"):
        started(consortium, plan, LocalEnclave.of(plan))


def test_sites_charge_their_own_ledgers_before_they_upload(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path, "geyer", args=GEYER, epsilon=8.0)
    enclave.dies_at, enclave.after = MessageType.FORWARD_UPLOAD, 0
    with pytest.raises(EnclaveUnavailableError):
        run(started(consortium, plan, enclave), tmp_path)
    for name in consortium.names:
        assert len(read_site(consortium.home(name) / "site.toml").charges()) == 1


def test_a_site_uploads_to_no_enclave_that_it_has_not_verified(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path, "geyer", args=GEYER, epsilon=8.0)
    here = started(consortium, plan, enclave)
    host = here._channel
    assert isinstance(host, EnclaveHost)
    host.open_link()
    host._heads = dict.fromkeys(range(5), enclave.service.release_log.head)  # as if all had accepted it
    *_, done = follow(here.run_spec, source=here)
    assert delivered(done)[0] == 0
    assert "has accepted no enclave yet" in reasons(consortium, "site-0")[0]
    assert len(read_site(consortium.home("site-0") / "site.toml").charges()) == 2  # of three rounds


def test_uploads_are_not_asked_for_by_attestation(tmp_path: Path) -> None:
    consortium, plan, _ = prepared(tmp_path)
    request = enclave_messages.pack(MessageType.REQUEST_UPLOAD, bytes(36))
    asked = Preparation(plan.digest, bytes(16), 0, 1, 1, request)
    data = send(consortium.site("site-0"), PREPARE, asked)
    reply = read_reply(data, PREPARE, asked.session(PREPARE), 0, plan.directory.by_number)
    assert isinstance(reply, Refusal)
    assert reply.code == "malformed"


def test_absent_sites_are_dropouts_and_too_few_are_not_asked(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    few = {name: site for name, site in consortium.sites().items() if name != "site-4"}
    here = server(plan, transport(few), connect=enclave)
    *_, done = follow(here.run_spec, source=here)
    assert delivered(done) == [4, 4, 4]
    del few["site-0"]
    again = server(plan, transport(few), connect=LocalEnclave.of(plan))
    with pytest.raises(TooFewClientsError, match="at least 4 of the 5 sites that the enclave drew, got 3"):
        again._channel.draw(again.run_spec.simulation.initial_state, _round_of(again))


def _round_of(here: FederationServer) -> Any:
    from tacit.core.keys import RunKeys
    from tacit.engine.simulation import draw

    return draw(here.method, here.plan.population, RunKeys.from_seed(0).at(0), 0)[1]


def test_a_configuration_of_another_plan_is_refused(tmp_path: Path) -> None:
    consortium, plan, _ = prepared(tmp_path)
    changed = (tmp_path / "plan.toml").read_text().replace('"rounds" = 3', '"rounds" = 5')
    (tmp_path / "plan.toml").write_text(changed)
    with pytest.raises(UserError, match="of another plan, with another method"):
        read_plan(tmp_path / "plan.toml").check_channel()
    consortium.plan("fl-std", args={"cohort": 5})
    read_plan(tmp_path / "plan.toml").check_channel()
    text = table({"method": "fl-std", "args": {"cohort": 5}, "model": "acme:net", "sites": "directory.toml"})
    (tmp_path / "plan.toml").write_text(text + '[enclave]\naddress = "x"\n')
    with pytest.raises(UserError, match="fl-std sends nothing to one"):
        read_plan(tmp_path / "plan.toml").check_channel()
    assert configuration_of(plan)


def test_an_enclave_that_does_not_answer_is_named(tmp_path: Path) -> None:
    consortium, plan, _ = prepared(tmp_path)
    here = server(plan, transport(consortium.sites()))
    with pytest.raises(EnclaveUnavailableError, match=r"No enclave answers at .*enclave\.sock"):
        run(here, tmp_path)
    assert events(consortium, "site-0", "trained") == 0


def test_a_connection_that_was_idle_is_made_anew(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    here = started(consortium, plan, enclave)
    times = iter([0.0, 1.0, 2.0, 5.5, 6.0])
    channel = plan.method.channel
    assert isinstance(channel, Enclave)
    host = EnclaveHost(channel, here.sites, enclave, idle=3.0, clock=lambda: next(times))
    host.open_link()
    host._heads = {0: bytes(32)}
    host.open_link()
    assert (enclave.starts, len(host._heads)) == (1, 1)
    host.open_link()
    assert (enclave.starts, len(host._heads)) == (2, 0)


def test_check_and_review_say_what_the_enclave_learns_and_what_is_trusted(tmp_path: Path) -> None:
    consortium, plan, _ = prepared(tmp_path, "geyer", args=GEYER, epsilon=8.0)
    found = explain_plan(plan)
    assert (found.channel, found.messages, found.losses, found.colluding) == ("enclave", 1, 1, 1)
    assert found.trusts_server
    said = " ".join(found.reveals)
    assert "The server forwards ciphertext to the enclave" in said
    assert "at least 3 sites' messages" in said
    assert "Simulated enclave (insecure)" in said
    assert "releases one sum per round" in " ".join(found.notes)
    assert read_site(consortium.home("site-0") / "site.toml").review(plan).reveals == found.reveals
    attested = explain_plan(hardware_plan(tmp_path))
    assert not attested.trusts_server
    said = " ".join(attested.reveals)
    assert "Simulated" not in said
    assert "the vendor of the processor and its firmware, and the measured code" in said


def test_messages_in_the_check_are_those_of_a_round(tmp_path: Path) -> None:
    consortium, plan, enclave = prepared(tmp_path)
    *_, done = follow((here := started(consortium, plan, enclave)).run_spec, source=here)
    found, report = explain_plan(plan), done.history[-1]
    envelope, attested = report.overhead["envelope"], done.history[0].overhead["attestation"]
    assert found.up is not None
    assert found.down is not None
    assert sum(report.up) - envelope.up == 5 * found.up
    assert sum(report.down) - envelope.down == 5 * (
        found.down + 64
    )  # two entries of the release log: a release, and the round's opening
    assert min(envelope.up, envelope.down, attested.up, attested.down) > 0
