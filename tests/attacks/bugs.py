"""Ten bugs that have occurred in private learning, planted in pieces that claim the privacy of the correct ones."""

from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import ClassVar

import torch

from tacit.attacks.auditing import AuditAdjacency
from tacit.core import BoundedMessages, Key, Messages, Method, ServerRound, State, Sum, Turnout
from tacit.core.prices import Price
from tacit.pieces.aggregators import Mean
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd

NOISE = 1.0
LOW_NOISE = 0.5  # whose square differs from it
CENTRAL = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
SHARED = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
CORRECT = Method(name="correct", rounds=2, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1), mechanism=CENTRAL)
IN_SHARES = replace(CORRECT, name="correct shares", mechanism=SHARED, channel=IdealSum())


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(CentralGaussian):
    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=total.total + (noisy.total - total.total) / 2)


@dataclass(frozen=True, kw_only=True)
class NoiseOnce(CentralGaussian):
    """The same noise for all coordinates."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noise = torch.randn((), generator=now.server.child("central noise").torch()) * total.bound.whole * NOISE
        return replace(total, total=total.total + noise, weight=now.expected_cohort)


@dataclass(frozen=True, kw_only=True)
class ClipSkipped(CentralGaussian):
    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return replace(super().before_sum(messages, state), messages=messages)


@dataclass(frozen=True, kw_only=True)
class ModelClipped(CentralGaussian):
    """The model that clients received is clipped, instead of their updates."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        factor = min(1.0, self.clip.bound(messages.rows, state).whole / float(state.weights.norm()))
        rows = messages.rows.scaled(torch.full((messages.rows.count,), factor))
        return replace(super().before_sum(messages, state), messages=replace(messages, rows=rows))


@dataclass(frozen=True, kw_only=True)
class NoiseForAll(DistributedGaussian):
    """Noise shares are sized for the whole cohort, and dropouts are ignored in the accounting."""

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return super().price(index)


@dataclass(frozen=True)
class Heavier(Mean):
    """Updates are weighted after clipping, and the aggregator declares that all weights are equal."""

    first_heavy: int
    weight: float = 5.0
    uniform: ClassVar[bool] = True

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        heavy = bounded.messages.clients >= self.first_heavy
        rows = bounded.messages.rows.scaled(torch.where(heavy, self.weight, 1.0))
        return super().combine(replace(bounded, messages=replace(bounded.messages, rows=rows)), state)


@dataclass(frozen=True, kw_only=True)
class SameSeed(CentralGaussian):
    """The noise of all rounds is drawn from the key of the first round."""

    first_key: list[Key] = field(default_factory=list, compare=False)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        if now.index == 0:
            self.first_key[:] = [now.server]
        return super().after_sum(total, replace(now, server=self.first_key[0]))


@dataclass(frozen=True, kw_only=True)
class VarianceForDeviation(CentralGaussian):
    """The noise multiplier is squared."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return replace(CENTRAL, noise_multiplier=LOW_NOISE**2).after_sum(total, now)


@dataclass(frozen=True, kw_only=True)
class HalfTheSensitivity(CentralGaussian):
    """Accounted as if replacing a client changed the sum no more than adding one."""

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return replace(CENTRAL, noise_multiplier=2 * NOISE).price(index)  # which replace-one adjacency halves


@dataclass(frozen=True, kw_only=True)
class DeltaIgnored(CentralGaussian):
    """The factor √(2 ln(1.25/δ)) by which Gaussian noise must exceed 1/ε was left out, and only there."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return replace(CENTRAL, noise_multiplier=NOISE / sqrt(2 * log(1.25e5))).after_sum(total, now)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A method with a bug, and the settings of the audit that detects it."""

    name: str
    method: Method
    dropouts: float = 0.0
    adjacency: AuditAdjacency = "add-or-remove"


def _central(name: str, kind: type[CentralGaussian], noise: float = NOISE) -> Bug:
    mechanism = kind(clip=FixedClip(1.0), noise_multiplier=noise)
    return Bug(name=name, method=replace(CORRECT, name=name, mechanism=mechanism))


def bugs(clients: int) -> tuple[Bug, ...]:
    """All ten bugs, for a task with this many clients; canaries have higher numbers."""
    for_all = NoiseForAll(clip=FixedClip(1.0), noise_multiplier=NOISE)
    return (
        _central("half the noise", HalfTheNoise),
        _central("noise once instead of per coordinate", NoiseOnce),
        _central("clip skipped", ClipSkipped),
        _central("clip on the model instead of the update", ModelClipped),
        Bug(
            name="noise for n when m survive",
            method=replace(IN_SHARES, name="noise for n", mechanism=for_all),
            dropouts=0.8,
            adjacency="zero-out",
        ),
        Bug(name="client weights unclipped", method=replace(CORRECT, aggregator=Heavier(clients))),
        _central("one seed for all rounds", SameSeed),
        _central("variance for deviation", VarianceForDeviation, LOW_NOISE),
        replace(_central("sensitivity of add-or-remove for replace-one", HalfTheSensitivity), adjacency="replace-one"),
        _central("delta ignored", DeltaIgnored),
    )
