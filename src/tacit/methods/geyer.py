"""Client-level differential privacy with a trusted server (Geyer, Klein, Nabi 2017).

Clients train for a few epochs; the server clips every update, adds Gaussian noise to the sum, and stops when the budget
is used up. Cohorts may grow over the rounds, because updates diverge more late in training (Section 4).

Differences from the paper:

- Cohorts are Poisson samples, which the accountant assumes; the paper draws cohorts of a fixed size.
- The clipping bound is public (`fixed`) or adapted with accounted noise (`quantile`). The paper's median of the
  cohort's norms is available as `median`, without a guarantee.
- Noise is added to the sum, so the standard deviation of the mean is S·σ/m, not S·σ/√m.
- The budget is checked before a round; the authors' code returns the model of the round that exceeded it.
"""

from collections.abc import Callable
from typing import Literal

from tacit.core import Budget, Method
from tacit.core.interfaces import Sampler
from tacit.core.schema import choose
from tacit.errors import UserError, expect
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.pieces.mechanisms.clipping import Clip
from tacit.pieces.samplers import FixedSize, Growing, Poisson
from tacit.pieces.trainers import Sgd

Clipping = Literal["fixed", "quantile", "median"]
Sampling = Literal["poisson", "fixed"]


def geyer(
    rounds: int = 200,
    cohort: int = 50,
    noise: float = 2.5,
    epsilon: float = 8.0,
    delta: float = 1e-3,
    clip: float = 0.3,
    clipping: Clipping = "fixed",
    per_layer: bool = False,
    sampling: Sampling = "poisson",
    growth: tuple[tuple[int, int], ...] = (),
    lr: float = 0.1,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = 10,
    decay: float = 1.0,
) -> Method:
    """Client-level differential privacy with a trusted server, which clips updates and adds noise to their sum.

    Training stops before the round that would exceed the budget.

    Args:
        rounds: number of rounds, at most.
        cohort: expected number of clients per round (m).
        noise: noise multiplier (σ): the standard deviation of the noise over the sensitivity.
        epsilon: privacy budget ε.
        delta: privacy budget δ; it should be well below one over the number of clients.
        clip: clipping bound S of a client's update; with `quantile`, that of the first round.
        clipping: `fixed`; `quantile`, which adapts to the median norm with accounted noise; or `median`, as in the
            paper, without a guarantee.
        per_layer: clip every layer separately, as the authors' code does (`fixed` and `median`).
        sampling: `poisson`, or `fixed` cohort sizes as in the paper, which cost far more privacy.
        growth: stages of (rounds, cohort) instead of one cohort size; the last stage continues to the end.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        steps: instead, gradient steps per round.
        batch_size: samples per gradient step; none: all samples of the client.
        decay: the learning rate of round t is lr·decay^t.

    Reference: Geyer, Klein, Nabi. Differentially Private Federated Learning: A Client Level Perspective. NIPS 2017
    workshop, Algorithm 1.
    """
    expect(noise > 0, f"noise={noise:g} > 0", "A budget needs noise.")
    samplers: dict[str, Callable[[int], Sampler]] = {"poisson": Poisson, "fixed": FixedSize}
    draw = choose(samplers, sampling, "sampling")
    stages = tuple((length, draw(size)) for length, size in growth)
    return Method(
        name="geyer",
        rounds=rounds,
        sampler=Growing(stages) if stages else draw(cohort),
        trainer=Sgd(lr=lr, epochs=epochs if steps is None else None, steps=steps, batch_size=batch_size, decay=decay),
        mechanism=CentralGaussian(clip=_clip(clipping, clip, per_layer, cohort), noise_multiplier=noise),
        budget=Budget(epsilon, delta),
    )


def _clip(clipping: Clipping, value: float, per_layer: bool, cohort: int) -> Clip:
    if clipping == "fixed":
        return FixedClip(value, per_layer)
    if clipping == "median":
        return MedianClip(per_layer)
    if per_layer:
        raise UserError("Expected per_layer clipping to be fixed or median: quantile clips whole updates only.")
    return QuantileClip(start=value, count_noise=max(cohort / 20, 1.0))


METHODS = (geyer,)
