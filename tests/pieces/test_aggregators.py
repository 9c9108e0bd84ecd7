"""k-means on the server: cluster numbers are stable, empty clusters stay, and a warm-up initialises the hypotheses."""

import pytest
import torch
from sklearn.cluster import KMeans as Sklearn

from tacit.core import BoundedMessages, DenseRows, Messages, State
from tacit.pieces.aggregators import KMeans, k_means


def combined(rows: torch.Tensor, state: State, aggregator: KMeans) -> torch.Tensor:
    total = aggregator.combine(BoundedMessages(Messages(torch.arange(len(rows)), DenseRows(rows))), state)
    return aggregator.finish(total)


@pytest.mark.parametrize("seed", range(5))
def test_without_empty_clusters_it_equals_scikit_learn(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(3, 4, generator=g)
    rows = torch.cat([centre + torch.randn(20, 4, generator=g) for centre in centres])
    theirs = Sklearn(3, init=centres.numpy(), n_init=1, tol=0.0).fit(rows.numpy()).cluster_centers_
    torch.testing.assert_close(k_means(rows, centres), torch.from_numpy(theirs), rtol=1e-4, atol=1e-4)


def test_a_hypothesis_with_an_empty_cluster_does_not_change() -> None:
    hypotheses = torch.tensor([[0.0, 0.0], [9.0, 9.0], [-7.0, 5.0]])
    found = combined(torch.tensor([[0.5, 0.0], [1.5, 0.0]]), State(0, hypotheses), KMeans(models=3))
    assert found.tolist() == [[1.0, 0.0], [9.0, 9.0], [-7.0, 5.0]]


def test_without_messages_nothing_changes() -> None:
    state = State(3, torch.randn(2, 4))
    total = KMeans(models=2).combine(BoundedMessages(Messages(torch.zeros(0), DenseRows(torch.zeros(0, 4)))), state)
    assert total.weight == 0
    assert torch.equal(total.total, state.weights)


def test_one_model_is_the_mean() -> None:
    rows = torch.randn(5, 4)
    torch.testing.assert_close(combined(rows, State(0, torch.zeros(4)), KMeans(models=1)), rows.mean(0))


def test_a_warm_up_trains_one_model_and_then_initialises_the_hypotheses() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.2, 0.0], [-1.0, 0.0], [-1.2, 0.0]])
    aggregator = KMeans(models=2, warm_up=3)
    for done in (0, 1):
        assert combined(rows, State(done, torch.randn(2, 2)), aggregator).tolist() == [[0.0, 0.0]] * 2
    clusters = combined(rows, State(2, torch.zeros(2, 2)), aggregator)
    torch.testing.assert_close(clusters.sort(0).values, torch.tensor([[-1.1, 0.0], [1.1, 0.0]]))
    later = combined(rows + 5, State(3, clusters + 5), aggregator)
    torch.testing.assert_close(later, clusters + 5)  # clusters keep their numbers


def test_the_round_s_variance_is_that_within_clusters() -> None:
    rows = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    total = KMeans(models=2).combine(
        BoundedMessages(Messages(torch.arange(4), DenseRows(rows))), State(0, torch.tensor([[0.0], [12.0]]))
    )
    square = float(total.total.double().square().sum())
    assert (total.squared_norms - square) / total.total.numel() == pytest.approx((1 + 1 + 4 + 4) / 4)
