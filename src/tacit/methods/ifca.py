"""Clustered federated learning (IFCA, Ghosh et al. 2020), with metric privacy for each client (Galli et al. 2023).

The server broadcasts k hypotheses. A client chooses the one with the smallest loss on its own data, trains it, adds
noise to the trained model and sends it. The choice is never sent: the server infers clusters by k-means, started at the
hypotheses, and averages each. A client's final model is the hypothesis that fits it best.

Differences from the paper:

- The radius that scales the noise is public and fixed (`scale=public`). The paper uses the norm of each client's own
  update (`scale=paper`), so the noise depends on the data and there is no guarantee.
- With patience, the final models are the best on held-out clients, not those of the last round.
- `warm_up` initialises the hypotheses from clusters, so that it does not depend on chance whether each group gets one.
"""

from dataclasses import replace
from typing import Literal

from tacit.core import Method
from tacit.core.schema import choose
from tacit.pieces.aggregators import KMeans
from tacit.pieces.mechanisms import MetricLaplace
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import BestOf, Sgd

Scale = Literal["public", "paper"]


def ifca(
    models: int = 2,
    rounds: int = 200,
    cohort: int = 7,
    lr: float = 0.1,
    epochs: int = 1,
    batch_size: int | None = 10,
    warm_up: int = 0,
    patience: int | None = None,
) -> Method:
    """Clustered federated learning: each client trains the best of several models; the server clusters by k-means.

    The defaults are those of the paper's synthetic experiment.

    Args:
        models: number of hypotheses, k.
        rounds: number of rounds, at most, T.
        cohort: clients per round, U.
        lr: the clients' learning rate, s.
        epochs: passes over a client's data per round, E.
        batch_size: samples per gradient step, B; none: all samples of the client.
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
        trainer=BestOf(Sgd(lr=lr, epochs=epochs, batch_size=batch_size, sends="weights")),
        aggregator=KMeans(models=models, warm_up=warm_up),
        server=Replace(),
        patience=patience,
    )


def ifca_dp(
    models: int = 2,
    noise: float = 5.0,
    radius: float = 0.05,
    scale: Scale = "public",
    per_layer: bool = False,
    limit: float | None = None,
    rounds: int = 200,
    cohort: int = 7,
    lr: float = 0.1,
    epochs: int = 1,
    batch_size: int | None = 10,
    warm_up: int = 0,
    patience: int | None = None,
) -> Method:
    """Clustered federated learning with metric privacy (d-privacy): every client adds noise to its own model.

    The defaults are those of the paper's synthetic experiment, where a client's update has a norm of 0.05 to 0.1.

    Args:
        models: number of hypotheses, k.
        noise: noise multiplier (ν): the mean norm of the noise over the radius.
        radius: distance within which two models cost n/ν per round; another distance d costs (n/ν)·(d/radius).
        scale: `public`: noise scaled by the radius; `paper`: by the client's own update, without a guarantee.
        per_layer: add noise to every parameter tensor separately.
        limit: leakage within the radius, over all rounds, after which a client declines to take part; none: no limit.
        rounds: number of rounds, at most, T.
        cohort: clients per round, U.
        lr: the clients' learning rate, s.
        epochs: passes over a client's data per round, E.
        batch_size: samples per gradient step, B; none: all samples of the client.
        warm_up: rounds in which all clients train one model; the last of them initialises the hypotheses from its
            clusters. 0: random initial hypotheses.
        patience: stop after this many evaluations without a smaller loss on held-out clients, and keep the best
            models; none: run all rounds and keep the last models.

    Reference: Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning. ICISSP
    2023, Algorithms 1 and 2.
    """
    radii = {"public": radius, "paper": None}
    chosen = choose(radii, scale, "scale")
    mechanism = MetricLaplace(noise_multiplier=noise, radius=chosen, per_layer=per_layer, limit=limit)
    base = ifca(models, rounds, cohort, lr, epochs, batch_size, warm_up, patience)
    return replace(base, name="ifca-dp", mechanism=mechanism)


METHODS = (ifca, ifca_dp)
