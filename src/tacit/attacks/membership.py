"""Membership inference against a final model: did this client, or this record, take part in training?

Several models are trained, each on a random half of all units (clients or records). The adversary has one of them and
the loss of every unit under it; the other models serve as shadow models, whose members it knows: from them it learns
the distribution of a unit's loss with and without the unit in training. Every model is attacked in turn.

References: Yeom, Giacomelli, Fredrikson, Jha 2018 (threshold on the loss); Carlini, Chien, Nasr, Song, Terzis, Tramèr
2022 (likelihood ratio, LiRA; here with one variance for members and non-members, shrunk towards a common variance).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import auroc
from tacit.data.task import Population
from tacit.errors import expect, whole

Unit = Literal["client", "record"]
MIN_MODELS = 4
PRIOR_MODELS = 4  # the common variance has the weight of this many models


@dataclass(frozen=True)
class MembershipScore:
    """How well members are distinguished from non-members.

    Attributes:
        auc: area under the ROC curve; ½ for random guesses.
        advantage: maximum of true positive rate minus false positive rate; 0 for random guesses.
        tpr_at_1_percent_fpr: true positive rate at a false positive rate of 1 %; 0.01 for random guesses.
    """

    auc: float
    advantage: float
    tpr_at_1_percent_fpr: float


@dataclass(frozen=True, eq=False)
class ShadowModel:
    """One trained model: the loss of every unit under it, and whether the unit was a member; both (units,)."""

    losses: Tensor
    members: Tensor


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """The losses of all units under all models, and the members of each; both (models, units)."""

    losses: Tensor
    members: Tensor

    def __post_init__(self) -> None:
        expect(self.losses.shape == self.members.shape, "a loss for every model and unit")
        expect(len(self.losses) >= MIN_MODELS, f"models={len(self.losses)} >= {MIN_MODELS}")

    @classmethod
    def of(cls, models: list[ShadowModel]) -> "ShadowModels":
        return cls(torch.stack([model.losses for model in models]), torch.stack([model.members for model in models]))

    def loss_attack(self) -> MembershipScore:
        """Attack by the loss: units with a low loss, relative to the mean of the attacked model, are members."""
        mean = self.losses.mean(1, keepdim=True)
        return score((mean - self.losses).flatten(), self.members.flatten())

    def likelihood_ratio_attack(self) -> MembershipScore:
        """Attack by the likelihood ratio of the loss, estimated from all models but the attacked one."""
        ratios = [_log_ratios(self.losses, self.members, attacked) for attacked in range(len(self.losses))]
        return score(torch.cat(ratios), self.members.flatten())


def random_halves(units: int, models: int, key: Key) -> Tensor:
    """The members of every model, (models, units), independently with probability ½."""
    whole(MIN_MODELS, models=models)
    return torch.rand(models, units, generator=key.public_generator()) < 0.5


def members_only(population: Population, unit: Unit, members: Tensor) -> Population:
    """The population of the members: whole clients, or every client with those of its records that are members."""
    if unit == "client":
        members = members.repeat_interleave(population.sizes)
    parts = torch.split(members, population.sizes.tolist())
    chosen = [(client, which) for client, which in enumerate(parts) if bool(which.any())]
    indices = [population.indices(client)[which] for client, which in chosen]
    subset = Population.split(population.x, population.y, indices)
    if population.persons is None:
        return subset
    numbers = torch.split(population.persons, population.sizes.tolist())
    return subset.with_persons([numbers[client][which] for client, which in chosen])


def unit_losses(population: Population, unit: Unit, losses: Tensor) -> Tensor:
    """The loss of every unit, given the losses of all records in the clients' order; a client's is their mean."""
    if unit == "record":
        return losses
    return torch.stack([part.mean() for part in torch.split(losses, population.sizes.tolist())])


def score(scores: Tensor, members: Tensor) -> MembershipScore:
    """How well a score distinguishes members from non-members.

    Example:
        >>> score(torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
        MembershipScore(auc=1.0, advantage=1.0, tpr_at_1_percent_fpr=1.0)
    """
    order = scores.argsort(descending=True)
    hits = members[order].double()
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = scores[order].diff() != 0  # a threshold cannot separate units with equal scores
    tpr, fpr = (hits.cumsum(0) / hits.sum())[last], ((1 - hits).cumsum(0) / (1 - hits).sum())[last]
    at_low_fpr = tpr[fpr <= 0.01]
    return MembershipScore(
        auc=auroc(scores, members),
        advantage=max(float((tpr - fpr).max()), 0.0),
        tpr_at_1_percent_fpr=float(at_low_fpr.max()) if len(at_low_fpr) else 0.0,
    )


def _log_ratios(losses: Tensor, members: Tensor, attacked: int) -> Tensor:
    """Log-likelihood ratios of the units of one model; variances include the uncertainty of the estimated means."""
    logits, shadow = _logits(losses), torch.arange(len(losses)) != attacked
    values, member = logits[shadow], members[shadow]
    hypotheses = (member, ~member)
    counts = [which.sum(0) for which in hypotheses]
    means = [(values * which).sum(0) / count.clamp(min=1) for which, count in zip(hypotheses, counts, strict=True)]
    variance = _variance(torch.where(member, values - means[0], values - means[1]))
    log_likelihoods = []
    for mean, count in zip(means, counts, strict=True):
        predictive = variance * (1 + 1 / count.clamp(min=1))
        log_likelihoods.append(-(logits[attacked] - mean).square() / (2 * predictive) - predictive.log() / 2)
    estimable = (counts[0] > 0) & (counts[1] > 0)
    return torch.where(estimable, log_likelihoods[0] - log_likelihoods[1], 0.0)


def _variance(residuals: Tensor) -> Tensor:
    """The variance of every unit, shrunk towards the common one, because there are few models to estimate it from."""
    models = len(residuals)
    common = residuals.square().sum() / ((models - 2) * residuals.shape[1])
    return (residuals.square().sum(0) + PRIOR_MODELS * common) / (models - 2 + PRIOR_MODELS) + 1e-12


def _logits(losses: Tensor) -> Tensor:
    """The log-odds of exp(−loss), which are closer to normal than the loss itself."""
    return -torch.log(torch.expm1(losses.double().clamp(1e-9, 50.0)))
