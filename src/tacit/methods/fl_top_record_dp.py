"""FL-TOP for records: only the weights with the largest gradients on public data are trained, with noise for records.

Few weights are few bytes. At the same ε they are more accurate than all weights (`dp-fedsgd`) only if the model is far
too large for the records, where a smaller model is better than either (measured in experiments/records).
`fl-top-record-dp` takes one step a round with noise in shares, as `dp-fedsgd`; `fl-top-dp-sgd` trains at every client
with all of the noise, as `dp-sgd`. The people in the public data are not protected.
"""

from dataclasses import replace

from tacit.core import Method
from tacit.methods.dp_fedsgd import GRADIENT, dp_fedsgd
from tacit.methods.dp_sgd import DP_SGD_DESCENT, dp_sgd
from tacit.pieces.codecs import Select, Size, TopK
from tacit.pieces.servers import MEAN_SIZE
from tacit.pieces.trainers import DpSgd, RecordGradient

DEFAULT_TASKS = {
    "fl-top-record-dp": ("digits", {"clients": 10, "public": 50}),
    "fl-top-dp-sgd": ("digits", {"clients": 10, "public": 50}),
}
SHORT_NAMES = {"gradient.rate": "rate", "gradient.clip": "clip", "descent.clip": "clip"}


def fl_top_record_dp(
    ratio: float = 0.1,
    rounds: int = 100,
    gradient: RecordGradient = GRADIENT,
    size: float | None = None,
    lr: float = 0.5,
    epsilon: float | None = 3.0,
    delta: float = 1e-5,
    noise: float | None = None,
) -> Method:
    """FL-TOP with privacy for records: few weights are trained, with noise in shares on the sum of all records.

    It sends less. At the same ε it was more accurate than `dp-fedsgd` with all weights only for a model that was far
    too large for the records (1.8 million weights, 1,000 records, ε = 0.5), and otherwise as accurate or less.

    Args:
        ratio: the fraction of the weights that is trained and sent.
        rounds: number of rounds, a gradient step each.
        gradient: what a client sends: the probability with which a record is in its batch (`rate`), the same for all
            clients, and the largest norm of the gradient of one record over the trained weights (`clip`).
        size: the mean number of records of a client; public. None: that of the data in a simulation; a plan gives it.
        lr: learning rate of the mean clipped gradient; the weights are selected by steps on public data with it.
        epsilon: privacy budget ε for every record, over all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε; it should be well below one over the number of records.
        noise: noise multiplier; none: as much as the budget requires for all rounds.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Algorithms 1 and 2; for records, Abadi et al. 2016.
    """
    method = dp_fedsgd(rounds, replace(gradient, masked=False), size, lr, epsilon, delta, noise)
    codec = Select(TopK(size=Size(ratio=ratio), lr=lr, batch_size=max(1, round(gradient.rate * (size or MEAN_SIZE)))))
    return replace(method, name="fl-top-record-dp", trainer=replace(gradient, masked=True), codec=codec)


def fl_top_dp_sgd(
    ratio: float = 0.1,
    rounds: int = 20,
    cohort: int | None = None,
    descent: DpSgd = DP_SGD_DESCENT,
    epsilon: float | None = 8.0,
    delta: float = 1e-5,
    noise: float | None = None,
) -> Method:
    """FL-TOP with DP-SGD at every client: few weights are trained and sent, and only they get noise.

    Args:
        ratio: the fraction of the weights that is trained and sent.
        rounds: number of rounds.
        cohort: clients per round; none: all of them.
        descent: the clients' steps in a round; the bound of one record's gradient (`clip`) is over the trained weights.
        epsilon: privacy budget ε for every record, over all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε; it should be well below one over the number of records.
        noise: noise multiplier of every step; none: as much as the budget requires for the worst client.

    Reference: Kerkouche et al. 2021, Algorithms 1 and 2; Abadi et al. 2016, Algorithm 1.
    """
    calibrated = descent if noise is None else replace(descent, noise_multiplier=noise)
    method = dp_sgd(rounds, cohort, replace(calibrated, masked=False), epsilon, delta)
    codec = Select(TopK(size=Size(ratio=ratio), lr=descent.lr, batch_size=descent.batch_size))
    return replace(method, name="fl-top-dp-sgd", trainer=replace(calibrated, masked=True), codec=codec)


METHODS = (fl_top_record_dp, fl_top_dp_sgd)
