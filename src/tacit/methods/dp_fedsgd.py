"""DP-FedSGD: one gradient step a round over the records of all clients, with noise for single records in shares.

Every client draws a Poisson batch of its records, with secret coins, and sums their clipped gradients; all add their
shares of the noise; secure aggregation reveals only the sum over all clients. The noise that protects one record is
therefore added once per round and not once per client, which is what makes few records per client enough. Batches
amplify privacy against everybody, the server included, who knows which clients take part but not which records.
"""

from math import ceil, sqrt

from tacit.core import Budget, Method
from tacit.errors import expect
from tacit.pieces.channels import SecureSum
from tacit.pieces.mechanisms import DistributedGaussian, Grid, RecordClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import RecordGradient

MAX_SIZE = 1e9  # records of a client
GRADIENT = RecordGradient(rate=0.2, clip=1.0)
DEFAULT_TASKS = {"dp-fedsgd": ("digits", {"clients": 10})}
SHORT_NAMES = {"gradient.rate": "rate", "gradient.clip": "clip"}


def dp_fedsgd(
    rounds: int = 100,
    gradient: RecordGradient = GRADIENT,
    size: float = 150.0,
    lr: float = 0.5,
    epsilon: float | None = 3.0,
    delta: float = 1e-5,
    noise: float | None = None,
    dropouts: float = 0.1,
) -> Method:
    """DP-FedSGD: each record of all clients is protected by noise in shares; only the sum of a round is revealed.

    Args:
        rounds: number of rounds, a gradient step each.
        gradient: what a client sends: the probability with which a record is in its batch (`rate`), the same for all
            clients, and the largest norm of the gradient of one record (`clip`).
        size: the mean number of records of a client; public. It scales the step, and a row has room for the batches of
            a client with four times as many; a longer one is shortened, which costs accuracy and no privacy.
        lr: learning rate of the mean clipped gradient; the server's momentum is `server.rho`.
        epsilon: privacy budget ε for every record, over all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε; it should be well below one over the number of records.
        noise: noise multiplier; none: as much as the budget requires for all rounds.
        dropouts: the fraction of the clients that may be lost in a round, for which the noise provides.

    Reference: McMahan et al. 2017 (FedSGD); Abadi et al. 2016 (DP-SGD); Kairouz, Liu, Steinke 2021 (noise in shares).
    """
    expect(noise is None or noise > 0, f"noise={noise} > 0", "Without noise nothing is proved.")
    expect(1 <= size <= MAX_SIZE, f"1 <= size={size:g} <= {MAX_SIZE:g}")
    mean = gradient.rate * 4 * size
    records = min(ceil(4 * size), ceil(mean + 10 * sqrt(mean) + 10))  # ten standard deviations of a batch
    return Method(
        name="dp-fedsgd",
        rounds=rounds,
        sampler=Everyone(),
        trainer=gradient,
        mechanism=DistributedGaussian(
            clip=RecordClip(gradient.clip, records), noise_multiplier=noise, dropouts=dropouts, arithmetic=Grid()
        ),
        channel=SecureSum(dropout=dropouts),
        server=Momentum(rho=0.9, rate=lr / (gradient.rate * size)),
        budget=None if epsilon is None else Budget(epsilon, delta),
        report_delta=delta,
    )


METHODS = (dp_fedsgd,)
