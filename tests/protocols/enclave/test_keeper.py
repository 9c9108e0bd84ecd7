"""What the enclave does and does not let out."""

import math

import pytest
import torch

from protocols.enclave.federation import COHORT, DIM, LAYERS, MODEL, POPULATION, Federation, messages, method, now, rows
from tacit.core import Plain, State
from tacit.errors import UserError
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave, enclave_service
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.protocols.attestation import SimulationAttestor
from tacit.protocols.enclave import Opening, RefusedError, Verb, aggregate, frames, simulated
from tacit.wire.packing import number
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


def state(index: int = 0) -> State:
    return State(index, torch.zeros(DIM), layers=LAYERS)


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_the_conversation_gives_what_the_fast_path_gives(channel: Enclave, mechanism: CentralGaussian | None) -> None:
    used = method(channel, mechanism)
    federation = Federation(used)
    for index in range(2):
        sent = messages(rows(index))
        real = federation.play(sent, index).closing.released
        fast = aggregate(used, state(index), sent, now(index))
        assert torch.equal(real.total.total, fast.total.total)
        assert (real.total.weight, real.delivered) == (fast.total.weight, fast.delivered)
        assert {name: value.item() for name, value in real.memory.items()} == {
            name: value.item() for name, value in fast.memory.items()
        }


def test_a_weighted_mean_is_weighed_inside() -> None:
    used = method(Enclave(), aggregator=WeightedMean())
    sent = messages(rows(0), weighed=True)
    real = Federation(used).play(sent).closing.released
    assert torch.equal(real.total.total, aggregate(used, state(), sent, now()).total.total)
    assert real.total.weight == sum(client + 1 for client in COHORT)


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_the_book_counts_what_was_packed(channel: Enclave) -> None:
    sent = messages(rows(0))
    minutes = Federation(method(channel)).play(sent).minutes
    assert channel.upload(sent, now()) == tuple(minutes.up[Verb.UPLOAD][client] for client in COHORT)
    assert set(minutes.down[Verb.DELIVER].values()) == {channel.download(_NOTHING, now(), first=False)}


class _Nothing:
    def size(self, *, first: bool, form: object = None) -> int:
        return 0


_NOTHING = _Nothing()


def test_padding_hides_how_sparse_rows_are() -> None:
    values = torch.zeros(6, DIM)
    for i in range(6):
        values[i, : 7 * i] = 1.0 + torch.arange(7 * i)
    sizes = {pad: set(Enclave(wire=Compact(), padding=pad).upload(messages(values), now())) for pad in (1, 1024)}
    assert len(sizes[1]) == 6
    assert len(sizes[1024]) == 1


def test_a_form_is_used_where_it_is_shorter() -> None:
    """Rows without zeros travel as numbers: as in the first rounds of methods that prune later."""
    full, few = torch.ones(2, DIM) * 1.1, torch.zeros(2, DIM)
    few[:, 3] = 1.0
    dense, sparse = Enclave(), Enclave(wire=Csr())
    for values, shorter in ((full, False), (few, True)):
        sent = messages(values, COHORT[:2])
        assert (sum(sparse.upload(sent, now())) < sum(dense.upload(sent, now()))) is shorter
        outcome = Federation(method(sparse)).play(sent)
        assert torch.equal(outcome.closing.released.total.total, values.sum(0))


def test_noise_is_added_inside() -> None:
    """The released sum differs from the clipped one by noise of the declared size."""
    noisy = method(Enclave(), CentralGaussian(clip=FixedClip(1.0), noise_multiplier=2.0))
    federation, wide = Federation(noisy), 20_000
    sent = messages(torch.zeros(len(COHORT), wide))
    total = federation.play(sent).closing.released.total.total
    deviation = float(total.std())
    for wrong, fits in ((2 / 3, False), (1.0, True), (3 / 2, False)):
        assert (abs(deviation / (2.0 * wrong) - 1) < 4 / math.sqrt(2 * wide)) is fits


@pytest.mark.parametrize("least", [6, 7])
def test_of_too_few_nothing_leaves(least: int) -> None:
    federation = Federation(method(Enclave(least=least), CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)))
    closing = federation.play(messages(rows(0))).closing
    assert (closing.released.total.weight > 0) is (least == 6)
    assert bool(closing.released.total.total.any()) is (least == 6)
    assert (closing.released.delivered == COHORT) is (least == 6)
    assert bool(closing.link) is (least == 6)


def test_a_round_that_failed_may_be_played_again_and_one_that_was_released_may_not() -> None:
    federation = Federation(method(Enclave(least=3)))
    failed = federation.play(messages(rows(0)), 0, lambda replies: replies[:2])
    assert failed.closing.released.delivered == ()
    federation.desks.clear()
    federation.admitted = frozenset()
    assert federation.play(messages(rows(0)), 0).closing.released.delivered == COHORT
    federation.desks.clear()
    federation.admitted = frozenset()
    with pytest.raises(RefusedError, match="of each round, one aggregate leaves"):
        federation.play(messages(rows(0)), 0)


def test_only_clients_of_the_directory_are_let_in() -> None:
    keeper = Federation(method()).keeper
    opening = Opening(0, MODEL, DIM, (0, POPULATION), 2, LAYERS, {})
    reply = frames.unpack(keeper.answer(frames.pack(Verb.OPEN, opening.pack())))
    with pytest.raises(RefusedError, match="not in the directory"):
        reply.reader(Verb.OPENED)


def test_what_the_host_must_not_ask_is_refused() -> None:
    keeper = Federation(method()).keeper
    for request in (
        b"",
        b"\0" * 100,
        frames.pack(Verb.CHALLENGE),
        frames.pack(Verb.ATTEST, b"short"),
        frames.pack(Verb.OPEN, b"\xff" * 50),
        frames.pack(Verb.CLOSE, number(0)),
        frames.pack(Verb.END),
    ):
        assert frames.unpack(keeper.answer(request)).verb is Verb.REFUSED


def test_rows_do_not_outlive_their_round() -> None:
    federation = Federation(method())
    federation.play(messages(rows(0)))
    assert federation.keeper._room is None


def test_without_a_seed_noise_cannot_be_repeated() -> None:
    from dataclasses import replace

    used = method(Enclave(), CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0))
    configuration = replace(simulated(used, POPULATION, 7), seed=None)
    totals = []
    for _ in range(2):
        federation = Federation(used)
        federation.configuration = configuration
        federation.restart()
        totals.append(federation.play(messages(rows(0))).closing.released.total.total)
    assert not torch.equal(*totals)


def test_a_method_must_have_the_channel() -> None:
    with pytest.raises(UserError, match="Expected a method with the channel Enclave"):
        enclave_service(simulated(method(), POPULATION, 7), _plain(), SimulationAttestor(insecure=True))


def _plain() -> object:
    from dataclasses import replace

    return replace(method(), channel=Plain())


def test_settings_are_checked() -> None:
    for wrong in ({"padding": 0}, {"least": 0}):
        with pytest.raises(UserError, match="Expected"):
            Enclave(**wrong)
