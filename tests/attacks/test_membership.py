"""Membership: found where it shows, not where it does not."""

import pytest
import torch
from torch import nn

from tacit.attacks.membership import Models, halves, measure, part_of, unit_losses
from tacit.attacks.scenario import members
from tacit.core import Key, Method, Population, Task
from tacit.errors import UserError
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd

KEY = Key.from_seed(0)


def made_up(gap: float, models: int = 16, units: int = 400) -> Models:
    """Losses whose log-odds are normal, by so many deviations lower for members, around a mean of each unit's own."""
    g = torch.Generator().manual_seed(1)
    inside = halves(units, models, KEY)
    odds = torch.randn(units, generator=g) * 3 + torch.randn(models, units, generator=g) + gap * inside
    return Models(nn.functional.softplus(-odds), inside)


def test_the_ratio_finds_what_the_loss_alone_does_not() -> None:
    models = made_up(2.0)
    assert models.by_ratio().auc > 0.85  # Φ(2/√2) = 0.92 if means and variance were known
    assert models.by_ratio().auc > models.by_loss().auc + 0.1
    assert models.by_ratio().at_one_percent > 0.15


@pytest.mark.parametrize("models", [4, 8, 16])
def test_nothing_is_found_where_there_is_nothing(models: int) -> None:
    found = made_up(0.0, models, units=1000)
    for test in (found.by_ratio(), found.by_loss()):
        assert abs(test.auc - 0.5) < 0.04
        assert test.advantage < 0.08


def test_equal_scores_are_taken_together() -> None:
    blind = measure(torch.zeros(10), torch.arange(10) < 5)
    assert (blind.auc, blind.advantage, blind.at_one_percent) == (0.5, 0.0, 0.0)
    upside_down = measure(torch.arange(4.0), torch.tensor([True, True, False, False]))
    assert (upside_down.auc, upside_down.advantage) == (0.0, 0.0)


def test_units_are_clients_or_records() -> None:
    people = Population.of([(torch.full((n, 1), float(n)), torch.zeros(n).long()) for n in (1, 2, 3)])
    some = part_of(people, "client", torch.tensor([True, False, True]))
    assert some.sizes.tolist() == [1, 3]
    few = part_of(people, "record", torch.tensor([False, True, False, True, True, False]))
    assert few.sizes.tolist() == [1, 2]
    losses = torch.arange(6.0)
    assert unit_losses(people, "client", losses).tolist() == [0.0, 1.5, 4.0]
    assert unit_losses(people, "record", losses) is losses


def task() -> Task:
    """Random labels, which can only be learnt by heart."""
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, 120, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(20)]
    return Task(model=lambda: nn.Linear(120, 2), clients=parts)


@pytest.mark.parametrize("level", ["client", "record"])
def test_what_is_learnt_by_heart_is_found(level: str) -> None:
    method = Method(name="all", rounds=20, sampler=Everyone(), trainer=Sgd(lr=0.5, steps=5))
    *steps, models = members(method, task(), level, 8)
    assert steps == [None] * 8
    assert models.losses.shape == (8, 20 if level == "client" else 80)
    assert models.by_ratio().auc > 0.85


def test_few_models_are_refused() -> None:
    with pytest.raises(UserError, match="models=2 >= 4"):
        next(members(Method(name="m", rounds=1, sampler=Everyone(), trainer=Sgd(lr=1.0, steps=1)), task(), "client", 2))
