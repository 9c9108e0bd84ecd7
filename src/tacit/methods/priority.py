"""Noise by feature importance (Talaei, Izadi 2024) over NbAFL (Wei et al. 2020), and the same idea with a guarantee.

Clients train one epoch, clip their weights, and add noise by NbAFL's formula; with `priority`, the weights of some
input features get more of it, by how much these features matter to the client. What differs from the paper, and why:

- Nothing is claimed. The paper's ε is printed as what it is, the ε of a formula whose assumptions do not hold.
- Weights are clipped, as the formula supposes. The paper speaks of clipping in the optimiser, which bounds no weights;
  that is there as `clipping=gradients`.
- Both readings of L, the number of exposures, are there; the paper does not say which it took.

`priority-dp` asks whether importance helps if privacy is proved: updates are clipped and blurred by a trusted server,
axes of clipping and noise follow from what was released before or from public data, and ε is exact.
"""

from typing import Literal

from tacit.core import Budget, Method
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.mechanisms import (
    ByImportance,
    CentralGaussian,
    EachWeight,
    EllipsoidClip,
    Graded,
    Inputs,
    NbaflGaussian,
    PublicMovement,
    ReleasedMovement,
    Sensitivity,
    Share,
)
from tacit.pieces.mechanisms.ellipsoid import PublicImportance
from tacit.pieces.mechanisms.groups import Grouping
from tacit.pieces.mechanisms.importance import MEASURES, Allocation
from tacit.pieces.samplers import Everyone, Poisson
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import Sgd

Clipping = Literal["weights", "gradients", "none"]
By = Literal["variance", "sensitivity"]
Which = Literal["least", "most"]
Group = Literal["inputs", "weights"]
Perturbation = Literal["low", "high"]
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
    """Noise before model aggregation: clipped weights with Gaussian noise by a formula; nothing is proved.

    Args:
        epsilon: ε of the formula.
        delta: δ of the formula.
        rounds: how many rounds, T.
        exposures: how often a client's upload may be seen, L; none: in every round, and 1 counts a single one.
        clip: the bound C of a client's weights.
        clipping: `weights`; or, which the formula does not cover, `gradients`: every gradient to C; or `none`.
        samples: m, the size of the smallest client's data.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all of a client's.

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
    method: By = "variance",
    share: float | None = 0.2,
    which: Which = "least",
    epsilon_low: float = 0.5,
    epsilon_high: float = 10.0,
    groups: Group = "inputs",
    nudge: Perturbation = "low",
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
    """NbAFL with more noise on the weights of the features that matter least, or most; nothing is proved.

    Args:
        method: importance by `variance` of the weights under training (Eq. 6), or by `sensitivity` of the accuracy.
        share: of the features that get more noise; none: all, each by its rank, from ε_low to ε_high.
        which: the `least` or the `most` important get more.
        epsilon_low: ε of the formula for these.
        epsilon_high: ε of the formula for all other weights.
        groups: `inputs`: all weights of an input matter together; `weights`: each by itself, in all layers.
        nudge: by the noise of which ε the sensitivity method moves weights, the `low` or the `high` one.
        delta: δ of the formula.
        rounds: how many rounds, T.
        exposures: how often a client's upload may be seen, L; none: in every round, and 1 counts a single one.
        clip: the bound C of a client's weights.
        clipping: `weights`; or, which the formula does not cover, `gradients`: every gradient to C; or `none`.
        samples: m, the size of the smallest client's data.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all of a client's.

    Reference: Talaei, Izadi. Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach. arXiv
    2401.02453, 2024.
    """
    expect(epsilon_low <= epsilon_high, f"epsilon_low={epsilon_low:g} <= epsilon_high={epsilon_high:g}")
    base = nbafl(epsilon_high, delta, rounds, exposures, clip, clipping, samples, lr, epochs, batch_size)
    groupings: dict[str, Grouping] = {"inputs": Inputs(), "weights": EachWeight()}
    factor = epsilon_high / epsilon_low
    measures = {**MEASURES, "sensitivity": Sensitivity(choose({"low": factor, "high": 1.0}, nudge, "nudge"))}
    allocation: Allocation = Graded(factor, which) if share is None else Share(factor, share, which)
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
    """Noise by public importance with client-level differential privacy: ε is exact, whatever the axes.

    Args:
        importance: how far weights move, group by group: on the task's `public` data, or in the models that were
            `released` so far.
        power: noise is in proportion to importance^power: 0 is the same for all, negative is less for what moves more,
            0.5 is the least in all.
        shape: `ellipsoid`: updates are clipped where noise is low, too; `ball`: only the noise is unequal, and the
            least of it decides.
        epsilon: the budget for all rounds; none: there is none, and `noise` must be given.
        delta: the probability with which the guarantee may fail; small against one over the number of clients.
        noise: noise multiplier; none: as much as the budget needs for all rounds.
        clip: the bound of a client's update.
        floor: importance below this part of the mean counts as that much.
        rounds: how many rounds.
        cohort: how many clients take part in each, on average.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all of a client's.

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
