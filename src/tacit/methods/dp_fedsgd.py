"""DP-FedSGD: one gradient step a round over the records of all clients, with noise for single records in shares.

Every client draws a Poisson batch of its records, with secret coins, and sums their clipped gradients; all add their
shares of the noise; secure aggregation reveals only the sum over all clients. The noise that protects one record is
therefore added once per round and not once per client, which is what makes few records per client enough. Batches
amplify privacy against everybody, the server included, who knows which clients take part but not which records.
"""

from tacit.core import Budget, Method
from tacit.core.descent_rule import BATCH_RATE, records_in_row
from tacit.errors import at_least, expect, positive
from tacit.pieces.channels import SecureSum
from tacit.pieces.mechanisms import DistributedGaussian, Grid, RecordClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import MEAN_SIZE, RecordDescent
from tacit.pieces.trainers import RecordGradient

MAX_SIZE = 1e9  # records of a client
_ROUNDS = 100
GRADIENT = RecordGradient(rate=BATCH_RATE, clip=1.0)
DEFAULT_TASKS = {"dp-fedsgd": ("digits", {"clients": 10})}
SHORT_NAMES = {"gradient.rate": "rate", "gradient.clip": "clip"}


def dp_fedsgd(
    rounds: int | None = None,
    gradient: RecordGradient = GRADIENT,
    size: float | None = None,
    lr: float | None = None,
    epsilon: float | None = 3.0,
    delta: float = 1e-5,
    noise: float | None = None,
    dropouts: float = 0.1,
) -> Method:
    """DP-FedSGD: each record of all clients is protected by noise in shares; only the sum of a round is revealed.

    On a table whose model you do not choose, the model is linear, with inputs that the first round standardises for a
    part of the same budget, and rounds, learning rate and clipping bound follow from a public rule: ε and δ are all
    there is to set. With a model of your own they are 100, 0.5 and 1.

    Args:
        rounds: number of rounds, a gradient step each. Too few end before the model is good, and more than 100 change
            little, because the noise of each grows with their number. None: by the rule, or 100.
        gradient: what a client sends: the probability with which a record is in its batch (`rate`), the same for all
            clients, and the largest norm of the gradient of one record (`clip`). A small clip makes rare outcomes
            weaker, a large one adds noise. If you choose the rate, inputs are not standardised.
        size: the mean number of records of a client; public. None: that of the data in a simulation; a plan gives it.
            With a wrong one, a model of your own learns too slowly or diverges; a standardised one does not depend on
            it, and a warning says that it is wrong.
        lr: learning rate of the mean clipped gradient; if too large, the loss oscillates. None: by the rule, or 0.5;
            the server's momentum is then `server.rho`.
        epsilon: privacy budget ε for every record, over all rounds; less of it is more noise. None: no budget, and
            `noise` must be given.
        delta: the δ of ε; above one over the number of records, nothing is promised to some of them.
        noise: noise multiplier; None: as much as the budget requires for all rounds. With less, training stops early.
        dropouts: the fraction of the clients that may be lost in a round, for which the noise provides. If more are
            lost, a round ends without a sum.

    Reference: McMahan et al. 2017 (FedSGD); Abadi et al. 2016 (DP-SGD); Kairouz, Liu, Steinke 2021 (noise in shares).
    """
    positive("Without noise nothing is proved.", noise=noise)
    at_least(1, size=size)
    expect(size is None or size <= MAX_SIZE, f"size={size} <= {MAX_SIZE:g}")
    return Method(
        name="dp-fedsgd",
        rounds=_ROUNDS if rounds is None else rounds,
        sampler=Everyone(),
        trainer=gradient,
        mechanism=DistributedGaussian(
            clip=RecordClip(gradient.clip, records_in_row(gradient.rate, size or MEAN_SIZE)),
            noise_multiplier=noise,
            dropouts=dropouts,
            arithmetic=Grid(),
        ),
        channel=SecureSum(dropout=dropouts),
        server=RecordDescent(rate=gradient.rate, size=size, lr=lr, rounds=rounds),
        budget=None if epsilon is None else Budget(epsilon, delta),
        report_delta=delta,
    )


METHODS = (dp_fedsgd,)
