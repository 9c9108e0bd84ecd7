"""NbAFL: noise before model aggregation (Wei et al. 2020), as it is used by noise by feature importance.

Clients clip their trained weights to C and add noise of σ_U = c·L·Δs/ε, with c = √(2 ln(1.25/δ)) and Δs = 2C/m (Eq. 4);
the server adds σ_D to the mean before it is broadcast (Eq. 5). ε is that of the formula, and not a guarantee.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import Bound, Bounded, DenseRows, Key, Messages, Round, Rows, State, Sum, Turnout, View, Wave
from tacit.core.neutral import Settled
from tacit.core.pieces import Visibility
from tacit.core.stopping import check_delta
from tacit.errors import UserError, expect
from tacit.pieces.mechanisms.clipping import within

NOMINAL = "nominal epsilon (NbAFL formula)"
NOISE = "standard deviation of the noise on every weight of an upload"


@dataclass(frozen=True, kw_only=True)
class NbaflGaussian(Settled):
    """Clients clip their weights and blur them by the formula of NbAFL; the server blurs their mean if it says so.

    Args:
        epsilon: ε of the formula.
        delta: δ of the formula.
        clip: C, the bound of a client's weights in L2 norm.
        samples: m, no client has fewer.
        rounds: T, after which training ends.
        exposures: L, how often a client's upload may be seen. By one reading it is T, as everybody uploads in every
            round; by the other it is 1, and ε is that of a single upload. Large L leaves nothing to the server to add.
        clips: whether weights are clipped to C at all. Without it the noise is the same, and the formula's own
            assumption is gone.

    Formal guarantees: none. The formula takes 2C/m for what one sample can change, which nobody has proved for trained
    weights: they may move by as much as 2C. It is an inversion that is proved for ε < 1 only, and sums up neither
    uploads and broadcasts nor rounds unless L does. `nominal` has what can be computed exactly.

    Sees: the server, every client's blurred weights; recipients of the model, their mean, blurred once more.

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
    reads: ClassVar[Visibility] = "sum"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = True
    needs_noise: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    bits: ClassVar[int | None] = None
    per_layer: ClassVar[bool] = False
    against: ClassVar[str] = "nobody"

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < float("inf"), f"epsilon={self.epsilon:g} > 0 and finite")
        check_delta(self.delta)
        expect(0 < self.clip < float("inf"), f"clip={self.clip} > 0 and finite")
        for name in ("samples", "rounds", "exposures"):
            expect(getattr(self, name) >= 1, f"{name}={getattr(self, name)} >= 1")

    @property
    def upload(self) -> float:
        """σ_U, the standard deviation of what a client adds to every weight (Eq. 4)."""
        return self._c * self.exposures * 2 * self.clip / self.samples / self.epsilon

    def broadcast(self, clients: int) -> float:
        """σ_D, the standard deviation of what the server adds to the mean of so many clients (Eq. 5)."""
        more = self.rounds**2 - self.exposures**2 * clients
        return 2 * self._c * self.clip * sqrt(max(more, 0)) / (self.samples * clients * self.epsilon)

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of what a client adds to every weight of its row."""
        return self.upload

    @property
    def unproved(self) -> str:
        """What the formula rests on."""
        reasons = ["NbAFL takes 2C/m for what one sample can change, but trained weights may change by up to 2C"]
        if not self.clips:
            reasons = ["weights are not clipped, so that nothing bounds what one sample can change"]
        if self.epsilon >= 1:
            reasons.append(f"its formula for Gaussian noise is proved for ε < 1, and not for ε = {self.epsilon:g}")
        if self.exposures < self.rounds:
            reasons.append(f"it counts {self.exposures} of {self.rounds} uploads of a client")
        return "; ".join(reasons)

    @property
    def nominal(self) -> Mapping[str, float]:
        """ε of the formula, its noise, and what that is worth exactly at the same δ."""
        multiplier, every = self._c * self.exposures / self.epsilon, sqrt(self.rounds)
        told = {
            NOMINAL: self.epsilon,
            NOISE: self.upload,
            "exact epsilon of one upload, if one sample could change 2C/m": exact_epsilon(multiplier, self.delta),
            f"exact epsilon of all {self.rounds} uploads, likewise": exact_epsilon(multiplier / every, self.delta),
        }
        if not self.clips:
            return told
        true = exact_epsilon(multiplier / self.samples, self.delta)
        return {**told, "exact epsilon of one upload, as one sample may change 2C": true}

    def event(self, index: int, turnout: Turnout | None = None) -> None:
        """Nothing is proved."""

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """Weights within C, each client's with noise of its own."""
        self._check_samples(data)
        rows = within(messages.rows, Bound((self.clip,))) if self.clips else messages.rows
        return replace(messages, rows=blurred(rows, messages, self.upload, now.secret.child("nbafl noise")))

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        """The messages themselves: noise has no bound."""
        return Bounded(messages)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """The mean blurred by σ_D, if the clients' noise is less than the formula wants for a broadcast."""
        deviation = self.broadcast(now.cohort) if now.cohort else 0.0
        if deviation == 0:
            return total
        noise = torch.randn(
            total.total.shape, generator=now.secret.child("nbafl broadcast").torch(), dtype=total.total.dtype
        )
        return replace(total, total=total.total + noise.mul_(deviation * total.weight))

    @property
    def _c(self) -> float:
        return sqrt(2 * log(1.25 / self.delta))

    def _check_samples(self, data: Wave) -> None:
        least = int(data.samples.min()) if len(data.samples) else self.samples
        if least < self.samples:
            client = int(data.clients[data.samples.argmin()])
            raise UserError(
                f"Expected every client to have samples={self.samples} or more, the m of NbAFL's formula, but client "
                f"{client} has {least}. Give the size of the smallest as samples."
            )


def blurred(rows: Rows, messages: Messages, deviation: float | Tensor, key: Key) -> DenseRows:
    """The rows, each with Gaussian noise of its client's own; `deviation` is one number or one per coordinate."""
    values = rows.dense()
    noise = [
        torch.randn(values.shape[1], generator=key.child("client", client).torch(values.device), dtype=values.dtype)
        for client in messages.clients.tolist()
    ]
    return DenseRows(values + torch.stack(noise).mul_(deviation)) if noise else DenseRows(values)


def exact_epsilon(noise_multiplier: float, delta: float) -> float:
    """The least ε at this δ of Gaussian noise over a sensitivity of 1 (Balle and Wang 2018, Theorem 8).

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
    """Φ(1/2σ − εσ) − e^ε·Φ(−1/2σ − εσ), where the second factor is tiny and the first is huge."""
    half, far = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    first, second = torch.special.log_ndtr(torch.tensor([half - far, -half - far], dtype=torch.float64)).tolist()
    return exp(first) - exp(min(epsilon + second, 0.0))  # a probability; rounding may say otherwise where ε is huge
