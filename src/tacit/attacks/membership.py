"""Membership inference against a final model: was this client, or this record, part of the training?

Several models are trained, each on about half of all units (clients, or records), drawn by fair coins. The adversary
has one of them and the loss of every unit under it; the other models, whose halves it knows, tell it how low a unit's
loss is with the unit and without. Every model is attacked in turn.

References: Yeom, Giacomelli, Fredrikson, Jha 2018 (threshold on the loss); Carlini, Chien, Nasr, Song, Terzis, Tramèr
2022 (likelihood ratio, LiRA; here with one variance for both worlds, drawn towards a common one).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import auroc
from tacit.core.task import Population
from tacit.errors import expect

Level = Literal["client", "record"]
FEWEST = 4  # models
PRIOR = 4  # models that the common variance counts for


@dataclass(frozen=True)
class Inference:
    """How well members are told from others.

    Attributes:
        auc: the area under the curve of true over false positives; ½: guessing.
        advantage: the most by which true positives exceed false ones; 0: guessing.
        at_one_percent: true positives where one in a hundred others is taken for a member; 0.01: guessing.
    """

    auc: float
    advantage: float
    at_one_percent: float


@dataclass(frozen=True, eq=False)
class Models:
    """Losses of all units under all models, and who was in which; both (models, units)."""

    losses: Tensor
    inside: Tensor

    def __post_init__(self) -> None:
        expect(self.losses.shape == self.inside.shape, "a loss for every model and unit")
        expect(len(self.losses) >= FEWEST, f"models={len(self.losses)} >= {FEWEST}")

    def by_loss(self) -> Inference:
        """Whoever has a low loss, by the standards of the model that is attacked, is taken for a member."""
        usual = self.losses.mean(1, keepdim=True)
        return measure((usual - self.losses).flatten(), self.inside.flatten())

    def by_ratio(self) -> Inference:
        """By the likelihood of the loss with and without the unit, learnt from all models but the one attacked."""
        scores = [_ratios(self.losses, self.inside, model) for model in range(len(self.losses))]
        return measure(torch.cat(scores), self.inside.flatten())


def halves(units: int, models: int, key: Key) -> Tensor:
    """Who is in which model, (models, units), by fair coins: what is known of other models says nothing about one."""
    expect(models >= FEWEST, f"models={models} >= {FEWEST}")
    return torch.rand(models, units, generator=key.torch()) < 0.5


def part_of(population: Population, level: Level, inside: Tensor) -> Population:
    """The population of those that are in: whole clients, or every client with some of its records."""
    if level == "client":
        mine = inside.nonzero().flatten().tolist()
        return Population.split(population.x, population.y, [population.indices(client) for client in mine])
    chosen = torch.split(inside, population.sizes.tolist())
    owned = [population.indices(client)[which] for client, which in enumerate(chosen) if bool(which.any())]
    return Population.split(population.x, population.y, owned)


def unit_losses(population: Population, level: Level, losses: Tensor) -> Tensor:
    """A loss per record, in the order in which clients own them, as one per unit: a client's is the mean of its own."""
    if level == "record":
        return losses
    return torch.stack([part.mean() for part in torch.split(losses, population.sizes.tolist())])


def measure(scores: Tensor, positive: Tensor) -> Inference:
    """How well a score tells members from others.

    Example:
        >>> measure(torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
        Inference(auc=1.0, advantage=1.0, at_one_percent=1.0)
    """
    order = scores.argsort(descending=True)
    hits = positive[order].double()
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = scores[order].diff() != 0  # units of equal score are taken together
    true, false = (hits.cumsum(0) / hits.sum())[last], ((1 - hits).cumsum(0) / (1 - hits).sum())[last]
    rare = true[false <= 0.01]
    return Inference(
        auc=auroc(scores, positive),
        advantage=max(float((true - false).max()), 0.0),
        at_one_percent=float(rare.max()) if len(rare) else 0.0,
    )


def _ratios(losses: Tensor, inside: Tensor, model: int) -> Tensor:
    """Log-likelihood ratios of one model's units, from the other models: how far off each mean is known counts."""
    seen, others = _spread_out(losses), torch.arange(len(losses)) != model
    values, member = seen[others], inside[others]
    worlds = (member, ~member)
    counts = [which.sum(0) for which in worlds]
    means = [(values * which).sum(0) / count.clamp(min=1) for which, count in zip(worlds, counts, strict=True)]
    variance = _variance(torch.where(member, values - means[0], values - means[1]))
    likely = []
    for mean, count in zip(means, counts, strict=True):
        wide = variance * (1 + 1 / count.clamp(min=1))
        likely.append(-(seen[model] - mean).square() / (2 * wide) - wide.log() / 2)
    known = (counts[0] > 0) & (counts[1] > 0)
    return torch.where(known, likely[0] - likely[1], 0.0)


def _variance(within: Tensor) -> Tensor:
    """Every unit's own, drawn towards that of all: there are few models to tell it from."""
    models = len(within)
    common = within.square().sum() / ((models - 2) * within.shape[1])
    return (within.square().sum(0) + PRIOR * common) / (models - 2 + PRIOR) + 1e-12


def _spread_out(losses: Tensor) -> Tensor:
    """The log-odds of exp(−loss), which are nearer to normal than the loss itself."""
    return -torch.log(torch.expm1(losses.double().clamp(1e-9, 50.0)))
