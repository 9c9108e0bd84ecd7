"""Gaussian noise on the sum of clipped rows (Geyer et al. 2017; McMahan et al. 2018)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from tacit.core import Bounded, Event, Messages, Round, State, Sum, View
from tacit.core.errors import expect
from tacit.core.pieces import Sees


@dataclass(frozen=True, kw_only=True)
class CentralGaussian:
    """The server clips every row to `clip` in L2 norm and adds N(0, (noise_multiplier · clip)²) to their sum.

    The noisy sum is divided by the expected size of the cohort, not by the actual one, which is itself private.

    Formal guarantees: adding or removing one client changes the sum by at most `clip`; the noise's standard
    deviation over that is `noise_multiplier`. It protects against whoever receives the models. The server is
    trusted: it sees every message.

    Sees: the server, every message; recipients of the model, the noisy sum.
    """

    clip: float
    noise_multiplier: float
    reads: ClassVar[Sees] = "messages"
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect(0 < self.clip < float("inf"), f"clip={self.clip} > 0 and finite")
        expect(self.noise_multiplier >= 0, f"noise_multiplier={self.noise_multiplier} >= 0")

    @property
    def noisy(self) -> bool:
        """Always: even without noise, rows are bounded."""
        return True

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
        """Every row scaled by min(1, clip / norm)."""
        factors = (self.clip / messages.rows.norms()).clamp(max=1.0)
        return Bounded(replace(messages, rows=messages.rows.scaled(factors)), self.clip)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        """Noise by the bound that went into the sum; an empty cohort is blurred all the same."""
        generator = now.secret.child("central noise").torch(total.total.device)
        noise = torch.randn(total.total.shape, generator=generator, dtype=total.total.dtype, device=total.total.device)
        blurred = total.total.add(noise, alpha=self.noise_multiplier * total.bound)
        return replace(total, total=blurred, weight=now.expected)
