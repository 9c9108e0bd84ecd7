import pytest
import torch
from sklearn.cluster import KMeans as Sklearn

from tacit.core import Bounded, DenseRows, Messages, State
from tacit.errors import UserError
from tacit.pieces.aggregators import KMeans, clustered


def combined(rows: torch.Tensor, state: State, how: KMeans) -> torch.Tensor:
    total = how.combine(Bounded(Messages(torch.arange(len(rows)), DenseRows(rows))), state)
    return how.finish(total)


@pytest.mark.parametrize("seed", range(5))
def test_without_empty_clusters_it_is_scikit_learns(seed):
    g = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(3, 4, generator=g)
    rows = torch.cat([centre + torch.randn(20, 4, generator=g) for centre in centres])
    theirs = Sklearn(3, init=centres.numpy(), n_init=1, tol=0.0).fit(rows.numpy()).cluster_centers_
    torch.testing.assert_close(clustered(rows, centres), torch.from_numpy(theirs), rtol=1e-4, atol=1e-4)


def test_a_hypothesis_that_nobody_is_near_stays_as_it_is():
    hypotheses = torch.tensor([[0.0, 0.0], [9.0, 9.0], [-7.0, 5.0]])
    found = combined(torch.tensor([[0.5, 0.0], [1.5, 0.0]]), State(0, hypotheses), KMeans(models=3))
    assert found.tolist() == [[1.0, 0.0], [9.0, 9.0], [-7.0, 5.0]]


def test_nobody_changes_nothing():
    state = State(3, torch.randn(2, 4))
    total = KMeans(models=2).combine(Bounded(Messages(torch.zeros(0), DenseRows(torch.zeros(0, 4)))), state)
    assert total.weight == 0
    assert torch.equal(total.total, state.weights)


def test_one_model_is_the_mean():
    rows = torch.randn(5, 4)
    torch.testing.assert_close(combined(rows, State(0, torch.zeros(4)), KMeans(models=1)), rows.mean(0))


def test_a_warm_up_trains_one_model_and_spreads_it():
    rows = torch.tensor([[1.0, 0.0], [1.2, 0.0], [-1.0, 0.0], [-1.2, 0.0]])
    how = KMeans(models=2, warm_up=3)
    for done in (0, 1):
        assert combined(rows, State(done, torch.randn(2, 2)), how).tolist() == [[0.0, 0.0]] * 2
    spread = combined(rows, State(2, torch.zeros(2, 2)), how)
    torch.testing.assert_close(spread.sort(0).values, torch.tensor([[-1.1, 0.0], [1.1, 0.0]]))
    later = combined(rows + 5, State(3, spread + 5), how)
    torch.testing.assert_close(later, spread + 5)  # clusters keep their numbers


def test_the_round_s_variance_is_that_within_clusters():
    rows = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    total = KMeans(models=2).combine(
        Bounded(Messages(torch.arange(4), DenseRows(rows))), State(0, torch.tensor([[0.0], [12.0]]))
    )
    square = float(total.total.double().square().sum())
    assert (total.squares - square) / total.total.numel() == pytest.approx((1 + 1 + 4 + 4) / 4)


def test_bad_settings():
    with pytest.raises(UserError, match="models=0 >= 1"):
        KMeans(models=0)
    with pytest.raises(UserError, match="warm_up=-1 >= 0"):
        KMeans(warm_up=-1)
