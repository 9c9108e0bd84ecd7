"""Metrics of rare events: scikit-learn's, exactly from scores and nearly from counts in intervals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score
from torch import Tensor

from tacit.core import BinaryCrossEntropy, CrossEntropy
from tacit.core.event_metrics import average_precision, count_cells, event_metrics, metrics_of_cells

FIRST = ["auroc", "average_precision", "base_rate", "predicted_rate", "balanced_accuracy_at_base_rate"]


def scores(events: float, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Logits that are calibrated, and outcomes."""
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(count, generator=source) + torch.logit(torch.tensor(events))
    return logits, torch.rand(count, generator=source) < torch.sigmoid(logits)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_average_precision_is_that_of_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    values, positive = (torch.tensor(column) for column in zip(*pairs, strict=True))
    if bool(positive.any()):
        expected = average_precision_score(positive.numpy(), values.numpy())
        assert average_precision(values, positive) == pytest.approx(expected)


def test_counts_in_intervals_give_nearly_the_same() -> None:
    logits, positive = scores(0.05)
    exact, counted = event_metrics(logits, positive), metrics_of_cells(count_cells(logits, positive))
    assert counted["auroc"] == pytest.approx(roc_auc_score(positive, logits), abs=0.005)
    assert exact["base_rate"] == counted["base_rate"] == pytest.approx(float(positive.double().mean()))
    near = {"average_precision": 0.01, "predicted_rate": 0.001, "balanced_accuracy_at_base_rate": 0.02}
    assert {name: counted[name] for name in near} == {name: pytest.approx(exact[name], abs=near[name]) for name in near}
    threshold = torch.logit(positive.double().mean())
    expected = balanced_accuracy_score(positive, logits.double() > threshold)
    assert exact["balanced_accuracy_at_base_rate"] == pytest.approx(expected)


def test_sums_of_counts_are_counts_of_all() -> None:
    logits, positive = scores(0.03, 300)
    halves = count_cells(logits[:100], positive[:100]) + count_cells(logits[100:], positive[100:])
    assert torch.equal(halves, count_cells(logits, positive))
    assert int(halves.sum()) == 300
    extreme = torch.tensor([float("inf"), -float("inf"), float("nan"), 1e30])
    assert int(count_cells(extreme, torch.tensor([True] * 4)).sum()) == 4


@pytest.mark.parametrize("outputs", [1, 2])
def test_of_a_rare_event_what_says_something_comes_first(outputs: int) -> None:
    """Never accuracy alone: predicting "never" is right for nearly all."""
    logits, positive = scores(0.02)
    if outputs == 1:
        metrics = BinaryCrossEntropy().metrics(logits[:, None], positive.float()[:, None])
    else:
        metrics = CrossEntropy().metrics(torch.stack([torch.zeros_like(logits), logits], 1), positive.long())
    assert [*metrics][:5] == FIRST
    assert metrics["auroc"] == pytest.approx(roc_auc_score(positive, logits))
    assert metrics["predicted_rate"] == pytest.approx(metrics["base_rate"], rel=0.2)


def test_a_common_event_is_measured_as_before() -> None:
    logits, positive = scores(0.4)
    assert [*BinaryCrossEntropy().metrics(logits[:, None], positive.float()[:, None])] == [
        "balanced_accuracy", "auroc", "loss",
    ]  # fmt: skip
    two = torch.stack([torch.zeros_like(logits), logits], 1)
    assert [*CrossEntropy().metrics(two, positive.long())] == ["accuracy", "loss"]


def test_without_an_event_ranks_are_no_number() -> None:
    metrics = metrics_of_cells(count_cells(torch.zeros(5), torch.zeros(5, dtype=torch.bool)))
    assert metrics["base_rate"] == 0
    assert metrics["auroc"] != metrics["auroc"]
