"""Sums of gradients clipped per record or per person, and the choice of the way to compute them.

`BatchedRecords` computes a few records at a time, by the rules of a model's layers or with `torch.func` (`ways`).
`ReferenceRecords` computes one record at a time with autograd, slow and simple; other ways must agree with it.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.core import Loss
from tacit.core.rows import DEPTH, ClippedSum
from tacit.engine.layout import Layout, has_dropout, modules_of
from tacit.engine.learners.records.gradients import SUMMED, FormedGradients, RecordGradients
from tacit.engine.learners.records.independence import fresh_copy
from tacit.engine.learners.records.probe import check_independent
from tacit.engine.learners.records.standardised_records import StandardisedRecords
from tacit.engine.learners.records.ways import PROVED_LOSSES, LayerRules, MappedGradient, fresh_loss
from tacit.errors import ModelError

AT_ONCE = 256  # records at most: more of a small model are hardly faster
SUMS = 16  # of `SUMMED` records that are added in float32
WORKING_MEMORY = 32 << 20  # bytes, for the records that are computed at once
SAFE = (1e-10, 1e18)  # norms that are computed well in float32
LONGEST = 2.0**60  # a gradient that is longer than the bound by more than this factor is dropped, as one that is NaN
assert SUMMED + SUMS <= DEPTH


@dataclass(frozen=True, eq=False)
class Target:
    """Where a parameter's gradients are in a sum, and which of its coordinates; None: all."""

    start: int
    stop: int
    coordinates: Tensor | None


@dataclass(frozen=True, eq=False)
class _Job:
    """The settings of one sum."""

    clip: float
    targets: dict[str, Target]
    dtype: torch.dtype


class BatchedRecords:
    """Sums of clipped gradients, computed for a few records at a time.

    The number of records at a time depends only on the memory that one of them needs.
    """

    def __init__(self, way: LayerRules | MappedGradient) -> None:
        self.way, self.layout = way, way.layout
        self._masked: tuple[Tensor, dict[str, Target]] | None = None  # the last mask, and its targets
        self._memory: int | None = None

    @torch.no_grad()
    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over all weights, or those under the mask; records whose gradient is not finite add nothing to it."""
        self.way.load(weights)
        job = _Job(clip, self._all if mask is None else self._under(mask), weights.dtype)
        length = self.layout.dim if mask is None else len(mask)
        total = torch.zeros(0, dtype=torch.float64, device=weights.device)
        norms = [total]
        if len(x) and job.targets:
            size = self._at_once(x[:1], y[:1], 0 if counts is None else length * weights.element_size())
            together = SUMS // -(-size // SUMMED)  # groups of records whose sums are added in float32
            few = _few(x, y, counts, size)
            while some := list(islice(few, together)):
                part = weights.new_zeros(length)
                norms += [self._add(part, job, *each, size) for each in some]
                total = total.add_(part) if len(total) else part.double()  # only now, when most memory is free again
        return ClippedSum(total if len(total) else total.new_zeros(length), torch.cat(norms))

    def _add(self, total: Tensor, job: "_Job", x: Tensor, y: Tensor, counts: Tensor | None, size: int) -> Tensor:
        """Add the clipped gradients of a few records or persons to the total, and return their norms."""
        one = len(x) > size  # a person with more records than are computed at once
        parts = self._of_one_person(job, x, y, size) if one else self._gradients(job, x, y, counts)
        norms = _norms([part for _, part in parts], wide=False)
        if not bool(((norms > SAFE[0]) & (norms < SAFE[1])).all()):
            norms = _norms([part for _, part in parts], wide=True)
        usable = norms <= job.clip * LONGEST  # false for NaN, too
        if bool(usable.all()):
            factors = (job.clip / norms).clamp(max=1).to(job.dtype)
            for target, part in parts:
                part.add_sum(factors, total[target.start : target.stop])
        elif bool(usable.any()):
            of_usable = usable if counts is None else usable.repeat_interleave(counts)
            self._add(total, job, x[of_usable], y[of_usable], None if counts is None else counts[usable], size)
        return norms

    def _gradients(self, job: "_Job", x: Tensor, y: Tensor, counts: Tensor | None) -> "list[_Part]":
        """The gradients of a few records, or the mean gradients of a few persons."""
        gradients = self.way.gradients(x, y, job.targets)
        pairs = [(job.targets[name], part) for name, part in gradients.items()]
        parts = [(to, part if to.coordinates is None else part.at(to.coordinates)) for to, part in pairs]
        return parts if counts is None else [(target, part.averaged(counts)) for target, part in parts]

    def _of_one_person(self, job: "_Job", x: Tensor, y: Tensor, size: int) -> "list[_Part]":
        """The mean gradient of a person with more records than are computed at once."""
        length = max(target.stop for target in job.targets.values())
        mean = torch.zeros(length, dtype=torch.float64, device=x.device)
        for few, labels, _ in _few(x, y, None, size):
            added = torch.zeros(length, dtype=job.dtype, device=x.device)
            factors = added.new_full((len(few),), 1 / len(x))
            for target, part in self._gradients(job, few, labels, None):
                part.add_sum(factors, added[target.start : target.stop])
            mean += added
        return [(Target(0, length, None), FormedGradients(mean.to(job.dtype)[None]))]

    def _at_once(self, x: Tensor, y: Tensor, formed: int) -> int:
        """The number of records computed at once, with this many bytes of gradient each beside the way's own memory."""
        if self._memory is None:
            self._memory = max(self.way.memory(x, y), 1)
        return max(1, min(AT_ONCE, WORKING_MEMORY // max(self._memory, formed)))

    @cached_property
    def _all(self) -> dict[str, Target]:
        return {name: Target(*self.layout.span(name), None) for name in self.layout.names}

    def _under(self, mask: Tensor) -> dict[str, Target]:
        """The parameters that have coordinates in the mask; it ascends, so that those of a parameter are contiguous."""
        if self._masked is None or not (self._masked[0] is mask or torch.equal(self._masked[0], mask)):
            targets = {}
            for name, target in self._all.items():
                start, stop = torch.searchsorted(mask, mask.new_tensor([target.start, target.stop])).tolist()
                if start < stop:
                    targets[name] = Target(start, stop, mask[start:stop] - target.start)
            self._masked = mask, targets
        return self._masked[1]


_Part = tuple[Target, RecordGradients]


def _few(x: Tensor, y: Tensor, counts: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """At most `size` records at a time, or whole persons with this many; a person with more is alone."""
    if counts is None:
        yield from ((few, labels, None) for few, labels in zip(torch.split(x, size), torch.split(y, size), strict=True))
        return
    begin, first, most = 0, 0, 0
    sizes = counts.tolist()
    for person, count in enumerate([*sizes, size + 1]):
        most = max(most, count)
        if person > first and (person + 1 - first) * most > size:  # with all of them padded to the largest
            end = begin + sum(sizes[first:person])
            yield x[begin:end], y[begin:end], counts[first:person]
            begin, first, most = end, person, count


def _norms(parts: list[RecordGradients], *, wide: bool) -> Tensor:
    """The norm of every record's gradient at all parameters."""
    return torch.stack([part.norms(wide=wide).double() for part in parts]).square().sum(0).sqrt()


AGREEMENT = 1e-3  # relative, of a way with the reference on two records; the two differ by rounding only
# What PyTorch raises for a module that it cannot map over records (data-dependent control flow, in-place changes, no
# batching rule, a shape that has the number of records in it), or does slowly, with a warning; whatever else a module
# raises is an error of its own, which the reference would raise, too.
CANNOT_MAP = (RuntimeError, ValueError, TypeError, IndexError, Warning)


class AutoRecords:
    """Layer rules where they cover the model, otherwise `torch.func`, otherwise one record at a time.

    Records are computed together, by the rules, only if they are provably independent; otherwise each is a batch of its
    own. A way is chosen if it agrees with the reference on two variants of the first record. The choice depends on the
    model and the loss, never on timing.

    Raises:
        ModelError: gradients of single records do not exist, or are not independent of other records.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss = model, loss
        self.reference = ReferenceRecords(model, loss)
        self._chosen: BatchedRecords | ReferenceRecords | None = None

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over these records of their gradients, each clipped, at all weights or those under the mask.

        With `counts`, the records are those of persons, one person after the other, with this many each: the mean
        gradient of every person is clipped.
        """
        if len(x) == 0:
            return self.reference.clipped_sum(weights, x, y, clip, mask)
        if StandardisedRecords.fits(self.model, self.loss, mask):
            return StandardisedRecords(self.model, self.loss).clipped_sum(weights, x, y, clip, counts)
        if self._chosen is None:
            self._chosen = self.choose(x[:1], y[:1])
        return self._chosen.clipped_sum(weights, x, y, clip, mask, counts)

    def choose(self, x: Tensor, y: Tensor) -> "BatchedRecords | ReferenceRecords":
        """The way for this model, tested on one record and the same record reversed."""
        check_records(self.model, self.loss)
        if x.is_floating_point():  # a record of extreme numbers decides nothing
            x = torch.nan_to_num(x, posinf=0.0, neginf=0.0).clamp(-100, 100)
        rules = LayerRules(self.model, self.loss)
        proved = rules.is_proved(x)
        if not (proved and type(self.loss) in PROVED_LOSSES):
            check_independent(self.model, self.loss, x, y)
        x, y = torch.cat([x, x.flip(tuple(range(1, x.dim())))]), torch.cat([y, y])
        if proved and LayerRules.follows_rules(self.model) and self._agrees(batched := BatchedRecords(rules), x, y):
            return batched
        mapped = BatchedRecords(MappedGradient(self.model, self.loss))
        return mapped if self._agrees(mapped, x, y) else self.reference

    def _agrees(self, tried: BatchedRecords, x: Tensor, y: Tensor) -> bool:
        weights = Layout.of(self.model).flatten(self.model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                actual = tried.clipped_sum(weights, x, y, 1e6, None)
            except CANNOT_MAP:
                return False
        expected = self.reference.clipped_sum(weights, x, y, 1e6, None)
        close = (actual.total - expected.total).norm() <= AGREEMENT * expected.total.norm()
        return bool(close) and torch.allclose(actual.norms, expected.norms, rtol=AGREEMENT)


def check_records(model: nn.Module, loss: Loss) -> None:
    """Raise `ModelError` for a model or a loss whose gradient is not a sum over records."""
    for name, module in modules_of(model, (_BatchNorm,)):
        raise ModelError(
            f"{type(module).__name__} {name!r} normalises by the statistics of a batch, so that a record changes the "
            "gradients of others, and clipping them does not bound its influence. "
            "Use tacit.tasks.models.with_group_norm(model)."
        )
    for name, module in modules_of(model, (nn.Embedding, nn.EmbeddingBag)):
        if module.scale_grad_by_freq:
            raise ModelError(
                f"{type(module).__name__} {name!r} divides gradients by how often a line occurs in the batch, so that "
                "a record changes the gradients of others. Use scale_grad_by_freq=False."
            )
    if has_dropout(model):
        raise ModelError(
            "Expected a model without dropout for clipping per record: the gradient of a record would depend on random "
            "numbers that it shares with its batch. Use p=0; noise regularises, too."
        )
    values = torch.tensor([0.25, 4.0])
    if not torch.equal(loss.from_mean(values), values):
        raise ModelError(
            f"{type(loss).__name__} is not a mean over records, so that a record changes the gradients of others, and "
            "clipping them does not bound its influence. Use MeanSquared instead of RootMeanSquared, and CrossEntropy "
            "instead of RootBrier."
        )


class ReferenceRecords:
    """Sums of clipped gradients, one record at a time with autograd.

    Every record is computed by a copy of the model of its own, with the same random numbers: what the model keeps of
    one record, and how many numbers it draws for it, changes nothing for the others.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over all weights, or those under the mask; records whose gradient is not finite add nothing to it."""
        self.layout.load(self.model, weights)
        length = self.layout.dim if mask is None else len(mask)
        total, norms = torch.zeros(length, dtype=torch.float64, device=weights.device), []
        sizes = [1] * len(x) if counts is None else counts.tolist()
        for own_x, own_y in zip(torch.split(x, sizes), torch.split(y, sizes), strict=True):
            records = [self._gradient(own_x[i : i + 1], own_y[i : i + 1]).double() for i in range(len(own_x))]
            gradient = torch.stack(records).mean(0)
            gradient = gradient if mask is None else gradient[mask]
            norm = float(gradient.norm())
            norms.append(norm)
            if norm <= clip * LONGEST:
                total += gradient * min(1.0, clip / norm if norm else 1.0)
        return ClippedSum(total, torch.tensor(norms, dtype=torch.float64, device=weights.device))

    def _gradient(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loss = fresh_loss(self.loss).per_sample(fresh_copy(self.model)(x), y).sum()
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])
