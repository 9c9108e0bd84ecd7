"""Samplers: cohort sizes, equal inclusion probabilities, and independent Poisson draws."""

import tracemalloc

import pytest
import torch

from tacit.core import Key
from tacit.core.interfaces import Sampler
from tacit.core.prices import Sampling
from tacit.errors import UserError
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson

KEYS = [Key.from_seed(0).child("cohort", i) for i in range(2000)]


def counts(sampler: Sampler, population: int) -> torch.Tensor:
    total = torch.zeros(population)
    for index, key in enumerate(KEYS):
        total[sampler.cohort(population, index, key)] += 1
    return total


def test_everyone() -> None:
    assert Everyone().cohort(4, 0, KEYS[0]).tolist() == [0, 1, 2, 3]


def test_a_fixed_size_cohort_has_distinct_clients_in_ascending_order() -> None:
    for key in KEYS[:50]:
        cohort = FixedSize(7).cohort(20, 0, key)
        assert len(set(cohort.tolist())) == 7
        assert cohort.tolist() == sorted(cohort.tolist())


@pytest.mark.parametrize("sampler", [FixedSize(5), Poisson(5.0)], ids=repr)
def test_all_clients_are_equally_likely(sampler: Sampler) -> None:
    frequency = counts(sampler, 20) / len(KEYS)
    deviation = (0.25 * 0.75 / len(KEYS)) ** 0.5
    assert float((frequency - 0.25).abs().max()) < 4.5 * deviation


def test_poisson_draws_are_independent() -> None:
    """The cohort's size has the variance of a binomial, and pairs occur with the product of their probabilities."""
    cohorts = [set(Poisson(5.0).cohort(20, 0, key).tolist()) for key in KEYS]
    sizes = torch.tensor([float(len(c)) for c in cohorts])
    assert float(sizes.mean()) == pytest.approx(5.0, abs=0.2)
    assert float(sizes.var()) == pytest.approx(20 * 0.25 * 0.75, rel=0.15)
    assert sum({0, 1} <= c for c in cohorts) / len(cohorts) == pytest.approx(0.0625, abs=0.02)


def test_growing_follows_its_stages() -> None:
    growing = Growing(stages=((2, FixedSize(3)), (3, FixedSize(5))))
    assert [len(growing.cohort(10, i, KEYS[i])) for i in range(7)] == [3, 3, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("sampler", [FixedSize(11), Poisson(11), Growing(stages=((1, Poisson(11)),))], ids=repr)
def test_a_cohort_larger_than_the_population_is_refused(sampler: Sampler) -> None:
    with pytest.raises(UserError, match=r"Expected a cohort of size=11 <= population=10\. Use a smaller cohort"):
        sampler.cohort(10, 0, KEYS[0])


@pytest.mark.parametrize("stages", [(), ((0, Everyone()),)], ids=str)
def test_every_stage_has_a_round(stages: tuple[tuple[int, Sampler], ...]) -> None:
    with pytest.raises(UserError, match="Expected"):
        Growing(stages=stages)


@pytest.mark.parametrize(
    ("sampler", "sampling"),
    [
        (Everyone(), Sampling()),
        (Poisson(5), Sampling("poisson", 0.25)),
        (Poisson(20), Sampling()),
        (FixedSize(5), Sampling("fixed", 0.25)),
        (FixedSize(20), Sampling()),
        (Growing(((3, FixedSize(5)), (1, Poisson(10)))), Sampling("poisson", 0.5)),
    ],
    ids=repr,
)
def test_every_sampler_declares_its_sampling(sampler: Sampler, sampling: Sampling) -> None:
    """Poisson accounting of fixed-size cohorts cannot be written."""
    assert sampler.sampling(20, 3) == sampling


MANY = 10_000_000


@pytest.mark.parametrize("sampler", [FixedSize(100), Poisson(100)], ids=repr)
def test_a_cohort_of_ten_million_costs_as_much_as_the_cohort(sampler: FixedSize | Poisson) -> None:
    """Not a coin for every client, which would be 80 MB of them."""
    drawn = []
    for seed in range(20):
        key = Key.from_seed(seed)
        tracemalloc.start()
        cohort = sampler.cohort(MANY, 0, key)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert torch.equal(cohort, sampler.cohort(MANY, 0, key))
        assert len(cohort.unique()) == len(cohort)
        assert seed == 0 or peak < 1 << 20  # the first one may import
        drawn.append(len(cohort))
    spread = 0.0 if isinstance(sampler, FixedSize) else 10.0
    assert abs(sum(drawn) / len(drawn) - 100) <= 4 * spread / len(drawn) ** 0.5
    assert (len(set(drawn)) > 1) == (spread > 0)
