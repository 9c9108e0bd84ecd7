import pytest
import torch
from scipy import stats

from tacit.core import DenseRows, Key, Messages, Round, State, Sum, UserError
from tacit.core.rounds import refuse
from tacit.mechanisms import CentralGaussian

STATE = State(0, torch.zeros(4))


def now(seed: int = 0, *, expected: float = 5.0) -> Round:
    return Round(0, 10, expected, 4, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def messages(*rows: list[float]) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(torch.tensor(rows)))


def test_no_row_exceeds_the_bound_and_short_rows_stay() -> None:
    hostile = messages(
        [0.0, 0.0, 0.0, 0.0],
        [1e-40, 0.0, 0.0, 0.0],
        [3.0, 4.0, 0.0, 0.0],
        [1e30, 1e30, -1e30, 1e30],
        [float("inf"), 0.0, 0.0, 0.0],
        [float("nan"), 0.0, 0.0, 0.0],
        [0.1, 0.2, 0.0, 0.0],
    )
    kept, receipt = refuse(hostile)
    assert receipt.refused == (4, 5)
    bounded = CentralGaussian(clip=2.0, noise_multiplier=1.0).before_sum(kept, STATE, now())
    assert bounded.bound == 2.0
    rows = bounded.messages.rows.dense()
    assert float(rows.double().norm(dim=1).max()) <= 2.0 * (1 + 1e-6)
    assert torch.equal(rows[-1], torch.tensor([0.1, 0.2, 0.0, 0.0]))
    torch.testing.assert_close(rows[2], torch.tensor([1.2, 1.6, 0.0, 0.0]))


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_what_is_declared(factor: float, fits: bool) -> None:
    """A Kolmogorov–Smirnov test on the released sum; it must also reject two thirds and three halves of the noise."""
    mechanism = CentralGaussian(clip=0.5, noise_multiplier=1.2 * factor)
    noise = mechanism.after_sum(Sum(torch.zeros(4000), 4.0, 0.5), now()).total
    declared = 0.5 * 1.2
    assert (stats.kstest(noise.numpy() / declared, "norm").pvalue > 1e-3) == fits


def test_the_noise_follows_the_bound_that_went_into_the_sum() -> None:
    mechanism = CentralGaussian(clip=1.0, noise_multiplier=1.0)
    small, large = (mechanism.after_sum(Sum(torch.zeros(10), 1.0, bound), now()).total for bound in (1.0, 3.0))
    torch.testing.assert_close(large, 3 * small)


def test_the_sum_is_divided_by_the_expected_cohort() -> None:
    total = CentralGaussian(clip=1.0, noise_multiplier=0.0).after_sum(Sum(torch.ones(3), 4.0, 1.0), now(expected=5.0))
    assert total.weight == 5.0


def test_the_noise_of_another_round_is_another() -> None:
    mechanism = CentralGaussian(clip=1.0, noise_multiplier=1.0)
    one, other = (mechanism.after_sum(Sum(torch.zeros(10), 1.0, 1.0), now(seed)).total for seed in (0, 1))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("clip", "noise"), [(0.0, 1.0), (-1.0, 1.0), (float("inf"), 1.0), (1.0, -0.1)])
def test_bad_arguments(clip: float, noise: float) -> None:
    with pytest.raises(UserError, match="Expected"):
        CentralGaussian(clip=clip, noise_multiplier=noise)
