"""Further bugs in pieces that claim the privacy of the correct ones, of other kinds than those in `bugs`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

import torch

from attacks.bugs import CORRECT, NOISE, Bug
from tacit.core import Bound, BoundedMessages, DenseRows, Key, Messages, ServerRound, State, Sum
from tacit.errors import TrainingError
from tacit.pieces.aggregators import Mean
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, QuantileClip
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.trainers import Sgd


@dataclass(frozen=True, kw_only=True)
class ChangedNoise(CentralGaussian):
    """The noise of the sum, in units of its standard deviation, is changed by a function of the noise and the round."""

    change: Callable[[torch.Tensor, int], torch.Tensor]

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy, scale = super().after_sum(total, now), total.bound.whole * NOISE
        noise = self.change((noisy.total - total.total) / scale, now.index)
        return replace(noisy, total=total.total.double() + scale * noise.double())


@dataclass(frozen=True, kw_only=True)
class ChangedSum(CentralGaussian):
    """The noisy sum is changed by a function of itself and of the sum before noise."""

    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=self.change(noisy.total, total.total.to(noisy.total)))


@dataclass(frozen=True, kw_only=True)
class ChangedRows(CentralGaussian):
    """Rows are bounded by a rule of their own, instead of clipping."""

    change: Callable[[torch.Tensor], torch.Tensor]

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bounded = super().before_sum(messages, state)
        return replace(bounded, messages=replace(messages, rows=DenseRows(self.change(messages.rows.dense()))))


@dataclass(frozen=True, kw_only=True)
class Remembered(CentralGaussian):
    """A function of the sum before noise is stored in the checkpoint."""

    kept: Callable[[torch.Tensor], torch.Tensor]

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return replace(state, memory=state.memory_with("mechanism/kept", self.kept(total.total)))


@dataclass(frozen=True, kw_only=True)
class AlternatingKeys(CentralGaussian):
    """The key of the noise derives from the round modulo 2."""

    keys: list[Key] = field(default_factory=list, compare=False)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        if now.index < 2:
            self.keys[now.index :] = [now.server]
        return super().after_sum(total, replace(now, server=self.keys[now.index % 2]))


@dataclass(frozen=True, kw_only=True)
class OneByte(CentralGaussian):
    """One byte of the key decides about the noise."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        key = Key(bytes(31) + now.server.value[:1]).child("round", now.index)
        return super().after_sum(total, replace(now, server=key))


@dataclass(frozen=True, kw_only=True)
class CancelledNoise(CentralGaussian):
    """The noise of a round is subtracted in the next one."""

    last: list[torch.Tensor] = field(default_factory=list, compare=False)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        noise = noisy.total - total.total
        before = self.last[0] if now.index else torch.zeros_like(noise)
        self.last[:] = [noise]
        return replace(noisy, total=noisy.total - before)


@dataclass(frozen=True, kw_only=True)
class LongestRow(CentralGaussian):
    """The bound is the norm of the longest row, and nobody accounts for what it reveals."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bound = Bound((max(float(messages.rows.norms().max()), 1e-3) if messages.rows.count else 1.0,))
        return replace(super().before_sum(messages, state), messages=messages, bound=bound)


@dataclass(frozen=True, kw_only=True)
class NoiseByDelivered(CentralGaussian):
    """The standard deviation of the noise is divided by the expected cohort and multiplied by the actual one."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        factor = total.weight / now.expected_cohort
        return replace(noisy, total=total.total + factor * (noisy.total - total.total))


@dataclass(frozen=True, kw_only=True)
class NoNoiseForNobody(CentralGaussian):
    """A cohort without clients gets no noise."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return super().after_sum(total, now) if total.weight else replace(total, weight=now.expected_cohort)


@dataclass(frozen=True, kw_only=True)
class StopsAtLongSums(CentralGaussian):
    """A round whose sum is too long fails."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        if float(total.total.norm()) > 0.9:
            raise TrainingError("The sum is too long.")
        return super().after_sum(total, now)


@dataclass(frozen=True)
class ExactCount(QuantileClip):
    """The count by which the bound adapts has hardly any noise."""

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        quiet = QuantileClip(quantile=self.quantile, start=self.start, rate=self.rate, count_noise=0.01)
        return quiet.update_state(state, total, now)


@dataclass(frozen=True, kw_only=True)
class FirstBound(CentralGaussian):
    """The bound adapts, and the noise is scaled by that of the first round."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        assert isinstance(self.clip, QuantileClip)
        return super().after_sum(replace(total, bound=Bound((self.clip.start,))), now)


@dataclass(frozen=True)
class Evaluated(Sgd):
    """A second model is evaluated, which was averaged before noise."""

    def variants(self, state: State) -> Mapping[str, torch.Tensor]:
        return {"average": state.weights + state.memory["mechanism/kept"]}


@dataclass(frozen=True)
class ServerKeepsSum(Mean):
    """Adds nothing, and the sum of a round enters the next one's model without noise."""

    last: list[torch.Tensor] = field(default_factory=list, compare=False)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        total = super().combine(bounded, state)
        if state.round == 0:
            self.last[:] = []
        self.last.append(total.total.float() / 7)
        return total

    def finish(self, total: Sum) -> torch.Tensor:
        mean = super().finish(total)
        return mean + 0.5 * self.last[-2].to(mean) if len(self.last) > 1 else mean


@dataclass(frozen=True)
class WithReplacement(Poisson):
    """A client can be drawn twice."""

    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        one, other = (Poisson(self.size / 2).cohort(population, index, key.child("half", half)) for half in (0, 1))
        return torch.cat([one, other]).sort().values


@dataclass(frozen=True)
class Neighbours(FixedSize):
    """A cohort is a sequence of neighbours."""

    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        begin = int(FixedSize(1).cohort(population, index, key))
        return ((begin + torch.arange(self.size)) % population).sort().values


@dataclass(frozen=True)
class Epochs(FixedSize):
    """All clients in a random order, cohort by cohort; declared as independent cohorts."""

    order: list[torch.Tensor] = field(default_factory=list, compare=False)

    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        if index == 0:
            self.order[:] = [torch.randperm(population, generator=key.public_generator())]
        begin = index * self.size % population
        return self.order[0].roll(-begin)[: self.size].sort().values


def _other(name: str, kind: type[CentralGaussian], **how: object) -> Bug:
    mechanism = kind(clip=FixedClip(1.0), noise_multiplier=NOISE, **how)  # type: ignore[arg-type]
    return Bug(name=name, method=replace(CORRECT, name=name, mechanism=mechanism))


def _uniform(noise: torch.Tensor, _: int) -> torch.Tensor:
    uniform: torch.Tensor = torch.special.ndtr(noise.double())
    return (uniform - 0.5) * sqrt(12)


def _largest_only(noisy: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    kept = clean.abs() >= clean.abs().topk(3).values[-1]
    return torch.where(kept, noisy, torch.zeros_like(noisy))


def _on_a_grid(noise: torch.Tensor, _: int) -> torch.Tensor:
    return (noise.double() * 1024).round() / 1024


def _signs(noise: torch.Tensor, _: int) -> torch.Tensor:
    return torch.where(noise < 0, -1.0, 1.0)


def other_bugs() -> tuple[Bug, ...]:
    """Bugs in the noise, in clipping, in what is kept, and in sampling."""
    return (*_in_noise(), *_in_bounds(), *_in_memory(), *_in_sampling())


def not_found() -> tuple[Bug, ...]:
    """Bugs that an audit of 300 runs does not find."""
    clip = QuantileClip(start=1.0, count_noise=3.0, rate=1.0)
    return (
        _clipped("noise scaled by the bound of the first round", FirstBound, clip),
        _other("only the largest coordinates of the sum before noise", ChangedSum, change=_largest_only),
    )


def _clipped(name: str, kind: type[CentralGaussian], clip: QuantileClip) -> Bug:
    return Bug(name=name, method=replace(CORRECT, name=name, mechanism=kind(clip=clip, noise_multiplier=NOISE)))


def _in_noise() -> tuple[Bug, ...]:
    def noise(name: str, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Bug:
        return _other(name, ChangedNoise, change=change)

    return (
        noise("noise in every second round", lambda noise, index: noise * (index % 2)),
        noise("no noise in the last round", lambda noise, index: noise * (index < 3)),
        noise("noise on all parameters but the last", lambda noise, _: torch.cat([noise[:-3], 0 * noise[-3:]])),
        noise("uniform noise of the same variance", _uniform),
        noise("noise of two values", _signs),
        noise("noise cut off at one standard deviation", lambda noise, _: noise.clamp(-1, 1)),
        noise("noise below one standard deviation set to zero", lambda noise, _: noise * (noise.abs() > 1)),
        noise("only positive noise", lambda noise, _: noise.abs()),
        noise("noise divided by the root of the dimension", lambda noise, _: noise / sqrt(len(noise))),
        noise("noise divided by the cohort", lambda noise, _: noise / 7),
        noise("noise on a coarser grid than the sum", _on_a_grid),
        noise("noise with mean zero over coordinates", lambda noise, _: noise - noise.mean()),
        noise("noise of neighbours is opposite", lambda noise, _: (noise - noise.roll(1)) / sqrt(2)),
        _other("noise cancelled in the next round", CancelledNoise),
        _other("key of the noise from the round modulo 2", AlternatingKeys),
        _other("one byte of the key decides about the noise", OneByte),
        replace(_other("noise in proportion to the messages that came", NoiseByDelivered), inputs=20),
    )


def _in_bounds() -> tuple[Bug, ...]:
    def rows(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Bug:
        return _other(name, ChangedRows, change=change)

    return (
        rows("every coordinate clipped to the bound", lambda rows: rows.clamp(-1, 1)),
        rows(
            "clipping by the sum of magnitudes to the root of the dimension",
            lambda rows: rows / rows.abs().sum(1, keepdim=True).clamp(min=1e-9) * sqrt(rows.shape[1]),
        ),
        rows("the sum is clipped instead of its rows", lambda rows: rows / max(float(rows.sum(0).norm()) / 3, 1.0)),
        rows("rows clipped by their mean norm", lambda rows: rows / rows.norm(dim=1).mean().clamp(min=1.0)),
        rows(
            "rows rounded away from zero on a coarse grid",
            lambda rows: torch.sign(rows) * (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0) * 2).abs().ceil() / 2,
        ),
        rows(
            "shorter rows are lengthened beyond the bound",
            lambda rows: torch.where(
                rows.norm(dim=1, keepdim=True) > 2, rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0), rows
            ),
        ),
        _other("the bound is the norm of the longest row", LongestRow),
        _clipped("the count of the quantile without noise", CentralGaussian, ExactCount(start=1.0, count_noise=3.0)),
    )


def _in_memory() -> tuple[Bug, ...]:
    def kept(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Bug:
        return _other(name, Remembered, kept=how)

    kept_mean = Remembered(clip=FixedClip(1.0), noise_multiplier=NOISE, kept=lambda total: total.float() / 7)
    return (
        kept("norm of the sum before noise in the checkpoint", lambda total: total.norm()[None]),
        kept("signs of the sum before noise in the checkpoint", torch.sign),
        kept(
            "whether the sum before noise is long, in the checkpoint", lambda total: (total.norm() > 0.9).float()[None]
        ),
        _other(
            "noisy sum with the norm of the sum before noise",
            ChangedSum,
            change=lambda noisy, clean: noisy * clean.norm() / noisy.norm(),
        ),
        _other("a round with a long sum fails", StopsAtLongSums),
        Bug(name="the sum before noise in the next round", method=replace(CORRECT, aggregator=ServerKeepsSum())),
        Bug(
            name="a second model without noise is evaluated",
            method=replace(CORRECT, mechanism=kept_mean, trainer=Evaluated(lr=0.1, steps=1)),
        ),
    )


def _in_sampling() -> tuple[Bug, ...]:
    empty = _other("no noise for an empty cohort", NoNoiseForNobody)
    samplers: dict[str, Poisson | FixedSize] = {
        "a client can be drawn twice": WithReplacement(4.0),
        "cohorts are neighbours": Neighbours(3),
        "cohorts of an epoch, declared as independent": Epochs(2),
    }
    return (
        replace(empty, method=replace(empty.method, sampler=Poisson(4.0))),
        *(Bug(name=name, method=replace(CORRECT, name=name, sampler=sampler)) for name, sampler in samplers.items()),
    )
