"""In which numbers clients blur their rows: real ones, as papers assume, or integers, as secure sums add them up."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.core import Bound, DenseRows, Event, Key, Messages, Near, Round, Step
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.mechanisms.clipping import within
from tacit.pieces.mechanisms.discrete import DiscreteGaussian, Integers, Skellam
from tacit.pieces.mechanisms.lattice import LEAST_STEPS, Lattice

DISTANCE = 2.0**-62  # of a round on a grid from its event: samplers and wrapping, for 2^15 clients of 2^28 numbers
ROOMY = 24  # rings of so many bits have room for the usual grid
NARROW = 16  # steps on smaller ones, at least
WIDEST = 2e4  # steps: the table of wider noise takes long to build (1.6 s at 1e5, 0.3 s here), so it is drawn in pieces
KINDS: dict[str, type[DiscreteGaussian] | type[Skellam]] = {"gaussian": DiscreteGaussian, "skellam": Skellam}


@dataclass(frozen=True)
class Shares:
    """Noise that a cohort makes up in shares.

    Attributes:
        bound: what one client can add to the sum.
        multiplier: standard deviation of the honest clients' noise over that.
        honest: the part of a cohort that is sure to add its share.
    """

    bound: Bound
    multiplier: float
    honest: float

    def of(self, now: Round) -> float:
        """How many shares make up the declared noise."""
        return self.honest * max(now.cohort, 1)


class Numbers(Protocol):
    """How rows are put into numbers, and how these are blurred."""

    @property
    def bits(self) -> int | None:
        """Sums are modulo 2^bits; None: of real numbers."""
        ...

    def put(self, messages: Messages, how: Shares, now: Round) -> Messages:
        """Every row within the bound, in these numbers."""
        ...

    def draw(self, like: Tensor, how: Shares, count: float, key: Key, now: Round) -> Tensor:
        """What so many shares of the noise add up to, in the shape of a row."""
        ...

    def event(self, multiplier: float, part: float) -> Event | None:
        """What a sum costs that has this part of the declared variance; None if that is nothing."""
        ...


@dataclass(frozen=True)
class Reals:
    """Real numbers and continuous noise, for simulations: no secure sum can carry them."""

    bits: ClassVar[int | None] = None

    def put(self, messages: Messages, how: Shares, now: Round) -> Messages:
        """Rows that are too long, shortened."""
        return replace(messages, rows=within(messages.rows, how.bound))

    def draw(self, like: Tensor, how: Shares, count: float, key: Key, now: Round) -> Tensor:
        """Gaussian noise in floating point."""
        drawn = torch.randn(like.shape, generator=key.torch(like.device), dtype=like.dtype, device=like.device)
        return drawn.mul_(how.bound.whole * how.multiplier * sqrt(count / how.of(now)))

    def event(self, multiplier: float, part: float) -> Event | None:
        """The Gaussian mechanism."""
        if multiplier * part == 0:
            return None
        import dp_accounting  # only where a run is priced: it takes a second to load

        gaussian: Event = dp_accounting.GaussianDpEvent(multiplier * sqrt(part))
        return gaussian


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Integers: rows are rounded to a public grid and blurred by whole steps of it, so that their sum is exact.

    Rows are clipped in float64, rounded at random so that their mean stays, and checked in integers. Noise comes from a
    table of 127-bit probabilities and a cryptographic stream (see `tacit.pieces.mechanisms.lattice`).

    Args:
        noise: `gaussian` (the discrete Gaussian), or `skellam`, of which less is known under amplification.
        bits: sums are modulo 2^bits; fewer than 32 save bytes and cost accuracy.
        steps: the bound in steps of the grid, or up to twice as many; None: 4096 or 11·√d, whichever is more, or as
            many as the ring has room for.

    Formal guarantees: a round is, but for a total variation of 2⁻⁶² that is charged to δ, a Gaussian sum of the
    declared multiplier (with Skellam noise, a sum within the declared Rényi divergences), rounding included. The sum of
    honest clients wraps around with probability 2⁻⁶⁴ at most; a grid with more is refused.
    """

    noise: Literal["gaussian", "skellam"] = "gaussian"
    bits: int = 32
    steps: int | None = None

    def __post_init__(self) -> None:
        choose(KINDS, self.noise, "noise")
        expect(8 <= self.bits <= 32, f"bits={self.bits} in [8, 32]")
        expect(self.steps is None or self.steps >= 1, f"steps={self.steps} >= 1")

    @property
    def least(self) -> int:
        """The bound is never fewer steps than this."""
        return self.steps or (LEAST_STEPS if self.bits >= ROOMY else NARROW)

    def put(self, messages: Messages, how: Shares, now: Round) -> Messages:
        """Rows on the grid; one that is not finite counts as zeros, so that nobody's absence tells of it."""
        lattice = self.lattice(how, messages.rows.dim, now)
        rows = messages.rows.dense()
        values = np.zeros(tuple(rows.shape), np.int64)
        for i, source in enumerate(_sources(messages, now)):
            values[i] = lattice.rounded(rows[i].cpu().numpy(), source)
        step = Step(1 / lattice.scale, lattice.inflation)
        return replace(messages, rows=DenseRows(_stepped(values, lattice, rows)), step=step)

    def draw(self, like: Tensor, how: Shares, count: float, key: Key, now: Round) -> Tensor:
        """Integer noise, in steps; a wide one as a sum of several."""
        lattice = self.lattice(how, like.numel(), now)
        pieces = ceil(count * (lattice.noise.sigma / WIDEST) ** 2) or 1
        table, source = KINDS[self.noise](lattice.noise.sigma * sqrt(count / pieces)).table, key.source()
        total = sum((table.sample(like.numel(), source) for _ in range(pieces)), np.zeros(like.numel(), np.int64))
        return _stepped(total, lattice, like)

    def event(self, multiplier: float, part: float) -> Event | None:
        """What the noise declares whatever the grid, and how far a round is from it."""
        if multiplier * part == 0:
            return None
        return Near(KINDS[self.noise].declared(multiplier, part, self.least), DISTANCE)

    def lattice(self, how: Shares, dim: int, now: Round) -> Lattice:
        """The round's grid: the steps are the same in all rounds, and do not tell how large a cohort is."""
        expect(now.cohort <= now.max_cohort, f"a cohort of at most {now.max_cohort} clients, got {now.cohort}")
        sized = _sized(self, how.bound.whole, dim, now.max_cohort, how.honest, how.multiplier)
        return sized.shared_by(max(now.cohort, 1), how.of(now), how.multiplier)


@lru_cache(maxsize=64)
def _sized(grid: Grid, clip: float, dim: int, most: int, honest: float, multiplier: float) -> Lattice:
    """The lattice that has room for the largest cohort."""
    expect(multiplier > 0, f"noise_multiplier={multiplier} > 0 on a grid", "Without noise, use NoNoise.")
    found = Lattice.sized(
        clip=clip,
        dim=dim,
        cohort=most,
        honest=honest * most,
        noise_multiplier=multiplier,
        bits=grid.bits,
        noise=KINDS[grid.noise],
        steps=grid.steps,
    )
    expect(
        found.steps >= grid.least,
        f"room in {grid.bits} bits for {grid.least} steps of the bound and noise of {multiplier:.4g} times the bound",
        "Use more bits, of which there are 32, or less noise: a larger ε, fewer rounds, smaller cohorts.",
    )
    if isinstance(found.noise, DiscreteGaussian):
        smooth = found.noise.continuous(most, found.bound).distance <= DISTANCE / 8
        expect(smooth, f"smoother noise than {found.noise.sigma:.3g} steps a client", "Use more bits or steps.")
    return found


def _sources(messages: Messages, now: Round) -> list[Callable[[int], bytes]]:
    """The randomness of each client's rounding, which no guarantee rests on: a fast generator will do."""
    key = now.secret.child("rounding")
    return [key.child("client", client).numpy().bytes for client in messages.clients.tolist()]


def _stepped(values: Integers, lattice: Lattice, like: Tensor) -> Tensor:
    """Steps as numbers, exactly: a step is a power of two."""
    return torch.from_numpy(values / lattice.scale).to(like.device)
