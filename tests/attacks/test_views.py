"""An adversary holds exactly what its place shows it."""

from dataclasses import replace

import pytest
import torch

from tacit.attacks.views import NOBODY_KNOWS, VANTAGES, Observation, observe, recipe
from tacit.core import Key, Method, Round, Task
from tacit.core.round import broadcast, client_side
from tacit.engine import initial_state, waves
from tacit.errors import UserError
from tacit.pieces.channels import Enclave, IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, Select, Sense, Size
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Momentum, Replace
from tacit.pieces.trainers import Masked, Sgd
from zoo import population, softmax

TASK = Task(model=softmax, clients=population((3, 3, 3, 3)))
PLAIN = Method(name="plain", rounds=1, sampler=FixedSize(4), trainer=Sgd(lr=0.1, steps=1))
SUMMED = replace(PLAIN, channel=IdealSum())
CENTRAL = replace(PLAIN, mechanism=CentralGaussian(clip=FixedClip(0.1), noise_multiplier=1.0))
SHARED = replace(SUMMED, mechanism=DistributedGaussian(clip=FixedClip(0.1), noise_multiplier=1.0))
SOME = Select(FixedRandom(size=Size(ratio=0.2)))


def now(clients: int) -> Round:
    return Round(0, clients, float(clients), clients, Key.from_seed(1, "shared"), Key.from_seed(1, "secret"))


def seen(method: Method, vantage: str, clients: int = 4) -> Observation:
    wave = waves(TASK)(torch.arange(clients))
    return observe(method, initial_state(method, TASK), wave, now(clients), vantage)


def sent(method: Method, clients: int = 4) -> torch.Tensor:
    state = initial_state(method, TASK)
    view = broadcast(method, state, now(clients))
    return client_side(method, view, waves(TASK)(torch.arange(clients)), now(clients)).rows.dense()


def test_a_plain_channel_shows_every_message_to_the_server_and_on_the_way() -> None:
    for vantage in ("server", "network"):
        held = seen(PLAIN, vantage)
        assert torch.equal(held.messages.rows.dense(), sent(PLAIN))
        assert [trace.client for trace in held.single()] == [0, 1, 2, 3]
        assert held.total is None


@pytest.mark.parametrize("vantage", ["client", "recipient"])
def test_others_hold_models_and_nothing_else(vantage: str) -> None:
    held = seen(PLAIN, vantage)
    assert (held.messages, held.total, held.single()) == (None, None, ())
    assert torch.allclose(held.after - held.before.weights, sent(PLAIN).mean(0), atol=1e-7)


SECURE = replace(PLAIN, channel=SecureSum())
ENCLAVED = replace(PLAIN, channel=Enclave())


@pytest.mark.parametrize("vantage", VANTAGES)
@pytest.mark.parametrize(
    "method", [SUMMED, SHARED, SECURE, ENCLAVED], ids=["sum", "noisy sum", "secure sum", "enclave"]
)
def test_behind_a_sum_nobody_holds_a_single_message(method: Method, vantage: str) -> None:
    held = seen(method, vantage)
    assert held.single() == ()
    assert held.messages is None
    assert (held.total is not None) == (vantage == "server")
    rows = sent(method).double()
    everything = [held.after, held.before.weights, held.after - held.before.weights, held.total]
    for row in rows:
        assert not any(torch.allclose(row, tensor.double(), atol=1e-6) for tensor in everything if tensor is not None)


def test_an_enclave_lets_nothing_out_of_one_client() -> None:
    for vantage in VANTAGES:
        assert seen(ENCLAVED, vantage, 1).single() == ()


def test_the_sum_is_the_one_that_leaves_the_channel() -> None:
    assert torch.allclose(seen(SUMMED, "server").total, sent(SUMMED).sum(0), atol=1e-6)
    blurred = seen(SHARED, "server").total - sent(SHARED).sum(0)
    assert 0.05 < float(blurred.std()) < 0.2  # 0.1 · 1.0


def test_a_trusted_server_sees_what_recipients_do_not() -> None:
    server, recipient = seen(CENTRAL, "server", 1), seen(CENTRAL, "recipient", 1)
    assert torch.equal(server.single()[0].values, sent(CENTRAL, 1)[0])
    (trace,) = recipient.single()  # a model moved by one client alone
    assert trace.decoded
    assert float((trace.values - sent(CENTRAL, 1)[0]).std()) > 0.05


def test_a_sum_of_one_hides_nothing_and_says_so() -> None:
    held = seen(SUMMED, "server", 1)
    assert torch.equal(held.single()[0].values, sent(SUMMED, 1)[0])
    assert str(held).endswith("the sum of 1 message")


def test_secrets_and_the_servers_memory_stay_where_they_are() -> None:
    method = replace(PLAIN, server=Momentum(0.9))
    state = initial_state(method, TASK)
    state = replace(state, memory={"server/momentum": torch.ones(state.dim), "codec/mask": torch.ones(1)})
    for vantage in VANTAGES:
        held = observe(method, state, waves(TASK)(torch.arange(2)), now(2), vantage)
        assert held.now.secret == NOBODY_KNOWS
        assert ("server/momentum" in held.before.memory) == (vantage == "server")


@pytest.mark.parametrize(
    "method",
    [
        PLAIN,
        replace(PLAIN, codec=SOME),
        replace(PLAIN, codec=SOME, trainer=Masked(Sgd(lr=0.1, steps=1))),
        replace(PLAIN, codec=Sense(size=Size(ratio=0.3), chunks=10, lr=0.1)),
        replace(PLAIN, trainer=Sgd(lr=0.1, steps=1, sends="weights"), server=Replace()),
    ],
    ids=["plain", "selected", "masked", "sensed", "weights"],
)
def test_a_trace_is_what_its_update_would_leave(method: Method) -> None:
    update = sent(PLAIN)[0]  # without codec or mask
    held = seen(method, "server")
    if isinstance(method.trainer, Masked):
        update = torch.zeros_like(update).index_copy(0, held.view.mask, update[held.view.mask])
    trace = held.single()[0]
    assert torch.allclose(trace.would_be(update), trace.values, atol=1e-6)
    alone = seen(method, "recipient", 1).single()[0]
    if not isinstance(method.codec, Sense):
        assert torch.allclose(alone.would_be(update), alone.values, atol=1e-6)
        known = slice(None) if held.view.mask is None else held.view.mask
        assert torch.allclose(trace.update()[known], update[known], atol=1e-6)


def test_what_a_codec_tells_as_it_is() -> None:
    every = torch.arange(650)
    assert seen(PLAIN, "server").single()[0].tells(every)
    trace = seen(replace(PLAIN, codec=SOME), "server").single()[0]
    assert trace.tells(trace.seen.view.mask)
    assert not trace.tells(every)


def test_the_recipe_is_public() -> None:
    method = replace(PLAIN, trainer=Sgd(lr=0.3, epochs=2, batch_size=5))
    how = recipe(method, initial_state(method, TASK), now(1))
    assert (how.lr, how.epochs, how.batch_size) == (0.3, 2, 5)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(UserError, match="vantage point in server, network, client, recipient, got 'moon'"):
        seen(PLAIN, "moon")
