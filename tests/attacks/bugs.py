"""Ten bugs that have been made in private learning, planted in pieces that still claim what the correct ones do."""

from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import ClassVar

import torch

from tacit.attacks.auditing import Adjacency
from tacit.core import Bounded, Event, Key, Messages, Method, Round, State, Sum, Turnout
from tacit.pieces.aggregators import Mean
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd

NOISE = 1.0
QUIET = 0.5  # where a square must differ
CENTRAL = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
SHARED = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
CORRECT = Method(name="correct", rounds=2, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1), mechanism=CENTRAL)
IN_SHARES = replace(CORRECT, name="correct shares", mechanism=SHARED, channel=IdealSum())


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(CentralGaussian):
    def after_sum(self, total: Sum, now: Round) -> Sum:
        blurred = super().after_sum(total, now)
        return replace(blurred, total=total.total + (blurred.total - total.total) / 2)


@dataclass(frozen=True, kw_only=True)
class NoiseOnce(CentralGaussian):
    """One number for all coordinates."""

    def after_sum(self, total: Sum, now: Round) -> Sum:
        noise = torch.randn((), generator=now.secret.child("central noise").torch()) * total.bound.whole * NOISE
        return replace(total, total=total.total + noise, weight=now.expected)


@dataclass(frozen=True, kw_only=True)
class ClipSkipped(CentralGaussian):
    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        return replace(super().before_sum(messages, state, now), messages=messages)


@dataclass(frozen=True, kw_only=True)
class ModelClipped(CentralGaussian):
    """The bound is kept by the model that clients received, and not by their updates."""

    def before_sum(self, messages: Messages, state: State, now: Round) -> Bounded:
        factor = min(1.0, self.clip.bound(messages.rows, state).whole / float(state.weights.norm()))
        rows = messages.rows.scaled(torch.full((messages.rows.count,), factor))
        return replace(super().before_sum(messages, state, now), messages=replace(messages, rows=rows))


@dataclass(frozen=True, kw_only=True)
class NoiseForAll(DistributedGaussian):
    """Shares are sized for all that were asked, and whoever drops out is forgotten in the price."""

    def event(self, index: int, turnout: Turnout | None = None) -> Event | None:
        return super().event(index)


@dataclass(frozen=True)
class Heavier(Mean):
    """Clients count by their data after they were clipped, and it says they all count the same."""

    many: int
    weight: float = 5.0
    even: ClassVar[bool] = True

    def combine(self, bounded: Bounded, state: State) -> Sum:
        rich = bounded.messages.clients >= self.many
        rows = bounded.messages.rows.scaled(torch.where(rich, self.weight, 1.0))
        return super().combine(replace(bounded, messages=replace(bounded.messages, rows=rows)), state)


@dataclass(frozen=True, kw_only=True)
class SameSeed(CentralGaussian):
    """A run's noise is drawn from the first round's key in all of its rounds."""

    stuck: list[Key] = field(default_factory=list, compare=False)

    def after_sum(self, total: Sum, now: Round) -> Sum:
        if now.index == 0:
            self.stuck[:] = [now.secret]
        return super().after_sum(total, replace(now, secret=self.stuck[0]))


@dataclass(frozen=True, kw_only=True)
class VarianceForDeviation(CentralGaussian):
    """z² where z is meant."""

    def after_sum(self, total: Sum, now: Round) -> Sum:
        return replace(CENTRAL, noise_multiplier=QUIET**2).after_sum(total, now)


@dataclass(frozen=True, kw_only=True)
class HalfTheSensitivity(CentralGaussian):
    """Priced as if replacing a client moved the sum no further than adding one does."""

    def event(self, index: int, turnout: Turnout | None = None) -> Event | None:
        return replace(CENTRAL, noise_multiplier=2 * NOISE).event(index)  # which replace-one adjacency halves


@dataclass(frozen=True, kw_only=True)
class DeltaIgnored(CentralGaussian):
    """The factor √(2 ln(1.25/δ)) by which Gaussian noise must exceed 1/ε was left out, and only there."""

    def after_sum(self, total: Sum, now: Round) -> Sum:
        return replace(CENTRAL, noise_multiplier=NOISE / sqrt(2 * log(1.25e5))).after_sum(total, now)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A method with a bug, and what an audit must look at."""

    name: str
    method: Method
    dropouts: float = 0.0
    adjacency: Adjacency = "add-or-remove"


def _central(name: str, kind: type[CentralGaussian], noise: float = NOISE) -> Bug:
    mechanism = kind(clip=FixedClip(1.0), noise_multiplier=noise)
    return Bug(name=name, method=replace(CORRECT, name=name, mechanism=mechanism))


def bugs(bystanders: int) -> tuple[Bug, ...]:
    """All ten."""
    survivors = NoiseForAll(clip=FixedClip(1.0), noise_multiplier=NOISE)
    return (
        _central("half the noise", HalfTheNoise),
        _central("noise once instead of per coordinate", NoiseOnce),
        _central("clip skipped", ClipSkipped),
        _central("clip on the model instead of the update", ModelClipped),
        Bug(
            name="noise for n when m survive",
            method=replace(IN_SHARES, name="noise for n", mechanism=survivors),
            dropouts=0.8,
        ),
        Bug(name="client weights unclipped", method=replace(CORRECT, aggregator=Heavier(bystanders))),
        _central("one seed for all rounds", SameSeed),
        _central("variance for deviation", VarianceForDeviation, QUIET),
        replace(_central("sensitivity of add-or-remove for replace-one", HalfTheSensitivity), adjacency="replace-one"),
        _central("delta ignored", DeltaIgnored),
    )
