"""Laws: statements over everything registered. A new method stands under them by being in the catalogue."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
import zoo
from laws.compositions import SGD, SHARE, everything
from protocols.enclave.federation import POPULATION as POPULATION_INSIDE
from protocols.enclave.federation import SEED as SEED_INSIDE
from protocols.enclave.federation import Federation
from tacit.core import Add, Budget, CrossEntropy, DenseRows, Identity, Key, Messages, Method, Round, State, Task
from tacit.core.round import broadcast, client_side, prepare, server_side
from tacit.core.state import View
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.learners import AutoLearner, Learner
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import StackedClients
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
    Share,
    Variance,
)
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import AdmmPrune, BestOf, MagnitudePrune, Masked, Sgd
from tacit.protocols.enclave import Verb, aggregate
from tacit.protocols.secagg import Session
from tacit.protocols.secagg.local import play
from tacit.wire import frames, indices

METHODS = everything()
ADDITIVE = {name: method for name, method in METHODS.items() if isinstance(method.codec, Identity | Select)}
SECURE = {name: method for name, method in METHODS.items() if isinstance(method.channel, SecureSum)}
COUNTABLE = {name: method for name, method in METHODS.items() if getattr(method.channel, "down", None) is None}
ENCLAVES = {name: method for name, method in METHODS.items() if isinstance(method.channel, Enclave)}
SIZES = [5, 3, 8, 5, 5, 4, 6, 7]
POPULATION, PUBLIC = zoo.population(SIZES), zoo.population([6], seed=3)
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_model = pytest.mark.parametrize("make", [zoo.cnn, zoo.wide, zoo.Residual], ids=["cnn", "wide", "residual"])


def now(index: int = 1) -> Round:
    return Round(index, len(SIZES), 5.0, 5, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


@cache
def module(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


@cache
def prepared(method: Method, make: Callable[[], nn.Module]) -> State:
    """The state before the first round."""
    layout, model = Layout.of(module(make)), module(make)
    wave = StackedClients(torch.tensor([0]), PUBLIC, AutoLearner(model, CrossEntropy()))
    task = Task(model=make, clients=POPULATION)
    weights = initial_weights(make_model(task, 0), task, 0, method.aggregator.models)
    state = State(0, weights, layers=layout.sizes, shapes=layout.shapes)
    return prepare(method, state, wave, now(0))


def view_of(method: Method, make: Callable[[], nn.Module]) -> View:
    return broadcast(method, prepared(method, make), now())


def sent(
    method: Method, make: Callable[[], nn.Module], clients: list[int], way: Callable[..., Learner] = AutoLearner
) -> Messages:
    wave = StackedClients(torch.tensor(clients), POPULATION, way(module(make), CrossEntropy()))
    return client_side(method, view_of(method, make), wave, now())


def step_of(messages: Messages) -> float:
    """Where rows are rounded, numbers that differ in their last bit may come to differ by a step."""
    return 0.0 if messages.grid_step is None else messages.grid_step.size


@every_method
@every_model
def test_row(method: Method, make: Callable[[], nn.Module]) -> None:
    """`client_side` on a stack is the stack of `client_side` on single rows."""
    clients = [4, 1, 7, 2]
    stack = sent(method, make, clients)
    alone = torch.cat([sent(method, make, [client]).rows.dense() for client in clients])
    torch.testing.assert_close(stack.rows.dense(), alone, rtol=1e-4, atol=1e-6 + step_of(stack))


@every_method
@every_model
def test_engine(method: Method, make: Callable[[], nn.Module]) -> None:
    """The fastest way through a wave sends what the plain reference sends."""
    one, other = (sent(method, make, [0, 3, 5], way) for way in (AutoLearner, ReferenceLearner))
    fast, plain = one.rows.dense(), other.rows.dense()
    flips = step_of(one) * (0.01 * fast.numel()) ** 0.5  # of the roundings, one in a hundred may go the other way
    assert float((fast - plain).norm()) < 1e-4 * float(plain.norm()) + flips


@every_method
def test_engine_gives_the_same_bits_for_any_number_of_workers(method: Method) -> None:
    finals = [_final(method, workers) for workers in (1, 2, 3)]
    assert torch.equal(finals[0], finals[1])
    assert torch.equal(finals[0], finals[2])


@every_method
def test_engine_folds_to_what_all_messages_at_once_give(method: Method) -> None:
    """Waves summed as they come back are the round of `server_side`, which sees every message at once."""
    work, (shared, secret) = _task(), (Key.from_seed(5, name) for name in ("shared", "secret"))
    (folded, _), *_ = rounds(method, work, seed=5, workers=1)
    population, state = work.population, initial_state(method, work, 5)
    cohort = method.sampler.cohort(len(population), 0, secret.child("cohort", 0))
    expected = method.sampler.expected_cohort(len(population), 0)
    here = Round(0, len(population), expected, len(cohort), shared.child("round", 0), secret.child("round", 0))
    wave = StackedClients(cohort, population, AutoLearner(zoo.mlp(), work.loss))
    messages = client_side(method, broadcast(method, state, here), wave, here)
    at_once = server_side(method, state, messages, here)
    torch.testing.assert_close(folded.weights, at_once.weights, rtol=1e-4, atol=1e-6 + step_of(messages))
    assert at_once.memory.keys() <= folded.memory.keys()
    for name, value in at_once.memory.items():
        torch.testing.assert_close(folded.memory[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ADDITIVE.values(), ids=ADDITIVE)
def test_codec(method: Method) -> None:
    """What the codec leaves of a row it leaves for good, and sums may be taken before or after it."""
    state, view = prepared(method, zoo.cnn), view_of(method, zoo.cnn)
    rows = torch.randn(3, state.dim, generator=torch.Generator().manual_seed(1))

    def kept(values: Tensor) -> Tensor:
        coded = method.codec.encode(DenseRows(values), view, now()).dense()
        return torch.stack([method.codec.decode(row, state, now()) for row in coded])

    assert torch.equal(kept(kept(rows)), kept(rows))
    total = method.codec.encode(DenseRows(rows), view, now()).sum()
    torch.testing.assert_close(method.codec.decode(total, state, now()), kept(rows).sum(0))


@every_method
def test_size(method: Method) -> None:
    """The book's bytes are the length of the bytes really packed, up and down."""
    messages = sent(method, zoo.cnn, [0, 3, 5, 6, 7])
    sent_up, asked = packed(method, messages)
    assert list(method.channel.upload_sizes(messages, now())) == sent_up
    view = view_of(method, zoo.cnn)
    for first in (True, False):
        told = view.sent(first=first, wire_format=getattr(method.channel, "down", None))
        whole = len(frames.pack(frames.FrameKind.VIEW, 1, told)) + asked
        assert method.channel.download_size(view, now(), first=first) == whole


def packed(method: Method, messages: Messages) -> tuple[list[int], int]:
    """Bytes that each client really sends, and that each is asked with beside the view."""
    if isinstance(method.channel, Enclave):
        return carried(method, messages)
    if not isinstance(method.channel, SecureSum):
        count, form = messages.rows.count, getattr(method.channel, "wire", None)
        return [len(frames.pack(frames.FrameKind.MESSAGE, 1, messages.parts(i, form))) for i in range(count)], 0
    parameters = method.channel.parameters(messages.rows.dim, now())
    session = Session(run=bytes(16), round=1, model=bytes(32), config=bytes(32), parameters=parameters)
    zeros = np.zeros(messages.rows.dim, np.uint32)
    minutes = play(session, dict.fromkeys(messages.clients.tolist(), zeros)).minutes
    up = [sum(phase.get(client, 0) for phase in minutes.up.values()) for client in messages.clients.tolist()]
    (down,) = {sum(phase.get(client, 0) for phase in minutes.down.values()) for client in messages.clients.tolist()}
    return up, down


def carried(method: Method, messages: Messages) -> tuple[list[int], int]:
    """The same for a conversation with an enclave, attestation apart."""
    minutes = Federation(method, layers=(messages.rows.dim,)).play(messages, 1).minutes
    (down,) = set(minutes.down[Verb.DELIVER].values())
    return [minutes.up[Verb.UPLOAD][client] for client in messages.clients.tolist()], down


@pytest.mark.parametrize("method", ENCLAVES.values(), ids=ENCLAVES)
def test_enclave(method: Method) -> None:
    """What a simulation sums up is what the enclave lets out, to the last bit, with desks kept as bytes in between."""
    messages = sent(method, zoo.cnn, [0, 3, 5, 6, 7])
    federation = Federation(method, layers=(messages.rows.dim,))
    real = federation.play(messages, 1).closing.released
    keys = (Key.from_seed(SEED_INSIDE, name).child("round", 1) for name in ("shared", "secret"))
    here = Round(1, POPULATION_INSIDE, method.sampler.expected_cohort(POPULATION_INSIDE, 1), 5, *keys)
    state = State(1, torch.zeros(messages.rows.dim), layers=(messages.rows.dim,))
    fast = aggregate(method, state, messages, here)
    assert torch.equal(real.total.total, fast.total.total)
    assert real.total.weight == fast.total.weight


@pytest.mark.parametrize("method", SECURE.values(), ids=SECURE)
def test_channel(method: Method) -> None:
    """Adding up integers gives what the conversation gives, to the last bit, with desks kept as bytes in between."""
    assert isinstance(method.channel, SecureSum)
    played = replace(method, channel=replace(method.channel, conversation=True), rounds=2)
    assert torch.equal(_final(played, 1), _final(replace(method, rounds=2), 2))


@pytest.mark.parametrize("method", COUNTABLE.values(), ids=COUNTABLE)
def test_size_is_what_reports_say(method: Method) -> None:
    """Three rounds against a hand count: masks go to a client once, bounds and values every time."""
    state, heard = initial_state(method, _task(), 0), set[int]()
    for after, report in rounds(method, _task(), workers=1):
        up, later, once = _by_hand(method, state)
        own = {name: sum(getattr(phase, name) for phase in report.overhead.values()) for name in ("up", "down")}
        beside = {name: taken // len(report.clients) for name, taken in own.items()}
        if isinstance(method.channel, SecureSum):
            up = math.ceil((up - 36) / 4 * method.channel.bits / 8)  # no frame of its own
        if isinstance(method.channel, Enclave):
            up = math.ceil((8 + up) / method.channel.padding) * method.channel.padding  # its length in front of it
        if not isinstance(method.channel, Enclave) or method.channel.wire is None:  # sparse rows have no one length
            assert report.up == (up + beside["up"],) * len(report.clients)
        assert report.down == tuple(later + beside["down"] + once * (c not in heard) for c in report.clients)
        heard.update(report.clients if once else ())
        state = after


def _by_hand(method: Method, state: State) -> tuple[int, int, int]:
    """Bytes of a message, of a view, and of what a client's first view has beside it: headers of 24 + 12 per part."""
    dim, codec = state.dim, method.codec
    whole, some = 12 + 4 * dim, 12 + 4 * int(SHARE * dim)
    up, down, once = whole, 12 + 4 * dim * method.aggregator.models, 0
    if isinstance(codec, tacit.Sense):
        up = 12 + 4 * codec.encode(DenseRows(torch.zeros(1, dim)), View(state.weights, {}), now()).dim
    elif isinstance(codec, Select) and isinstance(codec.selection, Vote) and "codec/mask" not in state.memory:
        down = 0
    elif isinstance(codec, Select):
        up = some if codec.selection.size.number is None else 12 + 4 * codec.selection.size.number
        down = whole if isinstance(codec.selection, RandomK) else up
        told = not isinstance(codec.selection, RandomK | FixedRandom)
        once = 12 + len(indices.pack(state.memory["codec/mask"], dim)) if told else 0
    elif isinstance(method.trainer, AdmmPrune | MagnitudePrune) and state.round >= method.trainer.warm_up:
        shapes = Layout.of(zoo.mlp()).shapes
        sent = sum(
            math.prod(shape) if n is None else n
            for n, shape in zip(method.trainer.keep.of(shapes), shapes, strict=True)
        )
        up = 12 + 19 + 2 * 4 + 8 * sent  # compressed sparse rows
    inner = getattr(method.mechanism, "base", method.mechanism)
    bound = 12 + 8 if isinstance(inner, DistributedGaussian) else 0
    samples = 12 + 8 if isinstance(method.aggregator, WeightedMean) else 0
    return 24 + up + samples, 24 + down + bound, once


@every_method
def test_determinism(method: Method) -> None:
    """Same seed, same state, whatever the order in which clients are listed in a cohort or come to a wave."""
    assert torch.equal(_final(method, 1), _final(method, 1))
    one, other = (sent(method, zoo.mlp, order) for order in ([2, 6, 3], [3, 2, 6]))
    atol = 1e-7 + step_of(one)
    torch.testing.assert_close(one.rows.dense()[[2, 0, 1]], other.rows.dense(), rtol=1e-5, atol=atol)


@every_method
def test_card_rebuilds_the_method(method: Method) -> None:
    namespace = {name: getattr(tacit, name) for name in tacit.__all__}
    assert eval(repr(method), namespace) == method


SHARES = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
SOME = Select(FixedRandom(size=Size(number=1)))
SENSED = tacit.Sense(size=Size(ratio=0.5))
NBAFL = NbaflGaussian(epsilon=1.0, delta=0.01, samples=1, rounds=1, exposures=1)
BY_IMPORTANCE = ByImportance(base=NBAFL, importance=Variance(), allocation=Share(2.0))
SENT = Sgd(lr=0.1, steps=1, sends="weights")
GROUPS = {"trainer": BestOf(SENT), "aggregator": KMeans(models=2), "server": Replace()}
COMPLAINTS = [
    (
        {"trainer": Sgd(lr=0.1, steps=1, sends="weights")},
        "x: Sgd sends weights, but Add takes updates. Use Replace.",
    ),
    ({"server": Replace()}, "x: Sgd sends updates, but Replace takes weights. Use Add or Momentum."),
    (
        {"aggregator": WeightedMean(), "mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)},
        "x: CentralGaussian bounds every client alike, but WeightedMean lets some count more. Use Mean.",
    ),
    (
        {"mechanism": SHARES},
        (
            "x: DistributedGaussian puts only 1/n of the noise on each client, but Plain shows the server every "
            "message. Use a channel that reveals only the sum, such as SecureSum."
        ),
    ),
    ({"trainer": Masked(SGD)}, "x: Masked trains only the codec's coordinates, but Identity chooses none."),
    (
        {"mechanism": DistributedGaussian(clip=FixedClip(1.0)), "channel": IdealSum()},
        "x: DistributedGaussian is to be sized for a budget, but there is none. Give the budget or the noise.",
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0))},
        "x: CentralGaussian is to be sized for a budget, but there is none. Give the budget or the noise.",
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0, per_layer=True), noise_multiplier=1.0), "codec": SOME},
        (
            "x: CentralGaussian needs the model's layers, but what Select sends has none. "
            "Use Identity, or a bound for whole rows."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=MedianClip(per_layer=True), noise_multiplier=1.0), "codec": SENSED},
        (
            "x: CentralGaussian needs the model's layers, but what Sense sends has none. "
            "Use Identity, or a bound for whole rows."
        ),
    ),
    (
        {"aggregator": WeightedMean(), "channel": SecureSum()},
        "x: WeightedMean needs every client's number of samples, but SecureSum hides it. Use Mean.",
    ),
    (
        {"mechanism": SHARES, "channel": SecureSum()},
        (
            "x: DistributedGaussian blurs with real numbers, but SecureSum adds up integers modulo 2^32. "
            "Use numbers=Grid(bits=32)."
        ),
    ),
    (
        {
            "mechanism": DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0, numbers=Grid(bits=20)),
            "channel": SecureSum(bits=16),
        },
        (
            "x: DistributedGaussian blurs with integers modulo 2^20, but SecureSum adds up integers modulo 2^16. "
            "Use numbers=Grid(bits=16)."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0), "channel": SecureSum()},
        "x: CentralGaussian reads every message on the server, but SecureSum reveals only their sum.",
    ),
    (
        {"mechanism": BY_IMPORTANCE},
        "x: Sgd sends updates, but ByImportance takes weights. Set takes='updates'.",
    ),
    (
        {"mechanism": replace(BY_IMPORTANCE, expects="updates"), "codec": SOME},
        (
            "x: ByImportance needs the model's layers, but what Select sends has none. "
            "Use Identity, or a bound for whole rows."
        ),
    ),
    (
        {"mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0), "channel": IdealSum()},
        "x: CentralGaussian reads every message on the server, but IdealSum reveals only their sum.",
    ),
    (
        {**GROUPS, "channel": IdealSum()},
        "x: KMeans(models=2, warm_up=0) needs every message, but IdealSum reveals only their sum.",
    ),
    (
        {**GROUPS, "trainer": SENT},
        "x: KMeans(models=2, warm_up=0) makes several models, but Sgd chooses none of them. Use BestOf.",
    ),
    (
        {**GROUPS, "trainer": BestOf(SGD), "server": Add()},
        "x: KMeans(models=2, warm_up=0) tells models apart by their weights, but BestOf sends updates. Send weights.",
    ),
    (
        {**GROUPS, "codec": SOME},
        "x: KMeans(models=2, warm_up=0) makes several models, but Select is made for one. Use Identity.",
    ),
    (
        {**GROUPS, "mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)},
        (
            "x: CentralGaussian is made for one sum of all messages, but KMeans(models=2, warm_up=0) makes several. "
            "Use MetricLaplace."
        ),
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1)},
        'x: MetricLaplace blurs weights, but Sgd sends updates. Use MetricLaplace(expects="updates").',
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1, expects="updates"), "codec": SOME},
        "x: MetricLaplace is priced by distances between models, which Select does not send. Use Identity.",
    ),
    (
        {"mechanism": MetricLaplace(noise_multiplier=1.0, radius=0.1, expects="updates"), "budget": Budget(1.0, 1e-5)},
        "x: a budget of ε = 1 at δ = 1e-05 is not what MetricLaplace is priced in. Set its limit instead.",
    ),
]


@pytest.mark.parametrize(("pieces", "sentence"), COMPLAINTS)
def test_composition(pieces: dict[str, object], sentence: str) -> None:
    """Each forbidden pairing raises, with its sentence."""
    with pytest.raises(CompositionError) as error:
        Method(**{"name": "x", "rounds": 1, "sampler": Everyone(), "trainer": SGD, **pieces})
    assert str(error.value) == sentence


def test_a_bound_for_every_layer_goes_with_whole_rows() -> None:
    layered = CentralGaussian(clip=FixedClip(1.0, per_layer=True), noise_multiplier=1.0)
    assert Method(name="x", rounds=1, sampler=Everyone(), trainer=SGD, mechanism=layered).mechanism.per_layer


def _task() -> Task:
    return Task(model=zoo.mlp, clients=POPULATION, public=PUBLIC[0])


def _final(method: Method, workers: int) -> Tensor:
    *_, (state, _) = rounds(method, _task(), seed=5, workers=workers)
    return state.weights
