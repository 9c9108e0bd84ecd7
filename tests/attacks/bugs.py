"""Bugs that have occurred in private learning, planted in pieces that claim the privacy of the correct ones."""

from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import ClassVar

import torch

from tacit.attacks.auditing import AuditAdjacency
from tacit.core import BoundedMessages, DenseRows, Key, Messages, Method, ServerRound, State, Sum, Turnout
from tacit.core.interfaces import ServerUpdate
from tacit.core.prices import Gaussian, Price, Release
from tacit.pieces.aggregators import Mean
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.trainers import Sgd

NOISE = 1.0
LOW_NOISE = 0.5  # whose square differs from it
CENTRAL = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
SHARED = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=NOISE)
CORRECT = Method(name="correct", rounds=2, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1), mechanism=CENTRAL)
IN_SHARES = replace(CORRECT, name="correct shares", mechanism=SHARED, channel=IdealSum())


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(CentralGaussian):
    part: ClassVar[float] = 0.5

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=total.total + (noisy.total - total.total) * self.part)


@dataclass(frozen=True, kw_only=True)
class NoiseOnce(CentralGaussian):
    """The same noise for all coordinates."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noise = now.server.child("central noise").stream().normal((), torch.empty(0)) * total.bound.whole * NOISE
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


@dataclass(frozen=True, kw_only=True)
class SharesOfDeliverers(DistributedGaussian):
    """As shares were before they had a surplus: sized for those who are expected to deliver, and nothing is removed.

    The variance of the sum is proportional to how many deliver, and was priced as if it were constant.
    """

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        assert self.noise_multiplier is not None
        part = total.weight / (self.honest * max(now.cohort, 1)) if now.cohort else 1.0
        noise = now.server.child("noise shares").stream().normal(total.total.shape, total.total)
        noise = noise * (total.bound.whole * self.noise_multiplier * sqrt(part))
        return replace(total, total=total.total + noise, weight=now.expected_cohort, surplus=None)

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        assert self.noise_multiplier is not None
        part = 1.0 if turnout is None else min(turnout.delivered / turnout.cohort / self.honest, 1.0)
        return Release(Gaussian(self.noise_multiplier * sqrt(part)))


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
    clients: int = 6
    inputs: int = 6
    rounds: int = 4


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


# Seven more, and further ones of the same kinds.


@dataclass(frozen=True, kw_only=True)
class KeyOfPairs(CentralGaussian):
    """Every two rounds in a row draw their noise from one key."""

    keys: list[Key] = field(default_factory=list, compare=False)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        if now.index % 2 == 0:
            self.keys[:] = [now.server]
        return super().after_sum(total, replace(now, server=self.keys[0]))


@dataclass(frozen=True, kw_only=True)
class ClipPerLayer(CentralGaussian):
    """Every parameter is clipped to the whole bound."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bounded = super().before_sum(messages, state)
        parts = torch.split(messages.rows.dense(), list(state.layers), dim=1)
        clipped = [part * (bounded.bound.whole / part.norm(dim=1, keepdim=True)).clamp(max=1.0) for part in parts]
        return replace(bounded, messages=replace(messages, rows=DenseRows(torch.cat(clipped, 1))))


@dataclass(frozen=True, kw_only=True)
class ActualCohort(CentralGaussian):
    """The noisy sum is divided by the number of clients that delivered."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return replace(super().after_sum(total, now), weight=max(total.weight, 1.0))


CLEAN = "server/velocity"


@dataclass(frozen=True, kw_only=True)
class MomentumBeforeNoise(CentralGaussian):
    """Keeps a momentum of the sums before noise, which the server adds to the model."""

    name: str = CLEAN

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        before = state.memory.get(self.name, torch.zeros_like(state.weights))
        velocity = 0.9 * before + total.total / now.expected_cohort
        return replace(state, memory=state.memory_with(self.name, velocity))


@dataclass(frozen=True)
class AddVelocity(ServerUpdate):
    """Adds the noisy aggregate and the velocity of earlier rounds, and forgets the velocity in checkpoints."""

    hidden: list[torch.Tensor] = field(default_factory=list, compare=False)

    def apply(self, state: State, aggregate: torch.Tensor) -> State:
        memory = dict(state.memory)
        velocity = memory.pop(CLEAN)
        if state.round == 0:
            self.hidden[:] = [torch.zeros_like(velocity)]
        moved = aggregate + 0.9 * self.hidden[0]
        self.hidden[:] = [0.9 * self.hidden[0] + velocity]
        return replace(state, weights=state.weights + moved, memory=memory)


@dataclass(frozen=True, kw_only=True)
class PartialNoise(CentralGaussian):
    """Some coordinates get no noise, or less."""

    which: str
    left: float = 0.0

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        factor = torch.ones_like(total.total)
        factor[self._quiet(len(factor))] = self.left
        return replace(noisy, total=total.total + factor * (noisy.total - total.total))

    def _quiet(self, dim: int) -> torch.Tensor:
        order = torch.randperm(dim, generator=torch.Generator().manual_seed(5))
        return {
            "biases": torch.arange(dim - 3, dim),
            "tenth": order[: max(dim // 10, 1)],
            "one": order[:1],
            "half": torch.arange(dim // 2),
        }[self.which]


@dataclass(frozen=True, kw_only=True)
class NormOfHalf(CentralGaussian):
    """The norm is measured on every second coordinate."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bounded, rows = super().before_sum(messages, state), messages.rows.dense()
        factor = (bounded.bound.whole / rows[:, ::2].norm(dim=1, keepdim=True)).clamp(max=1.0)
        return replace(bounded, messages=replace(messages, rows=DenseRows(rows * factor)))


@dataclass(frozen=True, kw_only=True)
class CopiedNoise(CentralGaussian):
    """The second half of the coordinates repeats the noise of the first, in another order."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        noise, half = noisy.total - total.total, len(total.total) // 2
        return replace(noisy, total=total.total + torch.cat([noise[:-half], noise[:half].flip(0)]))


@dataclass(frozen=True, kw_only=True)
class SmoothNoise(CentralGaussian):
    """The noise of a coordinate resembles that of the coordinate before it."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        noise = noisy.total - total.total
        return replace(noisy, total=total.total + (noise + noise.roll(1)) / sqrt(2))


@dataclass(frozen=True, kw_only=True)
class PublicNoise(CentralGaussian):
    """The noise is drawn from the shared key, which everybody knows."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return super().after_sum(total, replace(now, server=now.shared))


@dataclass(frozen=True, kw_only=True)
class NoiseWhereNonZero(CentralGaussian):
    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=torch.where(total.total == 0, total.total, noisy.total))


@dataclass(frozen=True, kw_only=True)
class ClipAfterNoise(CentralGaussian):
    """The sum is clipped after noise was added; rows are not."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return replace(super().before_sum(messages, state), messages=messages)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=noisy.total * min(1.0, 5 / float(noisy.total.norm())))


@dataclass(frozen=True, kw_only=True)
class OnlyVeryLong(CentralGaussian):
    """Rows are clipped only if they are more than ten times too long."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bounded = super().before_sum(messages, state)
        norms = messages.rows.norms()[:, None]
        rows = torch.where(norms > 10 * bounded.bound.whole, bounded.messages.rows.dense(), messages.rows.dense())
        return replace(bounded, messages=replace(messages, rows=DenseRows(rows)))


@dataclass(frozen=True, kw_only=True)
class FirstUnclipped(CentralGaussian):
    """The first row of a cohort is not clipped."""

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        bounded = super().before_sum(messages, state)
        rows = bounded.messages.rows.dense().clone()
        rows[:1] = messages.rows.dense()[:1]
        return replace(bounded, messages=replace(messages, rows=DenseRows(rows)))


@dataclass(frozen=True, kw_only=True)
class CountKept(CentralGaussian):
    """The number of messages is stored in the checkpoint."""

    def update_state(self, state: State, total: Sum, now: ServerRound) -> State:
        return replace(state, memory=state.memory_with("mechanism/delivered", torch.tensor(total.weight)))


@dataclass(frozen=True, kw_only=True)
class NoiseByCohort(CentralGaussian):
    """The standard deviation of the noise depends on how many delivered; it is never less than declared."""

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        factor = 1 + 1 / max(total.weight, 1.0)
        return replace(noisy, total=total.total + factor * (noisy.total - total.total))


@dataclass(frozen=True)
class HiddenCohort(Mean):
    """Divides by the number of clients that delivered, of which nothing else is released."""

    counts: list[float] = field(default_factory=list, compare=False)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        total = super().combine(bounded, state)
        self.counts[:] = [max(total.weight, 1.0)]
        return total

    def finish(self, total: Sum) -> torch.Tensor:
        return super().finish(replace(total, weight=self.counts[0]))


@dataclass(frozen=True)
class AlwaysThere(Poisson):
    """Client 0 is in every cohort."""

    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        drawn = super().cohort(population, index, key)
        return torch.cat([torch.zeros(1, dtype=torch.int64), drawn[drawn > 0]])


@dataclass(frozen=True)
class OneCohort(Poisson):
    """The cohort of the first round stays."""

    drawn: list[torch.Tensor] = field(default_factory=list, compare=False)

    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        if index == 0:
            self.drawn[:] = [super().cohort(population, index, key)]
        return self.drawn[0]


@dataclass(frozen=True)
class FixedForPoisson(Poisson):
    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        return FixedSize(round(self.size)).cohort(population, index, key)


@dataclass(frozen=True)
class HigherRate(Poisson):
    def cohort(self, population: int, index: int, key: Key) -> torch.Tensor:
        return Poisson(min(1.3 * self.size, population)).cohort(population, index, key)


def _partial(name: str, which: str, left: float = 0.0) -> Bug:
    mechanism = PartialNoise(clip=FixedClip(1.0), noise_multiplier=NOISE, which=which, left=left)
    return Bug(name=name, method=replace(CORRECT, name=name, mechanism=mechanism))


def _sampled(name: str, sampler: Poisson) -> Bug:
    return Bug(name=name, method=replace(CORRECT, name=name, sampler=sampler))


def seven() -> tuple[Bug, ...]:
    """Seven bugs on which an audit by the model's mean alone fails."""
    momentum = MomentumBeforeNoise(clip=FixedClip(1.0), noise_multiplier=NOISE)
    return (
        _central("noise key reused for two rounds", KeyOfPairs),
        _central("clipping per layer, accounting for the whole", ClipPerLayer),
        _central("division by the actual cohort", ActualCohort),
        Bug(
            name="server momentum over the sum before noise",
            method=replace(CORRECT, mechanism=momentum, server=AddVelocity()),
        ),
        _partial("biases without noise", "biases"),
        _partial("a tenth of the coordinates without noise", "tenth"),
        _central("norm measured on half of the coordinates", NormOfHalf),
    )


def further() -> tuple[Bug, ...]:
    """More bugs of the same kinds."""
    return (
        _partial("one coordinate without noise", "one"),
        _partial("half of the coordinates with a third of the noise", "half", 1 / 3),
        _central("noise of one half copied to the other", CopiedNoise),
        _central("noise correlated between neighbours", SmoothNoise),
        _central("noise from the shared key", PublicNoise),
        _central("noise only where the sum is not zero", NoiseWhereNonZero),
        _central("clipping after noise", ClipAfterNoise),
        _central("only very long rows are clipped", OnlyVeryLong),
        _central("the first client is not clipped", FirstUnclipped),
        _central("sum before noise in the checkpoint", MomentumBeforeNoise),
        _central("number of messages in the checkpoint", CountKept),
        Bug(name="division by the actual cohort, hidden", method=replace(CORRECT, aggregator=HiddenCohort())),
        replace(_central("variance depends on the cohort", NoiseByCohort), inputs=400),
        _sampled("a client always in the cohort", AlwaysThere(4.0)),
        _sampled("one cohort for all rounds", OneCohort(4.0)),
        _sampled("Poisson sampling claimed, cohorts of fixed size", FixedForPoisson(4.0)),
        _sampled("a higher rate than declared", HigherRate(4.0)),
    )


def dropout_case() -> Bug:
    """Noise in shares, of which one of ten is lost: of 100,101 numbers, the variance shows how many delivered."""
    method = replace(IN_SHARES, name="noise in shares with dropouts", mechanism=shares_of_deliverers(5.0, 0.1))
    return Bug(name=method.name, method=method, dropouts=0.1, clients=9, inputs=33_366, rounds=1)


def sampled_dropout_case() -> Bug:
    """The same among sampled clients, who send zeros where they are excluded: the variance shows who was drawn."""
    name = "noise in shares with dropouts, sampled"
    mechanism = shares_of_deliverers(1.0, 0.25)
    method = replace(IN_SHARES, name=name, mechanism=mechanism, sampler=Poisson(8.0))
    return Bug(name=name, method=method, dropouts=0.25, clients=15, inputs=2_000, adjacency="zero-out", rounds=2)


def shares_of_deliverers(noise: float, dropouts: float) -> SharesOfDeliverers:
    return SharesOfDeliverers(clip=FixedClip(1.0), noise_multiplier=noise, dropouts=dropouts)
