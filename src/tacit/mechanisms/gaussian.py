"""Gaussian noise on the sum of clipped rows (Geyer et al. 2017; McMahan et al. 2018)."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import torch

from tacit.core import Bounded, Event, Messages, Round, State, Sum, UserError, View
from tacit.core.errors import expect
from tacit.core.pieces import Sees
from tacit.mechanisms.clipping import Clip, clipped


@dataclass(frozen=True, kw_only=True)
class CentralGaussian:
    """The server clips every row and adds Gaussian noise to their sum, in proportion to the bound of that very round.

    The noisy sum is divided by the expected size of the cohort, not by the actual one, which is itself private. With
    one bound S per layer, each of L layers gets noise of `noise_multiplier · √L · S`, so that the whole is one release
    with the declared multiplier.

    Args:
        clip: where the bound comes from: `FixedClip`, `QuantileClip` or `MedianClip`.
        noise_multiplier: standard deviation of the noise over what one client can change, of everything released.

    Formal guarantees: adding or removing one client changes the sum by at most the bound, which is public or accounted;
    everything a round releases is a Gaussian mechanism of `noise_multiplier`. With `MedianClip`: none. It protects
    against whoever receives the models. The server is trusted: it sees every message.

    Sees: the server, every message; recipients of the model, the noisy sum.
    """

    clip: Clip
    noise_multiplier: float
    reads: ClassVar[Sees] = "messages"
    noisy: ClassVar[bool] = True  # even without noise, rows are bounded

    def __post_init__(self) -> None:
        if isinstance(self.clip, int | float):
            raise UserError(f"Expected clip to be a FixedClip, QuantileClip or MedianClip. Use FixedClip({self.clip}).")
        expect(self.noise_multiplier >= 0, f"noise_multiplier={self.noise_multiplier} >= 0")
        self.clip.remaining(self.noise_multiplier)  # refuses a multiplier that the clip cannot be paid from

    @property
    def row_wise(self) -> bool:
        """Whether the bound is known before the rows are."""
        return self.clip.row_wise

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed; empty if something can."""
        return self.clip.unproved if self.noise_multiplier else "no noise is added"

    def event(self, index: int) -> Event | None:
        """A Gaussian mechanism whose noise is `noise_multiplier` times what one client can add; None without noise."""
        if self.noise_multiplier == 0:
            return None
        import dp_accounting  # only where a run is priced: it takes a second to load

        gaussian: Event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return gaussian

    def at_client(self, messages: Messages, view: View, now: Round) -> Messages:
        """Nothing: clients trust the server."""
        return messages

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        """Every row within this round's bound."""
        return clipped(messages, self.clip, state)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """Noise by the bound that went into the sum; an empty cohort is blurred all the same."""
        like = total.total
        generator = now.secret.child("central noise").torch(like.device)
        noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        multiplier = self.clip.remaining(self.noise_multiplier) * sqrt(len(total.bound.values))
        blurred = like + noise.mul_(total.bound.per_coordinate(like)).mul_(multiplier)
        return replace(total, total=blurred, weight=now.expected)

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """The next round's bound, if it moves."""
        return self.clip.remember(state, total, now)
