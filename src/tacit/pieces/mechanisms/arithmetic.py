"""The arithmetic in which clients add noise: real numbers, or integers modulo 2^b for secure aggregation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, log, sqrt
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.core import Bound, ClientRound, DenseRows, GridStep, Key, Messages, Round, Sum
from tacit.core.method import ROUNDING_SLACK
from tacit.core.prices import Gaussian, Release
from tacit.core.rows import Rows
from tacit.core.schema import choose, simplest_fraction
from tacit.core.state import Turnout
from tacit.errors import UserError, expect, whole
from tacit.pieces.mechanisms.clipping import clip_rows
from tacit.privacy.noise.discrete import DiscreteGaussian, Integers, Skellam, distance_of_sum
from tacit.privacy.noise.lattice import MIN_STEPS, Lattice
from tacit.privacy.noise.sum_grid import MAX_TABLE_SIGMA

INTEGER_DISTANCE = 2.0**-62  # total variation of a round from its price, for up to 2^15 clients, 2^28 coordinates
REAL_VALUED = "The noise is real-valued: what its rounding to floating-point numbers reveals is not covered."
WIDE_BITS = 24  # integers of this many bits have room for the usual grid
MIN_STEPS_NARROW = 16  # with fewer bits
_SIZES = 300  # of cohorts whose sums are tried
SUM_BITS, ROW_BITS = 40, 64  # an honest sum, or row, exceeds its limit with a probability of at most 2^-bits
INTEGER_NOISES: dict[str, type[DiscreteGaussian] | type[Skellam]] = {"gaussian": DiscreteGaussian, "skellam": Skellam}


@dataclass(frozen=True)
class SharedNoise:
    """Noise to which every client of a cohort contributes a share.

    Attributes:
        bound: the bound on one client's contribution to the sum.
        multiplier: standard deviation of the honest clients' noise over that bound.
        honest: the fraction of a cohort that is assumed to add its share and not to disclose it.
        dropouts: the fraction of a cohort that may be lost, for which every share has a surplus.
        records: the bound is on one record's contribution, and a row is a sum over at most this many; None: it is on
            the whole row.
        secret_mean: the mean cohort where the size of each is secret; 0: it is public.
        wide: whether records are clipped and summed in float64.
    """

    bound: Bound
    multiplier: float
    honest: float
    dropouts: float = 0.0
    records: int | None = None
    wide: bool = False
    secret_mean: int = 0

    @property
    def row_bound(self) -> Bound:
        """The bound to which rows are clipped."""
        return self.bound if self.records is None else Bound((self.bound.whole * self.records,))

    def max_losses(self, cohort: int) -> int:
        """The number of losses for which shares provide."""
        return int(simplest_fraction(self.dropouts) * cohort)

    def min_delivered(self, cohort: int) -> int:
        """The fewest clients that deliver, and the number of shares in the noise of every sum."""
        return max(cohort, 1) - self.max_losses(cohort)

    def of_cohort(self, cohort: int) -> float:
        """The number of shares that amount to the declared noise in a cohort of this size.

        Of all shares in a sum of `min_delivered` ones, the declared fraction of colluding clients is left out, and at
        least one: every client knows its own. Where the size of a cohort is secret, the noise of the sum must not
        depend on it. Then the one of a mean cohort is left out.

        Formal guarantees: let r shares be in the sum of a cohort of n, of whom c·n collude: then k = max(1, ⌊c·n⌋) of
        them leave 1 − k/r of its noise. With public sizes that is at least the declared noise: ⌊c·n⌋/r ≤
        c/(1 − dropouts), as r ≥ (1 − dropouts)·n, and 1/r if only one is left out. Where one share has to suffice,
        nothing is left against a client that knows it (`part`).
        """
        honest = simplest_fraction(self.honest) / (1 - simplest_fraction(self.dropouts))
        size = self.min_delivered(self.secret_mean or cohort)
        return float(self.min_delivered(cohort) * min(honest, 1 - Fraction(size > 1, size)))

    def part(self, turnout: Turnout, colluding: float) -> float:
        """The part of the declared variance that nobody in the cohort knows, if one or this fraction of it colludes."""
        cohort, delivered = turnout.cohort, turnout.delivered
        if not cohort:
            return 1.0  # the server adds the noise
        known = min(max(1, int(simplest_fraction(colluding) * cohort)), delivered - 1)
        part = max(min(delivered, self.min_delivered(cohort)) - known, 0) / self.of_cohort(cohort) if delivered else 0.0
        return 1.0 if part > 1 - 1e-12 else part


def norm_limit(bound: float, deviation: float, dim: int, bits: int = SUM_BITS) -> float:
    """A norm that a vector of at most this norm plus noise exceeds with a probability of at most 2^-bits.

    The noise has independent coordinates that are subgaussian with this deviation, such as Gaussian and discrete
    Gaussian ones. With u = (bits + 1) ln 2, each of two events has a probability of at most e^-u: that the noise along
    the vector exceeds √(2u), or that its squared norm exceeds d + 2√(du) + 2u (Laurent and Massart 2000, Lemma 1; the
    moments of a subgaussian square are at most those of a Gaussian one).

    Example:
        >>> round(norm_limit(8.0, 0.0, 100), 2), round(norm_limit(8.0, 1.0, 100), 1)
        (8.0, 21.2)
    """
    u = (bits + 1) * log(2)
    noise = deviation**2 * (dim + 2 * sqrt(dim * u) + 2 * u)
    return sqrt(bound**2 + 2 * bound * deviation * sqrt(2 * u) + noise) * (1 + ROUNDING_SLACK)


def heavy_norm_limit(bound: float, moments: tuple[float, float], largest: float, dim: int, bits: int) -> float:
    """As `norm_limit`, for symmetric noise with heavier tails.

    With u = (bits + 1) ln 2, each of two events has a probability of at most e^-u: that some coordinate is larger than
    `largest`, or that the sum of the squares of smaller ones exceeds its mean by more than Bernstein's inequality says.

    Args:
        bound: of the vector without noise.
        moments: the second and the fourth of a coordinate.
        largest: what a coordinate exceeds with a probability of at most e^-u / dim.
        dim: the number of coordinates, which are independent and equally distributed.
        bits: of the probability.
    """
    (second, fourth), u = moments, (bits + 1) * log(2)
    part = u * largest**2 / 3
    squares = min(dim * second + part + sqrt(part**2 + 2 * u * dim * fourth), dim * largest**2)
    return (bound + sqrt(squares)) * (1 + ROUNDING_SLACK)


class Arithmetic(Protocol):
    """How rows are encoded for summation, and how noise is drawn for them."""

    @property
    def bits(self) -> int | None:
        """Sums are modulo 2^bits; None: sums of real numbers."""

    def norm_limit(self, like: Sum | Messages, noise: SharedNoise, count: float, rows: int, now: Round) -> float:
        """The L2 norm that this many rows with `count` shares exceed with a negligible probability.

        It is at most 2^-SUM_BITS for a sum, and 2^-ROW_BITS for one row.
        """

    def encode(self, messages: Messages, noise: SharedNoise, now: ClientRound) -> Messages:
        """The rows, clipped to the bound and encoded."""

    def draw(self, like: Tensor, noise: SharedNoise, count: float, key: Key, now: Round) -> Tensor:
        """The sum of `count` shares of the noise, or a part of one, in the shape of `like`."""

    def release(self, multiplier: float, part: float) -> Release | None:
        """The price of a sum with this part of the declared noise variance; None if the part is zero."""


@dataclass(frozen=True)
class Reals:
    """Real numbers and continuous noise, for simulations: secure aggregation requires `Grid`.

    Formal guarantees: those of the mechanism, in real arithmetic. Floating-point numbers are not real numbers, and the
    rounding of sum and noise can reveal the sum (Mironov 2012): the guarantee says that this is not covered.
    """

    bits: ClassVar[int | None] = None

    def norm_limit(self, like: Sum | Messages, noise: SharedNoise, count: float, rows: int, now: Round) -> float:
        deviation = noise.bound.whole * noise.multiplier * sqrt(count / noise.of_cohort(now.cohort))
        return norm_limit(rows * noise.row_bound.whole, deviation, *size_of(like))

    def encode(self, messages: Messages, noise: SharedNoise, now: ClientRound) -> Messages:
        return replace(messages, rows=clip_rows(_finite(messages.rows), noise.row_bound))

    def draw(self, like: Tensor, noise: SharedNoise, count: float, key: Key, now: Round) -> Tensor:
        deviation = noise.bound.whole * noise.multiplier * sqrt(count / noise.of_cohort(now.cohort))
        return key.stream().normal(like.shape, like).mul_(deviation)

    def release(self, multiplier: float, part: float) -> Release | None:
        return Release(Gaussian(multiplier * sqrt(part)), caveat=REAL_VALUED) if multiplier * part else None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Integers: rows are rounded to a public grid and get discrete noise, so that their sum is exact.

    Rows are clipped in float64, rounded stochastically (unbiased), and checked against the bound in integers. Noise is
    drawn from a table of 127-bit probabilities and a cryptographic stream (see `tacit.privacy.noise.lattice`).

    Args:
        noise: `gaussian` (the discrete Gaussian), or `skellam`, for which amplification bounds are less tight.
        bits: sums are modulo 2^bits at most: integers are sent with as few bits as a sum of the largest cohort needs on
            its grid, which costs nothing. A smaller limit makes the grid coarser, which saves bytes and costs accuracy.
        steps: the bound in steps of the grid, rounded up to at most twice this number; None: 4096 or 11·√d, whichever
            is larger, or as many as fit into `bits`.

    Formal guarantees: up to a total variation of 2⁻⁶², which is charged to δ, a round is a Gaussian sum of the declared
    multiplier (with Skellam noise, a sum within the declared Rényi divergences), rounding included. The sum of honest
    clients overflows with probability 2⁻⁶⁴ at most; other grids are refused.
    """

    noise: Literal["gaussian", "skellam"] = "gaussian"
    bits: int = 32
    steps: int | None = None

    def __post_init__(self) -> None:
        choose(INTEGER_NOISES, self.noise, "noise")
        whole(8, 32, bits=self.bits)
        whole(1, steps=self.steps)

    def norm_limit(self, like: Sum | Messages, noise: SharedNoise, count: float, rows: int, now: Round) -> float:
        """The inflation of the grid lengthens rows and noise; Skellam noise is a difference of Poisson variables.

        |x| of variance v exceeds L/3 + √(L²/9 + 2Lv) with a probability of at most 2e^-L (Bernstein's inequality).
        """
        step = like.grid_step or GridStep(0.0)
        bound, (dim, bits) = rows * noise.row_bound.whole * (1 + step.inflation), size_of(like)
        shares = sqrt(count / noise.of_cohort(now.cohort))
        deviation = noise.bound.whole * noise.multiplier * (1 + step.inflation) * shares
        if self.noise == "gaussian":
            return norm_limit(bound, deviation, dim, bits)
        variance, tail = (deviation / step.size) ** 2, log(2 * dim) + (bits + 1) * log(2)
        largest = tail / 3 + sqrt(tail**2 / 9 + 2 * tail * variance)
        moments = (variance, 3 * variance**2 + variance)
        return heavy_norm_limit(bound / step.size, moments, largest, dim, bits) * step.size

    @property
    def min_steps(self) -> int:
        """The least number of steps of the bound."""
        return self.steps or (MIN_STEPS if self.bits >= WIDE_BITS else MIN_STEPS_NARROW)

    def encode(self, messages: Messages, noise: SharedNoise, now: ClientRound) -> Messages:
        """Rows on the grid; a row that is not finite becomes zeros, since omitting it would reveal that."""
        lattice = self.lattice(noise, messages.rows.dim, now)
        rows = messages.rows.dense()
        numbers = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        for row, number, source in zip(rows, numbers, _rounding_sources(messages, noise, now), strict=True):
            number.copy_(_to_numbers(lattice.quantize(row.cpu().numpy(), source), lattice, row))
        step = GridStep(1 / lattice.scale, lattice.inflation, lattice.bits)
        return replace(messages, rows=DenseRows(numbers), grid_step=step)

    def draw(self, like: Tensor, noise: SharedNoise, count: float, key: Key, now: Round) -> Tensor:
        """Integer noise in steps of the grid; wide noise as a sum of several samples."""
        lattice = self.lattice(noise, like.numel(), now)
        terms = ceil(count * (lattice.noise.sigma / MAX_TABLE_SIGMA) ** 2) or 1
        table, source = INTEGER_NOISES[self.noise](lattice.noise.sigma * sqrt(count / terms)).table, key.stream().bytes
        total = sum((table.sample(like.numel(), source) for _ in range(terms)), np.zeros(like.numel(), np.int64))
        return _to_numbers(total, lattice, like)

    def release(self, multiplier: float, part: float) -> Release | None:
        """The loss that holds for every grid of at least `min_steps`, and the total variation of a round from it."""
        if multiplier * part == 0:
            return None
        return Release(INTEGER_NOISES[self.noise].declared_loss(multiplier, part, self.min_steps), INTEGER_DISTANCE)

    def lattice(self, noise: SharedNoise, dim: int, now: Round) -> Lattice:
        """The round's grid; its step is the same in all rounds, so it does not reveal the cohort's size."""
        expect(now.cohort <= now.max_cohort, "a cohort that the grid has room for", "Use larger cohorts.")
        lattice = _shorten_lattice(self, noise, dim, now.max_cohort)
        return lattice.for_cohort(max(now.cohort, 1), noise.of_cohort(now.cohort), noise.multiplier)


@lru_cache(maxsize=64)
def _fit_lattice(grid: Grid, noise: SharedNoise, dim: int, max_cohort: int) -> Lattice:
    """The lattice that has room for the largest cohort."""
    multiplier = noise.multiplier
    expect(multiplier > 0, f"noise_multiplier={multiplier} > 0 on a grid", "Without noise, use NoNoise.")
    lattice = Lattice.fit(
        clip=noise.bound.whole,
        dim=dim,
        cohort=max_cohort,
        honest=noise.of_cohort(max_cohort),
        noise_multiplier=multiplier,
        bits=grid.bits,
        noise=INTEGER_NOISES[grid.noise],
        steps=grid.steps,
        records=noise.records,
        depth=0 if noise.wide else None,
    )
    of_rows = "" if noise.records is None else f", rows of up to {noise.records} records"
    smaller = "" if noise.records is None else ", smaller batches"
    expect(
        lattice.steps >= grid.min_steps,
        f"{grid.bits} bits to have room for {grid.min_steps} steps of the bound{of_rows} and noise of {multiplier:.4g} "
        "times it",
        f"Use more bits (at most 32){smaller}, or less noise: a larger ε, fewer rounds, smaller cohorts.",
    )
    if isinstance(lattice.noise, DiscreteGaussian):
        advice = "Use more bits or steps, or Skellam noise."
        smooth = distance_of_sum([(lattice.noise.sigma**2, max_cohort)], dim) <= INTEGER_DISTANCE / 8
        expect(smooth, f"more noise per client than {lattice.noise.sigma:.3g} steps", advice)
    return lattice


@lru_cache(maxsize=64)
def _shorten_lattice(grid: Grid, noise: SharedNoise, dim: int, max_cohort: int) -> Lattice:
    """The same lattice with as few bits as the sum of no cohort overflows, the smaller ones with more noise included.

    Of large cohorts, `_SIZES` sizes are tried, and there is a bit to spare for those in between.
    """
    lattice, stride = _fit_lattice(grid, noise, dim, max_cohort), -(-max_cohort // _SIZES)
    sizes = [0, *range(max_cohort, 0, -stride)]
    needed = max(_min_bits(lattice, noise, size) for size in sizes)
    return replace(lattice, bits=min(needed + (stride > 1), grid.bits))


def _min_bits(lattice: Lattice, noise: SharedNoise, cohort: int) -> int:
    """The bits that the sum of a cohort of this size needs; 0: it has too much noise for the grid, and no round."""
    try:
        return lattice.for_cohort(max(cohort, 1), noise.of_cohort(cohort), noise.multiplier).min_bits
    except UserError:
        return 0


def size_of(like: Sum | Messages) -> tuple[int, int]:
    """The number of coordinates, and the bits of the probability that is negligible: smaller for one row of many."""
    return (like.total.numel(), SUM_BITS) if isinstance(like, Sum) else (like.rows.dim, ROW_BITS)


def _finite(rows: Rows) -> Rows:
    """The rows, with zeros for those that are not finite: omitting one would reveal that."""
    finite = torch.isfinite(rows.norms())
    if bool(finite.all()):
        return rows
    dense = rows.dense()
    return DenseRows(torch.where(finite[:, None], dense, torch.zeros_like(dense)))


def _rounding_sources(messages: Messages, noise: SharedNoise, now: ClientRound) -> list[Callable[[int], bytes]]:
    """Each client's randomness for rounding; only a guarantee for records depends on it, else a fast one suffices."""
    keys = now.clients.child("rounding")
    if noise.records is not None:
        return [keys.of(client).stream().bytes for client in messages.clients.tolist()]
    return [keys.of(client).fast_generator().bytes for client in messages.clients.tolist()]


def _to_numbers(values: Integers, lattice: Lattice, like: Tensor) -> Tensor:
    """Integers in steps of the grid as float64, exactly, because a step is a power of two."""
    return torch.from_numpy(values / lattice.scale).to(like.device)
