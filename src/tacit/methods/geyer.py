"""Client-level differential privacy with a trusted server (Geyer, Klein, Nabi 2017).

Clients train for a few epochs; the server clips every update, adds Gaussian noise to the sum, and stops when the budget
is used up. Cohorts may grow over the rounds, because updates diverge more late in training (Section 4):
`sampler=Growing(((377, Poisson(500)), (35, Poisson(600))))`.

Differences from the paper:

- Cohorts are Poisson samples, which the accountant assumes; the paper draws cohorts of a fixed size.
  `sampler=FixedSize(50)` does so too, and costs far more privacy.
- The clipping bound is public (`fixed`) or adapted with accounted noise (`quantile`). The paper's median of the
  cohort's norms is available as `median`, without a guarantee. The authors' code clips every layer separately:
  `mechanism.clip.per_layer=true` (`fixed` and `median`).
- Noise is added to the sum, so the standard deviation of the mean is S·σ/m, not S·σ/√m.
- The budget is checked before a round; the authors' code returns the model of the round that exceeded it.
"""

from typing import Literal

from tacit.core import Budget, Method
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.pieces.mechanisms.clipping import Clip
from tacit.pieces.samplers import Poisson
from tacit.pieces.trainers import Sgd

_Clipping = Literal["fixed", "quantile", "median"]
_DESCENT = Sgd(lr=0.1, epochs=1, batch_size=10)


def geyer(
    rounds: int = 200,
    cohort: int = 50,
    noise: float = 2.5,
    epsilon: float = 8.0,
    delta: float = 1e-3,
    clip: float = 0.3,
    clipping: _Clipping = "fixed",
    descent: Sgd = _DESCENT,
) -> Method:
    """Client-level differential privacy with a trusted server, which clips updates and adds noise to their sum.

    Training stops before the round that would exceed the budget.

    Args:
        rounds: number of rounds, at most; the budget may end training earlier.
        cohort: expected number of clients per round (m); it also scales the noise of `quantile`. A small part of the
            population costs less ε a round, but has more noise for each client.
        noise: noise multiplier (σ): the standard deviation of the noise over the sensitivity. With little, the budget
            is used up after few rounds; with much, nothing is learnt.
        epsilon: privacy budget ε of a client; less of it ends training earlier.
        delta: privacy budget δ; above one over the number of clients, nothing is promised to some of them.
        clip: clipping bound S of a client's update; with `quantile`, that of the first round. A small one slows
            learning, a large one adds noise.
        clipping: `fixed`; `quantile`, which adapts to the median norm with accounted noise; or `median`, as in the
            paper, without a guarantee.
        descent: the clients' training in a round; longer updates are clipped.

    Reference: Geyer, Klein, Nabi. Differentially Private Federated Learning: A Client Level Perspective. NIPS 2017
    workshop, Algorithm 1.
    """
    expect(noise > 0, f"noise={noise:g} > 0", "A budget needs noise.")
    clips: dict[str, Clip] = {
        "fixed": FixedClip(clip),
        "quantile": QuantileClip(start=clip, count_noise=max(cohort / 20, 1.0)),
        "median": MedianClip(),
    }
    return Method(
        name="geyer",
        rounds=rounds,
        sampler=Poisson(cohort),
        trainer=descent,
        mechanism=CentralGaussian(clip=choose(clips, clipping, "clipping"), noise_multiplier=noise),
        budget=Budget(epsilon, delta),
    )


METHODS = (geyer,)
