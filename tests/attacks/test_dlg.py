"""Images are found again from plain updates, not from blurred ones, and not behind a sum."""

import os
from dataclasses import replace

import pytest
import torch

from tacit.attacks.dlg import Dlg, Found, Likeness, compare
from tacit.attacks.scenario import Siege, besieged, reconstructions
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
QUICK = replace(Dlg.improved(), steps=150, starts=1)


def attack(method: Method, **how: object) -> list[Likeness]:
    siege = Siege(**{"images": 2, "attack": QUICK, **how})
    victims, seen = besieged(method, TASK, siege)
    return list(reconstructions(victims, seen, siege))


def similarity(found: list[Likeness]) -> list[float]:
    return [float(value) for like in found for value in like.ssim]


@pytest.mark.parametrize("how", [QUICK, replace(Dlg.published(), steps=150), replace(Dlg(), steps=150)])
def test_plain_updates_give_images_and_labels_away(how: Dlg) -> None:
    found = attack(STEP, attack=how)
    assert min(similarity(found)) > 0.9
    assert sum(like.recovered for like in found) == 2
    assert all(bool(like.labels.all()) for like in found)


def test_batches_are_taken_apart() -> None:
    (found,) = attack(STEP, attack=replace(Dlg.improved(2), starts=1))
    assert found.recovered == 2
    assert bool(found.labels.all())


def test_several_steps_are_followed() -> None:
    several = replace(STEP, trainer=Sgd(lr=0.1, steps=3))
    assert min(similarity(attack(several, images=1))) > 0.9


def test_a_trusted_server_is_no_defence_against_the_server_but_against_recipients() -> None:
    central = replace(STEP, mechanism=CentralGaussian(clip=FixedClip(0.1), noise_multiplier=1.0))
    assert min(similarity(attack(central, images=1))) > 0.9
    assert max(similarity(attack(central, images=1, vantage="recipient", cohort=1))) < 0.3


def test_noise_in_shares_hides_a_client_even_if_it_is_alone() -> None:
    mechanism = DistributedGaussian(clip=FixedClip(0.1), noise_multiplier=1.0)
    alone = replace(STEP, mechanism=mechanism, channel=IdealSum())
    assert max(similarity(attack(alone, images=1, cohort=1))) < 0.3


def test_clipping_alone_does_not_hide_anything() -> None:
    clipped = replace(STEP, mechanism=CentralGaussian(clip=FixedClip(1e-3), noise_multiplier=0.0))
    assert min(similarity(attack(clipped, images=1, vantage="recipient", cohort=1))) > 0.9


def test_behind_a_sum_there_is_nothing_to_attack() -> None:
    siege = Siege(images=4, attack=QUICK)
    victims, seen = besieged(replace(STEP, channel=IdealSum()), TASK, siege)
    assert [observation.single() for observation in seen] == [()]
    assert list(reconstructions(victims, seen, siege)) == []


def test_few_weights_hide_labels_before_they_hide_images() -> None:
    few = replace(STEP, codec=Select(FixedRandom(size=Size(ratio=0.3))))
    assert min(similarity(attack(few, images=1, attack=replace(QUICK, steps=400, starts=2)))) > 0.6


def test_a_batch_is_matched_whatever_its_order() -> None:
    x, y = TASK.population.x[:3], TASK.population.y[:3]
    like = compare(Found(x[[2, 0, 1]].double() * 1.5, y[[2, 0, 1]], 0.0), x, y)
    assert float(like.mse.max()) < 0.2
    assert float(like.found.max()) <= 1
    assert like.labels.tolist() == [True, True, True]


def test_nearly_all_mnist_images_are_recovered(data_folder: object) -> None:
    """Two of them; TACIT_IMAGES=20 takes minutes."""
    count = int(os.environ.get("TACIT_IMAGES", "2"))
    task = make_task("mnist", model="sigmoid-lenet")
    siege = Siege(images=count, attack=Dlg.improved())
    victims, seen = besieged(STEP, task, siege)
    assert sum(like.recovered for like in reconstructions(victims, seen, siege)) >= 0.9 * count


def test_attacks_repeat_themselves() -> None:
    once, again = (attack(STEP, images=1, attack=replace(QUICK, steps=20)) for _ in range(2))
    assert torch.equal(once[0].found, again[0].found)


def test_bad_questions_get_a_sentence() -> None:
    with pytest.raises(UserError, match="images=3 in batches of 2"):
        Siege(images=3, attack=Dlg(samples=2))
    with pytest.raises(UserError, match="images=300 <= 100"):
        besieged(STEP, TASK, Siege(images=300))
    with pytest.raises(UserError, match="batch=16 <= 15"):
        besieged(STEP, TASK, Siege(images=16, attack=Dlg(samples=16)))
    with pytest.raises(UserError, match="task with images, but samples of synthetic are of shape"):
        besieged(STEP, make_task("synthetic"), Siege(images=1))
    with pytest.raises(UserError, match="steps=0 >= 1"):
        Dlg(steps=0)
