"""Exact noise on sums: rounding and floating point stay within the sensitivity, and the outputs reveal no low bits."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, exp, hypot, log2, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tacit.core import Bound, DenseRows, Key, MaskedRows, SimulatedRound, State, Sum
from tacit.errors import UserError
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, QuantileClip
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.privacy.noise.discrete import SMOOTHING, ByteSource
from tacit.privacy.noise.lattice import WAVE, float_error, rounded_bound
from tacit.privacy.noise.sum_grid import (
    DISTANCE,
    FINE_BITS,
    SumGrid,
    WideSums,
    noisy_count,
    round_stochastically,
)

MECHANISM = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
ONE = torch.ones(1, dtype=torch.float64)
BALL = Bound((1.0,))
LAYERS = Bound((0.5, 3.0), layers=(2000, 2000))
ELLIPSOID = Bound((0.7,), axes=torch.linspace(0.1, 3.0, 4000))


def source(seed: int = 0) -> ByteSource:
    return Key.from_seed(seed, "secret").stream().bytes


def now(secret: Key, *, population: int = 10) -> SimulatedRound:
    return SimulatedRound.of(0, population, 5.0, 4, Key.from_seed(0), secret)


def released(total: Tensor, bound: Bound = BALL, seed: int = 0, *, exact: bool = True) -> Tensor:
    here = now(Key.from_seed(seed, "secret"))
    return replace(MECHANISM, exact=exact).after_sum(Sum(total, 4.0, bound), here).total


@pytest.mark.parametrize("exact", [True, False])
def test_low_order_bits_do_not_tell_neighbouring_sums_apart(exact: bool) -> None:
    """Mironov's attack: next to 1, floating-point numbers are multiples of 2⁻²⁴, and next to 0 they need not be.

    A client at the bound moves a coordinate from 0 to 1. The adversary looks only at results near 0.
    """

    def fraction_of_multiples(value: float) -> float:
        results = released(torch.full((200_000,), value), exact=exact).double()
        small = results[results.abs() < 1 / 8]
        return float((small * 2**24 % 1 == 0).double().mean())

    without, with_client = fraction_of_multiples(0.0), fraction_of_multiples(1.0)
    assert (with_client - without < 0.01) == exact  # real-valued noise is told apart by a single number


@pytest.mark.parametrize("bound", [BALL, Bound((0.3,)), LAYERS, ELLIPSOID], ids=["1", "0.3", "layers", "axes"])
def test_all_sums_have_results_on_the_same_grid(bound: Bound) -> None:
    """Whatever the sum: also one whose numbers no float32 could hold beside the noise."""
    grid = SumGrid(4000, 10, 1.0)
    step = bound.per_coordinate(torch.zeros(4000, dtype=torch.float64)) * sqrt(len(bound.values)) / grid.steps
    for total in (torch.zeros(4000), torch.full((4000,), 1e-30), torch.rand(4000), torch.full((4000,), 0.1).double()):
        multiples = released(total, bound).double() / step
        assert float((multiples - multiples.round()).abs().max()) < 1e-2  # rounded to float32
        assert multiples.round().unique().numel() > 1000


def test_equal_keys_and_close_sums_differ_by_whole_steps() -> None:
    """The noise does not depend on the sum."""
    grid = SumGrid(4000, 10, 1.0)
    sums = torch.zeros(4000), torch.linspace(0, 3, 4000)
    one, other = (released(total).double() * grid.steps for total in sums)
    assert float((other - one - sums[1].double() * grid.steps).abs().max()) < 1.01  # of a step: stochastic rounding


def test_the_release_is_unbiased() -> None:
    grid = SumGrid(20_000, 10, 1e-3)
    total = torch.full((20_000,), 0.3 / grid.steps)
    assert float(grid.release(total, ONE, source()).mean()) * grid.steps == pytest.approx(0.3, abs=0.1)


def worst_changes(grid: SumGrid) -> list[np.ndarray]:
    """Changes of norm `reach`, in steps: spread evenly, in one coordinate, and half a step in as many as it allows."""
    reach = grid.steps * (1 + float_error(grid.rows))
    even = np.full(grid.dim, reach / sqrt(grid.dim))
    single = np.zeros(grid.dim)
    single[0] = reach
    halves = np.full(grid.dim, 0.5)
    halves[0] = sqrt(max(reach**2 - 0.25 * (grid.dim - 1), 0.25))
    return [even, single, halves, -even]


@pytest.mark.parametrize("dim", [1, 100, 50_000, 300_000])
def test_rounded_neighbours_stay_within_the_sensitivity(dim: int) -> None:
    grid = SumGrid(dim, 100, 1.0)
    start = 10 * grid.steps * np.random.default_rng(1).standard_normal(dim)
    for change in worst_changes(grid):
        for seed in range(5):
            one, other = (
                round_stochastically(values * 2**FINE_BITS, source(seed)) for values in (start, start + change)
            )
            assert ((one - other) ** 2).sum() <= grid.bound.squared  # integers below 2⁵³
    assert grid.bound.l2 > grid.steps


def test_rounding_beyond_the_bound_is_as_rare_as_its_proof_says() -> None:
    """With β = e⁻², a bound that some roundings exceed: at most a fraction β of them do."""
    dim, trials = 50, 20_000
    rng = np.random.default_rng(0)
    change = rng.random(dim)
    bound = rounded_bound(float(np.linalg.norm(change)), dim, 2.0).squared
    uniform = rng.random((trials, dim))
    squares = (np.floor(change + uniform) ** 2).sum(1)
    assert (squares > bound).mean() <= exp(-2.0)


def test_fine_rounding_is_exact_in_integers() -> None:
    """All 2¹⁶ values of U once: as many are rounded up as the fraction says."""
    every = np.arange(1 << FINE_BITS, dtype="<u2").tobytes()
    for fraction in (0, 1, 12_345, 65_535):
        values = np.full(1 << FINE_BITS, 3 + fraction / 65_536)
        rounded = round_stochastically(values * 2**FINE_BITS, lambda _: every)
        assert int((rounded == 4).sum()) == fraction
        assert int((rounded == 3).sum()) == 65_536 - fraction


@pytest.mark.parametrize("values", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_no_sum_of_bounded_rows_is_limited(values: float) -> None:
    rounded = round_stochastically(np.full(3, values), source())
    assert int(np.abs(rounded).max()) <= 2 ** (52 - FINE_BITS)


@pytest.mark.parametrize("rows", [2, 60, 128, 1000])
@pytest.mark.parametrize("hidden", [False, True], ids=["dense", "masked"])
def test_summation_stays_within_the_error_of_the_proof(rows: int, hidden: bool) -> None:
    """Against exact sums, for rows of very different magnitudes and signs."""
    generator = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, 300, generator=generator) * torch.logspace(-6, 0, rows)[:, None]
    values /= values.norm(dim=1, keepdim=True)
    given = MaskedRows(values, torch.arange(300), 300) if hidden else DenseRows(values)
    exact = values.double().numpy().astype(np.longdouble).sum(0)
    error = np.linalg.norm((WideSums(given).sum().numpy() - exact).astype(float))
    assert error <= (float_error(rows) - 2.0**-14) / 2
    assert WideSums(given).sum().dtype == torch.float64
    if not hidden or rows > WAVE:
        assert error < 1e-12  # float64


def test_the_error_of_summation_grows_with_the_rows_and_has_few_values() -> None:
    errors = [float_error(rows) for rows in (0, 1, 10, 100, 1000, 10_000)]
    assert errors == sorted(errors)
    assert errors[3] < 0.003
    assert float_error(100) == float_error(128)
    assert float_error(100, depth=128) < float_error(100)
    assert SumGrid(10, 800, 1.0, depth=80).inflation < SumGrid(10, 800, 1.0).inflation
    assert len({float_error(rows) for rows in range(1, 1000)}) == ceil(log2(1000)) + 1


CASES = [
    (1, 1, 1.0),
    (100, 10, 0.3),
    (7850, 1000, 1.0),
    (1_663_370, 100, 1.0),
    (1_663_370, 100, 30.0),
    (1000, 10, 1e-3),
]


@pytest.mark.parametrize(("dim", "rows", "multiplier"), CASES)
def test_the_noise_covers_the_sensitivity(dim: int, rows: int, multiplier: float) -> None:
    """What remains of its variance after smoothing is that of the declared multiplier, for the whole sensitivity."""
    grid = SumGrid(dim, rows, multiplier)
    variance = grid.samples * grid.noise.sigma**2 - SMOOTHING**2
    assert sqrt(variance) / grid.bound.l2 == pytest.approx(multiplier, rel=1e-9)
    assert grid.noise.continuous(grid.samples, grid.bound).loss.noise_multiplier >= multiplier * (1 - 1e-9)
    assert grid.distance <= DISTANCE
    if multiplier in (0.3, 1.0):
        assert 0 < grid.inflation < (0.01 if rows <= 100 else 0.02)
    assert grid.samples == 1 or multiplier > 10


def test_the_largest_sums_have_the_declared_distance() -> None:
    assert SumGrid(1 << 28, 10, 0.1).distance <= DISTANCE
    for dim, rows in ((0, 1), ((1 << 28) + 1, 1), (1, (1 << 20) + 1)):
        with pytest.raises(UserError, match="Expected"):
            SumGrid(dim, rows, 1.0)


def test_wide_noise_is_a_sum_of_samples() -> None:
    grid = SumGrid(100_000, 10, 60.0)
    assert grid.samples > 1
    noise = grid.release(torch.zeros(100_000), ONE, source()).double().numpy() / (60 * (1 + grid.inflation))
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert stats.kstest(noise / 1.5, "norm").pvalue < 1e-3
    assert stats.kstest(noise * 1.5, "norm").pvalue < 1e-3


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_noise_fits_its_grid_to_the_percent(factor: float) -> None:
    grid = SumGrid(400_000, 10, 1.0)
    noise = grid.release(torch.zeros(400_000), ONE, source(4)).double().numpy()
    assert float(noise.std()) / (1 + grid.inflation) == pytest.approx(1.0, rel=5e-3)
    assert stats.kstest(noise / (1 + grid.inflation), "norm").pvalue > 1e-3
    assert stats.kstest(noise / factor, "norm").pvalue < 1e-12


def colliding(name: str) -> tuple[Key, Key]:
    """Two keys whose child of this name starts PyTorch's generator alike: it keeps 32 of a seed's 63 bits."""
    seen: dict[int, Key] = {}
    for seed in range(10**6):
        key = Key.from_seed(seed, "secret")
        low = key.child(name).integer() & 0xFFFFFFFF
        if low in seen:
            return seen[low], key
        seen[low] = key
    raise AssertionError("no two of a million keys collide in 32 bits")


def noise_on_sum(secret: Key) -> list[float]:
    return MECHANISM.after_sum(Sum(torch.zeros(4), 4.0, BALL), now(secret)).total.tolist()


def noise_on_count(secret: Key) -> list[float]:
    total = Sum(torch.zeros(1), 4.0, BALL, statistic=1.5)
    after = QuantileClip(count_noise=3.0).update_state(State(0, torch.zeros(1)), total, now(secret))
    return [float(after.memory[BOUND])]


@pytest.mark.parametrize(
    ("name", "drawn"), [("central noise", noise_on_sum), ("count noise", noise_on_count)], ids=["sum", "count"]
)
def test_all_bits_of_the_key_matter(name: str, drawn: Callable[[Key], list[float]]) -> None:
    one, other = colliding(name)
    assert drawn(one) != drawn(other)
    flipped = [Key(bytes(b ^ (1 << bit % 8) * (i == bit // 8) for i, b in enumerate(one.value))) for bit in range(256)]
    found = {tuple(drawn(key)) for key in [one, *flipped]}
    assert len(found) > 150  # counts on a grid coincide now and then
    assert drawn(one) == drawn(one)


@pytest.mark.parametrize("deviation", [1e-9, 0.3, 5.0, 300.0, 50_000.0])
def test_noise_on_counts(deviation: float) -> None:
    """A multiple of a power of two, and its variance is the declared one, up to a per mille."""
    steps = 2 ** max(0, int(np.floor(np.log2(256 / deviation))))
    draw = source(1)
    values = np.array([noisy_count(7, deviation, draw) for _ in range(400)])
    assert (values * steps % 1 == 0).all()
    expected = hypot(deviation, SMOOTHING / steps)
    assert expected < 1.001 * deviation or deviation < 1e-6
    assert stats.kstest((values - 7) / expected, "norm").pvalue > 1e-3
    assert stats.kstest((values - 7) / expected / 1.5, "norm").pvalue < 1e-3
    assert stats.kstest((values - 7) / expected * 1.5, "norm").pvalue < 1e-3


def test_without_noise_the_sum_is_not_rounded() -> None:
    total = torch.rand(10)
    assert torch.equal(
        replace(MECHANISM, noise_multiplier=0.0).after_sum(Sum(total, 4.0, BALL), now(Key(bytes(32)))).total,
        total,
    )


def test_a_layer_whose_bound_is_zero_stays_zero() -> None:
    out = released(torch.zeros(5), Bound((0.0, 2.0), layers=(2, 3)))
    assert out[:2].tolist() == [0.0, 0.0]
    assert bool((out[2:] != 0).all())
