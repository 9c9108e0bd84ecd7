"""The Gaussian mechanism on the sum of clipped rows: noise is added by a trusted server, or by the clients in shares.

References: Geyer et al. 2017 and McMahan et al. 2018 (central); Ács and Castelluccia 2011, Kerkouche et al. 2021
(distributed).
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacit.core import (
    Bound,
    BoundedMessages,
    ClientRound,
    DenseRows,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
    Wave,
)
from tacit.core.interfaces import DryRun, Mechanism, Visibility
from tacit.core.prices import AggregateNoise, Price, RecordSums, Release, Uncalibrated, Unit, Unproved
from tacit.core.rows import Surplus
from tacit.core.schema import simplest_fraction
from tacit.errors import UserError, WireError, at_least, expect, within
from tacit.pieces.mechanisms.arithmetic import Arithmetic, Reals, SharedNoise
from tacit.pieces.mechanisms.clipping import Clip, clip_rows
from tacit.privacy.noise.sum_grid import DISTANCE, SumGrid, WideSums
from tacit.wire.frames import Part, Parts


@dataclass(frozen=True, kw_only=True)
class CentralGaussian(Mechanism):
    """Central DP: the server clips every row and adds Gaussian noise to the sum, scaled by the bound of that round.

    The noisy sum is divided by the expected cohort size, because the actual size is private. With one bound S per
    layer, each of L layers gets noise of `noise_multiplier · √L · S`, so that all layers together are one release with
    the declared multiplier.

    By default the noise is exact: the sum is rounded to a grid once, and integer noise is added, slightly more than
    `noise_multiplier` says, by what rounding and floating point can add to a client's influence (`SumGrid`).

    Args:
        clip: the clipping rule: `FixedClip`, `PublicClip`, `QuantileClip`, `EllipsoidClip` or `MedianClip`.
        noise_multiplier: standard deviation of the noise over the sensitivity, for everything that a round releases;
            None: as much as the method's budget requires, computed when the population is known.
        exact: draw the noise on integers; otherwise it is real-valued, and the guarantee does not cover what
            floating-point numbers reveal (Mironov 2012).

    Formal guarantees: adding or removing one client changes the sum by at most the bound, which is public or accounted;
    everything a round releases is a Gaussian mechanism of `noise_multiplier`, up to a total variation of 2⁻⁸⁰, which is
    charged to δ; if not `exact`, in real arithmetic. With `MedianClip`: none. Clients are protected against recipients
    of the models. The server is trusted: it sees every message.

    Sees: the server, every message; recipients of the model, the noisy sum.
    """

    clip: Clip
    noise_multiplier: float | None = None
    exact: bool = True
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = ()

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if self.clip.max_records is not None:
            raise UserError(
                f"Expected a bound for clients' rows, got {type(self.clip).__name__}. Use it in DistributedGaussian."
            )
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
            return Uncalibrated()
        release = Reals().release(self.noise_multiplier, 1.0)
        if self.exact and release is not None:
            release = Release(release.loss, DISTANCE)
        return _price(self.clip, release)

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise | None:
        if self.noise_multiplier is None or not self.clip.row_wise or self.clip.per_layer:
            return None
        bound = self.clip.bound(_NO_ROWS, state).whole
        return AggregateNoise(bound, bound * self.clip.sum_multiplier(self.noise_multiplier) / expected_cohort)

    def with_noise_multiplier(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.clip.prepare(state, dry_run)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bound = self.clip.bound(messages.rows, state)
        statistic = self.clip.statistic(messages.rows, bound)
        clipped = clip_rows(messages.rows, bound)
        rows = WideSums(clipped) if self.exact else clipped
        return BoundedMessages(replace(messages, rows=rows), bound, statistic)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """Add noise scaled by the sum's bound; also if the cohort is empty, since its size is private."""
        multiplier = self.clip.sum_multiplier(_value_of(self.noise_multiplier))
        released = self._with_noise(total, multiplier, now) if multiplier else total.total
        return replace(total, total=released, weight=now.expected_cohort)

    def _with_noise(self, total: Sum, multiplier: float, now: ServerRound) -> Tensor:
        """The noisy sum; divided by `radius`, all rows are within a ball of radius 1."""
        radius = total.bound.per_coordinate(total.total.double()) * sqrt(len(total.bound.values))
        key = now.server.child("central noise")
        if self.exact:
            grid = SumGrid(total.total.numel(), now.max_cohort, multiplier)
            return grid.release(total.total, radius, key.stream().bytes)
        return total.total + key.stream().normal(total.total.shape, total.total).mul_(radius * multiplier)

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return self.clip.update_state(state, total, now)


@dataclass(frozen=True, kw_only=True)
class DistributedGaussian(Mechanism):
    """Distributed DP: every client clips its own row and adds a share of the noise; only the sum is revealed.

    Of n clients, t = ⌊dropouts · n⌋ may be lost. The shares of n − t clients amount to the noise of the sum. Once it is
    known that d clients are lost, the seeds of t − d others' shares are opened, and the server subtracts these shares
    (as in XNoise: Jiang et al., Dordis, EuroSys 2024; see `tacit.core.rows`). The variance of the sum is therefore the
    same for every n and every d up to t, and reveals neither. Every client knows its own share, and can subtract it:
    shares are sized so that those of all others amount to the declared noise, or those of the others than the
    `colluding` ones if these are more than one. That makes the variance of the sum r/(r − 1) times as large if r
    clients remain, or (1 − dropouts) / (1 − dropouts − colluding) times. For an empty cohort, the server adds the
    noise. Where more are lost than tolerated and the channel does not end the round, whoever sums adds what is missing.
    The noisy sum is divided by the expected cohort size. A row that is not finite becomes zeros at its client: a
    missing one would reveal that.

    Args:
        clip: a public bound: `FixedClip` or `PublicClip` of a client's row, `RecordClip` of what one record adds to it.
        noise_multiplier: standard deviation of the noise over the sensitivity; None: as much as the method's budget
            requires, computed when the population is known.
        dropouts: the fraction of a cohort that may be lost. If more are, `SecureSum` ends the round without a sum; with
            another channel the missing noise is added to the sum, and ε against the server is larger.
        colluding: the fraction of a cohort that may disclose its share of the noise to the adversary; one client may in
            any case.
        arithmetic: `Reals()` for simulations, `Grid()` for sums of integers, which `SecureSum` requires.
        single_draw: draw all shares of a round as one sample of the same distribution, which is faster in simulations.
            Otherwise each client draws its own share, as in a federation.

    Formal guarantees: adding or removing one client changes the sum by at most the public bound, and its noise has the
    same variance for every cohort and every number of losses, at least that of `noise_multiplier`. Against those who
    receive the models, a round is therefore a Gaussian mechanism of `noise_multiplier`, which sampling amplifies. The
    server and the clients of a cohort know who takes part, and clients their own shares. Against them, sampling
    amplifies nothing, the guarantee is for zero-out adjacency, where a client's row is set to zero, and what a round
    costs follows from the noise of those that delivered and are honest (`SharedNoise.part`): with public sizes of
    cohorts and no more losses than tolerated, that of `noise_multiplier`. It requires a channel that reveals only the
    sum, clients that add their noise, and dropouts that depend neither on data nor on who else takes part. On a `Grid`,
    numbers are sent with as few bits as the sum of any cohort needs, of which a run prints how many: a sum overflows
    with a probability of at most 2⁻⁶⁴, and that would damage the model, not the guarantee.

    With `RecordClip` all of this is said about one record, not about a client: who takes part is then no secret, so
    that the variance of the noise reveals nothing, and it is the Poisson batches of the trainer that amplify, also
    against the server.

    Sees: the server and recipients of the model, the noisy sum; colluding clients can subtract their own shares.
    """

    clip: Clip
    noise_multiplier: float | None = None
    dropouts: float = 0.0
    colluding: float = 0.0
    arithmetic: Arithmetic = Reals()
    single_draw: bool = True
    requires: ClassVar[Visibility] = "only the sum"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = (Part.BOUND,)

    def __post_init__(self) -> None:
        _check(self.clip, self.noise_multiplier)
        if self.clip.known_to_clients == "never":
            raise UserError(
                f"Expected a public bound for whole rows, because clients clip before they send, got {self.clip}. "
                "Use FixedClip or PublicClip."
            )
        within("[0, 1)", dropouts=self.dropouts, colluding=self.colluding)
        expect(self.honest > 0, f"dropouts + colluding = {self.dropouts + self.colluding} < 1")

    @property
    def bits(self) -> int | None:
        return self.arithmetic.bits

    @property
    def record_bound(self) -> float | None:
        """The bound on one record's contribution to a row, if records are protected."""
        return None if self.clip.max_records is None else self._bound(_NO_STATE).whole

    @property
    def record_sums(self) -> RecordSums:
        return "float64" if self.clip.wide else "float32"

    @property
    def row_bound(self) -> float | None:
        """The largest norm of a row of records, without noise."""
        return None if self.clip.max_records is None else self._bound(_NO_STATE).whole * self.clip.max_records

    @property
    def honest(self) -> float:
        """The fraction of a cohort that is assumed to deliver honest noise."""
        return 1 - self.dropouts - self.colluding

    def deviation(self, view: View, now: Round) -> float:
        """The standard deviation of one client's share of the noise."""
        noise = self._noise(self._received_bound(view), now)
        return noise.bound.whole * noise.multiplier / sqrt(noise.of_cohort(now.cohort))

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        """A Gaussian mechanism with the declared noise; with a turnout, with the noise that no client there knows."""
        if self.noise_multiplier is None:
            return Uncalibrated()
        release = self.arithmetic.release(self.noise_multiplier, self._part(turnout))
        if release is None:
            return _price(self.clip, None)
        adversary = "anyone who receives the models or sees the sums"
        return _price(self.clip, replace(release, adversary=adversary, constant=turnout is None))

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise | None:
        """All noise of the sum, including what colluding clients could subtract."""
        if self.noise_multiplier is None:
            return None
        noise, mean = self._noise(self._bound(state)), max(int(expected_cohort), 1)
        deviation = noise.bound.whole * noise.multiplier * sqrt(noise.min_delivered(mean) / noise.of_cohort(mean))
        return AggregateNoise(noise.row_bound.whole, deviation / expected_cohort)

    def honest_clients(self, cohort: int) -> int | None:
        noise, colluding = self._noise_of(1.0, Bound()), int(simplest_fraction(self.colluding) * cohort)
        return noise.min_delivered(cohort) - max(1, colluding)

    def with_noise_multiplier(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.clip.prepare(state, dry_run)

    def broadcast_parts(self, state: State) -> Parts:
        return {Part.BOUND: torch.tensor([self._bound(state).whole], dtype=torch.float64)}

    def check_broadcast(self, view: View) -> None:
        self._received_bound(view)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        """Clip to the bound in the broadcast, and add each client's share of the noise unless all are drawn at once."""
        noise = self._noise(self._received_bound(view), now)
        surplus = Surplus(noise.max_losses(now.cohort))
        encoded = replace(self.arithmetic.encode(messages, noise, now), surplus=surplus)
        if self.single_draw or not encoded.rows.count:
            return encoded
        keys, rows, clients = now.clients.child("noise share"), encoded.rows.dense(), messages.clients.tolist()
        surplus = replace(surplus, seeds={client: keys.of(client) for client in clients})
        shares = [
            self.arithmetic.draw(row, noise, 1.0, surplus.seeds[client], now)
            for row, client in zip(rows, clients, strict=True)
        ]
        return replace(encoded, rows=DenseRows(rows + torch.stack(shares)), surplus=surplus)

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(messages, self._bound(state))

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        """Remove the shares that are too many, or add what is missing: all of it if they are drawn at once.

        An empty cohort gets the noise in any case, and one that lost too many what those would have added, so that the
        noise shows neither.
        """
        noise = self._noise(total.bound, now)
        missing = float(noise.min_delivered(now.cohort))
        if not self.single_draw and now.cohort:
            total = replace(total, total=total.total - self._excess(total, noise, now))
            missing -= min(total.weight, missing)
        if missing:
            drawn = self.arithmetic.draw(total.total, noise, missing, now.server.child("noise shares"), now)
            total = replace(total, total=total.total + drawn)
        return replace(total, weight=now.expected_cohort, surplus=None)

    def max_sum(self, total: Sum, now: ServerRound) -> float | None:
        noise = self._noise(total.bound, now)
        return self.arithmetic.norm_limit(total, noise, noise.min_delivered(now.cohort), now.cohort, now)

    def max_row(self, messages: Messages, state: State, now: Round) -> float | None:
        return self.arithmetic.norm_limit(messages, self._noise(self._bound(state), now), 1.0, 1, now)

    def _received_bound(self, view: View) -> Bound:
        """The bound in a broadcast; where the method fixes it, a client accepts no other."""
        values = view.parts.get(Part.BOUND)
        if values is None or values.numel() != 1 or not BOUNDS[0] <= float(values) <= BOUNDS[1]:
            actual = "none" if values is None or values.numel() != 1 else f"{float(values):g}"
            raise WireError(
                f"Expected a clipping bound from {BOUNDS[0]:g} to {BOUNDS[1]:g} in the broadcast, got {actual}."
            )
        received = Bound((float(values),))
        expected = received if self.clip.known_to_clients == "by broadcast" else self._bound(_NO_STATE)
        if received != expected:
            source = "the method" if self.record_bound is None else "records"
            raise WireError(f"Expected the bound of {source}, {expected.whole:g}, got {received.whole:g}.")
        return received

    def _bound(self, state: State) -> Bound:
        return Bound((self.clip.bound(_NO_ROWS, state).whole,))

    def _noise(self, bound: Bound, now: Round | None = None) -> SharedNoise:
        secret = now is not None and now.expected_cohort < now.population and self.clip.max_records is None
        mean = max(int(now.expected_cohort), 1) if now is not None and secret else 0
        return self._noise_of(_value_of(self.noise_multiplier), bound, mean)

    def _noise_of(self, multiplier: float, bound: Bound, secret_mean: int = 0) -> SharedNoise:
        clip = self.clip
        return SharedNoise(bound, multiplier, self.honest, self.dropouts, clip.max_records, clip.wide, secret_mean)

    def _part(self, turnout: Turnout | None) -> float:
        """The part of the declared noise in a sum that no client of its cohort knows."""
        if turnout is None:
            return 1.0
        secret_mean = 0 if self.clip.max_records is not None else turnout.secret_mean
        return self._noise_of(1.0, Bound(), secret_mean).part(turnout, self.colluding)

    def _excess(self, total: Sum, noise: SharedNoise, now: Round) -> Tensor:
        """The sum of the shares that remain to be removed, given how many clients delivered."""
        surplus, losses = total.surplus or Surplus(noise.max_losses(now.cohort)), now.cohort - int(total.weight)
        seeds, expected = surplus.opened(losses).seeds, max(surplus.tolerated - losses, 0)
        if len(seeds) != expected:
            raise UserError(
                f"Expected the seeds of {expected} clients' noise, got {len(seeds)}: the channel does not open them. "
                "Use SecureSum, or dropouts=0."
            )
        drawn = torch.zeros_like(total.total)
        for key in seeds.values():
            drawn += self.arithmetic.draw(total.total, noise, 1.0, key, now)
        return drawn


_NO_ROWS = DenseRows(torch.empty(0, 0))  # a public bound does not depend on rows
_NO_STATE = State(0, torch.empty(0))  # and a fixed one on nothing
BOUNDS = (1e-30, 1e30)  # of rows: noise in proportion to others would overflow or vanish in float32


def _check(clip: Clip, noise_multiplier: float | None) -> None:
    if isinstance(clip, int | float):
        raise UserError(f"Expected clip to be a clipping rule, got a number. Use FixedClip({clip}).")
    at_least(0, noise_multiplier=noise_multiplier)


def _price(clip: Clip, release: Release | None) -> Price:
    if release is None:
        return Unproved("no noise is added", noisy=False)
    return Unproved(clip.unproved, release) if clip.unproved else release


def _value_of(noise_multiplier: float | None) -> float:
    if noise_multiplier is None:
        raise UserError(
            "Expected a noise multiplier, which follows from the budget and the population. "
            "Use tacit.train, or give noise_multiplier."
        )
    return noise_multiplier
