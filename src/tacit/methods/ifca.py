"""Models that fit groups of clients, and d-privacy for each client (Galli et al. 2023), after IFCA (Ghosh et al. 2020).

The server broadcasts k hypotheses. A client chooses the one that loses least on its own data, trains it, blurs the
whole trained model and sends it. Which one it chose is never sent: the server finds out by k-means, started at the
hypotheses, and averages every cluster. In the end a client's model is the hypothesis that fits it.

What differs from the paper, and why:

- The radius that the noise is scaled by is public and fixed (`scale=public`). The paper takes the length of each
  client's own update (`scale=paper`): then the noise itself depends on the data, and nothing is proved.
- With patience, the model that is kept is the best on held-out clients, not that of the round in which it ran out.
- `warm_up` spreads the hypotheses over the groups, instead of leaving it to chance whether each group catches one.
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
    """Several models, of which each client trains the one that fits it; the server tells groups apart by k-means.

    The defaults are those of the paper's synthetic experiment.

    Args:
        models: how many hypotheses, k.
        rounds: how many rounds at the most, T.
        cohort: how many clients take part in each, U.
        lr: the clients' learning rate, s.
        epochs: passes over a client's data per round, E.
        batch_size: samples per gradient step, B; none: all of a client's.
        warm_up: rounds in which all train one model; the last of them spreads the hypotheses. 0: random starts.
        patience: stop after so many measurements without a smaller loss on held-out clients, and keep the best
            models; none: play all rounds and keep the last.

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
    """Several models for groups of clients; every client blurs what it sends, with d-privacy of its own.

    The defaults are those of the paper's synthetic experiment, where a step moves a client's model by 0.05 to 0.1.

    Args:
        models: how many hypotheses, k.
        noise: noise multiplier (ν): the noise's mean length over the radius.
        radius: within which models are to look alike, for n/ν a round; another distance d costs (n/ν)·(d/radius).
        scale: `public`: the noise is scaled by the radius; `paper`: by each client's own update, without a guarantee.
        per_layer: blur every parameter tensor by itself.
        limit: what a client may leak in all rounds, counted within the radius, before it declines to take part.
        rounds: how many rounds at the most, T.
        cohort: how many clients take part in each, U.
        lr: the clients' learning rate, s.
        epochs: passes over a client's data per round, E.
        batch_size: samples per gradient step, B; none: all of a client's.
        warm_up: rounds in which all train one model; the last of them spreads the hypotheses. 0: random starts.
        patience: stop after so many measurements without a smaller loss on held-out clients, and keep the best
            models; none: play all rounds and keep the last.

    Reference: Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning. ICISSP
    2023, Algorithms 1 and 2.
    """
    radii = {"public": radius, "paper": None}
    blur = MetricLaplace(noise_multiplier=noise, radius=choose(radii, scale, "scale"), per_layer=per_layer, limit=limit)
    base = ifca(models, rounds, cohort, lr, epochs, batch_size, warm_up, patience)
    return replace(base, name="ifca-dp", mechanism=blur)


METHODS = (ifca, ifca_dp)
