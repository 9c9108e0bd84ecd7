"""The Gaussian mechanism on the sum of clipped rows: noise is added by a trusted server, or by the clients in shares.

References: Geyer et al. 2017 and McMahan et al. 2018 (central); Ács and Castelluccia 2011, Kerkouche et al. 2021
(distributed).
"""

from dataclasses import dataclass, replace
from math import isclose, sqrt
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacit.core import (
    Bound,
    BoundedMessages,
    ClientRound,
    DenseRows,
    Key,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
    Wave,
)
from tacit.core.interfaces import DryRun, Payload, Visibility
from tacit.core.prices import Price, Release, Unproved, Unsized
from tacit.errors import UserError, WireError, expect
from tacit.pieces.mechanisms.arithmetic import Arithmetic, Reals, SharedNoise
from tacit.pieces.mechanisms.clipping import Clip, FixedClip, PublicClip, clip_rows
from tacit.wire.frames import Part, Parts


@dataclass(frozen=True, kw_only=True)
class CentralGaussian:
    """Central DP: the server clips every row and adds Gaussian noise to the sum, scaled by the bound of that round.

    The noisy sum is divided by the expected cohort size, because the actual size is private. With one bound S per
    layer, each of L layers gets noise of `noise_multiplier · √L · S`, so that all layers together are one release with
    the declared multiplier.

    Args:
        clip: the clipping rule: `FixedClip`, `PublicClip`, `QuantileClip`, `EllipsoidClip` or `MedianClip`.
        noise_multiplier: standard deviation of the noise over the sensitivity, for everything that a round releases;
            None: as much as the method's budget requires, computed when the population is known.

    Formal guarantees: adding or removing one client changes the sum by at most the bound, which is public or accounted;
    everything a round releases is a Gaussian mechanism of `noise_multiplier`. With `MedianClip`: none. Clients are
    protected against recipients of the models. The server is trusted: it sees every message.

    Sees: the server, every message; recipients of the model, the noisy sum.
    """

    clip: Clip
    noise_multiplier: float | None = None
    bits: ClassVar[int | None] = None
    expects: ClassVar[Payload | None] = None

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if self.noise_multiplier is not None:
            self.clip.sum_multiplier(self.noise_multiplier)  # raises if the clip alone releases more than declared

    @property
    def requires(self) -> Visibility:
        return "messages" if self.clip.row_wise else "all messages"

    @property
    def per_layer(self) -> bool:
        return self.clip.per_layer

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """The Gaussian mechanism of this multiplier."""
        if self.noise_multiplier is None:
            return Unsized()
        return _price(self.clip, Reals().release(self.noise_multiplier, 1.0))

    def sized(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.clip.prepare(state, dry_run)

    def broadcast_parts(self, state: State) -> Parts:
        return {}

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bound = self.clip.bound(messages.rows, state)
        statistic = self.clip.statistic(messages.rows, bound)
        return BoundedMessages(replace(messages, rows=clip_rows(messages.rows, bound)), bound, statistic)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """Add noise scaled by the sum's bound; also if the cohort is empty, since its size is private."""
        multiplier = self.clip.sum_multiplier(_given(self.noise_multiplier)) * sqrt(len(total.bound.values))
        noise = _standard_normal(total.total, now.server.child("central noise")).mul_(
            total.bound.per_coordinate(total.total)
        )
        return replace(total, total=total.total + noise.mul_(multiplier), weight=now.expected_cohort)

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return self.clip.update_state(state, total, now)


@dataclass(frozen=True, kw_only=True)
class DistributedGaussian:
    """Distributed DP: every client clips its own row and adds a share of the noise; only the sum is revealed.

    A share has the standard deviation `S · noise_multiplier / √(h · cohort)`, where h is the fraction of a cohort that
    is assumed to be honest and to deliver. The shares of these clients alone amount to the declared noise. With all
    shares, the noise of the sum does not depend on the cohort's size, so the sum does not reveal it; if a client is
    lost, it does. For an empty cohort, the server adds the noise. The noisy sum is divided by the expected cohort size.
    A row that is not finite becomes zeros at its client: a missing one would reveal that.

    Args:
        clip: a public bound: `FixedClip` or `PublicClip`.
        noise_multiplier: standard deviation of the noise over the sensitivity; None: as much as the method's budget
            requires, computed when the population is known.
        dropouts: the fraction of a cohort that may drop out. If it is not 0, the plan has no amplification by
            sampling. If more drop out than planned, or one where nobody was to, the round costs more, which is charged.
        colluding: the fraction of a cohort that may disclose its share of the noise to the adversary.
        arithmetic: `Reals()` for simulations, `Grid()` for sums of integers, which `SecureSum` requires.
        at_once: draw all shares of a round as one sample of the same distribution, which is faster in simulations.
            Otherwise each client draws its own share, as in a federation.

    Formal guarantees: for zero-out adjacency. Setting one client's row to zero changes the sum by at most the public
    bound, so a round is a Gaussian mechanism of `noise_multiplier` if no more than the given fractions drop out and
    collude; what it costs follows from how many clients delivered. Sampling amplifies only rounds in which nobody drops
    out or colludes: otherwise the variance of the noise reveals the size of the cohort. It requires a channel that
    reveals only the sum, clients that add their noise, and dropouts that depend neither on data nor on who else takes
    part.

    Sees: the server and recipients of the model, the noisy sum; colluding clients can subtract their own shares.
    """

    clip: Clip
    noise_multiplier: float | None = None
    dropouts: float = 0.0
    colluding: float = 0.0
    arithmetic: Arithmetic = Reals()
    at_once: bool = True
    requires: ClassVar[Visibility] = "only the sum"
    per_layer: ClassVar[bool] = False
    expects: ClassVar[Payload | None] = None

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if not isinstance(self.clip, FixedClip | PublicClip) or self.clip.per_layer:
            raise UserError(
                f"Expected a public bound for whole rows, because clients clip before they send, got {self.clip}. "
                "Use FixedClip or PublicClip."
            )
        for name in ("dropouts", "colluding"):
            expect(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)} in [0, 1)")
        expect(self.honest > 0, f"dropouts + colluding = {self.dropouts + self.colluding} < 1")

    @property
    def bits(self) -> int | None:
        return self.arithmetic.bits

    @property
    def honest(self) -> float:
        """The fraction of a cohort that is assumed to deliver honest noise."""
        return 1 - self.dropouts - self.colluding

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of one client's share of the noise."""
        noise = self._noise(_received_bound(view))
        return noise.bound.whole * noise.multiplier / sqrt(noise.shares(now))

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """A Gaussian mechanism with the honest noise that is assumed, or that was delivered."""
        if self.noise_multiplier is None:
            return Unsized()
        delivered = self.honest if turnout is None else max(turnout.fraction - self.colluding, 0.0)
        if isclose(delivered, self.honest):  # 0.7 − 0.1 is not quite 1 − 0.3 − 0.1
            delivered = self.honest
        release = self.arithmetic.release(self.noise_multiplier, delivered / self.honest)
        if release is None:
            return _price(self.clip, None)
        adversary, complete = "anyone who receives the models or sees the sums", self._complete(turnout)
        return _price(self.clip, replace(release, adversary=adversary, constant=False, complete=complete))

    def sized(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.clip.prepare(state, dry_run)

    def broadcast_parts(self, state: State) -> Parts:
        return {Part.BOUND: torch.tensor([self._bound(state).whole], dtype=torch.float64)}

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        """Clip to the bound in the broadcast, and add each client's share of the noise unless all are drawn at once."""
        noise = self._noise(_received_bound(view))
        encoded = self.arithmetic.encode(messages, noise, now)
        if self.at_once or not encoded.rows.count:
            return encoded
        keys, rows = now.clients.child("noise share"), encoded.rows.dense()
        pairs = zip(rows, messages.clients.tolist(), strict=True)
        shares = [self.arithmetic.draw(row, noise, 1, keys.of(client), now) for row, client in pairs]
        return replace(encoded, rows=DenseRows(rows + torch.stack(shares)))

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages, self._bound(state))

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """Add the sum of the clients' shares, if they are drawn at once; the noise of an empty cohort in any case."""
        if not self.at_once and now.cohort:
            return replace(total, weight=now.expected_cohort)
        delivered = total.weight if now.cohort else 1.0
        key = now.server.child("noise shares")
        noise = self.arithmetic.draw(total.total, self._noise(total.bound), delivered, key, now)
        return replace(total, total=total.total + noise, weight=now.expected_cohort)

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return state

    def _complete(self, turnout: Turnout | None) -> bool:
        """Whether all shares are in the sum, as planned or as it was, and the adversary knows none of them."""
        delivered = self.dropouts == 0 if turnout is None else turnout.delivered == turnout.cohort
        return delivered and self.colluding == 0

    def _bound(self, state: State) -> Bound:
        return Bound((self.clip.bound(_NO_ROWS, state).whole,))

    def _noise(self, bound: Bound) -> SharedNoise:
        return SharedNoise(bound, _given(self.noise_multiplier), self.honest)


_NO_ROWS = DenseRows(torch.empty(0, 0))  # a public bound does not depend on rows


def _received_bound(view: View) -> Bound:
    """The bound in a broadcast; raises `WireError` if there is none."""
    values = view.parts.get(Part.BOUND)
    if values is None or values.numel() != 1 or not 0 < float(values) < float("inf"):
        raise WireError("Expected a positive clipping bound in the broadcast, got none.")
    return Bound((float(values),))


def _check(clip: Clip, noise_multiplier: float | None) -> None:
    if isinstance(clip, int | float):
        raise UserError(f"Expected clip to be a clipping rule, got a number. Use FixedClip({clip}).")
    expect(noise_multiplier is None or noise_multiplier >= 0, f"noise_multiplier={noise_multiplier} >= 0")


def _price(clip: Clip, release: Release | None) -> Price:
    if release is None:
        return Unproved("no noise is added", noisy=False)
    return Unproved(clip.unproved, release) if clip.unproved else release


def _given(noise_multiplier: float | None) -> float:
    if noise_multiplier is None:
        raise UserError(
            "Expected a noise multiplier, which follows from the budget and the population. "
            "Use tacit.train, or give noise_multiplier."
        )
    return noise_multiplier


def _standard_normal(like: Tensor, key: Key) -> Tensor:
    """Standard normal samples in the shape of `like`."""
    return torch.randn(like.shape, generator=key.torch(like.device), dtype=like.dtype, device=like.device)
