"""Audit a privacy claim: run a method with and without a canary, and record everything that each run releases.

A canary is a client whose update is chosen by the adversary. Everything that happens to that update is the method's own
code: sampler, trainer, codec, both halves of the mechanism, channel, aggregator, server. The other clients' updates are
chosen by the adversary too (a guarantee holds for all data), so that no run has to train anything.

Where records are protected, the canary is the only record of a client that always takes part: its gradient is chosen by
the adversary, the trainer clips it, and the trainer's own coins decide whether a batch contains it.

A record of a run contains more than the model: the released sum and its divisor, the broadcasts, all contents of a
checkpoint, models that are evaluated beside the main one, and whether the run failed. `tacit.attacks.search` looks for
the canary and the statistic that show the most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from tacit.attacks.bounds import CONFIDENCE, OneRunGuesses
from tacit.core import DenseRows, Descent, Key, Method, Perturbation, SimulatedRound, State, Sum, Wave
from tacit.core.client_half import make_messages
from tacit.core.prices import Unit
from tacit.core.rows import ClippedSum
from tacit.core.server_half import (
    broadcast,
    client_view,
    server_side,
)
from tacit.core.wave import Shapes
from tacit.errors import TacitError, expect
from tacit.wire.frames import Part

AuditAdjacency = Literal["add-or-remove", "replace-one", "zero-out"]
Released = Mapping[str, Tensor]  # everything that a run released, by name, one flat tensor for all rounds
CANARY_NORM = 1e4  # before clipping: larger than any clipping bound
GUESSED_FRACTION = 0.1  # of the canaries of one run are guessed included, and as many excluded; fixed before any run
FAILED = "failure"  # the name of the record of whether a run failed
STRUCTURE = "names and sizes"  # and of whether they differ from those of the first run
_EXACT = 1024  # tensors of at most this many numbers are recorded in double precision


@dataclass(frozen=True, eq=False)
class Canary:
    """A client whose updates the adversary chooses.

    Attributes:
        name: in words.
        updates: before clipping, (rounds, dim).
        others: the update of every other client in every round, (dim,); None: zeros.
        first: whether the canary has the lowest client number instead of the highest.
        absent: whether excluding it means that it is absent from its cohort, whatever the adjacency: sampling amplifies
            only if nobody can see who was drawn.
        alone: whether no other client is in its cohorts.
    """

    name: str
    updates: Tensor
    others: Tensor | None = None
    first: bool = False
    absent: bool = False
    alone: bool = False

    @property
    def coordinates(self) -> int:
        """The number of its nonzero coordinates."""
        return int((self.updates != 0).any(0).sum()) if bool(self.updates.isfinite().all()) else 0


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A method and a population, which can be run repeatedly with canaries.

    Attributes:
        method: the audited method, with its noise calibrated.
        state: before the first round.
        clients: number of clients besides the canaries.
        rounds: rounds per run.
        dropouts: fraction of every cohort that drops out; the same clients with and without the canary.
        adjacency: an excluded canary is absent (add-or-remove), sends its negated update (replace-one) or a zero one
            (zero-out).
        unit: whether a canary is a client, or a record of a client that takes part without it, too.
        shared: the root of shared randomness. The adversary knows it, so it is the same in all runs.
    """

    method: Method
    state: State
    clients: int
    rounds: int = 4
    dropouts: float = 0.0
    adjacency: AuditAdjacency = "add-or-remove"
    shared: Key = Key.from_seed(0, "shared")
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        expect(self.clients >= 0, f"clients={self.clients} >= 0")
        expect(self.rounds >= 1, f"rounds={self.rounds} >= 1")
        expect(self.state.weights.dim() == 1, "a method with one model", "Set models=1.")
        expect(0 <= self.dropouts < 1, f"dropouts={self.dropouts} in [0, 1)")

    def run(self, canary: Canary, key: Key, *, included: bool, sampled: bool = True) -> Released:
        """One run with or without a canary.

        Unless `sampled`, the canary is in every cohort, and the other clients in it are the same in all runs; a record
        is in every batch.
        """
        ids = torch.tensor([0 if canary.first else self.clients])
        absent = self.removes or (self.unit is Unit.CLIENT and canary.absent)
        crowd = _Crowd(ids, canary.updates[:, None], torch.tensor([included]), canary.others, absent, canary.alone)
        return self.play(crowd, key, sampled=sampled)

    def play(self, crowd: "_Crowd", key: Key, *, sampled: bool = True) -> Released:
        """One run with several canaries."""
        state, released = self.state, []
        for index in range(self.rounds):
            try:
                state, observed = self._round(state, crowd, index, key, sampled=sampled)
            except TacitError:  # a failed round is observed, too
                released.append({FAILED: torch.ones(1, dtype=torch.float64)})
                break
            released.append(observed)
        return _joined(released)

    def _round(
        self, state: State, crowd: "_Crowd", index: int, key: Key, *, sampled: bool
    ) -> tuple[State, dict[str, Tensor]]:
        method, population = self.method, self.clients + len(crowd.ids)
        secret = key.child("round", index)
        if sampled and self.unit is Unit.CLIENT:
            cohort = method.sampler.cohort(population, index, secret.child("cohort"))
        else:  # for records, the server knows the clients, and amplification is by batches
            cohort = self.given_cohort(crowd.ids, index, alone=crowd.alone)
        present = cohort[crowd.present(cohort)]
        if len(present) < method.channel.min_cohort:  # runs as if nobody had been drawn
            present = present[:0]
        now = SimulatedRound.of(
            index=index,
            population=population,
            expected_cohort=method.sampler.sampling(population, index).mean_cohort(population),
            cohort=len(present),
            shared=self.shared.child("round", index),
            secret=secret,
        )
        sent = broadcast(method, state, now)
        wave = self._wave(self._survivors(present, len(cohort), crowd, secret), crowd, index, sampled=sampled)
        messages = make_messages(method, client_view(method, sent, state, now), wave, now)
        after, noisy = server_side(method, state, messages, now)
        return after, _observed(method, state, after, noisy, sent.sent(first=True))

    def lost(self, cohort: int) -> int:
        """Number of dropouts in a cohort of this size."""
        return int(self.dropouts * cohort)

    @property
    def removes(self) -> bool:
        """Whether an excluded canary is absent; the client of an excluded record takes part."""
        return self.unit is Unit.CLIENT and self.adjacency == "add-or-remove"

    @property
    def can_be_alone(self) -> bool:
        """Whether a cohort can have a single client, to which the claim applies as to any other cohort."""
        sampling = self.method.sampler.sampling(self.clients + 1, 0)
        return self.unit is Unit.CLIENT and sampling.kind == "poisson" and not self.method.channel.min_cohort

    def given_cohort(self, canaries: Tensor, index: int, *, alone: bool = False) -> Tensor:
        """The cohort of a round that the canaries are always in: the others are the same in all runs.

        Others are added where the sampler drew fewer than the channel needs, which is charged to δ.
        """
        if alone:
            return canaries
        population, least, sampler = self.clients + len(canaries), self.method.channel.min_cohort, self.method.sampler
        drawn = sampler.cohort(population, index, self.shared.child("audited cohort", index).child("cohort"))
        others = drawn[~torch.isin(drawn, canaries)]
        if len(others) < least:
            everyone = torch.arange(population)
            others = everyone[~torch.isin(everyone, canaries)][:least]
        return torch.cat([others, canaries]).sort().values

    def _survivors(self, present: Tensor, cohort: int, crowd: "_Crowd", secret: Key) -> Tensor:
        """The clients that do not drop out; canaries never do, and who does, does not depend on them."""
        dropped = self.lost(cohort)
        if not dropped:
            return present
        others = (~torch.isin(present, crowd.ids)).nonzero().flatten()
        order = torch.randperm(len(others), generator=secret.child("dropouts").public_generator())[:dropped]
        survives = torch.ones(len(present), dtype=torch.bool)
        survives[others[order]] = False
        return present[survives]

    def _wave(self, clients: Tensor, crowd: "_Crowd", index: int, *, sampled: bool) -> "GivenUpdates":
        dim, canaries = self.state.dim, torch.isin(clients, crowd.ids)
        rows = torch.zeros(len(clients), dim) if crowd.others is None else crowd.others.repeat(len(clients), 1)
        chosen = torch.zeros(len(clients), dim) if self.unit is Unit.RECORD else rows
        excluded = {"replace-one": -1.0}.get(self.adjacency, 0.0)
        for number, client in enumerate(crowd.ids.tolist()):
            factor = 1.0 if bool(crowd.included[number]) else excluded
            chosen[clients == client] = crowd.updates[index, number] * factor
        records = chosen if self.unit is Unit.RECORD else None
        return GivenUpdates(clients, rows, canaries, self.state.shapes, records, sampled)


@dataclass(frozen=True, eq=False)
class _Crowd:
    """The canaries of a run, and the update of all others.

    Attributes:
        ids: the canaries' client numbers.
        updates: (rounds, canaries, dim).
        included: (canaries,).
        others: the update of every other client, (dim,); None: zeros.
        absent: whether excluded canaries are absent; otherwise they send another update.
        alone: whether no other client is in their cohorts.
    """

    ids: Tensor
    updates: Tensor
    included: Tensor
    others: Tensor | None = None
    absent: bool = True
    alone: bool = False

    def present(self, cohort: Tensor) -> Tensor:
        """All but absent canaries, which are not replaced in the cohort."""
        return ~torch.isin(cohort, self.ids[~self.included]) if self.absent else torch.ones(len(cohort)).bool()


@dataclass(frozen=True, eq=False)
class GivenUpdates:
    """A wave of clients whose updates are given.

    Attributes:
        clients: their numbers.
        updates: (clients, dim).
        canaries: which of them are canaries, (clients,).
        shapes: of the model's parameters.
        records: the update along which each client's only record is, before clipping, (clients, dim), beside those of
            `updates`; None: it has none.
        sampled: whether the trainer's batches decide about that record; otherwise it is in all of them.
        asked: the descents requested from them.
    """

    clients: Tensor
    updates: Tensor
    canaries: Tensor
    shapes: Shapes
    records: Tensor | None = None
    sampled: bool = True
    asked: list[Descent] = field(default_factory=list)

    @property
    def samples(self) -> Tensor:
        """A canary claims as many samples as all other clients together; a record is the only one of its client."""
        if self.records is not None:
            return torch.ones(len(self.clients), dtype=torch.int64)
        return torch.where(self.canaries, max(int((~self.canaries).sum()), 1), 1)

    @property
    def units(self) -> Tensor:
        return self.samples

    def descend(self, weights: Tensor, how: Descent) -> DenseRows:
        self.asked.append(how)
        updates = self.updates.to(weights.dtype)
        if how.mask is not None:
            updates = torch.zeros_like(updates).index_copy(1, how.mask, updates[:, how.mask])
        return DenseRows(updates)

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        """A step along minus these sums is the given update; that of a single record is clipped."""
        own = slice(None) if mask is None else mask
        sums = -self.updates[:, own].double()
        if self.records is not None:
            gradients = -self.records[:, own].double()
            clipped = gradients * (clip / gradients.norm(dim=1, keepdim=True).clamp(min=clip))
            there = torch.tensor([not self.sampled or len(batch) > 0 for batch in batches])
            sums = sums + clipped * there[:, None]
        return [ClippedSum(total, total.norm()[None]) for total in sums]

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        """These clients score all perturbations equally."""
        return torch.zeros(len(self.clients), 1 + perturbation.count, dtype=torch.float64)

    def losses(self, hypotheses: Tensor) -> Tensor:
        """These clients score all hypotheses equally."""
        return hypotheses.new_zeros(len(self.clients), len(hypotheses))

    def keep(self, which: Tensor) -> Wave:
        records = None if self.records is None else self.records[which]
        clients, updates, canaries = self.clients[which], self.updates[which], self.canaries[which]
        return replace(self, clients=clients, updates=updates, canaries=canaries, records=records)


def _observed(
    method: Method, before: State, after: State, noisy: Sum, sent: Mapping[Part, Tensor]
) -> dict[str, Tensor]:
    """The releases of a round, by name."""
    grid = 0.0 if noisy.grid_step is None else noisy.grid_step.size
    released = {
        "model": after.weights - before.weights,
        "sum": noisy.total,
        "divisor": torch.tensor([noisy.weight], dtype=torch.float64),
        "bound and grid of the sum": torch.tensor([*noisy.bound.values, grid], dtype=torch.float64),
        **{f"broadcast: {part.name}": value for part, value in sent.items() if part is not Part.WEIGHTS},
        **{f"checkpoint: {name}": value for name, value in after.memory.items()},
        **{f"model evaluated as {name}": value for name, value in method.trainer.variants(after).items()},
    }
    return {name: _flat(value) for name, value in released.items()}


def _flat(value: Tensor) -> Tensor:
    exact = value.numel() <= _EXACT or value.dtype == torch.int64
    flat = value.detach().flatten().to(torch.float64 if exact else torch.float32)
    return torch.nan_to_num(flat, nan=2e30, posinf=1e30, neginf=-1e30)


def _joined(rounds: list[dict[str, Tensor]]) -> Released:
    names = dict.fromkeys(name for released in rounds for name in released)
    empty = torch.zeros(0)
    joined = {name: torch.cat([released.get(name, empty) for released in rounds]) for name in names}
    return {FAILED: torch.zeros(1, dtype=torch.float64), **joined}


def one_run(audit: Audit, canaries: int, key: Key, confidence: float = CONFIDENCE) -> OneRunGuesses:
    """One run with many canaries, each included with probability ½; the clearest ones are guessed."""
    dim = audit.state.dim
    expect(
        10 <= canaries <= dim,
        f"10 <= canaries={canaries} <= {dim}",
        "A canary needs a direction of its own, so the number of weights is the maximum.",
    )
    directions = orthonormal(canaries, dim, key.child("directions"))
    included = torch.rand(canaries, generator=key.child("coins").public_generator()) < 0.5
    signs = (-1.0) ** torch.arange(audit.rounds, dtype=torch.float32)
    updates = signs[:, None, None] * directions * CANARY_NORM
    crowd = _Crowd(audit.clients + torch.arange(canaries), updates, included, absent=audit.removes)
    changes = audit.play(crowd, key.child("run"))["model"].view(audit.rounds, dim).float()
    order = (directions @ (signs @ changes)).argsort(descending=True)
    each = max(int(GUESSED_FRACTION * canaries), 1)
    correct = int(included[order[:each]].sum()) + int((~included[order[-each:]]).sum())
    return OneRunGuesses(canaries, 2 * each, correct, confidence)


def coordinate_effects(audit: Audit, coordinates: Tensor, key: Key) -> Tensor:
    """How much a huge update in a single coordinate changes the model there, for each of these coordinates at once."""
    single = replace(audit, rounds=1, adjacency="add-or-remove")
    count, ids = len(coordinates), audit.clients + torch.arange(len(coordinates))
    updates = torch.zeros(1, count, audit.state.dim)
    updates[0, torch.arange(count), coordinates] = CANARY_NORM
    runs = [
        single.play(_Crowd(ids, updates, torch.full((count,), flag), absent=single.removes), key, sampled=False).get(
            "model"
        )
        for flag in (True, False)
    ]
    if runs[0] is None or runs[1] is None:
        return torch.zeros(count)
    return (runs[0] - runs[1])[coordinates]


def orthonormal(count: int, dim: int, key: Key) -> Tensor:
    """Random orthonormal directions, (count, dim)."""
    gaussian = torch.randn(dim, count, generator=key.public_generator(), dtype=torch.float64)
    directions: Tensor = torch.linalg.qr(gaussian).Q
    return directions.T.float()
