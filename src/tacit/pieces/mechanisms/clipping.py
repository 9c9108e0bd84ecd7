"""How long a row may be, and where that bound comes from.

| clip | bound | accounted? |
|---|---|---|
| `FixedClip` | chosen before the run | yes, if it was chosen without looking at the data |
| `PublicClip` | the length of an update on public data (Kerkouche et al. 2021) | yes: no client's data are used |
| `QuantileClip` | follows a quantile of the clients' norms (Andrew et al. 2021) | yes, with noise of its own |
| `EllipsoidClip` | more room, and noise, for some coordinates (`tacit.pieces.mechanisms.ellipsoid`) | yes: it is public |
| `MedianClip` | the median of the cohort's norms (Geyer et al. 2017) | no: it is private data as it is |

A bound is for the whole row, or shared out over its layers.
"""

from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tacit.core import Bound, DenseRows, Round, Rows, State, Sum
from tacit.core.pieces import DryRun
from tacit.errors import UserError, expect

BOUND = "mechanism/bound"


class Clip(Protocol):
    """Where the bound of a round comes from."""

    @property
    def row_wise(self) -> bool:
        """Whether the bound is known before any row is."""
        ...

    @property
    def per_layer(self) -> bool:
        """Whether it is a bound for every layer of the model by itself."""
        ...

    @property
    def unproved(self) -> str:
        """Why nothing can be claimed with this bound; empty if something can."""
        ...

    def bound(self, rows: Rows, state: State) -> Bound:
        """The bound of this round."""
        ...

    def tally(self, rows: Rows, bound: Bound) -> float:
        """What must be summed over all clients for the next bound."""
        ...

    def remaining(self, noise_multiplier: float) -> float:
        """The noise multiplier of the rows' sum, so that everything released has `noise_multiplier` together."""
        ...

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """The state with the next bound."""
        ...

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """The state before the first round, with the bound if it comes from public data."""
        ...


class Unprepared:
    """A clip that needs no public data."""

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """Nothing."""
        return state


class LearnsNothing:
    """A clip whose next bound does not depend on this round."""

    def tally(self, rows: Rows, bound: Bound) -> float:
        """Nothing."""
        return 0.0

    def remaining(self, noise_multiplier: float) -> float:
        """All of it."""
        return noise_multiplier

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """Nothing."""
        return state


@dataclass(frozen=True)
class FixedClip(LearnsNothing, Unprepared):
    """The same public bound in every round.

    Args:
        value: the bound of a whole row.
        per_layer: share it out evenly: each of L layers is clipped to `value / √L`.
    """

    value: float
    per_layer: bool = False
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        expect(0 < self.value < float("inf"), f"clip={self.value} > 0 and finite")

    def bound(self, rows: Rows, state: State) -> Bound:
        """The public one."""
        if not self.per_layer:
            return Bound((self.value,))
        count = len(state.layers)
        return Bound((self.value / sqrt(count),) * count, state.layers)


@dataclass(frozen=True)
class PublicClip(LearnsNothing):
    """The length of the update that one local round on the public data gives, in the coordinates that travel.

    It is found once, before the first round, with the weights everybody starts from.

    Args:
        draws: how often, where coordinates are random: the median of so many lengths is taken.
        factor: the bound is so many times that length.

    Formal guarantees: the bound is public. Whoever is in the public data is not protected.

    Reference: Kerkouche et al. 2021, Section 4.
    """

    draws: int = 1
    factor: float = 1.0
    per_layer: ClassVar[bool] = False
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        expect(self.draws >= 1, f"draws={self.draws} >= 1")
        expect(0 < self.factor < float("inf"), f"factor={self.factor} > 0 and finite")

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """The median of the lengths, remembered as the bound."""
        if rehearse is None:
            raise UserError(
                "PublicClip takes the bound from public data, but the task has none. Give the task some (public), "
                "or choose a bound without looking at the clients' data (FixedClip; clip=...)."
            )
        norms = torch.cat([rehearse(draw).norms() for draw in range(self.draws)]).double()
        value = self.factor * norms.quantile(0.5)
        expect(0 < float(value) < float("inf"), f"an update on the public data of a length {float(value)} > 0")
        return replace(state, memory=state.remember(BOUND, value))

    def bound(self, rows: Rows, state: State) -> Bound:
        """The one found before the first round."""
        return Bound((float(state.memory[BOUND]),))


@dataclass(frozen=True)
class MedianClip(LearnsNothing, Unprepared):
    """The median of the cohort's norms, of whole rows or layer by layer (Geyer et al., Algorithm 1).

    Formal guarantees: none. The median depends on private data and scales both the rows and the noise.
    """

    per_layer: bool = False
    row_wise: ClassVar[bool] = False
    unproved: ClassVar[str] = (
        "the clipping bound is the median of the cohort's norms, which is computed from private data without noise"
    )

    def bound(self, rows: Rows, state: State) -> Bound:
        """The median, or one per layer; 1 for an empty cohort."""
        norms = rows.layer_norms(state.layers) if self.per_layer else rows.norms()[:, None]
        medians = norms.double().quantile(0.5, dim=0) if rows.count else torch.ones(norms.shape[1])
        return Bound(tuple(medians.tolist()), state.layers if self.per_layer else ())


@dataclass(frozen=True, kw_only=True)
class QuantileClip(Unprepared):
    """A bound that moves towards a quantile of the clients' norms (Andrew et al. 2021, Algorithm 1).

    Each client adds +½ to a count if its row is within the bound and −½ if not. The count gets noise of its own, and
    the bound is multiplied by `exp(-rate · (share within − quantile))`: too many within, and it shrinks.

    Formal guarantees: a client changes the count by at most ½, so count and sum together are one Gaussian mechanism of
    multiplier z, where `1/z² = 1/z_sum² + 1/(2·count_noise)²`. z is what is declared; the sum gets the larger z_sum.

    Args:
        quantile: which share of the rows should stay unclipped.
        start: the bound of the first round; public.
        rate: how fast the bound moves.
        count_noise: standard deviation of the noise on the count; a twentieth of the cohort is a good choice.
    """

    quantile: float = 0.5
    start: float = 1.0
    rate: float = 0.2
    count_noise: float = 5.0
    per_layer: ClassVar[bool] = False
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        expect(0 < self.quantile < 1, f"quantile={self.quantile} in (0, 1)")
        expect(0 < self.start < float("inf"), f"start={self.start} > 0 and finite")
        expect(self.rate > 0, f"rate={self.rate} > 0")
        expect(self.count_noise > 0, f"count_noise={self.count_noise} > 0")

    def bound(self, rows: Rows, state: State) -> Bound:
        """Where the last round left it."""
        return Bound((float(state.memory[BOUND]) if BOUND in state.memory else self.start,))

    def tally(self, rows: Rows, bound: Bound) -> float:
        """+½ for every row within the bound, −½ for every other."""
        return float((rows.norms() <= bound.whole).double().sub(0.5).sum())

    def remaining(self, noise_multiplier: float) -> float:
        """z_sum; there is none if the count alone releases more than z allows."""
        expect(
            2 * self.count_noise > noise_multiplier,
            f"count_noise={self.count_noise} > noise_multiplier/2={noise_multiplier / 2}",
            "With less noise on the count, it alone would release more than declared.",
        )
        return (noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5 if noise_multiplier else 0.0

    def remember(self, state: State, total: Sum, now: Round) -> State:
        """The bound moved by the noisy share of rows within it."""
        noise = torch.randn((), generator=now.secret.child("count noise").torch(), dtype=torch.float64)
        within = (total.tally + self.count_noise * float(noise)) / now.expected + 0.5
        moved = total.bound.whole * exp(-self.rate * (within - self.quantile))
        return replace(state, memory=state.remember(BOUND, torch.tensor(moved, dtype=torch.float64)))


def within(rows: Rows, bound: Bound) -> Rows:
    """Every row, or every layer of it, scaled by min(1, bound / norm)."""
    if bound.axes is not None and not bound.ball:
        lengths = DenseRows(rows.dense() / bound.axes).norms()
        return rows.scaled(_factors(bound.values[0] / lengths, rows.dtype))
    if not bound.layers:
        return rows.scaled(_factors(bound.whole / rows.norms(), rows.dtype))
    limits = torch.tensor(bound.values, dtype=torch.float64)
    return rows.layer_scaled(_factors(limits / rows.layer_norms(bound.layers), rows.dtype), bound.layers)


def _factors(ratios: Tensor, dtype: torch.dtype) -> Tensor:
    """At most 1; one so small that `dtype` has few bits left for it is 0, or it might be rounded up by half."""
    factors = ratios.nan_to_num(1.0).clamp(max=1.0)
    return factors.where(factors >= torch.finfo(dtype).tiny, 0.0)
