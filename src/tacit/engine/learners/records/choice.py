"""Which way to the clipped gradients of single records is taken, and for which models there is none."""

import warnings
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.core import Loss
from tacit.core.rows import ClippedSum
from tacit.engine.layout import Layout, has_dropout, modules_of
from tacit.engine.learners.records.batched import BatchedRecords
from tacit.engine.learners.records.independence import PROVED_LOSSES
from tacit.engine.learners.records.one_by_one import ReferenceRecords
from tacit.engine.learners.records.probe import check_independent
from tacit.engine.learners.records.ways import LayerRules, MappedGradient
from tacit.errors import ModelError

AGREEMENT = 1e-3  # relative, of a way with the reference on two records; the two differ by rounding only
# What PyTorch raises for a module that it cannot map over records (data-dependent control flow, in-place changes, no
# batching rule, a shape that has the number of records in it), or does slowly, with a warning; whatever else a module
# raises is an error of its own, which the reference would raise, too.
CANNOT_MAP = (RuntimeError, ValueError, TypeError, IndexError, Warning)


class RecordLearner(Protocol):
    """Computes sums of gradients that are clipped record by record."""

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over these records of their gradients, each clipped, at all weights or those under the mask.

        With `counts`, the records are those of persons, one person after the other, so many of each: the mean gradient
        of every person is clipped.
        """
        ...


class AutoRecords:
    """The rules of layers where the model consists of such, otherwise `torch.func`, otherwise one record at a time.

    Records are computed together, by the rules, only if it is proved that none changes what is computed for another;
    otherwise each is computed as a batch of its own. A way is taken if it agrees with the reference on two records made
    from the first one. This depends on the model and the loss, never on timing.

    Raises:
        ModelError: gradients of single records do not exist, or are not independent of other records.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss = model, loss
        self.reference = ReferenceRecords(model, loss)
        self._chosen: RecordLearner | None = None

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over all weights, or those under the mask, by the way that this model allows."""
        if len(x) == 0:
            return self.reference.clipped_sum(weights, x, y, clip, mask)
        if self._chosen is None:
            self._chosen = self.choose(x[:1], y[:1])
        return self._chosen.clipped_sum(weights, x, y, clip, mask, counts)

    def choose(self, x: Tensor, y: Tensor) -> RecordLearner:
        """The way for this model, tried on one record and the same record reversed."""
        check_records(self.model, self.loss)
        if x.is_floating_point():  # a record of extreme numbers decides nothing
            x = torch.nan_to_num(x, posinf=0.0, neginf=0.0).clamp(-100, 100)
        rules = LayerRules(self.model, self.loss)
        proved = rules.is_proved(x)
        if not (proved and type(self.loss) in PROVED_LOSSES):
            check_independent(self.model, self.loss, x, y)
        x, y = torch.cat([x, x.flip(tuple(range(1, x.dim())))]), torch.cat([y, y])
        if proved and LayerRules.follows_rules(self.model) and self._agrees(tried := BatchedRecords(rules), x, y):
            return tried
        mapped = BatchedRecords(MappedGradient(self.model, self.loss))
        return mapped if self._agrees(mapped, x, y) else self.reference

    def _agrees(self, tried: BatchedRecords, x: Tensor, y: Tensor) -> bool:
        weights = Layout.of(self.model).flatten(self.model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                found = tried.clipped_sum(weights, x, y, 1e6, None)
            except CANNOT_MAP:
                return False
        expected = self.reference.clipped_sum(weights, x, y, 1e6, None)
        close = (found.total - expected.total).norm() <= AGREEMENT * expected.total.norm()
        return bool(close) and torch.allclose(found.norms, expected.norms, rtol=AGREEMENT)


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
