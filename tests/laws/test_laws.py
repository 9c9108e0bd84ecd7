"""Laws that hold for all registered methods; a new method is tested as soon as it is registered."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
import zoo
from enclave.federation import POPULATION as ENCLAVE_POPULATION
from enclave.federation import SEED as ENCLAVE_SEED
from enclave.federation import Federation
from laws.compositions import RATIO, SGD, all_methods
from tacit.core import (
    Add,
    Budget,
    ClientKeys,
    ClientMemory,
    CrossEntropy,
    DenseRows,
    Identity,
    Key,
    Messages,
    Method,
    Report,
    RunKeys,
    SimulatedRound,
    State,
    Traffic,
)
from tacit.core.client_half import ClientHalf, make_messages, read_broadcast
from tacit.core.prices import Unit
from tacit.core.server_half import (
    broadcast,
    download_size,
    no_messages,
    pack_broadcast,
    prepare,
    read_messages,
    with_overhead,
)
from tacit.core.state import View
from tacit.data import Task
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.service import aggregate
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.simulation import draw
from tacit.engine.waves import AutoLearner, Learner, StackedClients, single_thread
from tacit.errors import CompositionError
from tacit.pieces.aggregators import KMeans, WeightedMean
from tacit.pieces.channels import Enclave, IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Size, Vote
from tacit.pieces.mechanisms import (
    ByImportance,
    CentralGaussian,
    DistributedGaussian,
    FixedClip,
    Grid,
    MedianClip,
    MetricLaplace,
    NbaflGaussian,
    TwoLevel,
    WeightVariance,
)
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import AdmmPrune, BestOf, MagnitudePrune, Masked, Sgd
from tacit.privacy.accountants import Accounting
from tacit.privacy.noise.sum_grid import SumGrid
from tacit.privacy.planned_charges import accountant_for, release_of
from tacit.protocols.secagg import SecaggSession, run_locally
from tacit.wire import frames, indices

METHODS = all_methods()
ADDITIVE = {name: method for name, method in METHODS.items() if isinstance(method.codec, Identity | Select)}
SECURE = {name: method for name, method in METHODS.items() if isinstance(method.channel, SecureSum)}
COUNTABLE = {name: method for name, method in METHODS.items() if getattr(method.channel, "down", None) is None}
ENCLAVES = {name: method for name, method in METHODS.items() if isinstance(method.channel, Enclave)}
SIZES = [5, 3, 8, 5, 5, 4, 6, 7]
POPULATION, PUBLIC = zoo.population(SIZES), zoo.population([6], seed=3)
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS, scope="module")  # one after the other
every_model = pytest.mark.parametrize("make", [zoo.cnn, zoo.wide, zoo.Residual], ids=["cnn", "wide", "residual"])


def now(index: int = 1) -> SimulatedRound:
    return SimulatedRound.of(index, len(SIZES), 5.0, 5, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


def round_of(method: Method) -> SimulatedRound:
    """A round of this method: the second one, or the first where clients vote in it."""
    return now(first_index(method))


def first_index(method: Method) -> int:
    return 0 if isinstance(method.codec, Select) and isinstance(method.codec.selection, Vote) else 1


@cache
def module(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


@cache
def learner_of(make: Callable[[], nn.Module], learner: Callable[..., Learner] = AutoLearner) -> Learner:
    return learner(module(make), CrossEntropy())


@cache
def prepared(method: Method, make: Callable[[], nn.Module]) -> State:
    """The state before the first round."""
    layout = Layout.of(module(make))
    wave = StackedClients(torch.tensor([0]), PUBLIC, learner_of(make))
    task = Task(model=make, clients=POPULATION)
    weights = initial_weights(make_model(task, 0), task, 0, method.aggregator.models)
    state = State(0, weights, layers=layout.sizes, shapes=layout.shapes)
    return prepare(method, state, wave, now(0))


def view_of(method: Method, make: Callable[[], nn.Module]) -> View:
    return zoo.view_of(method, prepared(method, make), round_of(method))


def sent(
    method: Method, make: Callable[[], nn.Module], clients: list[int], learner: Callable[..., Learner] = AutoLearner
) -> Messages:
    wave = StackedClients(torch.tensor(clients), POPULATION, learner_of(make, learner))
    return make_messages(method, view_of(method, make), wave, round_of(method))


def central_step(method: Method, state: State, messages: Messages, now: SimulatedRound) -> float:
    """A step of the grid on which exact noise is added to a sum, divided by the cohort; the same for this."""
    mechanism = method.mechanism
    if not isinstance(mechanism, CentralGaussian) or not mechanism.exact or not mechanism.noise_multiplier:
        return 0.0
    bound = mechanism.before_sum(messages, state).bound
    grid = SumGrid(messages.rows.dim, now.max_cohort, mechanism.clip.sum_multiplier(mechanism.noise_multiplier))
    return max(bound.values) * math.sqrt(len(bound.values)) / grid.steps / now.expected_cohort


def step_of(messages: Messages) -> float:
    """The step of the grid: after rounding, numbers that differ in their last bit may differ by one step."""
    return 0.0 if messages.grid_step is None else messages.grid_step.size


@pytest.mark.law
@every_method
@every_model
def test_row(method: Method, make: Callable[[], nn.Module]) -> None:
    """The messages of a stack are the stack of the messages of single clients."""
    clients = [4, 1, 7, 2]
    stack = sent(method, make, clients)
    alone = torch.cat([sent(method, make, [client]).rows.dense() for client in clients])
    torch.testing.assert_close(stack.rows.dense(), alone, rtol=1e-4, atol=1e-6 + step_of(stack))


@pytest.mark.law
@every_method
@every_model
def test_engine(method: Method, make: Callable[[], nn.Module]) -> None:
    """The fast learners send the same messages as the reference."""
    one, other = (sent(method, make, [0, 3, 5], learner) for learner in (AutoLearner, ReferenceLearner))
    fast, reference = one.rows.dense(), other.rows.dense()
    flips = step_of(one) * (0.01 * fast.numel()) ** 0.5  # one number in a hundred may be rounded the other way
    assert float((fast - reference).norm()) < 1e-4 * float(reference.norm()) + flips


@pytest.mark.law
@every_method
def test_engine_is_bitwise_independent_of_the_number_of_workers(method: Method) -> None:
    for workers in (2, 3):
        assert torch.equal(_final(method, workers), trained(method)[-1][0].weights)


@every_method
def test_engine_sums_waves_like_all_messages_at_once(method: Method) -> None:
    """A round that sums waves as they arrive equals `server_side`, which has all messages at once."""
    task = _task()
    (streamed, _), *_ = trained(method)
    population, state = task.population, initial_state(method, task, 5)
    cohort, here = draw(method, len(population), RunKeys.from_seed(5).at(0), 0)
    wave = StackedClients(cohort, population, learner_of(zoo.mlp))
    messages = make_messages(method, zoo.view_of(method, state, here), wave, here)
    at_once = zoo.server_side(method, state, messages, here)
    step = step_of(messages) + central_step(method, state, messages, here)
    torch.testing.assert_close(streamed.weights, at_once.weights, rtol=1e-4, atol=1e-6 + step)
    assert at_once.memory.keys() <= streamed.memory.keys()
    for name, value in at_once.memory.items():
        torch.testing.assert_close(streamed.memory[name], value, rtol=1e-4, atol=1e-6)


def keyed(method: Method, secret: bytes) -> SimulatedRound:
    """A round whose parties all draw from this very key."""
    key = Key(secret)
    return SimulatedRound(first_index(method), len(SIZES), 5.0, 5, Key.from_seed(0, "shared"), key, ClientKeys(key))


def flipped(secret: bytes) -> Iterator[bytes]:
    """The key with each of its bits changed."""
    for bit in range(256):
        yield (int.from_bytes(secret, "little") ^ 1 << bit).to_bytes(32, "little")


def noisy_outputs(method: Method, secret: bytes) -> list[bytes]:
    """What the mechanism draws under this key: in messages, on the sum, and for the next bound."""
    here, state, clients = keyed(method, secret), prepared(method, zoo.mlp), torch.tensor([0, 3, 5, 6, 7])
    view = zoo.view_of(method, state, here)
    wave = StackedClients(clients, POPULATION, learner_of(zoo.mlp))
    value = 0.01 if method.mechanism.bits is None else 0.0  # on a grid, nothing is rounded at random
    plain = method.codec.encode(DenseRows(torch.full((len(clients), state.dim), value)), view, here)
    samples = wave.samples if method.weighted else None
    messages = method.mechanism.at_client(Messages(clients, plain, samples), view, wave, here)
    after = zoo.server_side(method, state, method.channel.send(messages, here), here)
    memory = [after.memory[name] for name in sorted(after.memory)]
    return [tensor.contiguous().numpy().tobytes() for tensor in (messages.rows.dense(), after.weights, *memory)]


def distinct(attribute: str) -> dict[str, Method]:
    """One method for each different piece."""
    found = {repr(getattr(method, attribute)): (name, method) for name, method in METHODS.items()}
    return dict(found.values())


NOISY = {name: method for name, method in distinct("mechanism").items() if method.terms.changes_rows}
SAMPLED = {name: m for name, m in distinct("sampler").items() if not isinstance(m.sampler, Everyone)}


@pytest.mark.law
@pytest.mark.parametrize("method", NOISY.values(), ids=NOISY)
def test_every_bit_of_a_key_changes_the_noise(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivation is switched off: it would hide a generator that uses only a part of its key.

    Then the shares of all clients are equal, and their sum is longer than that of independent ones may be.
    """
    monkeypatch.setattr(Method, "max_sum", lambda *_: math.inf)
    secret = Key.from_seed(0, "one").value
    drawn, other = (noisy_outputs(method, key) for key in (secret, Key.from_seed(0, "other").value))
    random = [place for place, (a, b) in enumerate(zip(drawn, other, strict=True)) if a != b]
    assert random
    monkeypatch.setattr(Key, "child", lambda key, *_: key)
    drawn = noisy_outputs(method, secret)
    for changed in flipped(secret):
        found = noisy_outputs(method, changed)
        assert all(found[place] != drawn[place] for place in random)


@pytest.mark.law
@pytest.mark.parametrize("method", SAMPLED.values(), ids=SAMPLED)
def test_every_bit_of_a_key_changes_the_cohort(method: Method) -> None:
    secret = Key.from_seed(0, "one").value
    drawn = method.sampler.cohort(5000, 0, Key(secret)).tolist()
    assert all(method.sampler.cohort(5000, 0, Key(changed)).tolist() != drawn for changed in flipped(secret))


@pytest.mark.law
@pytest.mark.parametrize("method", ADDITIVE.values(), ids=ADDITIVE)
def test_codec(method: Method) -> None:
    """Encoding and decoding is idempotent, and commutes with sums."""
    state, view = prepared(method, zoo.cnn), view_of(method, zoo.cnn)
    rows = torch.randn(3, state.dim, generator=torch.Generator().manual_seed(1))

    def projected(values: Tensor) -> Tensor:
        encoded = method.codec.encode(DenseRows(values), view, round_of(method)).dense()
        return torch.stack([method.codec.decode(row, state, round_of(method))[0] for row in encoded])

    assert torch.equal(projected(projected(rows)), projected(rows))
    total = method.codec.encode(DenseRows(rows), view, round_of(method)).sum()
    torch.testing.assert_close(method.codec.decode(total, state, round_of(method))[0], projected(rows).sum(0))


@every_method
def test_wire(method: Method) -> None:
    """`read(pack(x)) = x` for every broadcast and message, and for what a client keeps."""
    state, here = prepared(method, zoo.cnn), round_of(method)
    sent_out, memory = broadcast(method, state, here), joined(method)
    for first in (True, False):
        parts = frames.unpack(pack_broadcast(method, sent_out, here, first=first), frames.FrameKind.VIEW).parts
        view, memory = read_broadcast(method, parts, memory, here)
        assert torch.equal(view.weights, state.weights)
        assert equal(view.mask, view_of(method, zoo.cnn).mask)
        memory = ClientMemory.read(memory.pack(), method.aggregator.models)
        assert equal(memory.mask, view.mask) or not method.codec.fixed
    messages, like = sent(method, zoo.cnn, [0, 3, 5]), no_messages(method, sent_out, state, here)
    replies = {
        client: method.channel.message_format.pack(messages, i, here)
        for i, client in enumerate(messages.clients.tolist())
    }
    read, rejected = read_messages(method, {**replies, 7: replies[0][:-1]}, like, here)
    assert torch.equal(read.clients, messages.clients)
    assert torch.equal(read.rows.dense(), messages.rows.dense())
    assert equal(read.samples, messages.samples)
    assert read.grid_step == messages.grid_step
    assert rejected.keys() == {7}


def joined(method: Method) -> ClientMemory:
    """What a client has before the first round: initial weights, and the shared key."""
    return ClientMemory(prepared(method, zoo.cnn).weights, now(0).shared)


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def test_a_fresh_interpreter_computes_the_same_message(tmp_path: Path) -> None:
    """It has the bytes of the broadcast, the repr of the method, one client's data and memory, and nothing else."""
    client, keys = 3, RunKeys.from_seed(5)
    cases, expected = [], {}
    for name, method in METHODS.items():
        index = first_index(method)
        here = draw(method, len(SIZES), keys.at(index), index)[1]
        state = replace(prepared(method, zoo.cnn), round=index)
        sent_out = broadcast(method, state, here)
        memory = ClientMemory(state.weights, now(0).shared)
        half = ClientHalf(method, len(SIZES), keys.shared, keys.clients)
        request = pack_broadcast(method, sent_out, here, first=True)
        wave = StackedClients(torch.tensor([client]), POPULATION, learner_of(zoo.cnn))
        with single_thread():
            expected[name] = zoo.answer(half, request, wave, memory)
            view, _ = read_broadcast(method, sent_out.client_parts(first=True), memory, here)
            simulated = make_messages(method, view, wave, here)
        assert expected[name] == method.channel.message_format.pack(simulated, 0, here)
        cases.append((name, repr(method), request.hex(), memory.pack().hex()))
    x, y = POPULATION[client]
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    known = {"population": len(SIZES), "shared": keys.shared.value.hex(), "cases": cases}
    known["secret"] = keys.clients.site(client).root.value.hex()  # of this client alone
    (tmp_path / "client.json").write_text(json.dumps(known))
    command = [sys.executable, str(Path(__file__).with_name("fresh_client.py")), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    answered = json.loads((tmp_path / "messages.json").read_text())
    assert answered == {name: message.hex() for name, message in expected.items()}


@every_method
def test_size(method: Method) -> None:
    """The bandwidth report counts the length of packed bytes, up and down."""
    messages = sent(method, zoo.cnn, [0, 3, 5, 6, 7])
    uploads, requests = packed(method, messages)
    tolerated = 0 if messages.surplus is None else messages.surplus.tolerated
    overhead = sum(method.channel.overhead(round_of(method), tolerated).values(), Traffic())
    assert sum(method.channel.message_format.sizes(messages)) + overhead.up == sum(uploads)
    assert overhead.down == requests
    sent_out = broadcast(method, prepared(method, zoo.cnn), round_of(method))
    for first in (True, False):
        download = len(pack_broadcast(method, sent_out, round_of(method), first=first))
        assert download_size(method.channel, sent_out, first=first) == download


def packed(method: Method, messages: Messages) -> tuple[list[int], int]:
    """The bytes that each client sends, and those that all receive in addition to the broadcast."""
    if isinstance(method.channel, Enclave):
        return packed_for_enclave(method, messages)
    if not isinstance(method.channel, SecureSum):
        here, count = round_of(method), messages.rows.count
        return [len(method.channel.message_format.pack(messages, i, here)) for i in range(count)], 0
    tolerated = None if messages.surplus is None else messages.surplus.tolerated
    bits = 0 if messages.grid_step is None else messages.grid_step.bits
    parameters = method.channel.parameters(messages.rows.dim, round_of(method), tolerated, bits)
    session = SecaggSession(run=bytes(16), round=1, model=bytes(32), config=bytes(32), parameters=parameters)
    zeros = np.zeros(messages.rows.dim, np.uint32)
    transcript = run_locally(session, dict.fromkeys(messages.clients.tolist(), zeros)).transcript
    up = [sum(phase.get(client, 0) for phase in transcript.up.values()) for client in messages.clients.tolist()]
    return up, sum(phase.total() for phase in transcript.down.values())


def packed_for_enclave(method: Method, messages: Messages) -> tuple[list[int], int]:
    """The same for a conversation with an enclave, without attestation."""
    transcript = Federation(method, layers=(messages.rows.dim,)).run_round(messages, 1).transcript
    up = transcript.up[MessageType.UPLOAD]
    return [up[client] for client in messages.clients.tolist()], transcript.down[MessageType.REQUEST_UPLOAD].total()


@pytest.mark.law
@pytest.mark.parametrize("method", ENCLAVES.values(), ids=ENCLAVES)
def test_enclave(method: Method) -> None:
    """The simulated sum is bitwise what the enclave releases, with client states serialised between messages."""
    messages = sent(method, zoo.cnn, [0, 3, 5, 6, 7])
    federation = Federation(method, layers=(messages.rows.dim,))
    released = federation.run_round(messages, 1).result.release
    keys = RunKeys.from_seed(ENCLAVE_SEED).at(1)
    expected = method.sampler.sampling(ENCLAVE_POPULATION, 1).mean_cohort(ENCLAVE_POPULATION)
    here = SimulatedRound(1, ENCLAVE_POPULATION, expected, 5, keys.shared, keys.server, keys.clients)
    state = State(1, torch.zeros(messages.rows.dim), layers=(messages.rows.dim,))
    simulated = aggregate(method, state, messages, here)
    assert torch.equal(released.total.total, simulated.total.total)
    assert released.total.weight == simulated.total.weight


@pytest.mark.law
@pytest.mark.parametrize("method", SECURE.values(), ids=SECURE)
def test_secure_sum(method: Method) -> None:
    """The simulated sum is bitwise that of the conversation, with client states serialised between messages."""
    assert isinstance(method.channel, SecureSum)
    conversed = replace(method, channel=replace(method.channel, conversation=True), rounds=2)
    assert torch.equal(_final(conversed, 1), trained(method)[1][0].weights)


@pytest.mark.law
@pytest.mark.parametrize("method", COUNTABLE.values(), ids=COUNTABLE)
def test_reported_sizes_agree_with_a_count_by_hand(method: Method) -> None:
    """For three rounds: masks are sent to a client once, bounds and values in every round."""
    state, received = initial_state(method, _task(), 5), set[int]()
    for after, report in trained(method):
        up, down, first = _by_hand(method, state)
        overhead = {name: sum(getattr(phase, name) for phase in report.overhead.values()) for name in ("up", "down")}
        if isinstance(method.channel, SecureSum):
            assert report.grid_step is not None
            up = math.ceil((up - 36) / 4 * (report.grid_step.bits or method.channel.bits) / 8)  # no frame around it
        if isinstance(method.channel, Enclave):
            up = math.ceil((8 + up) / method.channel.padding) * method.channel.padding  # prefixed with its length
        if not isinstance(method.channel, Enclave) or method.channel.wire is None:  # sparse rows differ in length
            assert report.up == with_overhead((up,) * len(report.clients), overhead["up"])
        sizes = tuple(down + first * (c not in received) for c in report.clients)
        assert report.down == with_overhead(sizes, overhead["down"])
        received.update(report.clients if first else ())
        state = after


def _by_hand(method: Method, state: State) -> tuple[int, int, int]:
    """Bytes of a message, of a broadcast, and of the extra parts of a first broadcast; headers are 24 + 12 per part."""
    dim, codec = state.dim, method.codec
    whole, selected = 12 + 4 * dim, 12 + 4 * int(RATIO * dim)
    up, down, first = whole, 12 + 4 * dim * method.aggregator.models, 0
    if isinstance(codec, tacit.pieces.Sense):
        up = 12 + 4 * codec.encode(DenseRows(torch.zeros(1, dim)), View(state.weights, {}), round_of(method)).dim
    elif isinstance(codec, Select) and isinstance(codec.selection, Vote) and "codec/mask" not in state.memory:
        down = 0
    elif isinstance(codec, Select):
        up = selected if codec.selection.size.number is None else 12 + 4 * codec.selection.size.number
        down = whole if isinstance(codec.selection, RandomK) else up
        sends_mask = not isinstance(codec.selection, RandomK | FixedRandom)
        first = 12 + len(indices.pack(state.memory["codec/mask"], dim)) if sends_mask else 0
    elif isinstance(method.trainer, AdmmPrune | MagnitudePrune) and state.round >= method.trainer.warm_up:
        shapes = Layout.of(zoo.mlp()).shapes
        sent = sum(
            math.prod(shape) if n is None else n
            for n, shape in zip(method.trainer.keep.layer_counts(shapes), shapes, strict=True)
        )
        up = 12 + 19 + 2 * 4 + 8 * sent  # compressed sparse rows
    inner = getattr(method.mechanism, "base", method.mechanism)
    bound = 12 + 8 if isinstance(inner, DistributedGaussian) else 0
    samples = 12 + 8 if isinstance(method.aggregator, WeightedMean) else 0
    return 24 + up + samples, 24 + down + bound, first


@pytest.mark.law
@every_method
def test_determinism(method: Method) -> None:
    """The same seed gives the same state, independent of the order of clients in a wave."""
    assert torch.equal(_final(method, 1), trained(method)[-1][0].weights)
    one, other = (sent(method, zoo.mlp, order) for order in ([2, 6, 3], [3, 2, 6]))
    atol = 1e-7 + step_of(one)
    torch.testing.assert_close(one.rows.dense()[[2, 0, 1]], other.rows.dense(), rtol=1e-5, atol=atol)


@every_method
def test_the_canonical_form_and_the_text_rebuild_the_method(method: Method) -> None:
    assert Method.from_canonical(method.canonical) == method
    assert eval(repr(method), zoo.public_names()) == method


DISTRIBUTED = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
SELECT = Select(FixedRandom(size=Size(number=1)))
SENSE = tacit.pieces.Sense(size=Size(ratio=0.5))
NBAFL = NbaflGaussian(epsilon=1.0, delta=0.01, samples=1, rounds=1, exposures=1)
BY_IMPORTANCE = ByImportance(base=NBAFL, importance=WeightVariance(), allocation=TwoLevel(2.0))
SENDS_WEIGHTS = Sgd(lr=0.1, steps=1, sends="weights")
HYPOTHESES = {"trainer": BestOf(SENDS_WEIGHTS), "aggregator": KMeans(models=2), "server": Replace()}
MISFITS: list[tuple[dict[str, Any], str]] = [
    (
        {"trainer": Sgd(lr=0.1, steps=1, sends="weights")},
        "x: Sgd sends weights, but Add expects updates. Use Replace.",
    ),
    ({"server": Replace()}, "x: Sgd sends updates, but Replace expects weights. Use Add or Momentum."),
    (
        {"aggregator": WeightedMean(), "mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)},
        (
            "x: CentralGaussian bounds the contribution of every client equally, but WeightedMean gives some clients "
            "more weight. Use Mean."
        ),
    ),
    (
        {"mechanism": DISTRIBUTED},
        (
            "x: DistributedGaussian adds only a share of the noise at each client, but Plain shows the server every "
            "message. Use a channel that reveals only the sum, such as SecureSum."
        ),
    ),
    (
        {"trainer": Masked(SGD)},
        (
            "x: Masked trains only the coordinates that the codec selects, but Identity selects none. "
            "Use Select, or the trainer without a mask."
        ),
    ),
    (
        {"mechanism": DistributedGaussian(clip=FixedClip(1.0)), "channel": IdealSum()},
        (
            "x: DistributedGaussian has no noise multiplier, and there is no budget to compute it from. "
            "Set the budget or the noise."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0))},
        (
            "x: CentralGaussian has no noise multiplier, and there is no budget to compute it from. "
            "Set the budget or the noise."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0, per_layer=True), noise_multiplier=1.0), "codec": SELECT},
        (
            "x: CentralGaussian needs the layers of the model, which rows encoded by Select do not have. "
            "Use Identity, or one bound for whole rows."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=MedianClip(per_layer=True), noise_multiplier=1.0), "codec": SENSE},
        (
            "x: CentralGaussian needs the layers of the model, which rows encoded by Sense do not have. "
            "Use Identity, or one bound for whole rows."
        ),
    ),
    (
        {"aggregator": WeightedMean(), "channel": SecureSum()},
        "x: WeightedMean needs the number of samples of every client, but SecureSum hides it. Use Mean.",
    ),
    (
        {"mechanism": DISTRIBUTED, "channel": SecureSum()},
        (
            "x: DistributedGaussian adds real-valued noise, but SecureSum sums integers modulo 2^32. "
            "Use arithmetic=Grid(bits=32)."
        ),
    ),
    (
        {
            "mechanism": DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0, arithmetic=Grid(bits=20)),
            "channel": SecureSum(bits=16),
        },
        (
            "x: DistributedGaussian adds noise modulo 2^20, but SecureSum sums integers modulo 2^16. "
            "Use arithmetic=Grid(bits=16)."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0), "channel": SecureSum()},
        (
            "x: CentralGaussian processes every message at the server, but SecureSum reveals only their sum. "
            "Use Plain or Enclave, or a mechanism that acts at the clients, such as DistributedGaussian."
        ),
    ),
    (
        {"mechanism": BY_IMPORTANCE},
        "x: Sgd sends updates, but ByImportance expects weights. Set expects='updates'.",
    ),
    (
        {"mechanism": replace(BY_IMPORTANCE, expects="updates"), "codec": SELECT},
        (
            "x: ByImportance needs the layers of the model, which rows encoded by Select do not have. "
            "Use Identity, or one bound for whole rows."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0), "channel": IdealSum()},
        (
            "x: CentralGaussian processes every message at the server, but IdealSum reveals only their sum. "
            "Use Plain or Enclave, or a mechanism that acts at the clients, such as DistributedGaussian."
        ),
    ),
    (
        {**HYPOTHESES, "channel": IdealSum()},
        "x: KMeans needs every message, but IdealSum reveals only their sum. Use Plain or Enclave.",
    ),
    (
        {**HYPOTHESES, "trainer": SENDS_WEIGHTS},
        "x: KMeans produces several models, but Sgd does not choose between them. Use BestOf.",
    ),
    (
        {**HYPOTHESES, "trainer": BestOf(SGD), "server": Add()},
        ("x: KMeans clusters models by their weights, but BestOf sends updates. Use a trainer that sends weights."),
    ),
    (
        {**HYPOTHESES, "codec": SELECT},
        "x: KMeans produces several models, but Select supports only one. Use Identity.",
    ),
    (
        {**HYPOTHESES, "mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)},
        ("x: CentralGaussian protects a single sum of all messages, but KMeans produces several. Use MetricLaplace."),
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1)},
        "x: Sgd sends updates, but MetricLaplace expects weights. Set expects='updates'.",
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1, expects="updates"), "codec": SELECT},
        ("x: MetricLaplace protects by distances between whole models, which Select does not send. Use Identity."),
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1, expects="updates"), "budget": Budget(1.0, 1e-5)},
        (
            "x: a budget of ε = 1 at δ = 1e-05 does not apply to MetricLaplace, which is accounted as d-privacy. "
            "Set its limit instead."
        ),
    ),
    (
        {"budget": Budget(1.0, 1e-5)},
        (
            "x: a budget of ε = 1 at δ = 1e-05 needs noise with a proved (ε, δ) guarantee, which NoNoise does not add. "
            "Set its noise, use another mechanism, or drop the budget."
        ),
    ),
]


@pytest.mark.parametrize(("pieces", "message"), MISFITS)
def test_composition(pieces: dict[str, Any], message: str) -> None:
    """Pieces that do not fit are rejected, with a message that names both and what to use instead."""
    with pytest.raises(CompositionError) as error:
        Method(**{"name": "x", "rounds": 1, "sampler": Everyone(), "trainer": SGD, **pieces})
    assert str(error.value) == message


def test_per_layer_bounds_fit_whole_rows() -> None:
    layered = CentralGaussian(clip=FixedClip(1.0, per_layer=True), noise_multiplier=1.0)
    assert Method(name="x", rounds=1, sampler=Everyone(), trainer=SGD, mechanism=layered).mechanism.per_layer


def _task() -> Task:
    return Task(model=zoo.mlp, clients=POPULATION, public=PUBLIC[0])


@cache
def trained(method: Method) -> tuple[tuple[State, Report], ...]:
    """All rounds in one process; several laws compare with them."""
    return tuple(rounds(method, _task(), seed=5, workers=1, randomness="seeded"))


def _is_proved(method: Method) -> bool:
    """Whether a budget can be given to it: its price is proved, also with the amplification of its sampler."""
    release = release_of(method, len(SIZES), 0)
    return release is not None and not method.terms.prices[Unit.CLIENT].reason and bool(release.adjacencies)


PROVED = {name: method for name, method in METHODS.items() if _is_proved(method)}


@pytest.mark.law
@pytest.mark.parametrize("method", PROVED.values(), ids=PROVED)
def test_privacy_a_budget_stops_train_and_rounds_alike(method: Method) -> None:
    """With a budget for two rounds and a plan of thirty, both stop after the same round, at the same ε."""
    if method.channel.min_cohort:  # random cohorts of so small a population are refused
        method = replace(method, sampler=Everyone())
    release = release_of(method, len(SIZES), 0)
    assert release is not None
    enough = Accounting.of(accountant_for(method, len(SIZES))).compose(release, 2).epsilon(1e-3)
    limited = replace(method, rounds=30, budget=Budget(1.0001 * enough, 1e-3))
    run = tacit.train(limited, _task(), seed=5, workers=1, randomness="seeded")
    played = list(tacit.rounds(limited, _task(), seed=5, workers=1, randomness="seeded"))
    assert run.state.round == len(played) == 2
    assert [report.epsilons[Unit.CLIENT] for _, report in played] == [
        report.epsilons[Unit.CLIENT] for report in run.history
    ]
    assert played[-1][1].epsilons[Unit.CLIENT] == run.charges[Unit.CLIENT].epsilon <= 1.0001 * enough
    assert torch.equal(played[-1][0].weights, run.state.weights)


def _final(method: Method, workers: int) -> Tensor:
    *_, (state, _) = rounds(method, _task(), seed=5, workers=workers, randomness="seeded")
    return state.weights
