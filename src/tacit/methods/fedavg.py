"""Federated averaging: clients train on their own data, the server averages what they learnt."""

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
    """Federated averaging: some clients train for a few epochs, the server averages their updates.

    Args:
        rounds: how many rounds.
        cohort: how many clients take part in each.
        lr: the clients' learning rate.
        epochs: passes over a client's data per round.
        batch_size: samples per gradient step; none: all of a client's.
        weighted: whether a client counts by the size of its data, as in the paper, or all count the same.

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
