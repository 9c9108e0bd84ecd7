"""Clipping: the L2 bound that every row must respect, and where it comes from.

| clip | bound | covered by the guarantee? |
|---|---|---|
| `FixedClip` | chosen before the run | yes, if it was chosen without looking at the clients' data |
| `RecordClip` | of what one record adds to a row, whose trainer clips it | yes, for records; not for clients |
| `TermClip` | of what one unit adds to a sum of terms | yes, for records or persons; not for clients |
| `PublicClip` | the norm of an update on public data (Kerkouche et al. 2021) | yes: no client's data are used |
| `QuantileClip` | adapts to a quantile of the clients' norms (Andrew et al. 2021) | yes: its own noise is accounted |
| `EllipsoidClip` | one bound per coordinate (`tacit.pieces.mechanisms.ellipsoid`) | yes: its axes are public |
| `MedianClip` | the median of the cohort's norms (Geyer et al. 2017) | no: private data without noise |

A bound applies to the whole row, or to each of its layers.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from tacit.core import Bound, DenseRows, Rows, ServerRound, State, Sum
from tacit.core.interfaces import DryRun
from tacit.errors import PublicDataError, expect, positive, whole, within
from tacit.privacy.noise.sum_grid import noisy_count

BOUND = "mechanism/bound"
Knowledge = Literal["before the run", "by broadcast", "never"]


class Clip(Protocol):
    """A clipping rule: it determines the bound of every round."""

    @abstractmethod
    def bound(self, rows: Rows, state: State) -> Bound:
        """The bound of this round."""

    @property
    def row_wise(self) -> bool:
        """Whether the bound does not depend on the round's rows."""
        return False

    @property
    def per_layer(self) -> bool:
        """Whether each layer of the model has its own bound."""
        return False

    @property
    def known_to_clients(self) -> Knowledge:
        """When clients know the bound of their whole rows, so that they can clip before they send."""
        return "never"

    @property
    def max_records(self) -> int | None:
        """The bound is of one record in a row, which sums over at most this many; None: it is of whole rows."""
        return None

    @property
    def wide(self) -> bool:
        """Whether records are clipped and summed in float64, so that rounding errors are negligible beside noise."""
        return False

    @property
    def unproved(self) -> str:
        """Why this bound rules out a guarantee; empty if it does not."""
        return "the clipping rule does not declare that its bound is public or accounted"

    def statistic(self, rows: Rows, bound: Bound) -> float:
        """A number that is summed over all clients, to adapt the next bound."""
        return 0.0

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier for the sum of the rows, if all releases of a round together have `noise_multiplier`."""
        return noise_multiplier

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        """The state with the next bound."""
        return state

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        """The state before the first round, with the bound if it is computed from public data."""
        return state


@dataclass(frozen=True)
class FixedClip(Clip):
    """The same public bound in every round.

    Args:
        value: the bound of a whole row.
        per_layer: clip each of L layers to `value / √L` instead.
    """

    value: float
    per_layer: bool = False
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        positive(value=self.value)

    @property
    def known_to_clients(self) -> Knowledge:
        return "never" if self.per_layer else "before the run"

    def bound(self, rows: Rows, state: State) -> Bound:
        if not self.per_layer:
            return Bound((self.value,))
        count = len(state.layers)
        return Bound((self.value / sqrt(count),) * count, state.layers)


@dataclass(frozen=True)
class RecordClip(Clip):
    """A bound on one record's contribution to a row: the trainer clips every record's gradient (`RecordGradient`).

    Args:
        value: the bound of one record's contribution; that of the trainer.
        records: the assumed limit on the records in a row: a row longer than `records · value` is projected to that
            length, which moves no two rows apart. Choose it well above the expected batch, so that this is rare.

    Formal guarantees: adding or removing one record changes the row of its client by at most `value`, and no other row.
    Nothing is said about a client as a whole.
    """

    value: float
    records: int
    known_to_clients: ClassVar[Knowledge] = "before the run"
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        positive(value=self.value)
        whole(1, records=self.records)

    @property
    def max_records(self) -> int:
        return self.records

    def bound(self, rows: Rows, state: State) -> Bound:
        return Bound((self.value,))


@dataclass(frozen=True)
class TermClip(Clip):
    """A bound on the terms of one record, or person, of a query, which are clipped and summed in float64 (`QuerySum`).

    Args:
        value: the bound of one unit's terms; that of the query.
        units: the most records, or persons, of any client; public. A row longer than `units · value` is projected to
            that length, which moves no two rows apart: a client with more of them costs accuracy and no privacy.

    Formal guarantees: those of `RecordClip`, with rounding errors of float64 instead of float32.
    """

    value: float
    units: int
    known_to_clients: ClassVar[Knowledge] = "before the run"
    row_wise: ClassVar[bool] = True
    wide: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        positive(value=self.value)
        whole(1, units=self.units)

    @property
    def max_records(self) -> int:
        return self.units

    def bound(self, rows: Rows, state: State) -> Bound:
        return Bound((self.value,))


@dataclass(frozen=True)
class PublicClip(Clip):
    """The norm of the update from one local round on the public data, in the coordinates that are sent.

    It is computed once, before the first round, at the initial weights.

    Args:
        draws: number of draws, if coordinates are random; the median of their norms is taken.
        factor: the bound is this multiple of the norm.

    Formal guarantees: the bound is public. The people in the public data are not protected.

    Reference: Kerkouche et al. 2021, Section 4.
    """

    draws: int = 1
    factor: float = 1.0
    known_to_clients: ClassVar[Knowledge] = "by broadcast"
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        whole(1, draws=self.draws)
        positive(factor=self.factor)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        if dry_run is None:
            raise PublicDataError(
                "PublicClip", "add `--task-set public=50`, or choose the clipping bound yourself: `--set clip=...`."
            )
        norms = torch.cat([dry_run(draw).norms() for draw in range(self.draws)]).double()
        value = self.factor * norms.quantile(0.5)
        expect(0 < float(value) < float("inf"), f"an update on the public data of norm {float(value)} > 0")
        return replace(state, memory=state.memory_with(BOUND, value))

    def bound(self, rows: Rows, state: State) -> Bound:
        return Bound((float(state.memory[BOUND]),))


@dataclass(frozen=True)
class MedianClip(Clip):
    """The median of the cohort's norms, for whole rows or per layer (Geyer et al., Algorithm 1).

    Formal guarantees: none. The median depends on private data, and both the rows and the noise are scaled by it.
    """

    per_layer: bool = False
    unproved: ClassVar[str] = (
        "the clipping bound is the median of the cohort's update norms, computed from private data without noise"
    )

    def bound(self, rows: Rows, state: State) -> Bound:
        """The median, or one per layer; 1 if the cohort is empty."""
        norms = rows.layer_norms(state.layers) if self.per_layer else rows.norms()[:, None]
        medians = norms.double().quantile(0.5, dim=0) if rows.count else torch.ones(norms.shape[1])
        return Bound(tuple(medians.tolist()), state.layers if self.per_layer else ())


@dataclass(frozen=True, kw_only=True)
class QuantileClip(Clip):
    """Adaptive clipping: the bound follows a quantile of the clients' norms (Andrew et al. 2021, Algorithm 1).

    Each client adds +½ to a count if its row is within the bound, and −½ otherwise. Gaussian noise is added to the
    count, and the bound is multiplied by `exp(-rate · (fraction within − quantile))`: if too many are within, it
    shrinks.

    Formal guarantees: a client changes the count by at most ½, so count and sum together are one Gaussian mechanism of
    multiplier z, where `1/z² = 1/z_sum² + 1/(2·count_noise)²`. z is declared; the sum gets the larger z_sum. Twice the
    count is an integer, and its noise is drawn on a grid (`noisy_count`), as that of the sum.

    Args:
        quantile: the fraction of rows that should stay unclipped.
        start: the bound of the first round; public.
        rate: learning rate of the bound.
        count_noise: standard deviation of the noise on the count; a twentieth of the cohort is a good choice.
    """

    quantile: float = 0.5
    start: float = 1.0
    rate: float = 0.2
    count_noise: float = 5.0
    row_wise: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        within("(0, 1)", quantile=self.quantile)
        positive(start=self.start, rate=self.rate, count_noise=self.count_noise)

    def bound(self, rows: Rows, state: State) -> Bound:
        return Bound((float(state.memory[BOUND]) if BOUND in state.memory else self.start,))

    def statistic(self, rows: Rows, bound: Bound) -> float:
        """+½ for every row within the bound, −½ for every other row."""
        return float((rows.norms() <= bound.whole).double().sub(0.5).sum())

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """z_sum, which exists only if the count alone does not exceed the declared release."""
        expect(
            2 * self.count_noise > noise_multiplier,
            f"count_noise={self.count_noise} > noise_multiplier/2={noise_multiplier / 2}",
            "With less noise, the count alone would release more than declared.",
        )
        return (noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5 if noise_multiplier else 0.0

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        doubled = noisy_count(
            round(2 * total.statistic), 2 * self.count_noise, now.server.child("count noise").stream().bytes
        )
        fraction = doubled / 2 / now.expected_cohort + 0.5
        bound = total.bound.whole * exp(-self.rate * (fraction - self.quantile))
        return replace(state, memory=state.memory_with(BOUND, torch.tensor(bound, dtype=torch.float64)))


def clip_rows(rows: Rows, bound: Bound) -> Rows:
    """Every row, or every layer of it, scaled by min(1, bound / norm)."""
    if bound.axes is not None and not bound.ball:
        norms = DenseRows(rows.dense() / bound.axes).norms()
        return rows.scaled(_factors(bound.values[0] / norms, rows.dtype))
    if not bound.layers:
        return rows.scaled(_factors(bound.whole / rows.norms(), rows.dtype))
    limits = torch.tensor(bound.values, dtype=torch.float64)
    return rows.layer_scaled(_factors(limits / rows.layer_norms(bound.layers), rows.dtype), bound.layers)


def _factors(ratios: Tensor, dtype: torch.dtype) -> Tensor:
    """At most 1; a subnormal factor becomes 0, because rounding could increase it by half."""
    factors = ratios.nan_to_num(1.0).clamp(max=1.0)
    return factors.where(factors >= torch.finfo(dtype).tiny, 0.0)
