import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, RootBrier, RootMeanSquared
from tacit.core.losses import auroc, best_outputs
from tacit.errors import DataError


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auroc_agrees_with_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*pairs, strict=True))
    ours = auroc(torch.from_numpy(scores), torch.from_numpy(positive))
    if positive.all() or not positive.any():
        assert np.isnan(ours)
    else:
        assert ours == pytest.approx(roc_auc_score(positive, scores))


def test_binary_metrics_agree_with_scikit_learn() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(200, 1, generator=g), (torch.rand(200, 1, generator=g) < 0.2).float()
    ours = BinaryCrossEntropy().metrics(outputs, y)
    assert ours["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y.flatten(), outputs.flatten() > 0))
    assert ours["auroc"] == pytest.approx(roc_auc_score(y.flatten(), outputs.flatten()))


def test_accuracy_and_rmse() -> None:
    outputs = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert CrossEntropy().metrics(outputs, torch.tensor([0, 1, 1, 1]))["accuracy"] == 0.75
    assert MeanSquared().metrics(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [5.0]]))["rmse"] == pytest.approx(
        5**0.5
    )


def test_root_losses() -> None:
    """The loss of a batch is a root (Eq. 10 of Galli et al.); for classes, of the distance from the one-hot label."""
    outputs, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [5.0]])
    loss = RootMeanSquared().from_mean(RootMeanSquared().per_sample(outputs, y).mean())
    assert float(loss) == pytest.approx(5**0.5) == pytest.approx(RootMeanSquared().metrics(outputs, y)["loss"])
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    assert RootBrier().per_sample(logits, labels).tolist() == [0.5, 0.5]
    assert RootBrier().metrics(logits, labels) == pytest.approx({"accuracy": 0.5, "loss": 0.5**0.5})
    with pytest.raises(DataError, match=r"labels in 0\.\.1"):
        RootBrier().validate(torch.tensor([2]), logits)


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (CrossEntropy(), torch.tensor([0, 3]), r"labels in 0\.\.2 .* got 0\.\.3"),
        (CrossEntropy(), torch.tensor([-1, 0]), r"got -1\.\.0"),
        (CrossEntropy(), torch.tensor([0.0, 1.0]), "int64"),
        (MeanSquared(), torch.zeros(2), r"shape \(samples, 3\)"),
        (MeanSquared(), torch.full((2, 3), torch.nan), "NaN"),
        (BinaryCrossEntropy(), torch.full((2, 3), 2.0), r"in \[0, 1\]"),
    ],
)
def test_invalid_targets_are_rejected(loss: Loss, y: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loss.validate(y, torch.zeros(2, 3))


def test_every_owner_gets_the_outputs_of_its_best_hypothesis() -> None:
    y, owners = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    first, second = torch.tensor([[3.0, 0.0], [0.0, 3.0]] * 2), torch.tensor([[0.0, 3.0], [3.0, 0.0]] * 2)
    outputs = torch.stack([torch.cat([first[:2], second[2:]]), torch.cat([second[:2], first[2:]])])
    assert torch.equal(best_outputs(CrossEntropy(), outputs, y, owners), first)
    assert torch.equal(best_outputs(CrossEntropy(), outputs[:1], y, owners), outputs[0])
    shared = best_outputs(CrossEntropy(), torch.stack([second, first]), y, None)  # one owner of all samples
    assert torch.equal(shared, first)
