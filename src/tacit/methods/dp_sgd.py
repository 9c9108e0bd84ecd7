"""DP-SGD at every client (Abadi et al. 2016), in federated averaging: records are protected, also from the server.

Every local step draws a Poisson batch of the client's records, clips the gradient of each and adds noise to their sum;
whatever the client sends is computed from that. No other party has to be trusted, and no secure aggregation is needed,
but every client adds all of the noise by itself: `dp-fedsgd` shares it between all clients.

The unit is the record, and the guarantee that of the client whose records are least protected: usually the one with the
fewest, whose batches sample each record most often. `client_noise` adds noise for clients on top, in shares; then two
guarantees are reported, side by side.
"""

from dataclasses import replace

from tacit.core import Budget, Method
from tacit.errors import positive
from tacit.pieces.channels import SecureSum
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, Grid
from tacit.pieces.samplers import Everyone, FixedSize
from tacit.pieces.trainers import DpSgd

DP_SGD_DESCENT = DpSgd(lr=0.5, epochs=1, batch_size=32, clip=1.0)
DEFAULT_TASKS = {"dp-sgd": ("digits", {"clients": 10})}
SHORT_NAMES = {"descent.clip": "clip"}


def dp_sgd(
    rounds: int = 20,
    cohort: int | None = None,
    descent: DpSgd = DP_SGD_DESCENT,
    epsilon: float | None = 8.0,
    delta: float = 1e-5,
    noise: float | None = None,
    client_noise: float | None = None,
    client_clip: float = 1.0,
) -> Method:
    """DP-SGD at every client: each record is protected against whoever sees the messages, the server included.

    Args:
        rounds: number of rounds; more of them get more noise each.
        cohort: clients per round; none: all of them. Sampling clients lowers no ε, because the server knows them.
        descent: the clients' steps in a round: learning rate, batches, and the bound of one record's gradient (`clip`).
        epsilon: privacy budget ε for every record, over all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε; above one over the number of records, nothing is promised to some of them.
        noise: noise multiplier of every step; none: as much as the budget requires for the worst client.
        client_noise: noise multiplier for clients, on top; none: no guarantee for clients. The budget holds for each
            guarantee by itself.
        client_clip: with `client_noise`, the clipping bound of a client's update.

    Reference: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential Privacy. CCS
    2016, Algorithm 1; at clients that average: McMahan et al. 2017.
    """
    positive("Without noise nothing is proved.", noise=noise)
    positive(client_clip=client_clip)
    method = Method(
        name="dp-sgd",
        rounds=rounds,
        sampler=Everyone() if cohort is None else FixedSize(cohort),
        trainer=descent if noise is None else replace(descent, noise_multiplier=noise),
        budget=None if epsilon is None else Budget(epsilon, delta),
        report_delta=delta,
    )
    if client_noise is None:
        return method
    positive("Leave it out for no noise.", client_noise=client_noise)
    mechanism = DistributedGaussian(clip=FixedClip(client_clip), noise_multiplier=client_noise, arithmetic=Grid())
    return replace(method, mechanism=mechanism, channel=SecureSum())


METHODS = (dp_sgd,)
