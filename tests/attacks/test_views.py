"""An adversary observes exactly what the channel and its position reveal."""

from dataclasses import replace

import pytest
import torch

from tacit.attacks.views import ADVERSARIES, Adversary, LocalSteps, Observation, local_training, observe
from tacit.core import Key, Method, Round, SimulatedRound
from tacit.core.client_half import make_messages
from tacit.core.server_half import broadcast, client_view
from tacit.data import Task
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
DISTRIBUTED = replace(SUMMED, mechanism=DistributedGaussian(clip=FixedClip(0.1), noise_multiplier=1.0))
SECURE = replace(PLAIN, channel=SecureSum())
ENCLAVED = replace(PLAIN, channel=Enclave())
SOME = Select(FixedRandom(size=Size(ratio=0.2)))


def now(clients: int) -> SimulatedRound:
    return SimulatedRound.of(
        0, clients, float(clients), clients, Key.from_seed(1, "shared"), Key.from_seed(1, "secret")
    )


def observed(method: Method, adversary: Adversary, clients: int = 4) -> Observation:
    wave = waves(TASK)(torch.arange(clients))
    return observe(method, initial_state(method, TASK), wave, now(clients), adversary)


def sent(method: Method, clients: int = 4) -> torch.Tensor:
    state = initial_state(method, TASK)
    view = client_view(method, broadcast(method, state, now(clients)), state, now(clients))
    return make_messages(method, view, waves(TASK)(torch.arange(clients)), now(clients)).rows.dense()


@pytest.mark.parametrize("adversary", ["server", "network"])
def test_a_plain_channel_reveals_every_message_to_server_and_network(adversary: Adversary) -> None:
    observation = observed(PLAIN, adversary)
    assert observation.messages is not None
    assert torch.equal(observation.messages.rows.dense(), sent(PLAIN))
    assert [client.client for client in observation.per_client()] == [0, 1, 2, 3]
    assert observation.total is None


@pytest.mark.parametrize("adversary", ["client", "recipient"])
def test_clients_and_recipients_observe_only_the_models(adversary: Adversary) -> None:
    observation = observed(PLAIN, adversary)
    assert (observation.messages, observation.total, observation.per_client()) == (None, None, ())
    assert torch.allclose(observation.after - observation.before.weights, sent(PLAIN).mean(0), atol=1e-7)


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    "method", [SUMMED, DISTRIBUTED, SECURE, ENCLAVED], ids=["sum", "noisy sum", "secure sum", "enclave"]
)
def test_a_channel_that_sums_reveals_no_single_message(method: Method, adversary: Adversary) -> None:
    observation = observed(method, adversary)
    assert observation.per_client() == ()
    assert observation.messages is None
    assert (observation.total is not None) == (adversary == "server")
    after, before = observation.after, observation.before.weights
    tensors = [tensor for tensor in (after, before, after - before, observation.total) if tensor is not None]
    for row in sent(method).double():
        assert not any(torch.allclose(row, tensor.double(), atol=1e-6) for tensor in tensors)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_an_enclave_does_not_release_the_sum_of_one_client(adversary: Adversary) -> None:
    assert observed(ENCLAVED, adversary, 1).per_client() == ()


def test_the_observed_sum_is_the_released_one() -> None:
    plain, noisy = observed(SUMMED, "server").total, observed(DISTRIBUTED, "server").total
    assert plain is not None
    assert noisy is not None
    assert torch.allclose(plain, sent(SUMMED).sum(0), atol=1e-6)
    noise = noisy - sent(DISTRIBUTED).sum(0)
    assert 0.05 < float(noise.std()) < 0.2  # 0.1 · 1.0


def test_central_noise_is_in_the_observation_of_recipients_only() -> None:
    server, recipient = observed(CENTRAL, "server", 1), observed(CENTRAL, "recipient", 1)
    assert torch.equal(server.per_client()[0].values, sent(CENTRAL, 1)[0])
    (client,) = recipient.per_client()  # a model that one client alone changed
    assert client.decoded
    assert float((client.values - sent(CENTRAL, 1)[0]).std()) > 0.05


def test_a_sum_of_one_message_is_that_message() -> None:
    observation = observed(SUMMED, "server", 1)
    assert torch.equal(observation.per_client()[0].values, sent(SUMMED, 1)[0])
    assert str(observation).endswith("the sum of 1 message")


def test_observations_contain_no_secrets_and_only_the_server_knows_its_memory() -> None:
    method = replace(PLAIN, server=Momentum(0.9))
    state = initial_state(method, TASK)
    state = replace(state, memory={"server/momentum": torch.ones(state.dim), "codec/mask": torch.ones(1)})
    for adversary in ADVERSARIES:
        observation = observe(method, state, waves(TASK)(torch.arange(2)), now(2), adversary)
        assert type(observation.now) is Round  # which has nobody's keys
        assert ("server/momentum" in observation.before.memory) == (adversary == "server")


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
def test_an_observation_is_predicted_from_the_update(method: Method) -> None:
    update = sent(PLAIN)[0]  # without codec or mask
    observation = observed(method, "server")
    mask = observation.view.mask
    if isinstance(method.trainer, Masked):
        assert mask is not None
        update = torch.zeros_like(update).index_copy(0, mask, update[mask])
    client = observation.per_client()[0]
    assert torch.allclose(client.predict(update), client.values, atol=1e-6)
    alone = observed(method, "recipient", 1).per_client()[0]
    if not isinstance(method.codec, Sense):
        assert torch.allclose(alone.predict(update), alone.values, atol=1e-6)
        known = torch.arange(len(update)) if mask is None else mask
        assert torch.allclose(client.estimate_update()[known], update[known], atol=1e-6)


def test_the_coordinates_that_a_codec_reveals() -> None:
    every = torch.arange(650)
    assert observed(PLAIN, "server").per_client()[0].reveals(every)
    client = observed(replace(PLAIN, codec=SOME), "server").per_client()[0]
    assert client.round.view.mask is not None
    assert client.reveals(client.round.view.mask)
    assert not client.reveals(every)


def test_local_training_is_public() -> None:
    method = replace(PLAIN, trainer=Sgd(lr=0.3, epochs=2, batch_size=5))
    steps = [local_training(method, initial_state(method, TASK), now(1), samples) for samples in (1, 12)]
    assert steps == [LocalSteps(0.3, 2), LocalSteps(0.3, 6)]


def test_an_unknown_adversary_is_refused() -> None:
    with pytest.raises(UserError, match="adversary in server, network, client, recipient, got 'moon'"):
        observed(PLAIN, "moon")  # type: ignore[arg-type]
