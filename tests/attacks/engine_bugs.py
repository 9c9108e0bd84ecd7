"""Bugs planted in the product itself: in engine, trainers, codecs, mechanisms and channels, by replaced functions.

Each is a context that changes code of Tacit's own while an audit runs, under the claim of the correct code.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tacit import methods
from tacit.core import ClientRound, Key, Messages, Method, Rows, View, Wave
from tacit.core.prices import Unit
from tacit.core.rows import ClippedSum, DenseRows
from tacit.core.state import FrameFormat
from tacit.data import Population, Task
from tacit.engine.learners.records import record_learners
from tacit.engine.worker import Worker
from tacit.pieces.channels import IdealSum
from tacit.pieces.codecs import Select, Size, Vote
from tacit.pieces.codecs.select import largest
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip, Grid, Reals
from tacit.pieces.trainers import RecordGradient, per_record
from tacit.privacy.noise.sum_grid import SumGrid
from tacit.wire.frames import Part

CLIENTS, RECORDS, INPUTS = 11, 12, 6


def task(clients: int = CLIENTS, *, persons: bool = False) -> Task:
    """A linear model, for clients with a few records, or with a few persons who have two each."""
    g = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(RECORDS, INPUTS, generator=g), torch.randint(0, 3, (RECORDS,), generator=g))
        for _ in range(clients)
    ]
    ids = [torch.arange(RECORDS) // 2 + 100 * client for client in range(clients)] if persons else None
    return Task(model=lambda: nn.Linear(INPUTS, 3), clients=parts, public=parts[0], test_overlap="intended", person=ids)


GIVEN: Mapping[str, Any] = {"rounds": 4, "noise": 1.0, "epsilon": None}


def dp_sgd(**changes: Any) -> Method:
    return methods.make("dp-sgd", {**GIVEN, "batch_size": 4, "epochs": None, "steps": 2, **changes})


def dp_fedsgd(**changes: Any) -> Method:
    return methods.make("dp-fedsgd", {**GIVEN, "size": RECORDS, "rate": 0.5, **changes})


def in_shares(**changes: Any) -> Method:
    """Clients protected by shares of the noise, in a secure sum."""
    return methods.make("fl-std-dp", {**GIVEN, "cohort": CLIENTS, "sampler": "Everyone()", "clip": 1.0, **changes})


def central(**changes: Any) -> Method:
    return methods.make(
        "geyer",
        {
            "rounds": 4,
            "noise": 1.0,
            "cohort": CLIENTS,
            "mechanism.clip": FixedClip(1.0),
            "sampler": "Everyone()",
            **changes,
        },
    )


def top_records(**changes: Any) -> Method:
    return methods.make("fl-top-record-dp", {**GIVEN, "size": RECORDS, "ratio": 0.3, **changes})


@dataclass(frozen=True, kw_only=True)
class EngineBug:
    """A bug, the method whose claim it breaks, and how to audit it.

    Attributes:
        name: in words.
        method: the audited method.
        plant: the context in which the code has the bug.
        needs: what is also changed while the audit is prepared, such as a rule that would refuse the method.
        persons: whether records belong to persons.
        dropouts: the fraction of clients that is lost.
        runs: how many it takes.
        words: in what the audit says, if cohorts, batches or noise are not as declared.
    """

    name: str
    method: Callable[[], Method]
    plant: Callable[[], AbstractContextManager[Any]]
    persons: bool = False
    dropouts: float = 0.0
    needs: Callable[[], AbstractContextManager[Any]] = nullcontext
    runs: int = 200
    rounds: int = 2
    words: str = ""


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which an attribute is another, made from the original."""
    return lambda: patch.object(
        owner, name, make(vars(owner)[name] if isinstance(owner, type) else getattr(owner, name))
    )


def several(*contexts: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def together() -> Iterator[None]:
        with ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            yield

    return together


def _twice(samples_of: Callable[..., Any]) -> Callable[..., Any]:
    """All records of a batch are looked up twice."""

    def of(population: Population, client: int, units: Tensor) -> Any:
        index, counts = samples_of(population, client, units)
        return (torch.cat([index, index]), None) if counts is None else (index, counts)

    return of


def _clipped_otherwise(
    change: Callable[[ClippedSum, Tensor, float], Tensor],
) -> Callable[..., Callable[..., ClippedSum]]:
    """Sums of gradients that are not clipped, changed as a whole."""

    def make(clipped_sum: Callable[..., ClippedSum]) -> Callable[..., ClippedSum]:
        def of(
            self: Any, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Any, counts: Any = None
        ) -> ClippedSum:
            whole = clipped_sum(self, weights, x, y, 1e30, mask, counts)
            return replace(whole, total=change(whole, x, clip))

        return of

    return make


def _mean_clipped(whole: ClippedSum, x: Tensor, clip: float) -> Tensor:
    """The mean gradient of a batch is clipped, instead of every record's, and multiplied by their number."""
    mean = whole.total / max(len(x), 1)
    return mean * min(1.0, clip / max(float(mean.norm()), 1e-30)) * len(x)


def _longest_sets_all(whole: ClippedSum, x: Tensor, clip: float) -> Tensor:
    """All records of a batch are scaled by the factor of the longest."""
    longest = float(whole.norms.max()) if len(whole.norms) else 0.0
    return whole.total * min(1.0, clip / max(longest, 1e-30))


def _mean_norm(whole: ClippedSum, x: Tensor, clip: float) -> Tensor:
    """The factor follows from the mean of the norms."""
    mean = float(whole.norms.mean()) if len(whole.norms) else 0.0
    return whole.total * min(1.0, clip / max(mean, 1e-30))


def _nan_empties(clipped_sum: Callable[..., ClippedSum]) -> Callable[..., ClippedSum]:
    """A record whose gradient is not finite empties the whole batch, instead of being left out alone."""

    def of(self: Any, *args: Any) -> ClippedSum:
        found = clipped_sum(self, *args)
        return found if bool(found.norms.isfinite().all()) else replace(found, total=0 * found.total)

    return of


def _persons_as_records(clipped_sum: Callable[..., ClippedSum]) -> Callable[..., ClippedSum]:
    """Every record of a person is clipped, and all are added up."""

    def of(self: Any, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Any, counts: Any = None) -> ClippedSum:
        return clipped_sum(self, weights, x, y, clip, mask, None)

    return of


def _one_share_less(at_client: Callable[..., Messages]) -> Callable[..., Messages]:
    """The client with the lowest number sends its row without its share of the noise."""

    def of(self: Any, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        sent = at_client(self, messages, view, data, now)
        bare = at_client(replace(self, single_draw=True), messages, view, data, now)
        first = (messages.clients == 0)[:, None]
        return replace(sent, rows=DenseRows(torch.where(first, bare.rows.dense(), sent.rows.dense())))

    return of


def _small_noise_is_zero(after_sum: Callable[..., Any]) -> Callable[..., Any]:
    """What is below 0.02 standard deviations is no noise."""

    def of(self: Any, total: Any, now: Any) -> Any:
        noisy = after_sum(self, total, now)
        noise, sigma = noisy.total - total.total, self.noise_multiplier * total.bound.whole
        return replace(noisy, total=torch.where(noise.abs() < 0.02 * sigma, total.total, noisy.total))

    return of


@dataclass(frozen=True)
class ShowsAnIndex(FrameFormat):
    """A format whose messages are as long as the position of their largest number says."""

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        largest = messages.rows.dense().abs().argmax(1) if messages.rows.count else torch.zeros(0)
        return tuple(8 + int(each) for each in largest)


def _one_batch(batch: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """All steps, rounds and runs draw the batch of one key."""
    return lambda _, *args: batch(Key.from_seed(0, "batch"), *args)


def _higher_rate(batch: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda key, samples, rate, *largest: batch(key, samples, min(1.0, 1.3 * rate), *largest)


def _drawn_in_pairs(batch: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Neighbours are drawn together."""

    def of(key: Key, samples: int, rate: float, *largest: int) -> Tensor:
        half = batch(key, samples // 2, rate)
        return torch.cat([2 * half, 2 * half + 1]).sort().values

    return of


def _waves_twice(content: Callable[..., Any]) -> Callable[..., Any]:
    """What a wave wrote to its slot is added twice."""

    def of(self: Worker, slot: int, result: Any) -> Any:
        part = content(self, slot, result)
        return replace(part, total=2 * part.total)

    return of


def _half_of_it(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Integer noise is drawn for half of the shares."""
    return lambda self, like, noise, count, key, now: draw(self, like, noise, count / 2, key, now)


def _shared_noise(after_sum: Callable[..., Any]) -> Callable[..., Any]:
    """Noise derives from the key that all parties know."""
    return lambda self, total, now: after_sum(self, total, replace(now, server=now.shared))


def _norm_without_last(norms: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The norms of records' gradients leave out the last parameter."""
    return lambda parts, *, wide: norms(parts[:-1] or parts, wide=wide)


def _noise_of_few(release: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """In a step, only the first half of the weights gets noise."""

    def of(self: Any, total: Tensor, radius: Tensor, source: Any) -> Tensor:
        noisy, half = release(self, total, radius, source), len(total) // 2
        return torch.cat([noisy[:half], total[half:].to(noisy)])

    return of


def _clipped_by_broadcast(train: Callable[..., Rows]) -> Callable[..., Rows]:
    """A client clips its records to the bound that the server sends."""

    def of(self: RecordGradient, view: View, data: Wave, now: ClientRound) -> Rows:
        sent = view.parts.get(Part.BOUND)
        return train(self if sent is None else replace(self, clip=float(sent)), view, data, now)

    return of


def _unclipped_mask(read: Callable[..., Any]) -> Callable[..., Any]:
    """Without a mask a client sends ballots, as in the first round of a vote."""

    def of(self: Select, parts: Any, memory: Any, now: Any) -> Any:
        return (
            (View(memory.weights, parts), memory)
            if Part.MASK not in parts and memory.mask is None
            else read(self, parts, memory, now)
        )

    return of


def _ballots(encode: Callable[..., Rows]) -> Callable[..., Rows]:
    def of(self: Select, rows: Rows, view: View, now: Any) -> Rows:
        if view.mask is not None:
            return encode(self, rows, view, now)
        values = rows.dense()
        ballots = torch.zeros_like(values)
        for ballot, row in zip(ballots, values, strict=True):
            ballot[largest(row.abs(), self.selection.size.count(rows.dim))] = 1.0
        return DenseRows(ballots)

    return of


def engine_bugs() -> tuple[EngineBug, ...]:
    """All of them."""
    batched, reference = record_learners.BatchedRecords, record_learners.ReferenceRecords

    def sums(make: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
        return several(*(replaced(each, "clipped_sum", make) for each in (batched, reference)))

    def clipping(change: Callable[..., Tensor]) -> Callable[[], AbstractContextManager[Any]]:
        return sums(_clipped_otherwise(change))

    every = {"mechanism.single_draw": False, "mechanism.dropouts": 0.0}
    vote = {"codec.selection": Vote(size=Size(ratio=0.3))}
    voting = lambda: patch.object(Vote, "bounded_for", tuple(Unit), create=True)  # noqa: E731
    return (
        EngineBug(name="records counted twice", method=dp_fedsgd, plant=replaced(Population, "samples_of", _twice)),
        EngineBug(
            name="records counted twice in training", method=dp_sgd, plant=replaced(Population, "samples_of", _twice)
        ),
        EngineBug(
            name="one share of eleven missing",
            method=lambda: in_shares(**every),
            plant=replaced(DistributedGaussian, "at_client", _one_share_less),
            runs=1200,
            words="times as large as the claim assumes",
        ),
        EngineBug(
            name="small noise is zero",
            method=central,
            plant=replaced(CentralGaussian, "after_sum", _small_noise_is_zero),
            runs=400,
            words="one value occurs",
        ),
        EngineBug(
            name="the length of a message shows an index",
            method=lambda: in_shares(channel=IdealSum(), **{"mechanism.arithmetic": Reals()}),
            plant=lambda: patch.object(IdealSum, "message_format", ShowsAnIndex(), create=True),
        ),
        EngineBug(name="the mean is clipped", method=dp_fedsgd, plant=clipping(_mean_clipped)),
        EngineBug(
            name="a vote before noise",
            method=lambda: top_records(**vote),
            plant=voting,
            needs=voting,
        ),
        EngineBug(name="the factor of the longest record for all", method=dp_sgd, plant=clipping(_longest_sets_all)),
        EngineBug(name="the mean norm decides about clipping", method=dp_fedsgd, plant=clipping(_mean_norm)),
        EngineBug(name="a record that is not finite empties its batch", method=dp_fedsgd, plant=sums(_nan_empties)),
        EngineBug(
            name="persons clipped record by record", method=dp_fedsgd, plant=sums(_persons_as_records), persons=True
        ),
        EngineBug(
            name="one batch for all steps",
            method=dp_sgd,
            plant=replaced(per_record, "_batch", _one_batch),
            words="batches of",
        ),
        EngineBug(
            name="a higher rate of batches",
            method=dp_fedsgd,
            plant=replaced(per_record, "_batch", _higher_rate),
            words="rate",
        ),
        EngineBug(
            name="records drawn in pairs",
            method=dp_fedsgd,
            plant=replaced(per_record, "_batch", _drawn_in_pairs),
            words="drawn together",
        ),
        EngineBug(
            name="waves are added twice",
            method=in_shares,
            plant=replaced(Worker, "slot_content", _waves_twice),
            runs=400,
        ),
        EngineBug(
            name="integer noise of half the shares",
            method=in_shares,
            plant=replaced(Grid, "draw", _half_of_it),
            words="times as large as the claim assumes",
        ),
        EngineBug(
            name="noise from the key that all know",
            method=central,
            plant=replaced(CentralGaussian, "after_sum", _shared_noise),
        ),
        EngineBug(
            name="norms without the last parameter",
            method=dp_sgd,
            plant=replaced(record_learners, "_norms", _norm_without_last),
        ),
        EngineBug(
            name="noise in a step for half of the weights",
            method=dp_sgd,
            plant=replaced(SumGrid, "release", _noise_of_few),
        ),
        EngineBug(
            name="records clipped to the bound of the broadcast",
            method=dp_fedsgd,
            plant=several(
                replaced(RecordGradient, "train", _clipped_by_broadcast),
                replaced(DistributedGaussian, "check_broadcast", lambda _: lambda _self, _view: None),
                replaced(DistributedGaussian, "_received_bound", lambda _: lambda self, _view: self._bound(None)),
            ),
        ),
        EngineBug(
            name="ballots where the mask is withheld",
            method=top_records,
            plant=several(replaced(Select, "read", _unclipped_mask), replaced(Select, "encode", _ballots)),
        ),
    )
