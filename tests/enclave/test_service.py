"""What the enclave releases and what it does not."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from enclave.federation import COHORT, DIM, LAYERS, MODEL, POPULATION, Federation, messages, method, now, rows
from tacit.core import Method, Plain, State
from tacit.core.server_half import with_overhead
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.simulated_quotes import SimulatedAttestor
from tacit.enclave.configuration import NO_MEMORY, Journal
from tacit.enclave.enclave_messages import MessageType, RoundRequest, memory_digest
from tacit.enclave.service import aggregate
from tacit.enclave.simulated_enclave import simulated_configuration
from tacit.errors import EnclaveRefusedError, UserError
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave, enclave_service
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.wire.packing import pack_number
from tacit.wire.sparse import Compact, Csr

CHANNELS = {
    "dense": Enclave(),
    "csr": Enclave(wire=Csr()),
    "compact": Enclave(wire=Compact()),
    "padded": Enclave(wire=Compact(), padding=4096),
}
MECHANISMS = {
    "plain": None,
    "central": CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.5),
    "per layer": CentralGaussian(clip=FixedClip(0.3, per_layer=True), noise_multiplier=0.5),
    "median": CentralGaussian(clip=MedianClip(), noise_multiplier=0.5),
    "quantile": CentralGaussian(clip=QuantileClip(start=0.1, count_noise=1.0), noise_multiplier=0.5),
}


def state(index: int = 0, memory: Mapping[str, Tensor] | None = None) -> State:
    return State(index, torch.zeros(DIM), memory or {}, LAYERS)


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_the_conversation_gives_what_the_fast_path_gives(channel: Enclave, mechanism: CentralGaussian | None) -> None:
    used = method(channel, mechanism)
    federation, memory = Federation(used), dict[str, Tensor]()
    for index in range(2):
        sent = messages(rows(index))
        real = federation.run_round(sent, index).result.release
        fast = aggregate(used, state(index, memory), sent, now(index))
        memory |= fast.memory
        assert torch.equal(real.total.total, fast.total.total)
        assert (real.total.weight, real.contributors) == (fast.total.weight, fast.contributors)
        assert {name: value.item() for name, value in real.memory.items()} == {
            name: value.item() for name, value in fast.memory.items()
        }


def test_a_weighted_mean_is_computed_inside() -> None:
    used = method(Enclave(), aggregator=WeightedMean())
    sent = messages(rows(0), weighted=True)
    real = Federation(used).run_round(sent).result.release
    assert torch.equal(real.total.total, aggregate(used, state(), sent, now()).total.total)
    assert real.total.weight == sum(client + 1 for client in COHORT)


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_reported_sizes_are_those_of_the_packed_messages(channel: Enclave) -> None:
    sent = messages(rows(0))
    transcript = Federation(method(channel)).run_round(sent).transcript
    deliver = channel.overhead(now())["deliver"]
    sizes = with_overhead(channel.message_format.sizes(sent), deliver.up)
    assert sizes == tuple(transcript.up[MessageType.UPLOAD][client] for client in COHORT)
    assert transcript.down[MessageType.REQUEST_UPLOAD].total() == deliver.down


def test_padding_hides_how_sparse_rows_are() -> None:
    values = torch.zeros(6, DIM)
    for i in range(6):
        values[i, : 7 * i] = 1.0 + torch.arange(7 * i)
    sizes = {pad: set(Enclave(wire=Compact(), padding=pad).message_format.sizes(messages(values))) for pad in (1, 1024)}
    assert len(sizes[1]) == 6
    assert len(sizes[1024]) == 1


def test_a_wire_format_is_used_where_it_is_shorter() -> None:
    """Rows without zeros are sent dense, as in the first rounds of methods that prune later."""
    full, few = torch.ones(4, DIM) * 1.1, torch.zeros(4, DIM)
    few[:, 3] = 1.0
    dense, sparse = Enclave(), Enclave(wire=Csr())
    for values, shorter in ((full, False), (few, True)):
        sent = messages(values, COHORT[:4])
        assert (sum(sparse.message_format.sizes(sent)) < sum(dense.message_format.sizes(sent))) is shorter
        outcome = Federation(method(sparse)).run_round(sent)
        assert torch.equal(outcome.result.release.total.total, values.sum(0))


def test_noise_is_added_inside() -> None:
    """The released sum differs from the clipped one by noise of the declared scale."""
    noisy = method(Enclave(), CentralGaussian(clip=FixedClip(1.0), noise_multiplier=2.0))
    federation, wide = Federation(noisy), 20_000
    sent = messages(torch.zeros(len(COHORT), wide))
    total = federation.run_round(sent).result.release.total.total
    deviation = float(total.std())
    for wrong, fits in ((2 / 3, False), (1.0, True), (3 / 2, False)):
        assert (abs(deviation / (2.0 * wrong) - 1) < 4 / math.sqrt(2 * wide)) is fits


@pytest.mark.parametrize("least", [6, 7])
def test_with_too_few_contributors_nothing_is_released(least: int) -> None:
    channel = Enclave(min_clients=least, colluding=0.0)
    federation = Federation(method(channel, CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)))
    result = federation.run_round(messages(rows(0))).result
    assert (result.release.total.weight > 0) is (least == 6)
    assert bool(result.release.total.total.any()) is (least == 6)
    assert (result.release.contributors == COHORT) is (least == 6)
    assert bool(result.log_entry) is (least == 6)


def test_a_failed_round_may_be_repeated_and_a_released_one_may_not() -> None:
    federation = Federation(method(Enclave(min_clients=3)))
    failed = federation.run_round(messages(rows(0)), 0, lambda replies: replies[:2])
    assert failed.result.release.contributors == ()
    federation.clients.stored.clear()
    federation.heads = {}
    assert federation.run_round(messages(rows(0)), 0).result.release.contributors == COHORT
    federation.clients.stored.clear()
    federation.heads = {}
    with pytest.raises(EnclaveRefusedError, match="one aggregate is released per round"):
        federation.run_round(messages(rows(0)), 0)


def test_a_host_cannot_choose_the_noise_of_an_enclave() -> None:
    """Only a simulation, which plays both, hands the round's key over."""
    used = method(mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0))
    federation, request = Federation(used), RoundRequest(0, MODEL, DIM, LAYERS, {}, bytes(32))
    asked = enclave_messages.pack(MessageType.OPEN_ROUND, request.pack())
    enclave_messages.read_reply(federation.service.answer(asked), MessageType.ROUND_OPENED)
    configuration = replace(federation.configuration, seed=None, memory=memory_digest({}))
    service = enclave_service(configuration, used, SimulatedAttestor(insecure=True))
    with pytest.raises(EnclaveRefusedError, match="Only a simulated enclave takes a noise key"):
        enclave_messages.read_reply(service.answer(asked), MessageType.ROUND_OPENED)


def test_invalid_requests_of_the_host_are_refused() -> None:
    service = Federation(method()).service
    for request in (
        b"",
        b"\0" * 100,
        enclave_messages.pack(MessageType.CHALLENGE),
        enclave_messages.pack(MessageType.ATTEST, b"short"),
        enclave_messages.pack(MessageType.OPEN_ROUND, b"\xff" * 50),
        enclave_messages.pack(MessageType.CLOSE_ROUND, pack_number(0)),
        enclave_messages.pack(MessageType.READ_LOG, bytes(31)),
    ):
        assert enclave_messages.unpack(service.answer(request)).kind is MessageType.REFUSED


def test_rows_do_not_outlive_their_round() -> None:
    federation = Federation(method())
    federation.run_round(messages(rows(0)))
    assert federation.service._round is None


def test_without_a_seed_noise_cannot_be_repeated() -> None:
    used = method(Enclave(), CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0))
    configuration = replace(simulated_configuration(used, POPULATION, 7), seed=None, memory=NO_MEMORY)
    totals = []
    for _ in range(2):
        federation = Federation(used)
        federation.configuration = configuration
        federation.restart()
        totals.append(federation.run_round(messages(rows(0))).result.release.total.total)
    assert not torch.equal(*totals)


def test_a_method_must_have_the_enclave_channel() -> None:
    with pytest.raises(UserError, match="Expected a method with the channel Enclave"):
        enclave_service(
            simulated_configuration(method(), POPULATION, 7),
            replace(method(), channel=Plain()),
            SimulatedAttestor(insecure=True),
        )


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="Expected padding=0 >= 1"):
        Enclave(padding=0)
    with pytest.raises(UserError, match="Expected min_clients=0 >= 1"):
        Enclave(min_clients=0)


def test_a_failed_round_leaves_no_entry_in_the_journal(tmp_path: Path) -> None:
    """The journal has an entry for every released aggregate, and for nothing else."""
    journal = Journal(tmp_path / "journal")
    federation = Federation(method(Enclave(min_clients=3)), journal)
    federation.run_round(messages(rows(0)), 0)
    federation.run_round(messages(rows(1)), 1, lambda replies: replies[:1])
    assert [entry.round for entry in Journal(tmp_path / "journal").entries] == [0]
    (tmp_path / "journal").write_bytes(b"torn\n")
    with pytest.raises(UserError, match="was changed, or lines before it are missing"):
        Journal(tmp_path / "journal")


def test_the_configuration_rebuilds_its_method() -> None:
    used = method(Enclave(wire=Compact()), MECHANISMS["central"])
    configuration = simulated_configuration(used, POPULATION, 7)
    assert Method.from_canonical(configuration.method) == used
