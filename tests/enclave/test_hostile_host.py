"""What a host cannot do: every attack here worked before the enclave checked what enters a price."""

import math
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enclave.federation import (
    COHORT,
    DIM,
    LAYERS,
    MODEL,
    NOW,
    POPULATION,
    SEED,
    Federation,
    messages,
    method,
    now,
    rows,
)
from tacit.core import Budget, Messages, Method, RunKeys, Turnout
from tacit.core.interfaces import Mechanism, Sampler
from tacit.enclave import enclave_messages, service
from tacit.enclave.attestation.simulated_quotes import SimulatedAttestor
from tacit.enclave.configuration import NO_MEMORY, Configuration, Journal
from tacit.enclave.enclave_client import answer, set_time, set_upload
from tacit.enclave.enclave_messages import MessageType, RoundRequest, memory_digest, read_opened
from tacit.enclave.service import EnclaveService
from tacit.enclave.simulated_enclave import simulated_configuration
from tacit.engine.simulation import draw
from tacit.errors import BudgetError, EnclaveRefusedError, ProtocolError, UserError
from tacit.pieces.channels import Enclave, enclave_service
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip, QuantileClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.privacy.accountants import Accounting
from tacit.privacy.planned_charges import accountant_for, release_of
from tacit.protocols.kit import ReplyStatus
from tacit.wire.packing import pack_number

CLIENT = COHORT[0]
CENTRAL = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=4.0)
SHARES = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=4.0)
QUANTILE = CentralGaussian(clip=QuantileClip(start=0.1, count_noise=4.0), noise_multiplier=0.5)


def service_of(used: Method, journal: Journal | None = None, **changes: Any) -> EnclaveService:
    """An enclave with fresh entropy."""
    configuration = replace(simulated_configuration(used, POPULATION, SEED), seed=None, memory=NO_MEMORY)
    return enclave_service(replace(configuration, **changes), used, SimulatedAttestor(insecure=True), journal)


def request(index: int = 0, dim: int = DIM, layers: tuple[int, ...] = LAYERS, **memory: Tensor) -> bytes:
    named = {f"mechanism/{name}": value for name, value in memory.items()}
    return enclave_messages.pack(MessageType.OPEN_ROUND, RoundRequest(index, MODEL, dim, layers, named).pack())


def cohort(service: EnclaveService, index: int = 0) -> tuple[int, ...]:
    reply = enclave_messages.read_reply(service.answer(request(index)), MessageType.ROUND_OPENED)
    return read_opened(reply)[1]


def refused(service: EnclaveService, data: bytes) -> str:
    with pytest.raises(EnclaveRefusedError) as error:
        enclave_messages.read_reply(service.answer(data), MessageType.ROUND_OPENED)
    return str(error.value)


def deviation(total: Tensor) -> float:
    return float(total.std())


# Noise


def test_the_noise_of_shares_follows_from_the_cohort_that_is_drawn_inside() -> None:
    """The host announced 2³² − 1 clients, and the noise of shares, divided by that, was gone."""
    wide = 20_000
    federation = Federation(method(mechanism=SHARES), layers=(wide,))
    total = federation.run_round(messages(torch.zeros(len(COHORT), wide))).result.release.total.total
    expected = 4.0 * math.sqrt(6 / 5)  # of six clients, each knows its own share
    assert abs(deviation(total) / expected - 1) < 4 / math.sqrt(2 * wide)
    with pytest.raises(TypeError):
        RoundRequest(0, MODEL, wide, (wide,), {}, invited=2**32 - 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("told", [1, 5, 7, 2**32 - 1])
def test_a_share_for_another_cohort_is_rejected(told: int) -> None:
    """Clients sign the size of the cohort that they were told, from which their share of the noise follows."""
    federation = Federation(method(mechanism=replace(SHARES, single_draw=False, dropouts=0.2)))

    def tell(sent: Messages, index: int, model: bytes = MODEL) -> None:
        Federation.encode(federation, sent, index, model)
        state = federation.state(CLIENT)
        assert state.pending is not None
        plaintext = federation.channel.message_format.pack(sent, 0, now(index, told))
        federation.clients.store(CLIENT, set_upload(state, replace(state.pending, plaintext=plaintext)))

    federation.encode = tell  # type: ignore[method-assign]
    result = federation.run_round(messages(rows(0))).result
    assert result.rejected == {ReplyStatus.MALFORMED: 1}
    assert result.release.contributors == COHORT[1:]


def test_dropouts_that_cost_more_than_declared_release_nothing() -> None:
    """The host can withhold uploads, and with them shares of the noise."""
    declared = Federation(method(mechanism=replace(SHARES, dropouts=0.2)))
    result = declared.run_round(messages(rows(0)), 0, lambda replies: replies[1:]).result
    assert result.release.contributors == COHORT[1:]
    for mechanism, kept in ((SHARES, 5), (replace(SHARES, dropouts=0.2), 4)):
        federation = Federation(method(mechanism=mechanism))
        with pytest.raises(EnclaveRefusedError, match=f"{kept} of 6 clients delivered their share of the noise"):
            federation.run_round(messages(rows(0)), 0, lambda replies, kept=kept: replies[:kept])  # type: ignore[misc]
    central = Federation(method(mechanism=CENTRAL))  # its noise does not depend on them
    assert central.run_round(messages(rows(0)), 0, lambda replies: replies[:4]).result.release.contributors


BOUNDS = {
    "of another value": torch.tensor(1e-9, dtype=torch.float64),
    "of zero": torch.tensor(0.0, dtype=torch.float64),
    "NaN": torch.tensor(math.nan, dtype=torch.float64),
    "of three elements": torch.ones(3, dtype=torch.float64),
}


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("index", [0, 1])
def test_the_host_cannot_choose_the_clipping_bound(bound: Tensor, index: int) -> None:
    federation = Federation(method(mechanism=QUANTILE))
    federation.configuration = replace(federation.configuration, memory=NO_MEMORY)
    federation.restart()
    if index:
        federation.run_round(messages(rows(0)), 0)
    assert "the host cannot choose it" in refused(federation.service, request(index, bound=bound))
    federation.clients.stored.clear()
    federation.heads = {}
    assert federation.run_round(messages(rows(index)), index).result.release.contributors == COHORT


def test_a_bound_from_public_data_is_that_of_the_configuration() -> None:
    bound = torch.tensor(0.7, dtype=torch.float64)
    service = service_of(method(mechanism=QUANTILE), memory=memory_digest({"mechanism/bound": bound}))
    assert "the host cannot choose it" in refused(service, request())
    assert "the host cannot choose it" in refused(service, request(bound=bound.float()))
    reply = service.answer(request(bound=bound))
    assert enclave_messages.unpack(reply).kind is MessageType.ROUND_OPENED


def test_the_bound_is_remembered_across_a_restart(tmp_path: Path) -> None:
    federation = Federation(method(mechanism=QUANTILE), Journal(tmp_path / "journal"))
    federation.run_round(messages(rows(0)), 0)
    federation.journal = Journal(tmp_path / "journal")
    federation.restart()
    assert "the host cannot choose it" in refused(federation.service, request(1))
    assert federation.run_round(messages(rows(1)), 1).result.release.contributors == COHORT


def test_a_configuration_without_the_memorys_digest_is_for_simulations_only() -> None:
    with pytest.raises(UserError, match="the host could choose the clipping bound"):
        replace(simulated_configuration(method(), POPULATION, SEED), seed=None)


# Rounds, budget, sampling


def test_no_more_rounds_than_the_configuration_has() -> None:
    """1,000 rounds of one cohort were released where 5 were configured; averaging them removed the noise."""
    federation = Federation(replace(method(mechanism=CENTRAL), rounds=5))
    for index in range(5):
        assert federation.run_round(messages(rows(index)), index).result.release.contributors == COHORT
    for index in (5, 6, 1000, 2**32 - 1):
        assert "beyond the 5 rounds of this run" in refused(federation.service, request(index))


SAMPLERS: dict[str, Sampler] = {"fixed": FixedSize(4), "poisson": Poisson(4), "everyone": Everyone()}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_the_enclave_draws_the_cohort_with_its_own_coins(sampler: Sampler, tmp_path: Path) -> None:
    used = replace(method(mechanism=CENTRAL), sampler=sampler, rounds=40)
    service = service_of(used, Journal(tmp_path / "journal"))
    cohorts = [cohort(service, index) for index in range(40)]
    again = service_of(used, Journal(tmp_path / "journal"))
    assert [cohort(again, index) for index in range(40)] == cohorts  # neither asking again nor a restart redraws
    other = service_of(used, Journal(tmp_path / "other"))
    distinct = {"fixed": True, "poisson": True, "everyone": False}
    name = next(name for name, each in SAMPLERS.items() if each is sampler)
    assert (len(set(cohorts)) > 5) is distinct[name]
    assert ([cohort(other, index) for index in range(40)] != cohorts) is distinct[name]


def test_a_seeded_enclave_draws_the_cohort_of_the_simulation() -> None:
    used = method(mechanism=CENTRAL)
    service = Federation(used).service
    for index in range(9):
        expected, _ = draw(used, POPULATION, RunKeys.from_seed(SEED).at(index), index)
        assert cohort(service, index) == tuple(expected.tolist())


def test_a_client_that_was_not_drawn_cannot_upload() -> None:
    """The host asks it all the same; its upload is for the right session, and signed by itself."""
    federation = Federation(method())
    outsider = 1
    sent = messages(rows(0, 7), (0, 1, 2, 3, 5, 8, 9))
    federation.encode(sent, 0)
    federation.choose(COHORT)
    service = federation.service
    service.answer(enclave_messages.pack(MessageType.OPEN_ROUND, federation.request(sent, 0).pack()))
    state, reply = answer(federation.state(outsider), enclave_messages.pack(MessageType.CHALLENGE))
    nonce = bytes(enclave_messages.read_reply(reply, MessageType.NONCE).rest())
    evidence = service.answer(enclave_messages.pack(MessageType.ATTEST, nonce))
    body = bytes(enclave_messages.read_reply(evidence, MessageType.EVIDENCE).rest())
    state, _ = answer(state, enclave_messages.pack(MessageType.PRESENT_EVIDENCE, body))
    ask = enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(0) + service.release_log.head)
    upload = bytes(enclave_messages.read_reply(answer(state, ask)[1], MessageType.UPLOAD).rest())
    forward = enclave_messages.pack(MessageType.FORWARD_UPLOAD, pack_number(outsider) + upload)
    receipt = enclave_messages.read_reply(service.answer(forward), MessageType.RECEIPT)
    assert receipt.number(1) == ReplyStatus.UNEXPECTED_SENDER


def test_every_client_of_the_population_is_enrolled() -> None:
    configuration = simulated_configuration(method(), POPULATION, SEED)
    with pytest.raises(UserError, match="the identities of all 4294967295 clients"):  # at once, in no memory
        replace(configuration, population=2**32 - 1)
    with pytest.raises(UserError, match="the identities of all 12 clients"):
        replace(configuration, directory={client: configuration.directory[client] for client in COHORT})


def budgeted(rounds: int, mechanism: Mechanism = CENTRAL) -> Method:
    """A method whose budget allows exactly this many of its 9 rounds."""
    used = method(mechanism=mechanism)
    accounting = Accounting.of(accountant_for(used, POPULATION))
    for index in range(rounds):
        release = release_of(used, POPULATION, index)
        assert release is not None
        accounting = accounting.compose(release)
    return replace(used, budget=Budget(accounting.epsilon(1e-5) * 1.0001, 1e-5))


def test_the_enclave_enforces_the_budget_across_restarts(tmp_path: Path) -> None:
    """Charges are in the sealed journal, written before anything is released."""
    journal = tmp_path / "journal"
    federation = Federation(budgeted(3), Journal(journal))
    for index in range(3):
        federation.run_round(messages(rows(index)), index)
        assert Journal(journal).entries[-1].turnout == Turnout(6, 6)
        federation.journal = Journal(journal)
        federation.restart()
    with pytest.raises(EnclaveRefusedError, match=r"Round 3 would exceed the budget .* nothing is released"):
        federation.run_round(messages(rows(3)), 3)
    assert len(Journal(journal).entries) == 3
    with pytest.raises(EnclaveRefusedError, match="would exceed the budget"):  # nor a later one
        federation.run_round(messages(rows(4)), 4)


def test_dropouts_do_not_exceed_the_budget() -> None:
    """The enclave adds the noise that is missing if more are lost than tolerated: as many rounds fit."""
    wide = 20_000

    def released(kept: int, mechanism: DistributedGaussian = SHARES) -> int:
        federation = Federation(budgeted(4, mechanism))
        for index in range(9):
            try:
                federation.run_round(messages(rows(index)), index, lambda replies: replies[:kept])
            except EnclaveRefusedError as refused:
                if "would exceed the budget" not in str(refused):
                    raise
                return index
        return 9

    assert [released(6), released(4), released(4, replace(SHARES, dropouts=0.5))] == [4, 4, 4]
    federation = Federation(budgeted(4, SHARES), layers=(wide,))
    found = federation.run_round(messages(torch.zeros(len(COHORT), wide)), 0, lambda replies: replies[:4]).result
    expected = 4.0 * math.sqrt(6 / 5)
    assert abs(deviation(found.release.total.total) / expected - 1) < 4 / math.sqrt(2 * wide)


def test_a_failed_charge_releases_nothing_and_draws_no_noise(monkeypatch) -> None:
    federation = Federation(method(mechanism=CENTRAL))

    def no(index: int, turnout: Turnout | None) -> None:
        if turnout is not None:
            raise BudgetError("No.")

    federation.service._charge_budget = no
    with monkeypatch.context() as patched:
        patched.setattr(service, "release_sum", lambda *_: pytest.fail("noise was drawn"))
        with pytest.raises(EnclaveRefusedError, match="No"):
            federation.run_round(messages(rows(0)), 0)
    federation.service._charge_budget = None
    federation.clients.stored.clear()
    federation.heads = {}
    assert federation.run_round(messages(rows(0)), 0).result.release.contributors == COHORT


def test_the_journal_is_private_and_complete_before_a_release(tmp_path: Path, monkeypatch) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    federation = Federation(method(), journal)
    journal.path.unlink()
    (tmp_path / "journal").mkdir()  # it can no longer be written
    with pytest.raises(EnclaveRefusedError, match=r"Could not write .*journal"):
        federation.run_round(messages(rows(0)), 0)


# Rollback


def seen(federation: Federation, count: int, history: list[bytes], file: Path) -> None:
    for index in range(count):
        federation.run_round(messages(rows(index)), index)
        history.append(file.read_bytes())


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_client_moves_only_to_heads_that_follow_from_its_own(back: int, tmp_path: Path) -> None:
    """The host sent any head with the request for an upload, the client stored it, and the rollback went unnoticed."""
    federation = Federation(method(), Journal(tmp_path / "journal"))
    for index in range(4):
        federation.run_round(messages(rows(index)), index)
    heads, log = federation.service.release_log.heads, federation.service.release_log.entries
    federation.encode(messages(rows(4)), 4)
    state = federation.state(CLIENT)
    assert state.head == heads[-2]  # with the opening of the last round that it took part in, before its release

    def asked(head: bytes, *entries: bytes) -> bytes:
        return enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(4) + head + b"".join(entries))

    for data in (
        asked(heads[-2 - back]),
        asked(heads[-1]),  # without the proof
        asked(heads[-1], *log[-2:]),
        asked(bytes(32)),
        asked(heads[-2], log[-1]),
    ):
        with pytest.raises(ProtocolError, match="rolled back"):
            answer(state, data)
    after, _ = answer(state, asked(heads[-1], log[-1]))
    assert after.head == heads[-1]


@pytest.mark.parametrize("trial", range(20))
def test_a_rolled_back_journal_is_refused_by_every_client(trial: int, tmp_path: Path) -> None:
    file, history = tmp_path / "journal", list[bytes]()
    federation = Federation(method(), Journal(file))
    seen(federation, 4, history, file)
    clients = COHORT[trial % len(COHORT) :][:3]
    file.write_bytes(history[trial % 2])
    federation.journal = Journal(file)
    federation.restart()
    for client in clients:
        state, reply = answer(federation.state(client), enclave_messages.pack(MessageType.CHALLENGE))
        nonce = enclave_messages.read_reply(reply, MessageType.NONCE).take(32)
        for head in (state.head, *federation.service.release_log.heads):
            data = federation.service.answer(enclave_messages.pack(MessageType.ATTEST, nonce + head))
            if enclave_messages.unpack(data).kind is MessageType.REFUSED:
                continue
            evidence = bytes(enclave_messages.read_reply(data, MessageType.EVIDENCE).rest())
            with pytest.raises(ProtocolError, match="rolled back"):
                answer(state, enclave_messages.pack(MessageType.PRESENT_EVIDENCE, evidence))


Restore = Callable[[list[bytes]], bytes]  # the journal, from copies of it after every round


def stolen(federation: Federation, rounds: int, file: Path, restore: Restore) -> list[int]:
    """The rounds that are released by a host that restores the journal after every round."""
    released, copies = list[int](), [file.read_bytes()]
    for index in range(rounds):
        with suppress(EnclaveRefusedError, ProtocolError):
            if federation.run_round(messages(rows(index)), index).result.release.contributors:
                released.append(index)
        copies.append(file.read_bytes())
        file.write_bytes(restore(copies))
        federation.journal = Journal(file)
        federation.restart()
    return released


RESTORED: dict[str, Restore] = {
    "before the last round": lambda copies: copies[-2],
    "before the first round": lambda copies: copies[0],
    "without its last line": lambda copies: copies[-1][: copies[-1].rstrip(b"\n").rfind(b"\n") + 1],
    "without its last two lines": lambda copies: b"".join(copies[-1].splitlines(keepends=True)[:-2]),
    "cut within its last line": lambda copies: copies[-1][:-5],
    "deleted": lambda _: b"",
}


@pytest.mark.parametrize("restore", RESTORED.values(), ids=RESTORED)
def test_a_host_that_restores_the_journal_releases_no_more_than_the_budget(tmp_path: Path, restore: Restore) -> None:
    """A client remembered the head before its own round, so that 40 of 40 rounds were released with a budget for 5."""
    file = tmp_path / "journal"
    used = replace(budgeted(5), rounds=12)
    federation = Federation(used, Journal(file))
    released = stolen(federation, 12, file, restore)
    assert 1 <= len(released) <= 5
    assert max(federation.state(client).participations for client in COHORT) <= 5


def test_without_its_release_a_round_stays_charged(tmp_path: Path) -> None:
    """What is opened is charged: the host may have cut the release off the journal."""
    file = tmp_path / "journal"
    federation = Federation(budgeted(2), Journal(file))
    for index in range(2):
        assert cohort(federation.service, index)
    federation.journal = Journal(file)
    federation.restart()
    assert "would exceed the budget" in refused(federation.service, request(2))
    assert cohort(federation.service, 0)  # which may still be released, at no further charge
    assert federation.run_round(messages(rows(1)), 1).result.release.contributors == COHORT


def test_a_client_is_not_moved_back_and_forth_between_forks(tmp_path: Path) -> None:
    """Two enclaves continue copies of one journal; a client of one does not return from the other."""
    file, copy = tmp_path / "journal", tmp_path / "copy"
    one = Federation(replace(method(mechanism=CENTRAL), rounds=9), Journal(file))
    one.run_round(messages(rows(0)), 0)
    copy.write_bytes(file.read_bytes())
    other = Federation(one.method, Journal(copy))
    other.clients = one.clients
    assert one.run_round(messages(rows(1)), 1).result.release.contributors == COHORT
    for fork, index in ((other, 2), (other, 3)):
        with pytest.raises(EnclaveRefusedError, match="rolled back"):
            fork.run_round(messages(rows(index)), index)
    one.heads = {}
    assert one.run_round(messages(rows(4)), 4).result.release.contributors == COHORT


def test_a_journal_has_one_configuration(tmp_path: Path) -> None:
    service_of(method(), Journal(tmp_path / "journal"))
    service_of(method(), Journal(tmp_path / "journal"))
    with pytest.raises(UserError, match="Give every configuration a journal of its own"):
        service_of(method(), Journal(tmp_path / "journal"), parameters=DIM)


def test_a_key_is_enrolled_once() -> None:
    configuration = simulated_configuration(method(), POPULATION, SEED)
    same = dict.fromkeys(range(POPULATION), configuration.directory[0])
    with pytest.raises(UserError, match="a different key for every client"):
        replace(configuration, directory=same)


@pytest.mark.parametrize("later", [24 * 3600, 400 * 24 * 3600, -301])
def test_an_acceptance_expires(later: int) -> None:
    federation = Federation(method())
    federation.run_round(messages(rows(0)), 0)
    federation.encode(messages(rows(1)), 1)
    state = federation.state(CLIENT)
    ask = enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(1) + state.head)
    assert answer(set_time(state, NOW + 24 * 3600 - 1), ask)
    with pytest.raises(ProtocolError, match="verifies the enclave anew"):
        answer(set_time(state, NOW + later), ask)
    with pytest.raises(ProtocolError, match="does not know the time"):
        answer(replace(state, now=None), ask)


@pytest.mark.parametrize("kept", [0, 1, 30])
def test_a_journal_that_a_crash_has_cut_goes_on_without_its_last_line(tmp_path: Path, kept: int) -> None:
    """The first line was one that ended the enclave for good."""
    file = tmp_path / "journal"
    federation = Federation(method(), Journal(file))
    assert not Journal(file).cut
    federation.run_round(messages(rows(0)), 0)
    lines = file.read_bytes().splitlines(keepends=True)
    for whole in (0, 1, 3):
        file.write_bytes(b"".join(lines[:whole]) + lines[whole][:kept])
        again = Journal(file)
        assert again.cut is (kept > 0)
        federation.journal = again
        federation.restart()
        assert cohort(federation.service, 5)
        assert not Journal(file).cut


def test_clients_follow_the_log_through_rounds_that_they_miss() -> None:
    federation = Federation(method(Enclave(min_clients=1, colluding=0.0)))
    others = tuple(client for client in COHORT if client != CLIENT)
    federation.run_round(messages(rows(0)), 0)
    for index in (1, 2, 3):
        federation.run_round(messages(rows(index, 5), others), index)
    outcome = federation.run_round(messages(rows(4)), 4)
    assert outcome.result.release.contributors == COHORT
    sizes = outcome.transcript.down[MessageType.REQUEST_UPLOAD]
    assert sizes[CLIENT] - sizes[others[0]] == 3 * 64  # a round is opened and released
    assert MessageType.CHALLENGE not in outcome.transcript.down


def test_a_client_counts_its_participations() -> None:
    federation = Federation(method())
    for index in range(3):
        federation.run_round(messages(rows(index)), index)
    federation.encode(messages(rows(3)), 3)
    state, head = federation.state(CLIENT), federation.service.release_log.head
    assert state.participations == 3
    assert state.limit == 9
    ask = pack_number(3) + head + federation.service.release_log.entries[-1]
    data = enclave_messages.pack(MessageType.REQUEST_UPLOAD, ask)
    with pytest.raises(ProtocolError, match="took part in 3 rounds, as many as it agreed to"):
        answer(replace(state, limit=3), data)
    assert answer(state, data)[0].participations == 4


# Contributors


@pytest.mark.parametrize(("size", "needed"), [(4, 4), (6, 4), (10, 4), (11, 5), (100, 13), (0, 3)])
def test_three_honest_clients_contribute_though_a_tenth_of_the_cohort_colludes(size: int, needed: int) -> None:
    """With two contributors, one colluder learned the update of the other client."""
    channel = Enclave()
    assert channel.contributors(size) == needed
    assert needed - math.ceil(channel.colluding * size) >= 3
    assert "at least 3 others" in channel.tolerates()
    assert "10%" in channel.tolerates()


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_the_default_releases_no_sum_of_a_client_and_its_colluders(kept: int) -> None:
    federation = Federation(method())
    result = federation.run_round(messages(rows(0)), 0, lambda replies: replies[:kept]).result
    assert bool(result.release.contributors) is (kept == 4)


def test_a_fraction_of_colluding_clients_is_checked() -> None:
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(UserError, match="colluding="):
            Enclave(colluding=wrong)


# Requests that ended the process


HOSTILE: Mapping[str, bytes] = {
    "of a model of 2^31 values": request(layers=(2**31,)),
    "of updates of 2^31 values": request(dim=2**31, layers=(2**31,)),
    "of updates of 2^63 values": request(dim=2**63, layers=()),
    "of layers that overflow": request(layers=(2**63, 2**63)),
    "of updates without values": request(dim=0, layers=()),
    "of a bound of three elements": request(bound=torch.ones(3)),
    "of a bound of no elements": request(bound=torch.ones(0)),
    "of a bound of integers": request(bound=torch.ones(1, dtype=torch.int64)),
    "of a memory bomb": enclave_messages.pack(
        MessageType.OPEN_ROUND, pack_number(0) + MODEL + pack_number(DIM, 8) + pack_number(0) + struct.pack("<Q", 2**60)
    ),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("mechanism", [CENTRAL, QUANTILE, SHARES], ids=["central", "quantile", "shares"])
def test_no_request_ends_the_service(data: bytes, mechanism: Mechanism) -> None:
    """A simulation takes the first memory as it comes; even then the service stays."""
    federation = Federation(method(mechanism=mechanism))
    federation.service.answer(data)
    federation.service.answer(enclave_messages.pack(MessageType.CLOSE_ROUND, pack_number(0)))
    assert federation.run_round(messages(rows(0))).result.release.contributors == COHORT


def test_the_size_of_updates_is_limited_by_the_configuration() -> None:
    service = service_of(method(), parameters=DIM)
    assert enclave_messages.unpack(service.answer(request())).kind is MessageType.ROUND_OPENED
    assert "updates of 1 to 40 values" in refused(service, request(dim=DIM + 1, layers=(DIM + 1,)))
    assert service.max_frame < 2 << 20


def test_configurations_survive_serialisation() -> None:
    configuration = simulated_configuration(method(), POPULATION, SEED)
    assert Configuration.from_bytes(configuration.to_bytes()) == configuration
    real = replace(configuration, seed=None, memory=bytes(range(32)), host=b"", parameters=7)
    assert Configuration.from_bytes(real.to_bytes()) == real
    wrong: tuple[dict[str, Any], ...] = (
        {"rounds": 0},
        {"parameters": 0},
        {"parameters": 2**31 + 1},
        {"memory": b"short"},
    )
    for changes in wrong:
        with pytest.raises(UserError):
            replace(configuration, **changes)
    with pytest.raises(UserError, match="as its method has"):
        enclave_service(replace(configuration, rounds=8), method(), SimulatedAttestor(insecure=True))
