"""Federated averaging (McMahan et al. 2017): clients train on their own data, and the server averages their updates."""

from tacit.core import Method
from tacit.pieces.aggregators import Mean, WeightedMean
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd


def fedavg(
    rounds: int = 50,
    cohort: int = 20,
    lr: float = 0.2,
    epochs: int = 5,
    batch_size: int | None = 10,
    weighted: bool = True,
) -> Method:
    """Federated averaging: clients train for a few epochs on their own data, and the server averages their updates.

    Args:
        rounds: number of rounds; too few end before the model is good.
        cohort: clients per round; with few, models of unlike clients differ from round to round.
        lr: the clients' learning rate; if too large, the loss oscillates, if too small, nothing is learnt.
        epochs: passes over a client's data per round; with many, models of unlike clients drift apart.
        batch_size: samples per gradient step; none: all samples of the client.
        weighted: weight clients by their number of samples, as in the paper; otherwise all clients equally.

    Reference: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
    from Decentralized Data. AISTATS 2017, Algorithm 1.
    """
    return Method(
        name="fedavg",
        rounds=rounds,
        sampler=FixedSize(cohort),
        trainer=Sgd(lr=lr, epochs=epochs, batch_size=batch_size),
        aggregator=WeightedMean() if weighted else Mean(),
    )


METHODS = (fedavg,)
