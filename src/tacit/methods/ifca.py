"""Clustered federated learning (IFCA, Ghosh et al. 2020), with metric privacy for each client (Galli et al. 2023).

The server broadcasts k hypotheses. A client chooses the one with the smallest loss on its own data, trains it, adds
noise to the trained model and sends it. The choice is never sent: the server infers clusters by k-means, started at the
hypotheses, and averages each. A client's final model is the hypothesis that fits it best.

Differences from the paper:

- The radius that scales the noise is public and fixed. The paper uses the norm of each client's own update
  (`radius=none`), so the noise depends on the data and there is no guarantee.
- With patience, the final models are the best on held-out clients, not those of the last round.
- `warm_up` initialises the hypotheses from clusters, so that it does not depend on chance whether each group gets one.
"""

from dataclasses import replace

from tacit.core import Method
from tacit.core.interfaces import Mechanism
from tacit.pieces.aggregators import KMeans
from tacit.pieces.mechanisms import MetricLaplace
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import BestOf, Sgd

_DESCENT = Sgd(lr=0.1, epochs=1, batch_size=10, sends="weights")  # s, E and B of the paper
_NOISE = MetricLaplace(noise_multiplier=5.0, radius=0.05)


def ifca(
    models: int = 2,
    rounds: int = 200,
    cohort: int = 7,
    descent: Sgd = _DESCENT,
    warm_up: int = 0,
    patience: int | None = None,
) -> Method:
    """Clustered federated learning: each client trains the best of several models; the server clusters by k-means.

    The defaults are those of the paper's synthetic experiment.

    Args:
        models: number of hypotheses, k.
        rounds: number of rounds, at most, T.
        cohort: clients per round, U.
        descent: the clients' training in a round; it sends the trained weights.
        warm_up: rounds in which all clients train one model; the last of them initialises the hypotheses from its
            clusters. 0: random initial hypotheses.
        patience: stop after this many evaluations without a smaller loss on held-out clients, and keep the best
            models; none: run all rounds and keep the last models.

    Reference: Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS 2020;
    with k-means as in Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning.
    ICISSP 2023, Algorithm 1.
    """
    return Method(
        name="ifca",
        rounds=rounds,
        sampler=FixedSize(cohort),
        trainer=BestOf(descent),
        aggregator=KMeans(models=models, warm_up=warm_up),
        server=Replace(),
        patience=patience,
    )


def ifca_dp(
    models: int = 2,
    mechanism: Mechanism = _NOISE,
    rounds: int = 200,
    cohort: int = 7,
    descent: Sgd = _DESCENT,
    warm_up: int = 0,
    patience: int | None = None,
) -> Method:
    """Clustered federated learning with metric privacy (d-privacy): every client adds noise to its own model.

    The defaults are those of the paper's synthetic experiment, where a client's update has a norm of 0.05 to 0.1.

    Args:
        models: number of hypotheses, k.
        mechanism: the noise, by `mechanism.noise_multiplier` (ν, also `noise`): its mean norm over `radius`, the
            distance within which two models cost n/ν per round; another distance d costs (n/ν)·(d/radius). Without
            a radius, noise is scaled by the client's own update as in the paper, without a guarantee. `limit` is the
            leakage within the radius, over all rounds, after which a client declines to take part.
        rounds: number of rounds, at most, T.
        cohort: clients per round, U.
        descent: the clients' training in a round; it sends the trained weights.
        warm_up: rounds in which all clients train one model; the last of them initialises the hypotheses from its
            clusters. 0: random initial hypotheses.
        patience: stop after this many evaluations without a smaller loss on held-out clients, and keep the best
            models; none: run all rounds and keep the last models.

    Reference: Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning. ICISSP
    2023, Algorithms 1 and 2.
    """
    base = ifca(models, rounds, cohort, descent, warm_up, patience)
    return replace(base, name="ifca-dp", mechanism=mechanism)


SHORT_NAMES = {
    "mechanism.noise_multiplier": "noise",
    "mechanism.radius": "radius",
    "mechanism.per_layer": "per_layer",
    "mechanism.limit": "limit",
}
METHODS = (ifca, ifca_dp)
