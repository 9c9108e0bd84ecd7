"""Multivariate Laplace noise on each client's message: metric privacy (d-privacy; Galli et al. 2023, Section 4).

The density at distance r from the true value is proportional to e^(−ε·r) (Lemma 4.1). Two values at distance d then
produce any message with probabilities whose ratio is at most e^(ε·d): similar models are indistinguishable, distant
ones are not, and the server can still recognise which group a client belongs to.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core.interfaces import Mechanism, Payload, Visibility
from tacit.core.keys import Key
from tacit.core.prices import Leakage, Price, Unit, Unproved
from tacit.core.rows import DenseRows
from tacit.core.state import BoundedMessages, ClientRound, Messages, ServerRound, State, Sum, Turnout, View
from tacit.core.wave import Wave
from tacit.errors import one_of, positive
from tacit.wire.frames import Part


@dataclass(frozen=True, kw_only=True)
class MetricLaplace(Mechanism):
    """Metric privacy: every client adds Laplace noise whose mean norm is `noise_multiplier` times a radius.

    With n numbers, multiplier ν and radius r, ε = n/(ν·r) per unit of distance: for each participation, two models
    within the radius cost n/ν, and two at distance d cost (n/ν)·(d/r).

    Args:
        noise_multiplier: mean norm of the noise over the radius, ν.
        radius: distance within which models should be hard to distinguish; public and fixed before the round. None:
            the norm of the client's own update, as in the paper, which gives no guarantee.
        per_layer: add noise to every parameter tensor separately, each with the same radius.
        limit: the leakage within the radius, over all rounds, that a client accepts before it declines to take part;
            None: no limit.
        of: whether rows are whole `weights` or `updates`.

    Formal guarantees: with a public radius, every message satisfies (n/ν)/r · d-privacy, where d is the Euclidean
    distance between the messages without noise, whatever hypothesis was chosen and however it was trained; per layer,
    d is the sum of the layers' distances. Rounds compose by addition (Theorem 4.2), also adaptively. A change that
    moves a client's model far is not hidden, and for a million weights n/ν is too large to be meaningful. This is not
    (ε, δ)-differential privacy. With the paper's scale: none.

    Sees: the server and anyone who reads the network, every noisy message; in high dimension also the norm of the
    noise, and thereby, with the paper's scale, the norm of the update.

    Reference: Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning. ICISSP
    2023, Algorithm 2, Lemmas 4.1 and 4.3.
    """

    noise_multiplier: float
    radius: float | None
    per_layer: bool = False
    limit: float | None = None
    expects: Payload = "weights"
    requires: ClassVar[Visibility] = "anything"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = ()

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)
        positive(radius=self.radius, limit=self.limit)
        one_of(("updates", "weights"), expects=self.expects)

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """n/ν for a message within the radius; the same if noise is added per layer."""
        leakage = Leakage(self.noise_multiplier, self.radius, self.limit)
        if self.radius is not None:
            return leakage
        reason = (
            "the noise is scaled by the norm of the client's own update (data-dependent scale), so two clients whose "
            "updates have different norms can be distinguished without limit"
        )
        return Unproved(reason, leakage)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        rows = messages.rows.dense()
        layers = [prod(shape) for shape in data.shapes] if self.per_layer else [rows.shape[1]]
        radii = self._radii(rows, view, layers)
        keys = [now.clients.child("laplace").of(client) for client in messages.clients.tolist()]
        noise = [self._noise(layers, own, key) for own, key in zip(radii, keys, strict=True)]
        return replace(messages, rows=DenseRows(rows + torch.stack(noise).to(rows))) if noise else messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return total

    def _radii(self, rows: Tensor, view: View, layers: list[int]) -> list[list[float]]:
        """By row and layer: the public radius, or the norm of the client's update."""
        if self.radius is not None:
            return [[self.radius] * len(layers)] * len(rows)
        updates = rows - _nearest(rows, view.weights) if self.expects == "weights" else rows
        return [[float(part.double().norm()) for part in row.split(layers)] for row in updates]

    def _noise(self, layers: list[int], radii: list[float], key: Key) -> Tensor:
        scales = [self.noise_multiplier * radius / dim for dim, radius in zip(layers, radii, strict=True)]
        pairs = enumerate(zip(layers, scales, strict=True))
        return torch.cat([laplace(dim, scale, key.child("layer", number)) for number, (dim, scale) in pairs])


def laplace(dim: int, scale: float, key: Key) -> Tensor:
    """One sample with density ∝ e^(−‖x‖/scale): the norm from Gamma(dim, scale), the direction uniform.

    Example:
        >>> laplace(3, 0.5, Key.from_seed(0)).shape
        torch.Size([3])
    """
    stream = key.stream()
    norm, direction = stream.gamma(dim) * scale, stream.normal((dim,), torch.empty(0, dtype=torch.float64))
    return direction.mul_(norm / direction.norm())


def _nearest(rows: Tensor, weights: Tensor) -> Tensor:
    """The hypothesis nearest to each row: the one it was trained from, unless two are closer than an update's norm."""
    hypotheses = weights.view(-1, weights.shape[-1])
    distances = torch.cdist(rows, hypotheses, compute_mode="donot_use_mm_for_euclid_dist")
    return hypotheses[distances.argmin(1)]
