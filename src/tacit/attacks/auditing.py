"""Audit a privacy claim: run a method with and without a canary, and record everything that each run releases.

A canary is a client whose update is chosen by the adversary, or a record or person of a client that always takes part.
The engine plays every round: sampler, waves, batches, gradients and their clipping, both halves of pieces, channel,
formats of messages, and sums are those of a run (`tacit.engine`). What the adversary chooses are the data, also those
of all other clients (a guarantee holds for all data), and the server's broadcast.

A record of a run contains more than the model: the released sum and its divisor, the broadcasts, all contents of a
checkpoint, models that are evaluated beside the main one, the lengths of messages where they are seen, and whether the
run failed. `tacit.attacks.search` looks for the canary and the statistic that show the most.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from tacit.attacks.audited_data import (
    CLIENT_RECORDS,
    LARGEST_GRADIENT,
    PERSON_RECORDS,
    RECORDS,
    AuditedModel,
    CanaryClients,
    ChosenTerms,
    hostile_records,
)
from tacit.attacks.bounds import CONFIDENCE, OneRunGuesses
from tacit.attacks.lies import Lie, applies, lies
from tacit.core import Broadcast, ClientKeys, Key, Method, Report, Round, RunKeys, SimulatedRound, State, Sum
from tacit.core.interfaces import AddNoise, Conversation, SumMessages
from tacit.core.prices import Unit
from tacit.core.server_half import broadcast, client_view
from tacit.core.state import Messages
from tacit.data import Population, Samples, Task
from tacit.engine.layout import Layout
from tacit.engine.pool import InProcessPool
from tacit.engine.simulation import PARTICIPATIONS, RECEIVED, RoundRunner, draw
from tacit.engine.waves import StackedClients
from tacit.engine.worker import Worker
from tacit.errors import TacitError, expect, whole, within
from tacit.wire.frames import Part

AuditAdjacency = Literal["add-or-remove", "replace-one", "zero-out"]
Released = Mapping[str, Tensor]  # everything that a run released, by name, one flat tensor for all rounds
CANARY_NORM = 1e4  # before clipping: larger than any clipping bound
GUESSED_FRACTION = 0.1  # of the canaries of one run are guessed included, and as many excluded; fixed before any run
SUM_BOUNDS = "bound and grid of the sum"  # and whether the bound has axes
MESSAGE_LENGTHS = "length of the message"  # of a canary's client, compared with those of others
FAILED = "failure"  # the name of the record of whether a run failed
STRUCTURE = "names and sizes"  # and of whether they differ from those of the first run
_TALLIES = (RECEIVED, PARTICIPATIONS)  # of the server, which knows who takes part
MAX_DRAWN = 400  # units of a client, from which batches are drawn
_EXACT = 1024  # tensors of at most this many numbers are recorded in double precision


@dataclass(frozen=True, eq=False)
class Canary:
    """A client whose updates the adversary chooses, or a record.

    Attributes:
        name: in words.
        updates: before clipping, (rounds, dim).
        others: the update of every other client in every round, (dim,); None: zeros.
        first: whether the canary has the lowest client number instead of the highest.
        absent: whether excluding it means that it is absent from its cohort, whatever the adjacency: sampling amplifies
            only if nobody can see who was drawn.
        alone: whether no other client is in its cohorts.
        record: what it owns, where clients train the task's own model on their own data; None: they train what gives
            these updates.
        lie: of the server in its broadcasts; None: it follows the method.
    """

    name: str
    updates: Tensor
    others: Tensor | None = None
    first: bool = False
    absent: bool = False
    alone: bool = False
    record: Samples | None = None
    lie: Lie | None = None

    @property
    def coordinates(self) -> int:
        """The number of its nonzero coordinates."""
        return int((self.updates != 0).any(0).sum()) if bool(self.updates.isfinite().all()) else 0

    @property
    def opposite(self) -> "Canary | None":
        """The canary with opposite updates; None: data of the task's own have no opposite."""
        return None if self.record is not None else replace(self, updates=-self.updates)

    @property
    def is_among_zeros(self) -> bool:
        """Whether no other client sends anything but zeros, and the server is honest."""
        return self.others is None and self.record is None and self.lie is None

    @property
    def among_zeros(self) -> "Canary":
        """The same canary there."""
        return replace(self, others=None, record=None, lie=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """A method and a population, which can be run repeatedly with canaries.

    Attributes:
        method: the audited method, with its noise calibrated.
        task: gives the model, and data of the form that the model takes.
        state: before the first round.
        clients: number of clients besides the canaries.
        rounds: rounds per run.
        dropouts: fraction of every cohort that drops out; the same clients with and without the canary.
        adjacency: an excluded canary is absent (add-or-remove), sends its negated update (replace-one) or a zero one
            (zero-out).
        unit: whether a canary is a client, or a record or person of a client that takes part without it, too.
        shared: the root of shared randomness. The adversary knows it, so it is the same in all runs.
        seed: of the task's model.
    """

    method: Method
    task: Task
    state: State
    clients: int
    rounds: int = 4
    dropouts: float = 0.0
    adjacency: AuditAdjacency = "add-or-remove"
    shared: Key = Key.from_seed(0, "shared")
    unit: Unit = Unit.CLIENT
    seed: int = 0

    def __post_init__(self) -> None:
        whole(0, clients=self.clients)
        whole(1, rounds=self.rounds)
        expect(self.state.weights.dim() == 1, "a method with one model", "Set models=1.")
        within("[0, 1)", dropouts=self.dropouts)

    def run(self, canary: Canary, key: Key, *, included: bool, sampled: bool = True) -> Released:
        """One run with or without a canary.

        Unless `sampled`, the canary is in every cohort, and the other clients in it are the same in all runs; a record
        is in every batch, as are all others of its client.
        """
        ids = torch.tensor([0 if canary.first else self.clients])
        absent = self.removes or (self.unit is Unit.CLIENT and canary.absent)
        absent &= canary.lie is None  # a server that lies knows who takes part
        told = canary.others, absent, canary.alone, canary.record, canary.lie
        return self.play(_Crowd(ids, canary.updates[:, None], torch.tensor([included]), *told), key, sampled=sampled)

    def play(self, crowd: "_Crowd", key: Key, *, sampled: bool = True) -> Released:
        """One run with several canaries."""
        game = _Game(self, crowd, sampled)
        state, released = self.state, []
        for index in range(self.rounds):
            state, observed = game.round(state, index, key.child("round", index))
            released.append(observed)
            if FAILED in observed:
                break
        return _join(released)

    def model_of(self, crowd: "_Crowd") -> AuditedModel:
        """What the clients of a run train."""
        return self._linear if crowd.record is None else self._own

    def method_of(self, crowd: "_Crowd") -> Method:
        """The method of a run: where clients own the terms of a query, a query that reads them.

        If the server lies about the bound, clients scale their shares of the noise to what they received. A single draw
        for all of them would be scaled to what an honest server sends.
        """
        method, trainer = self.method, self.method.trainer
        if crowd.lie is not None and getattr(method.mechanism, "single_draw", False):
            method = replace(method, mechanism=replace(method.mechanism, single_draw=False))  # type: ignore[type-var]
        if crowd.record is not None or trainer.sends != "terms" or trainer.record_sum is None:
            return method
        chosen = ChosenTerms(self.state.dim, trainer.record_sum.bound)
        return replace(method, trainer=replace(trainer, query=chosen))  # type: ignore[type-var]

    @cached_property
    def _linear(self) -> AuditedModel:
        return AuditedModel.linear(self.task, self.state, in_layers=self.unit.within_client)

    @cached_property
    def _own(self) -> AuditedModel:
        return AuditedModel.own(self.task, self.seed)

    @cached_property
    def layout(self) -> Layout:
        """Where the parameters of the task's model are, whatever clients train."""
        return Layout.of(self._own.model)

    @cached_property
    def scale(self) -> float:
        """How long a client's update is for gradients of length one; for records, whose noise is not known: 1."""
        if self.unit.within_client:
            return 1.0
        direction = torch.full((self.rounds, self.state.dim), self.state.dim**-0.5)
        rows = [self._row(factor * direction) for factor in (1.0, 0.0)]
        moved = float((rows[0] - rows[1]).abs().max()) * self.state.dim**0.5
        return moved if 0 < moved < float("inf") else 1.0

    def _row(self, updates: Tensor) -> Tensor:
        """What the only client of a population trains if its gradients are these."""
        now = SimulatedRound.of(0, 1, 1.0, 1, self.shared.child("round", 0), Key.from_seed(0, "scale"))
        crowd = _Crowd(torch.tensor([0]), updates[:, None], torch.tensor([True]))
        population = _Game(self, crowd, sampled=True).population(0, scale=1.0, ordinary=False)
        view = client_view(self.method, broadcast(self.method, self.state, now), self.state, now)
        wave = StackedClients(torch.tensor([0]), population, self._linear.learner)
        return self.method.trainer.train(view, wave, now).dense()

    @cached_property
    def records(self) -> Mapping[str, Samples]:
        """Hostile records of the task's own form, by their names; none if their exclusion would show by itself."""
        if self.unit is Unit.CLIENT and not self.removes:
            return {}
        if self.adjacency == "replace-one":
            return {}
        population = self._own.task.population
        return hostile_records((population.x, population.y), self.shared.child("audited records"))

    @cached_property
    def lies(self) -> tuple[Lie, ...]:
        """Broadcasts of a hostile server; none where the claim trusts it."""
        if not self.sees_messages and self.method.channel.messages_seen_by == "server":
            return ()
        now = Round(0, self.clients + 1, 1.0, 1, self.shared.child("round", 0))
        return tuple(lie for lie in lies(self.shared.child("lies")) if applies(lie, self.method, self.state, now))

    @property
    def sees_messages(self) -> bool:
        """Whether the adversary of the claim sees the messages of the canary's client: the client adds all noise."""
        return self.unit.within_client and self.method.terms.record_bound is None

    @property
    def sees_lengths(self) -> bool:
        """Whether somebody against whom the claim protects sees the lengths of messages."""
        return self.sees_messages or self.method.channel.messages_seen_by != "server"

    @property
    def units_of_client(self) -> int:
        """The units of a client with a canary, which are public."""
        return RECORDS if self.unit.within_client else 1

    @property
    def units_of_batches(self) -> int:
        """The units of a client whose batches are looked at: those of the first client of the task, if not too many."""
        return min(int(self.task.population.unit_sizes[0]), MAX_DRAWN)

    def losses_of(self, cohort: int) -> int:
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

    def fixed_cohort(self, canaries: Tensor, index: int, *, alone: bool = False) -> Tensor:
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
        dropped = self.losses_of(cohort)
        if not dropped:
            return present
        others = (~torch.isin(present, crowd.ids)).nonzero().flatten()
        order = torch.randperm(len(others), generator=secret.child("dropouts").public_generator())[:dropped]
        survives = torch.ones(len(present), dtype=torch.bool)
        survives[others[order]] = False
        return present[survives]


@dataclass(frozen=True, eq=False)
class _Crowd:
    """The canaries of a run, and what all others do.

    Attributes:
        ids: the canaries' client numbers.
        updates: (rounds, canaries, dim).
        included: (canaries,).
        others: the update of every other client, (dim,); None: zeros.
        absent: whether excluded canaries are absent; otherwise they send another update.
        alone: whether no other client is in their cohorts.
        record: what the only canary owns, where clients train the task's own model; None: what gives these updates.
        lie: of the server.
    """

    ids: Tensor
    updates: Tensor
    included: Tensor
    others: Tensor | None = None
    absent: bool = True
    alone: bool = False
    record: Samples | None = None
    lie: Lie | None = None

    def present(self, cohort: Tensor) -> Tensor:
        """All but absent canaries, which are not replaced in the cohort."""
        return ~torch.isin(cohort, self.ids[~self.included]) if self.absent else torch.ones(len(cohort)).bool()


class _Game:
    """One run of an audit: an engine whose clients' data, cohorts and broadcasts the adversary chooses."""

    def __init__(self, audit: Audit, crowd: _Crowd, sampled: bool) -> None:
        self.audit, self.crowd, self.sampled = audit, crowd, sampled
        self.trained, self.drawn = audit.model_of(crowd), len(crowd.ids)
        self._worker: Worker | None = None

    def round(self, state: State, index: int, secret: Key) -> tuple[State, dict[str, Tensor]]:
        """The state after a round, and what it released; a round that fails is observed, too."""
        method, conversation = self.audit.method_of(self.crowd), None
        try:
            with method.channel.open(method, self.audit.clients + len(self.crowd.ids)) as inner:
                conversation = _Overheard(inner)
                worker = self._at(index)
                runner = RoundRunner(
                    InProcessPool(worker),
                    conversation,
                    _RoundKeys(self.audit.shared, secret),
                    draws=partial(self._draw, secret),
                    delivering=partial(self._deliver, secret),
                )
                after, report = runner.round(state)
                sent = broadcast(method, state, Round(index, 1, 1.0, 1, self.audit.shared.child("round", index)))
        except TacitError:
            return state, _describe_failure(conversation)
        except (RuntimeError, ValueError, IndexError, KeyError, AssertionError):
            if self.crowd.lie is None:  # an error of the method's own
                raise
            return state, _describe_failure(conversation)  # an honest server cannot use the answers to a lie
        return after, self._observe(state, after, conversation.released, sent, report)

    def population(self, index: int, scale: float | None = None, *, ordinary: bool = True) -> Population:
        """All clients' data in a round."""
        crowd, audit, (x, y) = self.crowd, self.audit, self.trained.pool
        if crowd.record is None and crowd.others is not None:
            x = _gradients(crowd.others[None], scale or audit.scale).to(x.dtype)
        others = self.trained.task.population
        offsets = others.offsets[: (audit.clients if ordinary else 0) + 1]
        others = replace(others, sample_indices=others.sample_indices[: int(offsets[-1])], offsets=offsets)
        client, person = audit.unit is Unit.CLIENT, audit.unit is Unit.PERSON
        beside = others.sample_indices[:0] if client else self._beside(x)
        canaries = CanaryClients(
            crowd.ids,
            self._records(index, scale or audit.scale),
            CLIENT_RECORDS if client else PERSON_RECORDS if person else 1,
            beside,
            persons=person,
            always=not client and not self.sampled,
        )
        return canaries.among((x, y), others)

    def _beside(self, x: Tensor) -> Tensor:
        """What a canary's client owns beside it."""
        count = self.audit.units_of_client - 1
        return torch.arange(count) % len(x)

    def _records(self, index: int, scale: float) -> Samples:
        """What canaries own: one record each."""
        crowd = self.crowd
        if crowd.record is not None:
            x, y = crowd.record
            gone = x if crowd.absent else torch.full_like(x, torch.nan)
            return (x if bool(crowd.included.all()) else gone), y
        excluded = {"replace-one": -1.0}.get(self.audit.adjacency, 0.0)
        gradients = _gradients(crowd.updates[index], scale)
        other = excluded * gradients if excluded else torch.zeros_like(gradients)  # not 0·x: it may be NaN
        x = torch.where(crowd.included[:, None], gradients, other)
        return x, torch.zeros(len(x))

    def _at(self, index: int) -> Worker:
        """The worker, whose clients own what they do in this round."""
        audit, model = self.audit, self.trained
        task = model.task.on(self.population(index))
        if self._worker is None:
            sent = broadcast if self.crowd.lie is None else self.crowd.lie.change_broadcast
            before = audit.shared.child("before")
            self._worker = Worker(
                audit.method_of(self.crowd), task, model.model, model.learner, audit.state, before, 1, sent
            )
        self._worker.layout = audit.layout  # pieces that group weights see those of the task's model
        self._worker.task = task
        return self._worker

    def _draw(
        self, secret: Key, method: Method, population: int, keys: RunKeys, index: int
    ) -> tuple[Tensor, SimulatedRound]:
        """The cohort of a round, without absent canaries."""
        cohort, now = draw(method, population, keys, index)
        if not (self.sampled and self.audit.unit is Unit.CLIENT):  # where records are sampled, the server knows clients
            cohort = self.audit.fixed_cohort(self.crowd.ids, index, alone=self.crowd.alone)
        self.drawn = len(cohort)
        return cohort[self.crowd.present(cohort)], now

    def _deliver(self, secret: Key, present: Tensor) -> Tensor:
        return self.audit._survivors(present, self.drawn, self.crowd, secret)

    def _observe(self, before: State, after: State, noisy: Sum, sent: Broadcast, report: Report) -> dict[str, Tensor]:
        """The releases of a round, by name."""
        grid = 0.0 if noisy.grid_step is None else noisy.grid_step.size
        variants = self.audit.method.trainer.variants(after)
        parts = sent.client_parts(first=True)
        released = {
            "model": after.weights - before.weights,
            "sum": noisy.total,
            "divisor": torch.tensor([noisy.weight], dtype=torch.float64),
            SUM_BOUNDS: torch.tensor([*noisy.bound.values, grid, noisy.bound.axes is not None], dtype=torch.float64),
            **{f"broadcast: {part.name}": value for part, value in parts.items() if part is not Part.WEIGHTS},
            **{f"checkpoint: {name}": value for name, value in after.memory.items() if name not in _TALLIES},
            **{f"model evaluated as {name}": value for name, value in variants.items()},
        }
        if self.audit.sees_lengths:
            released[MESSAGE_LENGTHS] = self._lengths(report)
        return {name: _flat(value) for name, value in released.items()}

    def _lengths(self, report: Report) -> Tensor:
        """By how many bytes the message of a canary is longer than those of others; without others, its length.

        A client that is alone and absent sends none: that it took part is known to whoever sees lengths.
        """
        canaries = set(self.crowd.ids.tolist())
        pairs = list(zip(report.clients, _subtract_overhead(report), strict=True))
        own, others = ([size for client, size in pairs if (client in canaries) is mine] for mine in (True, False))
        usual = sorted(others)[len(others) // 2] if others else 0
        longer = [float(size - usual) for size in own if others or self.audit.unit.within_client]
        return torch.tensor([max(longer, key=abs, default=0.0)], dtype=torch.float64)


@dataclass(frozen=True)
class _RoundKeys:
    """The keys of one round: its secrets derive from a key of its own."""

    shared: Key
    secret: Key

    def keys(self, index: int) -> RunKeys:
        """The keys of the round."""
        clients = ClientKeys(self.secret.child("clients"))
        return RunKeys(self.shared.child("round", index), self.secret.child("server"), clients)


class _Overheard(Conversation):
    """A conversation whose released sum is remembered."""

    def __init__(self, inner: Conversation) -> None:
        self.inner = inner
        self.released = Sum(torch.zeros(0), 0.0)

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        return self.inner.aggregate(messages, state, now, add)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        self.released = self.inner.release(total, now, add_noise)
        return self.released


def _subtract_overhead(report: Report) -> list[int]:
    """The length of each client's message, without its part of what the channel adds for the whole cohort."""
    each, rest = divmod(sum(traffic.up for traffic in report.overhead.values()), max(len(report.up), 1))
    return [size - each - (place < rest) for place, size in enumerate(report.up)]


def _gradients(updates: Tensor, scale: float) -> Tensor:
    """The gradients that lead to these updates."""
    return (-updates.double() / scale).clamp(-LARGEST_GRADIENT, LARGEST_GRADIENT).to(updates.dtype)


def _describe_failure(conversation: "_Overheard | None") -> dict[str, Tensor]:
    """What is known of a round that failed: also the sum, if it was released before."""
    total = torch.zeros(0) if conversation is None else conversation.released.total
    return {FAILED: torch.ones(1, dtype=torch.float64), **({"sum": _flat(total)} if total.numel() else {})}


def _flat(value: Tensor) -> Tensor:
    exact = value.numel() <= _EXACT or value.dtype == torch.int64
    flat = value.detach().flatten().to(torch.float64 if exact else torch.float32)
    return torch.nan_to_num(flat, nan=2e30, posinf=1e30, neginf=-1e30)


def _join(rounds: list[dict[str, Tensor]]) -> Released:
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
