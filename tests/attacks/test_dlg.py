"""Images are reconstructed from plain updates, but not from noisy ones and not from sums.

Scores of images are compared with scikit-image 0.26 (Gaussian weights, σ = 1.5, no sample covariance), values pinned.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scale import scaled
from tacit.attacks.dlg import Candidate, Dlg, Reconstruction, compare, mse, psnr, ssim
from tacit.attacks.scenario import AttackConfig, observe_victims, reconstructions
from tacit.core import Method
from tacit.errors import UserError
from tacit.pieces.channels import IdealSum
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd
from tacit.tasks import make_task

TASK = make_task("digits", model="digits-sigmoid-lenet")
STEP = Method(name="step", rounds=1, sampler=FixedSize(4), trainer=Sgd(lr=0.1, steps=1))
QUICK = replace(Dlg.with_improvements(), steps=70, starts=1)
THOROUGH = replace(QUICK, steps=150)  # for attacks that must fail


BASE = AttackConfig(images=2, dlg=QUICK)
ONE = replace(BASE, images=1)


def attack(method: Method, config: AttackConfig = BASE) -> list[Reconstruction]:
    victims, observed = observe_victims(method, TASK, config)
    return list(reconstructions(victims, observed, config))


def similarity(results: list[Reconstruction]) -> list[float]:
    return [float(value) for result in results for value in result.ssim]


@pytest.mark.parametrize("dlg", [QUICK, replace(Dlg.as_published(), steps=70), replace(Dlg(), steps=70)])
def test_plain_updates_reveal_images_and_labels(dlg: Dlg) -> None:
    results = attack(STEP, replace(BASE, dlg=dlg))
    assert min(similarity(results)) > 0.9
    assert sum(result.recovered for result in results) == 2
    assert all(bool(result.labels_correct.all()) for result in results)


def test_the_images_of_a_batch_are_separated() -> None:
    (result,) = attack(STEP, replace(BASE, dlg=replace(Dlg.with_improvements(2), steps=150, starts=1)))
    assert result.recovered == 2
    assert bool(result.labels_correct.all())


def test_several_local_steps_are_inverted() -> None:
    several = replace(STEP, trainer=Sgd(lr=0.1, steps=3))
    assert min(similarity(attack(several, ONE))) > 0.9


def test_central_noise_protects_against_recipients_and_not_against_the_server() -> None:
    central = replace(STEP, mechanism=CentralGaussian(clip=FixedClip(0.1), noise_multiplier=1.0))
    assert min(similarity(attack(central, ONE))) > 0.9
    recipient = replace(BASE, adversary="recipient", cohort=1, dlg=THOROUGH)
    assert np.mean(similarity(attack(central, recipient))) < 0.3  # of noise with a single image: -0.3 to 0.4


def test_distributed_noise_protects_a_client_that_is_alone_in_its_round() -> None:
    mechanism = DistributedGaussian(clip=FixedClip(0.1), noise_multiplier=1.0)
    distributed = replace(STEP, mechanism=mechanism, channel=IdealSum())
    assert max(similarity(attack(distributed, replace(ONE, cohort=1, dlg=THOROUGH)))) < 0.3


def test_clipping_without_noise_does_not_protect() -> None:
    clipped = replace(STEP, mechanism=CentralGaussian(clip=FixedClip(1e-3), noise_multiplier=0.0))
    assert min(similarity(attack(clipped, replace(ONE, adversary="recipient", cohort=1)))) > 0.9


def test_a_sum_of_several_clients_is_not_attacked() -> None:
    config = AttackConfig(images=4, dlg=QUICK)
    victims, observed = observe_victims(replace(STEP, channel=IdealSum()), TASK, config)
    assert [observation.per_client() for observation in observed] == [()]
    assert list(reconstructions(victims, observed, config)) == []


def test_images_are_recognisable_from_some_of_the_weights() -> None:
    some = replace(STEP, codec=Select(FixedRandom(size=Size(ratio=0.3))))
    assert min(similarity(attack(some, replace(ONE, dlg=replace(QUICK, steps=200, starts=2))))) > 0.6


def test_a_batch_is_matched_in_any_order() -> None:
    x, y = TASK.population.x[:3], TASK.population.y[:3]
    result = compare(Candidate(x[[2, 0, 1]].double() * 1.5, y[[2, 0, 1]], 0.0), x, y)
    assert float(result.mse.max()) < 0.2
    assert float(result.reconstructed.max()) <= 1
    assert result.labels_correct.tolist() == [True, True, True]


def test_nearly_all_mnist_images_are_recovered(data_folder: object) -> None:
    """Only this test attacks images of the published size; two of them, and twenty in a campaign."""
    count = scaled(2, campaign=20)
    task = make_task("mnist", model="sigmoid-lenet")
    config = AttackConfig(images=count, dlg=Dlg.with_improvements())
    victims, observed = observe_victims(STEP, task, config)
    assert sum(result.recovered for result in reconstructions(victims, observed, config)) >= 0.9 * count


def test_attacks_are_reproducible() -> None:
    config = replace(ONE, dlg=replace(QUICK, steps=20))
    once, again = (attack(STEP, config) for _ in range(2))
    assert torch.equal(once[0].reconstructed, again[0].reconstructed)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="images=3 in batches of 2"):
        AttackConfig(images=3, dlg=Dlg(samples=2))
    with pytest.raises(UserError, match="images=300 <= 100"):
        observe_victims(STEP, TASK, AttackConfig(images=300))
    with pytest.raises(UserError, match="batch=16 <= 15"):
        observe_victims(STEP, TASK, AttackConfig(images=16, dlg=Dlg(samples=16)))
    with pytest.raises(UserError, match="task with images, but samples of synthetic have shape"):
        observe_victims(STEP, make_task("synthetic"), AttackConfig(images=1))
    with pytest.raises(UserError, match="steps=0 >= 1"):
        Dlg(steps=0)


ROW, COLUMN = np.mgrid[0:28, 0:28]
WAVES = (np.sin(ROW / 3) * np.cos(COLUMN / 4) + 1) / 2
RIPPLED = np.clip(WAVES + 0.2 * np.sin(ROW * COLUMN / 7.0), 0, 1)


def stack(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image)[None, None]


@pytest.mark.parametrize(
    ("other", "expected"),
    [(RIPPLED, 0.6509212479220539), (1 - WAVES, -0.7599946184403994), (np.full_like(WAVES, 0.5), 0.04780047704395577)],
    ids=["rippled", "inverted", "grey"],
)
def test_ssim_is_that_of_scikit_image(other: np.ndarray, expected: float) -> None:
    assert float(ssim(stack(WAVES), stack(other))) == pytest.approx(expected, abs=1e-9)


def test_ssim_of_equal_images_of_channels_and_of_small_images() -> None:
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ssim(images, images), torch.ones(3, dtype=torch.float64))
    assert float(ssim(images[:1], images[1:2]).abs()) < 0.4
    single = torch.stack([ssim(images[:1, c : c + 1], images[1:2, c : c + 1]) for c in range(3)])
    assert float(ssim(images[:1], images[1:2])) == pytest.approx(float(single.mean()))


def test_mse_and_psnr() -> None:
    zero, tenth = torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.1)
    assert mse(zero, tenth).tolist() == pytest.approx([0.01, 0.01])
    assert psnr(zero, tenth).tolist() == pytest.approx([20.0, 20.0])
    assert psnr(zero, zero).isinf().all()


def test_ssim_refuses_other_shapes() -> None:
    with pytest.raises(UserError, match="two stacks of images"):
        ssim(torch.zeros(4, 4), torch.zeros(4, 4))
