"""Constrained federated learning for low-bandwidth devices (Kerkouche et al. 2021): the scheme it starts from."""

from tacit.core import Method
from tacit.samplers import FixedSize
from tacit.trainers import Sgd


def fl_std(
    rounds: int = 200, cohort: int = 100, lr: float = 0.215, steps: int = 5, batch_size: int | None = 10
) -> Method:
    """Standard federated learning as in the FL-TOP paper: whole updates, a few gradient steps per round.

    The defaults are those for Fashion-MNIST (Table 3), where 100 of 6000 clients of 10 images each take part.

    Args:
        rounds: how many rounds, T_cl.
        cohort: how many clients take part in each, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all of a client's.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Section 2.1.
    """
    return Method(
        name="fl-std",
        rounds=rounds,
        sampler=FixedSize(cohort),
        trainer=Sgd(lr=lr, steps=steps, batch_size=batch_size),
    )


METHODS = (fl_std,)
