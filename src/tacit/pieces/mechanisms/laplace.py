"""Laplace noise in n dimensions, by which each client blurs its own message: d-privacy (Galli et al. 2023, Section 4).

The density at a distance r from the truth is proportional to e^(−ε·r) (Lemma 4.1). Two truths at a distance d then give
any message with probabilities whose ratio is at most e^(ε·d): nearby models cannot be told apart, far ones can, and the
server can still see which group a client belongs to.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import DenseRows, Key, Messages, Round, Turnout, View, Wave
from tacit.core.neutral import Settled, Unbounded
from tacit.core.pieces import Content, Visibility
from tacit.errors import expect


@dataclass(frozen=True, kw_only=True)
class MetricLaplace(Settled, Unbounded):
    """Every client adds Laplace noise whose mean length is `noise_multiplier` times a radius, and sends the sum.

    With n numbers, multiplier ν and radius r, ε = n/(ν·r) per unit of distance: two models within the radius cost n/ν,
    two at a distance d cost (n/ν)·(d/r), each time a client takes part.

    Args:
        noise_multiplier: mean length of the noise over the radius, ν.
        radius: within which models are to look alike; public and fixed before the round. None: the length of the
            client's own update, as in the paper, which proves nothing.
        per_layer: blur every parameter tensor by itself, each with its own length and the same radius.
        limit: what a client may leak in all rounds together, counted within the radius, before it declines to take
            part; None: anything.
        of: whether rows are whole `weights` or `updates`.

    Formal guarantees: with a public radius, (n/ν)/r · d-privacy of every message for the Euclidean distance d between
    what clients would send without noise, whatever they chose and however they trained; per layer, for the sum of the
    layers' distances. Rounds add up (Theorem 4.2), also adaptively. Nothing is hidden of a change that moves a client's
    model far, and for a million weights n/ν says nothing at all. It is no (ε, δ). With the paper's scale: none.

    Sees: the server and whoever reads the network, every message, blurred by its client; of a long message also how
    long the noise was, and with the paper's scale thereby the length of the update.

    Reference: Galli, Biswas, Jung, Palamidessi, Cucinotta. Group privacy for personalized federated learning. ICISSP
    2023, Algorithm 2, Lemmas 4.1 and 4.3.
    """

    noise_multiplier: float
    radius: float | None
    per_layer: bool = False
    limit: float | None = None
    of: Content = "weights"
    reads: ClassVar[Visibility] = "sum"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = True
    needs_noise: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    bits: ClassVar[int | None] = None
    against: ClassVar[str] = "the server and whoever else sees a message"

    def __post_init__(self) -> None:
        expect(self.noise_multiplier > 0, f"noise_multiplier={self.noise_multiplier:g} > 0", "Without it, use NoNoise.")
        expect(self.radius is None or self.radius > 0, f"radius={self.radius} > 0")
        expect(self.limit is None or self.limit > 0, f"limit={self.limit} > 0")
        expect(self.of in ("updates", "weights"), f"of={self.of!r} to be 'updates' or 'weights'")

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed; empty with a public radius."""
        if self.radius is not None:
            return ""
        return (
            "the noise is scaled by the length of the client's own update (data-dependent scale), so that two clients "
            "with different updates can be told apart without limit"
        )

    def leakage(self, dim: int) -> float:
        """n/ν: what one message costs within the radius; over all layers the same."""
        return dim / self.noise_multiplier

    def event(self, index: int, turnout: Turnout | None = None) -> None:
        """None that an (ε, δ) accountant could price."""

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """Every row with its client's own noise."""
        rows = messages.rows.dense()
        layers = list(view.layers) if self.per_layer else [rows.shape[1]]
        radii = self._radii(rows, view, layers)
        keys = [now.secret.child("laplace").child("client", client) for client in messages.clients.tolist()]
        noise = [self._noise(layers, mine, key) for mine, key in zip(radii, keys, strict=True)]
        return replace(messages, rows=DenseRows(rows + torch.stack(noise).to(rows))) if noise else messages

    def _radii(self, rows: Tensor, view: View, layers: list[int]) -> list[list[float]]:
        """By row and layer: the public radius, or how far the client moved."""
        if self.radius is not None:
            return [[self.radius] * len(layers)] * len(rows)
        moved = rows - _nearest(rows, view.weights) if self.of == "weights" else rows
        return [[float(piece.double().norm()) for piece in row.split(layers)] for row in moved]

    def _noise(self, layers: list[int], radii: list[float], key: Key) -> Tensor:
        scales = [self.noise_multiplier * radius / dim for dim, radius in zip(layers, radii, strict=True)]
        pairs = enumerate(zip(layers, scales, strict=True))
        return torch.cat([laplace(dim, scale, key.child("layer", number)) for number, (dim, scale) in pairs])


def laplace(dim: int, scale: float, key: Key) -> Tensor:
    """One draw with density ∝ e^(−‖x‖/scale) in so many dimensions: a length from Gamma(dim, scale), any direction.

    Example:
        >>> laplace(3, 0.5, Key.from_seed(0)).shape
        torch.Size([3])
    """
    chance = key.numpy()
    length, direction = chance.gamma(dim) * scale, torch.from_numpy(chance.standard_normal(dim))
    return direction.mul_(length / direction.norm())


def _nearest(rows: Tensor, weights: Tensor) -> Tensor:
    """The hypothesis nearest to each row: where it came from, unless two are closer together than an update is long."""
    hypotheses = weights.view(-1, weights.shape[-1])
    distances = torch.cdist(rows, hypotheses, compute_mode="donot_use_mm_for_euclid_dist")
    return hypotheses[distances.argmin(1)]
