"""Noise by feature importance (Talaei, Izadi 2024) with NbAFL (Wei et al. 2020), and the same idea with a guarantee.

Clients train one epoch, clip their weights, and add noise by NbAFL's formula. With `priority`, the weights of some
input features get more noise, by how much these features matter to the client. Differences from the paper:

- No guarantee is claimed. The paper's ε is reported as nominal: it comes from a formula whose assumptions do not hold.
- Weights are clipped, as the formula assumes. The paper mentions clipping in the optimiser, which does not bound
  weights; this is available as `clipping=gradients`.
- Both readings of L, the number of exposures, are available; the paper does not state which it used.

`priority-dp` tests whether importance helps under a proved guarantee: a trusted server clips updates and adds noise,
and the axes of clipping and noise follow from released models or from public data.
"""

from typing import Literal

from tacit.core import Budget, Method
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.mechanisms import (
    AccuracySensitivity,
    ByImportance,
    CentralGaussian,
    EllipsoidClip,
    Graded,
    InputFeatures,
    NbaflGaussian,
    PublicMovement,
    ReleasedMovement,
    SingleWeights,
    TwoLevel,
)
from tacit.pieces.mechanisms.ellipsoid import PublicImportance
from tacit.pieces.mechanisms.groups import Grouping
from tacit.pieces.mechanisms.importance import MEASURES, Allocation
from tacit.pieces.samplers import Everyone, Poisson
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import Sgd

Clipping = Literal["weights", "gradients", "none"]
Measure = Literal["variance", "sensitivity"]
Which = Literal["least", "most"]
Group = Literal["inputs", "weights"]
Level = Literal["low", "high"]
Source = Literal["released", "public"]
Shape = Literal["ellipsoid", "ball"]


def nbafl(
    epsilon: float = 1.0,
    delta: float = 0.01,
    rounds: int = 25,
    exposures: int | None = None,
    clip: float = 5.0,
    clipping: Clipping = "weights",
    samples: int = 1120,
    lr: float = 0.02,
    epochs: int = 1,
    batch_size: int | None = 32,
) -> Method:
    """Noise before model aggregation: clients clip weights and add noise by a formula, without a proved guarantee.

    Args:
        epsilon: nominal ε of the formula.
        delta: nominal δ of the formula.
        rounds: number of rounds, T.
        exposures: how many uploads of a client the adversary sees, L; none: all rounds.
        clip: clipping bound C of a client's weights.
        clipping: `weights`; or, which the formula does not cover, `gradients` (clip every gradient to C) or `none`.
        samples: the smallest number of samples of any client, m.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all samples of the client.

    Reference: Wei et al. Federated Learning with Differential Privacy: Algorithms and Performance Analysis. IEEE TIFS
    15, 2020; Eq. 4 and 5 of Talaei, Izadi 2024.
    """
    gradients = choose({"weights": None, "gradients": clip, "none": None}, clipping, "clipping")
    return Method(
        name="nbafl",
        rounds=rounds,
        sampler=Everyone(),
        trainer=Sgd(lr=lr, epochs=epochs, batch_size=batch_size, clip=gradients, sends="weights"),
        mechanism=NbaflGaussian(
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            samples=samples,
            rounds=rounds,
            exposures=rounds if exposures is None else exposures,
            clips=clipping == "weights",
        ),
        server=Replace(),
    )


def priority(
    method: Measure = "variance",
    share: float | None = 0.2,
    which: Which = "least",
    epsilon_low: float = 0.5,
    epsilon_high: float = 10.0,
    groups: Group = "inputs",
    perturbation: Level = "low",
    delta: float = 0.01,
    rounds: int = 25,
    exposures: int | None = None,
    clip: float = 5.0,
    clipping: Clipping = "weights",
    samples: int = 1120,
    lr: float = 0.02,
    epochs: int = 1,
    batch_size: int | None = 32,
) -> Method:
    """NbAFL with more noise on the weights of the least, or most, important features, without a proved guarantee.

    Args:
        method: importance by `variance` of the weights in training (Eq. 6), or by `sensitivity` of the accuracy.
        share: the share of features that get more noise; none: all features by rank, from ε_low to ε_high.
        which: the `least` or the `most` important features get more noise.
        epsilon_low: nominal ε of these features.
        epsilon_high: nominal ε of all other weights.
        groups: `inputs`: importance per input feature; `weights`: per weight, in all layers.
        perturbation: perturb weights by the noise of the `low` or the `high` ε (`method=sensitivity`).
        delta: nominal δ of the formula.
        rounds: number of rounds, T.
        exposures: how many uploads of a client the adversary sees, L; none: all rounds.
        clip: clipping bound C of a client's weights.
        clipping: `weights`; or, which the formula does not cover, `gradients` (clip every gradient to C) or `none`.
        samples: the smallest number of samples of any client, m.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all samples of the client.

    Reference: Talaei, Izadi. Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach. arXiv
    2401.02453, 2024.
    """
    expect(epsilon_low <= epsilon_high, f"epsilon_low={epsilon_low:g} <= epsilon_high={epsilon_high:g}")
    base = nbafl(epsilon_high, delta, rounds, exposures, clip, clipping, samples, lr, epochs, batch_size)
    groupings: dict[str, Grouping] = {"inputs": InputFeatures(), "weights": SingleWeights()}
    factor = epsilon_high / epsilon_low
    noise_factor = choose({"low": factor, "high": 1.0}, perturbation, "perturbation")
    measures = {**MEASURES, "sensitivity": AccuracySensitivity(noise_factor)}
    allocation: Allocation = Graded(factor, which) if share is None else TwoLevel(factor, share, which)
    return Method(
        name="priority",
        rounds=rounds,
        sampler=base.sampler,
        trainer=base.trainer,
        mechanism=ByImportance(
            base=base.mechanism,
            importance=choose(measures, method, "method"),
            allocation=allocation,
            groups=choose(groupings, groups, "groups"),
        ),
        server=base.server,
    )


def priority_dp(
    importance: Source = "public",
    power: float = 0.5,
    shape: Shape = "ellipsoid",
    epsilon: float | None = 8.0,
    delta: float = 1e-4,
    noise: float | None = None,
    clip: float = 0.4,
    floor: float = 0.1,
    rounds: int = 50,
    cohort: int = 100,
    lr: float = 0.1,
    epochs: int = 1,
    batch_size: int | None = 10,
) -> Method:
    """Noise by public importance with client-level differential privacy and a trusted server.

    Args:
        importance: how much groups of weights change: on the task's `public` data, or in the `released` models so far.
        power: noise is proportional to importance^power: 0 is equal noise, 0.5 is the least total noise, negative is
            less noise on weights that change more.
        shape: `ellipsoid`: clipping follows the noise; `ball`: only the noise is unequal, and its smallest value
            determines ε.
        epsilon: privacy budget ε for all rounds; none: no budget, and `noise` must be given.
        delta: privacy budget δ; it should be well below one over the number of clients.
        noise: noise multiplier; none: as much as the budget requires for all rounds.
        clip: clipping bound of a client's update.
        floor: lower limit of importance, as a fraction of its mean.
        rounds: number of rounds.
        cohort: expected number of clients per round.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all samples of the client.

    Reference: the idea of Talaei, Izadi 2024 with the ellipsoid of Pichapati et al. AdaCliP: Adaptive Clipping for
    Private SGD. 2019.
    """
    expect(noise is None or noise > 0, f"noise={noise} > 0", "Without noise nothing is proved.")
    sources: dict[str, PublicImportance] = {"released": ReleasedMovement(), "public": PublicMovement()}
    shapes = {"ellipsoid": False, "ball": True}
    ellipsoid = EllipsoidClip(
        value=clip,
        importance=choose(sources, importance, "importance"),
        power=power,
        floor=floor,
        ball=choose(shapes, shape, "shape"),
    )
    return Method(
        name="priority-dp",
        rounds=rounds,
        sampler=Poisson(float(cohort)),
        trainer=Sgd(lr=lr, epochs=epochs, batch_size=batch_size),
        mechanism=CentralGaussian(clip=ellipsoid, noise_multiplier=noise),
        budget=None if epsilon is None else Budget(epsilon, delta),
    )


DEFAULT_TASKS = {
    "nbafl": ("mnist", {"clients": 30, "samples": 1120, "pool": 42_000, "held_out": 8_400, "model": "mlp"}),
    "priority": ("mnist", {"clients": 30, "samples": 1120, "pool": 42_000, "held_out": 8_400, "model": "mlp"}),
    "priority-dp": ("mnist", {"clients": 990, "samples": 60, "public": 600, "model": "mlp"}),
}
METHODS = (nbafl, priority, priority_dp)
