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

from dataclasses import dataclass, replace
from typing import Literal, get_args

from tacit.core import Budget, Method
from tacit.core.schema import choose
from tacit.errors import expect, positive
from tacit.pieces.mechanisms import (
    AccuracySensitivity,
    ByImportance,
    CentralGaussian,
    EllipsoidClip,
    Graded,
    NbaflGaussian,
    PublicMovement,
    TwoLevel,
)
from tacit.pieces.mechanisms.importance import MEASURES, Allocation, Which
from tacit.pieces.samplers import Everyone, Poisson
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import Sgd

_Clipping = Literal["weights", "gradients", "none"]
Measure = Literal["variance", "sensitivity"]


@dataclass(frozen=True)
class Formula:
    """NbAFL's formula for the noise, without its ε, and what is clipped.

    Args:
        delta: nominal δ.
        exposures: how many uploads of a client the adversary sees, L; None: all rounds.
        clip: clipping bound C of a client's weights.
        clipping: `weights`; or, which the formula does not cover, `gradients` (clip every gradient to C) or `none`.
        samples: the smallest number of samples of any client, m.
    """

    delta: float = 0.01
    exposures: int | None = None
    clip: float = 5.0
    clipping: _Clipping = "weights"
    samples: int = 1120

    def __post_init__(self) -> None:
        expect(self.clipping in get_args(_Clipping), f"clipping={self.clipping!r} in {', '.join(get_args(_Clipping))}")

    def mechanism(self, epsilon: float, rounds: int) -> NbaflGaussian:
        return NbaflGaussian(
            epsilon=epsilon,
            delta=self.delta,
            clip=self.clip,
            samples=self.samples,
            rounds=rounds,
            exposures=rounds if self.exposures is None else self.exposures,
            clips=self.clipping == "weights",
        )

    def trainer(self, descent: Sgd) -> Sgd:
        return replace(descent, clip=self.clip) if self.clipping == "gradients" else descent


FORMULA = Formula()
_DESCENT = Sgd(lr=0.02, epochs=1, batch_size=32, sends="weights")
UPDATES = Sgd(lr=0.1, epochs=1, batch_size=10)
ELLIPSOID = EllipsoidClip(value=0.4, importance=PublicMovement())


def nbafl(epsilon: float = 1.0, rounds: int = 25, formula: Formula = FORMULA, descent: Sgd = _DESCENT) -> Method:
    """Noise before model aggregation: clients clip weights and add noise by a formula, without a proved guarantee.

    Args:
        epsilon: nominal ε of the formula.
        rounds: number of rounds, T.
        formula: nominal δ, exposures L, the clipping bound C and what it bounds, and the samples m of a client
            (`delta`, `exposures`, `clip`, `clipping`, `samples`).
        descent: the clients' training in a round; it sends the trained weights.

    Reference: Wei et al. Federated Learning with Differential Privacy: Algorithms and Performance Analysis. IEEE TIFS
    15, 2020; Eq. 4 and 5 of Talaei, Izadi 2024.
    """
    return Method(
        name="nbafl",
        rounds=rounds,
        sampler=Everyone(),
        trainer=formula.trainer(descent),
        mechanism=formula.mechanism(epsilon, rounds),
        server=Replace(),
    )


def priority(
    method: Measure = "variance",
    share: float | None = 0.2,
    which: Which = "least",
    epsilon_low: float = 0.5,
    epsilon_high: float = 10.0,
    rounds: int = 25,
    formula: Formula = FORMULA,
    descent: Sgd = _DESCENT,
) -> Method:
    """NbAFL with more noise on the weights of the least, or most, important features, without a proved guarantee.

    Importance is measured per input feature; with `mechanism.groups=SingleWeights()` per weight, in all layers.

    Args:
        method: importance by `variance` of the weights in training (Eq. 6), or by `sensitivity` of the accuracy to
            noise of ε_low; to that of ε_high with `mechanism.importance.noise_factor=1`.
        share: the share of features that get more noise; none: all features by rank, from ε_low to ε_high.
        which: the `least` or the `most` important features get more noise.
        epsilon_low: nominal ε of these features.
        epsilon_high: nominal ε of all other weights.
        rounds: number of rounds, T.
        formula: nominal δ, exposures L, the clipping bound C and what it bounds, and the samples m of a client
            (`delta`, `exposures`, `clip`, `clipping`, `samples`).
        descent: the clients' training in a round; it sends the trained weights.

    Reference: Talaei, Izadi. Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach. arXiv
    2401.02453, 2024.
    """
    expect(0 < epsilon_low <= epsilon_high, f"0 < epsilon_low={epsilon_low:g} <= epsilon_high={epsilon_high:g}")
    base, factor = nbafl(epsilon_high, rounds, formula, descent), epsilon_high / epsilon_low
    measures = {**MEASURES, "sensitivity": AccuracySensitivity(factor)}
    allocation: Allocation = Graded(factor, which) if share is None else TwoLevel(factor, share, which)
    by_importance = ByImportance(
        base=base.mechanism, importance=choose(measures, method, "method"), allocation=allocation
    )
    return replace(base, name="priority", mechanism=by_importance)


def priority_dp(
    ellipsoid: EllipsoidClip = ELLIPSOID,
    epsilon: float | None = 8.0,
    delta: float = 1e-4,
    noise: float | None = None,
    rounds: int = 50,
    cohort: int = 100,
    descent: Sgd = UPDATES,
) -> Method:
    """Noise by public importance with client-level differential privacy and a trusted server.

    Args:
        ellipsoid: the clipping bound of a client's update (`clip`) and its axes. Noise is proportional to
            importance^`power`: 0 is equal noise, 0.5 is the least total noise, negative is less noise on weights that
            change more. `importance` is how much groups of weights change, on the task's public data
            (`PublicMovement()`) or in the models released so far (`ReleasedMovement()`), at least `floor` of its mean.
            With `ball`, only the noise is unequal, and its smallest value determines ε.
        epsilon: privacy budget ε for all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε, with a budget or without; it should be well below one over the number of clients.
        noise: noise multiplier; none: as much as the budget requires for all rounds.
        rounds: number of rounds.
        cohort: expected number of clients per round.
        descent: the clients' training in a round.

    Reference: the idea of Talaei, Izadi 2024 with the ellipsoid of Pichapati et al. AdaCliP: Adaptive Clipping for
    Private SGD. 2019.
    """
    positive("Without noise nothing is proved.", noise=noise)
    return Method(
        name="priority-dp",
        rounds=rounds,
        sampler=Poisson(float(cohort)),
        trainer=descent,
        mechanism=CentralGaussian(clip=ellipsoid, noise_multiplier=noise),
        budget=None if epsilon is None else Budget(epsilon, delta),
        report_delta=delta,
    )


SHORT_NAMES = {
    "formula.delta": "delta",
    "formula.exposures": "exposures",
    "formula.clip": "clip",
    "formula.clipping": "clipping",
    "formula.samples": "samples",
    "ellipsoid.value": "clip",
    "ellipsoid.importance": "importance",
    "ellipsoid.power": "power",
    "ellipsoid.floor": "floor",
    "ellipsoid.ball": "ball",
}
DEFAULT_TASKS = {
    "nbafl": ("mnist", {"clients": 30, "samples": 1120, "pool": 42_000, "held_out": 8_400, "model": "mlp"}),
    "priority": ("mnist", {"clients": 30, "samples": 1120, "pool": 42_000, "held_out": 8_400, "model": "mlp"}),
    "priority-dp": ("mnist", {"clients": 990, "samples": 60, "public": 600, "model": "mlp"}),
}
METHODS = (nbafl, priority, priority_dp)
