"""Clipping per person: the mean gradient of the records is that of the loop, and is no longer than the bound."""

import pytest
import torch

import zoo
from record_models import (
    Convolutions,
    Make,
    Normalised,
    Repeated,
    Words,
    every_model,
    every_third,
    model_of,
    records,
    weights_of,
)
from tacit.core import CrossEntropy
from tacit.engine.learners.records import record_learners
from tacit.engine.learners.records.record_learners import AutoRecords, BatchedRecords, ReferenceRecords, _few
from tacit.engine.learners.records.ways import LayerRules

COUNTS = torch.tensor([1, 3, 2, 1])


@every_model
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_and_norms_are_those_of_the_loop(make: Make, masked: bool) -> None:
    model, (x, y) = model_of(make), records(make)
    weights, mask = weights_of(model), every_third(model) if masked else None
    fast, slow = AutoRecords(model, CrossEntropy()), ReferenceRecords(model, CrossEntropy())
    norms = slow.clipped_sum(weights, x, y, 1.0, mask, COUNTS).norms
    assert len(norms) == 4
    for clip in (1e9, float(norms.median())):
        found, expected = (way.clipped_sum(weights, x, y, clip, mask, COUNTS) for way in (fast, slow))
        torch.testing.assert_close(found.norms, expected.norms, rtol=1e-6, atol=0)
        assert float((found.total - expected.total).norm()) <= 1e-6 * float(expected.total.norm())


def test_the_loop_clips_the_mean_gradient_of_a_person() -> None:
    model, (x, y) = model_of(zoo.mlp), records(zoo.mlp)
    way, weights = ReferenceRecords(model, CrossEntropy()), weights_of(model)
    singly = [way.clipped_sum(weights, x[i : i + 1], y[i : i + 1], 1e9, None).total for i in range(3)]
    mean = torch.stack(singly).mean(0)
    found = way.clipped_sum(weights, x[:3], y[:3], 0.5, None, torch.tensor([3]))
    torch.testing.assert_close(found.total, mean * min(1.0, 0.5 / float(mean.norm())))


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn, Words, Convolutions], ids=["mlp", "cnn", "words", "convolutions"])
def test_a_person_with_more_records_than_are_computed_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = model_of(make), records(make, 40)
    counts, weights = torch.tensor([1, 30, 2, 7]), weights_of(model)
    expected = ReferenceRecords(model, CrossEntropy()).clipped_sum(weights, x, y, 0.5, None, counts)
    for size in (1, 8):
        monkeypatch.setattr(BatchedRecords, "_at_once", lambda *_, size=size: size)
        found = BatchedRecords(LayerRules(model, CrossEntropy())).clipped_sum(weights, x, y, 0.5, None, counts)
        torch.testing.assert_close(found.norms, expected.norms, rtol=1e-6, atol=0)
        assert float((found.total - expected.total).norm()) <= 1e-6 * float(expected.total.norm())


def test_persons_with_one_record_are_records() -> None:
    model, (x, y) = model_of(zoo.cnn), records(zoo.cnn)
    way, weights = AutoRecords(model, CrossEntropy()), weights_of(model)
    persons = way.clipped_sum(weights, x, y, 0.2, None, torch.ones(7, dtype=torch.int64))
    singly = way.clipped_sum(weights, x, y, 0.2, None)
    torch.testing.assert_close(persons.total, singly.total, rtol=1e-6, atol=1e-9)


@pytest.mark.law
@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn, Normalised, Repeated], ids=["mlp", "cnn", "normalised", "mapped"])
@pytest.mark.parametrize("scale", [1e6, 1e19, float("nan"), float("inf"), -3e38])
@pytest.mark.parametrize("size", [1, 256])
def test_a_hostile_person_moves_the_sum_by_no_more_than_the_bound(
    make: Make, scale: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records of the second person are scaled: the others count as before, and this one for the bound at most."""
    monkeypatch.setattr(record_learners, "AT_ONCE", size)
    model, (x, y) = model_of(make), records(make)
    way, weights, clip = AutoRecords(model, CrossEntropy()), weights_of(model), 0.5
    rest, others = torch.tensor([0, 4, 5, 6]), torch.tensor([1, 2, 1])
    without = way.clipped_sum(weights, x[rest], y[rest], clip, None, others).total
    x[1:4] *= scale
    found = way.clipped_sum(weights, x, y, clip, None, COUNTS)
    assert float((found.total - without).norm()) <= clip * (1 + 1e-5)
    if scale == 1e6:
        assert float((found.total - without).norm()) >= 0.99 * min(clip, float(found.norms[1]))


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [3, 1, 9, 2, 2, 1], [20], [4, 4, 4], [1, 5, 1, 5]])
def test_persons_are_never_divided(sizes: list[int]) -> None:
    counts = torch.tensor(sizes)
    x = torch.arange(int(counts.sum()))
    parts = list(_few(x, x, counts, 8))
    assert torch.cat([few for few, _, _ in parts]).tolist() == x.tolist()
    assert [count for _, _, own in parts if own is not None for count in own.tolist()] == sizes
    for few, _, own in parts:
        assert own is not None
        assert int(own.sum()) == len(few)
        assert len(own) == 1 or len(own) * int(own.max()) <= 8
