"""NbAFL: noise before model aggregation (Wei et al. 2020), the base of noise by feature importance.

Clients clip their trained weights to C and add noise of σ_U = c·L·Δs/ε, with c = √(2 ln(1.25/δ)) and Δs = 2C/m (Eq. 4);
the server adds noise of σ_D to the mean before it is broadcast (Eq. 5). ε is nominal: the formula gives no guarantee.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import (
    Bound,
    BoundedMessages,
    ClientKeys,
    ClientRound,
    DenseRows,
    Messages,
    Round,
    Rows,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
    Wave,
)
from tacit.core.interfaces import Mechanism, Visibility
from tacit.core.prices import Price, Unit, Unproved, check_delta
from tacit.errors import UserError, positive, whole
from tacit.pieces.mechanisms.clipping import clip_rows
from tacit.wire.frames import Part

NOMINAL = "nominal epsilon (NbAFL formula)"
NOISE_STD = "standard deviation of the noise on each uploaded weight"


@dataclass(frozen=True, kw_only=True)
class NbaflGaussian(Mechanism):
    """Clients clip their weights and add noise by NbAFL's formula; the server adds noise to the mean if it requires so.

    Args:
        epsilon: ε of the formula.
        delta: δ of the formula.
        clip: C, the bound on the L2 norm of a client's weights.
        samples: m, the smallest number of samples of any client.
        rounds: T, the number of rounds.
        exposures: L, how many uploads of a client the adversary sees. In one reading of the paper it is T, since every
            client uploads in every round; in the other it is 1, and ε is that of a single upload. With a large L the
            server adds no noise.
        clips: whether weights are clipped to C. Without clipping the noise is the same, but the formula's assumption
            does not hold.

    Formal guarantees: none. The formula assumes a sensitivity of 2C/m, which has not been proved for trained weights:
    one sample may change them by up to 2C. Its calibration of Gaussian noise is proved for ε < 1 only, and it composes
    neither uploads and broadcasts nor rounds, except through L. `figures` reports what can be computed exactly.

    Sees: the server, every client's noisy weights; recipients of the model, their mean with more noise.

    Reference: Wei et al. Federated Learning with Differential Privacy: Algorithms and Performance Analysis. IEEE TIFS
    15, 2020.

    Example:
        >>> paper = NbaflGaussian(epsilon=1.0, delta=0.01, clip=5.0, samples=1120, rounds=25, exposures=1)
        >>> round(paper.upload, 5), round(paper.broadcast(30), 5)
        (0.02775, 0.02256)
    """

    epsilon: float
    delta: float
    samples: int
    rounds: int
    exposures: int
    clip: float = 5.0
    clips: bool = True
    requires: ClassVar[Visibility] = "anything"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = ()

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        check_delta(self.delta)
        positive(clip=self.clip)
        whole(1, samples=self.samples, rounds=self.rounds, exposures=self.exposures)

    @property
    def upload(self) -> float:
        """σ_U, the standard deviation of the noise that a client adds to every weight (Eq. 4)."""
        return self._c * self.exposures * 2 * self.clip / self.samples / self.epsilon

    def broadcast(self, clients: int) -> float:
        """σ_D, the standard deviation of the noise that the server adds to the mean of `clients` models (Eq. 5)."""
        missing = self.rounds**2 - self.exposures**2 * clients
        return 2 * self._c * self.clip * sqrt(max(missing, 0)) / (self.samples * clients * self.epsilon)

    def deviation(self, view: View, now: Round) -> float:
        return self.upload

    @property
    def _reason(self) -> str:
        reasons = ["NbAFL assumes that one sample changes the weights by at most 2C/m, but it may change them by 2C"]
        if not self.clips:
            reasons = ["weights are not clipped, so the influence of one sample is unbounded"]
        if self.epsilon >= 1:
            reasons.append(f"its formula for Gaussian noise is proved for ε < 1, but ε = {self.epsilon:g}")
        if self.exposures < self.rounds:
            reasons.append(f"it counts only {self.exposures} of a client's {self.rounds} uploads")
        return "; ".join(reasons)

    @property
    def figures(self) -> Mapping[str, float]:
        """The formula's ε and noise, and the exact ε of this noise at the same δ, for both sensitivities."""
        multiplier, root = self._c * self.exposures / self.epsilon, sqrt(self.rounds)
        figures = {
            NOMINAL: self.epsilon,
            NOISE_STD: self.upload,
            "exact epsilon of one upload, if sensitivity were 2C/m": exact_epsilon(multiplier, self.delta),
            f"exact epsilon of all {self.rounds} uploads, if sensitivity were 2C/m": exact_epsilon(
                multiplier / root, self.delta
            ),
        }
        if not self.clips:
            return figures
        proved = exact_epsilon(multiplier / self.samples, self.delta)
        return {**figures, "exact epsilon of one upload, at the true sensitivity 2C": proved}

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Unproved(self._reason, figures=self.figures)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        self._check_samples(data)
        rows = clip_rows(messages.rows, Bound((self.clip,))) if self.clips else messages.rows
        keys = now.clients.child("nbafl noise")
        return replace(messages, rows=add_gaussian(rows, messages.clients, self.upload, keys))

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """Add σ_D to the mean, if the formula requires more noise for a broadcast than the clients have added."""
        deviation = self.broadcast(now.cohort) if now.cohort else 0.0
        if deviation == 0:
            return total
        noise = now.server.child("nbafl broadcast").stream().normal(total.total.shape, total.total)
        return replace(total, total=total.total + noise.mul_(deviation * total.weight))

    @property
    def _c(self) -> float:
        return sqrt(2 * log(1.25 / self.delta))

    def _check_samples(self, data: Wave) -> None:
        smallest = int(data.samples.min()) if len(data.samples) else self.samples
        if smallest < self.samples:
            client = int(data.clients[data.samples.argmin()])
            raise UserError(
                f"Expected every client to have at least samples={self.samples}, the m of NbAFL's formula, but client "
                f"{client} has {smallest}. Set samples to the size of the smallest client."
            )


def add_gaussian(rows: Rows, clients: Tensor, deviation: float | Tensor, keys: ClientKeys) -> DenseRows:
    """The rows with independent Gaussian noise from each client's key; `deviation` may differ by row and coordinate."""
    values = rows.dense()
    noise = [keys.of(client).stream().normal(values.shape[1:], values) for client in clients.tolist()]
    return DenseRows(values + torch.stack(noise).mul_(deviation)) if noise else DenseRows(values)


@cache
def exact_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact ε at this δ of the Gaussian mechanism with sensitivity 1 (Balle and Wang 2018, Theorem 8).

    Example:
        >>> [round(exact_epsilon(3.1075 / nominal, 0.01), 2) for nominal in (1, 5, 10)]
        [0.51, 4.43, 11.92]
    """
    low, high = 0.0, 1.0
    if _delta(low, noise_multiplier) <= delta:
        return 0.0
    while _delta(high, noise_multiplier) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, noise_multiplier) > delta else (low, middle)
    return high


def _delta(epsilon: float, noise_multiplier: float) -> float:
    """Φ(1/2σ − εσ) − e^ε·Φ(−1/2σ − εσ), in logarithms, since e^ε may overflow while the last factor underflows."""
    half, shift = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    first, second = torch.special.log_ndtr(torch.tensor([half - shift, -half - shift], dtype=torch.float64)).tolist()
    return exp(first) - exp(min(epsilon + second, 0.0))  # a probability, which rounding could push above 1 for huge ε
