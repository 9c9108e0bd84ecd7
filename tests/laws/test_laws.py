"""Laws: statements over everything registered. A new method stands under them by being in the catalogue."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tacit
import zoo
from laws.compositions import SGD, everything
from tacit.aggregators import WeightedMean
from tacit.core import CompositionError, CrossEntropy, Key, Messages, Method, Round, State, Task, wire
from tacit.core.rounds import client_side, server_side
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest, Learner
from tacit.engine.reference import Reference
from tacit.engine.waves import Stack
from tacit.mechanisms import CentralGaussian, FixedClip
from tacit.samplers import Everyone
from tacit.servers import Replace
from tacit.trainers import Sgd

METHODS = everything()
SIZES = [5, 3, 8, 5, 5, 4, 6, 7]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_model = pytest.mark.parametrize("make", [zoo.cnn, zoo.wide, zoo.Residual], ids=["cnn", "wide", "residual"])


def now(index: int = 1) -> Round:
    return Round(index, len(SIZES), 5.0, 5, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


def sent(method: Method, model: nn.Module, clients: list[int], way: Callable[..., Learner] = Fastest) -> Messages:
    state = State(1, Layout.of(model).flatten(model))
    wave = Stack(torch.tensor(clients), zoo.population(SIZES), way(model, CrossEntropy()))
    return client_side(method, method.codec.view(state, now()), wave, now())


@every_method
@every_model
def test_row(method: Method, make: Callable[[], nn.Module]) -> None:
    """`client_side` on a stack is the stack of `client_side` on single rows."""
    torch.manual_seed(0)
    model = make()
    clients = [4, 1, 7, 2]
    together = sent(method, model, clients).rows.dense()
    alone = torch.cat([sent(method, model, [client]).rows.dense() for client in clients])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


@every_method
@every_model
def test_engine(method: Method, make: Callable[[], nn.Module]) -> None:
    """The fastest way through a wave sends what the plain reference sends."""
    torch.manual_seed(0)
    model = make()
    fast, plain = (sent(method, model, [0, 3, 5], way).rows.dense() for way in (Fastest, Reference))
    assert float((fast - plain).norm() / plain.norm()) < 1e-4


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
    population, state = work.population, initial_state(work, 5)
    cohort = method.sampler.cohort(len(population), 0, secret.child("cohort", 0))
    expected = method.sampler.expected(len(population), 0)
    here = Round(0, len(population), expected, len(cohort), shared.child("round", 0), secret.child("round", 0))
    wave = Stack(cohort, population, Fastest(zoo.mlp(), work.loss))
    at_once = server_side(method, state, client_side(method, method.codec.view(state, here), wave, here), here)
    torch.testing.assert_close(folded.weights, at_once.weights, rtol=1e-4, atol=1e-6)


@every_method
def test_size(method: Method) -> None:
    """The book's bytes are the length of the bytes really packed, up and down."""
    model = zoo.cnn()
    messages = sent(method, model, [0, 3, 5])
    packed = [len(wire.pack(wire.Kind.MESSAGE, 1, messages.parts(i))) for i in range(3)]
    assert list(method.channel.upload(messages)) == packed
    view = method.codec.view(State(1, Layout.of(model).flatten(model)), now())
    assert method.channel.download(view) == len(wire.pack(wire.Kind.VIEW, 1, view.parts))


@every_method
def test_size_is_what_reports_say(method: Method) -> None:
    (_, report), *_ = rounds(method, _task(), workers=1)
    dim = Layout.of(zoo.mlp()).dim
    weight = 0 if method.aggregator.even else 20
    assert set(report.up) <= {4 * dim + 36 + weight}
    assert set(report.down) <= {4 * dim + 36}
    assert len(report.up) == len(report.down) == len(report.clients)


@every_method
def test_determinism(method: Method) -> None:
    """Same seed, same state, whatever the order in which clients are listed in a cohort or come to a wave."""
    assert torch.equal(_final(method, 1), _final(method, 1))
    model = zoo.mlp()
    one, other = (sent(method, model, order).rows.dense() for order in ([2, 6, 3], [3, 2, 6]))
    torch.testing.assert_close(one[[2, 0, 1]], other, rtol=1e-5, atol=1e-7)


@every_method
def test_card_rebuilds_the_method(method: Method) -> None:
    namespace = {name: getattr(tacit, name) for name in tacit.__all__}
    assert eval(repr(method), namespace) == method


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
]


@pytest.mark.parametrize(("pieces", "sentence"), COMPLAINTS)
def test_composition(pieces: dict[str, object], sentence: str) -> None:
    """Each forbidden pairing raises, with its sentence."""
    with pytest.raises(CompositionError) as error:
        Method(**{"name": "x", "rounds": 1, "sampler": Everyone(), "trainer": SGD, **pieces})
    assert str(error.value) == sentence


class SumOnly:
    """A channel that shows the server only the sum."""

    shows = "sum"


class EveryMessage:
    """An aggregator that needs every message."""

    needs, even = "messages", True

    def __repr__(self) -> str:
        return "EveryMessage()"


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        (
            {"mechanism": CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0), "channel": SumOnly()},
            "x: CentralGaussian reads every message on the server, but SumOnly reveals only their sum.",
        ),
        (
            {"aggregator": EveryMessage(), "channel": SumOnly()},
            "x: EveryMessage() needs every message, but SumOnly reveals only their sum.",
        ),
    ],
)
def test_composition_with_channels(pieces: dict[str, object], sentence: str) -> None:
    with pytest.raises(CompositionError) as error:
        Method(**{"name": "x", "rounds": 1, "sampler": Everyone(), "trainer": SGD, **pieces})
    assert str(error.value) == sentence


def _task() -> Task:
    return Task(model=zoo.mlp, clients=zoo.population(SIZES))


def _final(method: Method, workers: int) -> Tensor:
    *_, (state, _) = rounds(method, _task(), seed=5, workers=workers)
    return state.weights
