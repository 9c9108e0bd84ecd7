"""Membership is inferred if models depend on it, and only then."""

import pytest
import torch
from torch import nn

from tacit.attacks.membership import ShadowModels, Unit, members_only, random_halves, score, unit_losses
from tacit.attacks.scenario import shadow_models
from tacit.core import Key, Method
from tacit.data import Population, Task
from tacit.errors import UserError
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd

KEY = Key.from_seed(0)


def synthetic_losses(gap: float, models: int = 16, units: int = 400) -> ShadowModels:
    """Losses with normal log-odds around a mean per unit; those of members are `gap` standard deviations higher."""
    g = torch.Generator().manual_seed(1)
    members = random_halves(units, models, KEY)
    odds = torch.randn(units, generator=g) * 3 + torch.randn(models, units, generator=g) + gap * members
    return ShadowModels(nn.functional.softplus(-odds), members)


def test_the_likelihood_ratio_is_stronger_than_the_loss() -> None:
    models = synthetic_losses(2.0)
    ratio = models.likelihood_ratio_attack()
    assert ratio.auc > 0.85  # Φ(2/√2) = 0.92 if means and variance were known
    assert ratio.auc > models.loss_attack().auc + 0.1
    assert ratio.tpr_at_1_percent_fpr > 0.15


@pytest.mark.parametrize("models", [4, 8, 16])
def test_without_a_difference_attacks_are_random_guesses(models: int) -> None:
    losses = synthetic_losses(0.0, models, units=1000)
    for attack in (losses.likelihood_ratio_attack(), losses.loss_attack()):
        assert abs(attack.auc - 0.5) < 0.04
        assert attack.advantage < 0.08


def test_equal_scores_are_not_separated() -> None:
    constant = score(torch.zeros(10), torch.arange(10) < 5)
    assert (constant.auc, constant.advantage, constant.tpr_at_1_percent_fpr) == (0.5, 0.0, 0.0)
    inverted = score(torch.arange(4.0), torch.tensor([True, True, False, False]))
    assert (inverted.auc, inverted.advantage) == (0.0, 0.0)


def test_units_are_clients_or_records() -> None:
    population = Population.of([(torch.full((n, 1), float(n)), torch.zeros(n).long()) for n in (1, 2, 3)])
    clients = members_only(population, "client", torch.tensor([True, False, True]))
    assert clients.sizes.tolist() == [1, 3]
    records = members_only(population, "record", torch.tensor([False, True, False, True, True, False]))
    assert records.sizes.tolist() == [1, 2]
    losses = torch.arange(6.0)
    assert unit_losses(population, "client", losses).tolist() == [0.0, 1.5, 4.0]
    assert unit_losses(population, "record", losses) is losses


def task() -> Task:
    """Random labels, which can only be memorised."""
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, 120, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(20)]
    return Task(model=lambda: nn.Linear(120, 2), clients=parts)


@pytest.mark.parametrize(("unit", "units"), [("client", 20), ("record", 80)])
def test_memorised_units_are_inferred(unit: Unit, units: int) -> None:
    method = Method(name="all", rounds=20, sampler=Everyone(), trainer=Sgd(lr=0.5, steps=5))
    models = ShadowModels.of(list(shadow_models(method, task(), unit, 8)))
    assert models.losses.shape == models.members.shape == (8, units)
    assert models.likelihood_ratio_attack().auc > 0.85


def test_few_models_are_refused() -> None:
    method = Method(name="m", rounds=1, sampler=Everyone(), trainer=Sgd(lr=1.0, steps=1))
    with pytest.raises(UserError, match="models=2 >= 4"):
        next(shadow_models(method, task(), "client", 2))
