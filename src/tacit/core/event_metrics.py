"""Metrics of scores for an event: how well they rank, how often it happens, and whether probabilities fit it.

For a rare event, accuracy says nothing: predicting *never* is nearly always right. These come first then. They also
follow from counts of scores in intervals, by outcome, so that sites can add up counts instead of showing scores.
"""

import torch
from torch import Tensor

RARE = 0.1  # the base rate below which an event is rare, or above one minus which its absence is
CELLS = 256  # intervals of the logit of a score
LIMIT = 8.0  # the largest logit that they tell apart


def is_rare(positive: Tensor) -> bool:
    """Whether an event, or its absence, is rare among these outcomes."""
    rate = float(positive.double().mean()) if len(positive) else 0.5
    return min(rate, 1 - rate) < RARE


def event_metrics(logits: Tensor, positive: Tensor) -> dict[str, float]:
    """The metrics of exact scores, as logits; they are not a number where an outcome does not occur."""
    base = float(positive.double().mean())
    expected = float(torch.sigmoid(logits.double()).mean())
    high = logits.double() > _logit(base)  # a score above the base rate
    known = 0 < base < 1
    return {
        "average_precision": average_precision(logits, positive),
        "base_rate": base,
        "predicted_rate": expected,
        "balanced_accuracy_at_base_rate": (
            0.5 * float(high[positive].double().mean() + (~high[~positive]).double().mean()) if known else float("nan")
        ),
    }


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The area under the curve of precision over recall, by steps; equal scores count as one step.

    Example:
        >>> round(average_precision(torch.tensor([0.9, 0.8, 0.3, 0.1]), torch.tensor([True, False, True, False])), 4)
        0.8333
    """
    values, place = torch.unique(scores, return_inverse=True)
    counts = torch.stack(
        [torch.bincount(place[positive == outcome], minlength=len(values)) for outcome in (False, True)]
    )
    return precision_of_counts(counts)


def precision_of_counts(counts: Tensor) -> float:
    """Average precision from counts of scores in ascending order, (outcomes, scores)."""
    without, with_event = counts.double().flip(1)
    hits = with_event.cumsum(0)
    if not float(hits[-1]):
        return float("nan")
    precision = hits / (hits + without.cumsum(0)).clamp_min(1.0)
    return float((precision * with_event).sum() / hits[-1])


def count_cells(logits: Tensor, positive: Tensor) -> Tensor:
    """How many scores of each outcome are in each interval of the logit, (outcomes, intervals)."""
    place = ((logits.double().nan_to_num(0.0) + LIMIT) * (CELLS / (2 * LIMIT))).floor().clamp(0, CELLS - 1).long()
    return torch.stack([torch.bincount(place[positive == outcome], minlength=CELLS) for outcome in (False, True)])


def metrics_of_cells(counts: Tensor) -> dict[str, float]:
    """The metrics that follow from these counts; scores in one interval count as equal.

    Example:
        >>> logits, positive = torch.tensor([-3.0, -2.0, 1.0, 2.0]), torch.tensor([False, False, False, True])
        >>> metrics_of_cells(count_cells(logits, positive))["auroc"]
        1.0
    """
    without, with_event = counts.double()
    rows, events = float(counts.sum()), float(with_event.sum())
    below = without.cumsum(0) - without / 2
    base = events / max(rows, 1.0)
    width = 2 * LIMIT / CELLS
    middles = torch.sigmoid(torch.arange(CELLS, dtype=torch.float64) * width - LIMIT + width / 2)
    high = middles > base
    known = 0 < events < rows
    nan = float("nan")
    recall = [float(each[high].sum() / each.sum().clamp_min(1.0)) for each in (without, with_event)]
    return {
        "auroc": float((below * with_event).sum() / (events * (rows - events))) if known else nan,
        "average_precision": precision_of_counts(counts),
        "base_rate": base,
        "predicted_rate": float((counts.double().sum(0) * middles).sum() / max(rows, 1.0)),
        "balanced_accuracy_at_base_rate": 0.5 * (1 - recall[0] + recall[1]) if known else nan,
    }


def _logit(rate: float) -> float:
    return float(torch.logit(torch.tensor(rate, dtype=torch.float64)))
