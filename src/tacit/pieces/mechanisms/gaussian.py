"""Gaussian noise on the sum of clipped rows: added by a trusted server, or by the clients in shares.

References: Geyer et al. 2017 and McMahan et al. 2018 (central); Ács and Castelluccia 2011, Kerkouche et al. 2021
(distributed).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isclose, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import Bound, Bounded, DenseRows, Event, Key, Messages, Round, State, Sum, Turnout, View, Wave
from tacit.core.pieces import DryRun, Visibility
from tacit.errors import UserError, expect
from tacit.pieces.mechanisms.clipping import Clip, FixedClip, PublicClip, within
from tacit.pieces.mechanisms.numbers import Numbers, Reals, Shares
from tacit.wire.frames import Part


@dataclass(frozen=True, kw_only=True)
class CentralGaussian:
    """The server clips every row and adds Gaussian noise to their sum, in proportion to the bound of that very round.

    The noisy sum is divided by the expected size of the cohort, not by the actual one, which is itself private. With
    one bound S per layer, each of L layers gets noise of `noise_multiplier · √L · S`, so that the whole is one release
    with the declared multiplier.

    Args:
        clip: where the bound comes from: `FixedClip`, `QuantileClip` or `MedianClip`.
        noise_multiplier: standard deviation of the noise over what one client can change, of everything released;
            None: as much as the method's budget needs, found when the population is known.

    Formal guarantees: adding or removing one client changes the sum by at most the bound, which is public or accounted;
    everything a round releases is a Gaussian mechanism of `noise_multiplier`. With `MedianClip`: none. It protects
    against whoever receives the models. The server is trusted: it sees every message.

    Sees: the server, every message; recipients of the model, the noisy sum.
    """

    clip: Clip
    noise_multiplier: float | None = None
    reads: ClassVar[Visibility] = "messages"
    bounds_rows: ClassVar[bool] = True  # even without noise, rows are bounded
    shares: ClassVar[bool] = False
    bits: ClassVar[int | None] = None
    against: ClassVar[str] = "whoever receives the models; the server is trusted"

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if self.noise_multiplier is not None:
            self.clip.remaining(self.noise_multiplier)  # refuses a multiplier that the clip cannot be paid from

    @property
    def needs_noise(self) -> bool:
        """Whether there is no multiplier yet."""
        return self.noise_multiplier is None

    @property
    def row_wise(self) -> bool:
        """Whether the bound is known before the rows are."""
        return self.clip.row_wise

    @property
    def per_layer(self) -> bool:
        """Whether its clip has a bound for every layer."""
        return self.clip.per_layer

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed; empty if something can."""
        return self.clip.unproved if self.noise_multiplier != 0 else "no noise is added"

    def event(self, index: int, turnout: Turnout | None = None) -> Event | None:
        """A Gaussian mechanism whose noise is `noise_multiplier` times what one client can add; None without noise."""
        return Reals().event(_sized(self.noise_multiplier), 1.0)

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """The bound, if it comes from public data."""
        return self.clip.prepare(state, rehearse)

    def broadcast_parts(self, state: State) -> Mapping[Part, Tensor]:
        """Nothing: clients do not clip."""
        return {}

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """Nothing: clients trust the server."""
        return messages

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        """Every row within this round's bound."""
        bound = self.clip.bound(messages.rows, state)
        tally = self.clip.tally(messages.rows, bound)
        return Bounded(replace(messages, rows=within(messages.rows, bound)), bound, tally)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """Noise by the bound that went into the sum; an empty cohort is blurred all the same."""
        multiplier = self.clip.remaining(_sized(self.noise_multiplier)) * sqrt(len(total.bound.values))
        noise = _noise(total.total, now.secret.child("central noise")).mul_(total.bound.per_coordinate(total.total))
        return replace(total, total=total.total + noise.mul_(multiplier), weight=now.expected)

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """The next round's bound, if it moves."""
        return self.clip.remember(state, total, now)


@dataclass(frozen=True, kw_only=True)
class DistributedGaussian:
    """Every client clips its own row and adds its share of the noise; only the sum is ever seen, with all shares.

    A share has the standard deviation `S · noise_multiplier / √(h · cohort)`, where h is the part of a cohort that is
    sure to be honest and to deliver. The shares of these alone make up the declared noise; with all of them the sum
    has the same noise whatever the cohort's size, which therefore does not show in it. An empty cohort is blurred by
    the server. The noisy sum is divided by the expected size of the cohort.

    Args:
        clip: a public bound: `FixedClip` or `PublicClip`.
        noise_multiplier: standard deviation of the noise over what one client can change; None: as much as the
            method's budget needs, found when the population is known.
        dropouts: the part of a cohort that may fail to deliver. If more do, the round costs more, and that is charged.
        colluding: the part of a cohort that may tell the adversary its own share of the noise.
        numbers: `Reals()` for simulations, `Grid()` for sums of integers, as `SecureSum` carries them.
        at_once: draw all shares of a round as one, which has the same distribution: faster in simulations. Otherwise
            each client draws its own, as it does in a federation.

    Formal guarantees: adding or removing one client changes the sum by at most the public bound, so that a round is a
    Gaussian mechanism of `noise_multiplier` if no more than the given parts drop out and collude; its price follows
    from how many delivered. It needs a channel that reveals only the sum, and clients that add their noise.

    Sees: the server and recipients of the model, the noisy sum; colluding clients can take off their own shares.
    """

    clip: Clip
    noise_multiplier: float | None = None
    dropouts: float = 0.0
    colluding: float = 0.0
    numbers: Numbers = Reals()
    at_once: bool = True
    reads: ClassVar[Visibility] = "sum"
    row_wise: ClassVar[bool] = True
    bounds_rows: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    per_layer: ClassVar[bool] = False
    against: ClassVar[str] = "whoever receives the models or sees the sums, but does not know who took part"

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if not isinstance(self.clip, FixedClip | PublicClip) or self.clip.per_layer:
            raise UserError(
                f"Expected a public bound for whole rows, got {self.clip}: clients clip before anybody sees a norm. "
                "Use FixedClip or PublicClip."
            )
        for name in ("dropouts", "colluding"):
            expect(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)} in [0, 1)")
        expect(self.honest > 0, f"dropouts + colluding = {self.dropouts + self.colluding} < 1")

    @property
    def needs_noise(self) -> bool:
        """Whether there is no multiplier yet."""
        return self.noise_multiplier is None

    @property
    def bits(self) -> int | None:
        """That of its numbers."""
        return self.numbers.bits

    @property
    def honest(self) -> float:
        """The part of a cohort that is sure to deliver honest noise."""
        return 1 - self.dropouts - self.colluding

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed; empty if something can."""
        return self.clip.unproved if self.noise_multiplier != 0 else "no noise is added"

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of a client's own share of the noise."""
        how = self._how(Bound((float(view.parts[Part.BOUND]),)))
        return how.bound.whole * how.multiplier / sqrt(how.of(now))

    def event(self, index: int, turnout: Turnout | None = None) -> Event | None:
        """A Gaussian mechanism with the honest noise that is promised, or that was delivered."""
        delivered = self.honest if turnout is None else max(turnout.share - self.colluding, 0.0)
        if isclose(delivered, self.honest):  # 0.7 − 0.1 is not quite 1 − 0.3 − 0.1
            delivered = self.honest
        return self.numbers.event(_sized(self.noise_multiplier), delivered / self.honest)

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """The bound, if it comes from public data."""
        return self.clip.prepare(state, rehearse)

    def broadcast_parts(self, state: State) -> Mapping[Part, Tensor]:
        """The bound."""
        return {Part.BOUND: torch.tensor([self._bound(state).whole], dtype=torch.float64)}

    def at_client(self, messages: Messages, view: View, data: Wave, now: Round) -> Messages:
        """Rows within the bound that was told, each with its own share of the noise unless all are drawn at once."""
        how = self._how(Bound((float(view.parts[Part.BOUND]),)))
        put = self.numbers.put(messages, how, now)
        if self.at_once or not put.rows.count:
            return put
        key, rows = now.secret.child("noise share"), put.rows.dense()
        own = zip(rows, messages.clients.tolist(), strict=True)
        shares = [self.numbers.draw(row, how, 1, key.child("client", client), now) for row, client in own]
        return replace(put, rows=DenseRows(rows + torch.stack(shares)))

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        """The messages under the bound that clients kept."""
        return Bounded(messages, self._bound(state))

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """What the clients' shares add up to, if they are drawn at once; an empty cohort's noise in any case."""
        if not self.at_once and now.cohort:
            return replace(total, weight=now.expected)
        delivered = total.weight if now.cohort else 1.0
        key = now.secret.child("noise shares")
        noise = self.numbers.draw(total.total, self._how(total.bound), delivered, key, now)
        return replace(total, total=total.total + noise, weight=now.expected)

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """Nothing."""
        return state

    def _bound(self, state: State) -> Bound:
        return Bound((self.clip.bound(_NOBODY, state).whole,))

    def _how(self, bound: Bound) -> Shares:
        return Shares(bound, _sized(self.noise_multiplier), self.honest)


_NOBODY = DenseRows(torch.empty(0, 0))  # a public bound does not look at rows


def _check(clip: Clip, noise_multiplier: float | None) -> None:
    if isinstance(clip, int | float):
        raise UserError(f"Expected clip to be a FixedClip or another record of bounds. Use FixedClip({clip}).")
    expect(noise_multiplier is None or noise_multiplier >= 0, f"noise_multiplier={noise_multiplier} >= 0")


def _sized(noise_multiplier: float | None) -> float:
    if noise_multiplier is None:
        raise UserError(
            "The noise is not sized yet: it follows from the budget and the population. "
            "Use tacit.train, or give noise_multiplier."
        )
    return noise_multiplier


def _noise(like: Tensor, key: Key) -> Tensor:
    """Standard normal noise in the shape of `like`."""
    return torch.randn(like.shape, generator=key.torch(like.device), dtype=like.dtype, device=like.device)
