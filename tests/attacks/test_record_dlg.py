"""Reconstruction of single records: from clipped gradients an image is recovered, and with noise it is not."""

from dataclasses import replace

import pytest

from tacit.attacks.dlg import Dlg, Reconstruction
from tacit.attacks.scenario import AttackConfig, observe_victims, reconstructions
from tacit.attacks.views import LocalSteps, local_training
from tacit.core import Key, Method, Round
from tacit.engine import initial_state
from tacit.methods.dp_fedsgd import dp_fedsgd
from tacit.methods.dp_sgd import dp_sgd
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import DistributedGaussian, RecordClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import DpSgd, RecordGradient
from tacit.tasks import make_task

TASK = make_task("digits", model="digits-sigmoid-lenet")
QUICK = replace(Dlg.with_improvements(), steps=70, starts=1)
ONE = AttackConfig(images=1, dlg=QUICK)
GRADIENT = Method(name="sums", rounds=1, sampler=Everyone(), trainer=RecordGradient(rate=1.0, clip=0.1))
STEPS = DpSgd(lr=0.5, steps=1, batch_size=4, clip=0.1, noise_multiplier=1.0)
QUIET = 1e-4  # a noise multiplier that hides nothing


def attack(method: Method, config: AttackConfig = ONE) -> list[Reconstruction]:
    victims, observed = observe_victims(method, TASK, config)
    return list(reconstructions(victims, observed, config))


def similarity(results: list[Reconstruction]) -> list[float]:
    return [float(value) for result in results for value in result.ssim]


@pytest.mark.parametrize("clip", [0.1, 100.0], ids=["clipped", "not clipped"])
def test_a_record_is_recovered_from_its_clipped_gradient_without_noise(clip: float) -> None:
    results = attack(replace(GRADIENT, trainer=RecordGradient(rate=1.0, clip=clip)))
    assert min(similarity(results)) > 0.9
    assert bool(results[0].labels_correct.all())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_of_dp_sgd_are_inverted_as_far_as_the_noise_allows(momentum: float) -> None:
    trainer = replace(STEPS, steps=2, momentum=momentum, weight_decay=0.01)
    quiet, noisy = (dp_sgd(rounds=1, descent=trainer, epsilon=None, noise=noise) for noise in (QUIET, 1.0))
    assert min(similarity(attack(quiet))) > 0.9
    assert max(similarity(attack(noisy))) < 0.3


@pytest.mark.parametrize(("noise", "recovered"), [(QUIET, True), (1.0, False)])
def test_a_client_that_is_alone_in_a_sum_of_records(noise: float, recovered: bool) -> None:
    """As for an adversary who knows what all others sent."""
    mechanism = DistributedGaussian(clip=RecordClip(0.1, 4), noise_multiplier=noise)
    method = replace(GRADIENT, mechanism=mechanism, channel=IdealSum(), server=Momentum(rho=0.0, rate=1.0))
    (found,) = similarity(attack(method, replace(ONE, cohort=1)))
    assert found > 0.9 if recovered else found < 0.3


def test_a_sum_over_several_clients_shows_no_single_record() -> None:
    config = AttackConfig(images=4, dlg=QUICK)
    victims, observed = observe_victims(dp_fedsgd(rounds=1, noise=1.0, epsilon=None), TASK, config)
    assert list(reconstructions(victims, observed, config)) == []


def test_what_the_protocol_makes_public_about_steps() -> None:
    now = Round(2, 4, 4.0, 4, Key.from_seed(0))
    trainer = replace(STEPS, steps=None, epochs=3, decay=0.5, momentum=0.9)
    method = Method(name="steps", rounds=3, sampler=Everyone(), trainer=trainer)
    state = initial_state(method, TASK)
    assert local_training(method, state, now, 2) == LocalSteps(0.125, 3, 0.1, 2.0, 0.9)
    assert local_training(method, state, now, 8) == LocalSteps(0.125, 6, 0.1, 4.0, 0.9)
    assert local_training(GRADIENT, state, now, 2) == LocalSteps(1.0, 1, 0.1, 1.0)
