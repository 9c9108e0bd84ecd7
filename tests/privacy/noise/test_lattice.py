"""The lattice: hostile rows stay within the integer bound, rounding is unbiased, and honest sums do not overflow."""

from dataclasses import replace
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.core import Key
from tacit.errors import UserError
from tacit.privacy.noise.discrete import BLOCK, ByteSource, DiscreteGaussian, IntegerNoise, Skellam
from tacit.privacy.noise.lattice import (
    MAX_OVERFLOW,
    MAX_TRIES,
    Lattice,
    clip_row,
    rounded_bound,
    stochastic_round,
)

Kind = type[DiscreteGaussian] | type[Skellam]
DIM = 500
GRID = Lattice.fit(clip=2.0, dim=DIM, cohort=20, honest=20, noise_multiplier=1.0)
HOSTILE = {
    "zeros": np.zeros(DIM),
    "minus zero": np.full(DIM, -0.0),
    "huge": np.full(DIM, 1e308),
    "huge, both signs": np.where(np.arange(DIM) % 2, 1e308, -1e308),
    "infinite": np.r_[np.inf, np.zeros(DIM - 1)],
    "both infinities": np.r_[np.inf, -np.inf, np.ones(DIM - 2)],
    "not a number": np.r_[np.nan, np.ones(DIM - 1)],
    "subnormal": np.full(DIM, 5e-324),
    "subnormal and huge": np.r_[1e308, np.full(DIM - 1, 5e-324)],
    "one large": np.r_[3.0, np.zeros(DIM - 1)],
    "at the clip": np.r_[2.0, np.zeros(DIM - 1)],
    "halves": np.full(DIM, 0.5) / GRID.scale,
    "at the clip, halves": np.r_[np.full(DIM, 84.5) / GRID.scale],
}


def source(seed: int = 0) -> ByteSource:
    return Key.from_seed(seed, "secret").stream().bytes


def squared(row: npt.NDArray[np.int64]) -> int:
    return sum(int(value) ** 2 for value in row)


def constant(byte: int) -> ByteSource:
    return lambda size: bytes([byte]) * size


@pytest.mark.law
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("noise", [source(1), constant(0), constant(255)], ids=["random", "all up", "all down"])
@pytest.mark.parametrize("steps", [1.0, 20.0, 4096.0])
def test_no_row_exceeds_the_integer_bound(name: str, noise: ByteSource, steps: float) -> None:
    grid = replace(GRID, steps=steps)
    row = grid.quantize(HOSTILE[name], noise)
    assert squared(row) <= grid.bound.squared
    assert int(np.abs(row).max()) <= grid.max_coordinate


def test_rows_that_are_not_finite_become_zero() -> None:
    for name in ("infinite", "both infinities", "not a number", "zeros", "minus zero"):
        assert not GRID.quantize(HOSTILE[name], source()).any()
    assert GRID.quantize(HOSTILE["huge"], source()).mean() == pytest.approx(GRID.steps / sqrt(DIM), rel=1e-3)


@given(st.lists(st.floats(width=64), min_size=1, max_size=40), st.floats(1e-3, 1e3), st.integers(0, 9))
def test_rows_of_any_floats_are_within_the_bound(values: list[float], clip: float, seed: int) -> None:
    row = np.array(values)
    grid = Lattice(clip=clip, dim=len(row), cohort=3, noise=DiscreteGaussian(3.0), steps=64.0)
    assert squared(grid.quantize(row, source(seed))) <= grid.bound.squared
    assert float(np.linalg.norm(clip_row(row, clip))) <= clip * (1 + 1e-12)


def test_rows_are_truncated_after_too_many_tries() -> None:
    calls = []
    grid = replace(GRID, steps=10.0)

    def up(size: int) -> bytes:
        calls.append(size)
        return bytes(size)

    row = np.full(DIM, grid.clip / sqrt(DIM))
    assert not grid.quantize(row, up).any()  # 0.45 steps each: with all rounded up, the row exceeds the bound
    assert len(calls) == MAX_TRIES


def test_a_row_of_another_shape_is_refused() -> None:
    for shape in ((1,), (DIM, 1), (), (DIM + 1,)):
        with pytest.raises(UserError, match="Expected a row of shape"):
            GRID.encode(np.zeros(shape), source())


def test_rounding_is_unbiased() -> None:
    row = np.random.default_rng(0).uniform(-3, 3, 200)
    row[:3] = 2.0, -1.0, 0.0
    rounded = np.stack([stochastic_round(row, source(seed)) for seed in range(4000)])
    deviation = np.sqrt((row - np.floor(row)) * (np.ceil(row) - row))
    assert (np.abs(rounded - row) < 1).all()
    assert (rounded[:, :3] == row[:3]).all()
    z = (rounded.mean(0) - row)[3:] / deviation[3:] * sqrt(len(rounded))
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest((rounded.mean(0) - np.round(row))[3:] / deviation[3:], "norm").pvalue < 1e-3


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("fast", [False, True], ids=["cryptographic", "fast"])
def test_rounding_in_blocks_draws_what_rounding_at_once_draws(size: int, fast: bool) -> None:
    row, key = np.random.default_rng(2).normal(scale=5, size=size), Key.from_seed(0, "secret")
    draw = key.fast_generator().bytes if fast else key.stream().bytes
    again = key.fast_generator().bytes if fast else key.stream().bytes
    uniform = (np.frombuffer(draw(8 * size), dtype="<u8") >> np.uint64(11)) * 2.0**-53
    rounded = stochastic_round(row, again)
    assert rounded.dtype == np.int64
    assert (rounded == np.floor(row) + (uniform < row - np.floor(row))).all()


def test_most_roundings_need_no_second_try() -> None:
    rows = np.random.default_rng(1).normal(size=(200, DIM))
    kept = 0
    for seed, row in enumerate(rows):
        scaled = clip_row(100 * row, 2.0) * GRID.scale
        kept += squared(stochastic_round(scaled, source(seed))) <= GRID.bound.squared
    assert kept > 160


def test_inflation_is_small_on_a_fine_grid_and_part_of_the_bound() -> None:
    assert rounded_bound(100.0, 400).squared == 10_000 + 100 + 100 + 10
    assert rounded_bound(1.0, 10_000).squared == 2552  # below (1 + 100)²
    assert rounded_bound(100.0, 1).squared == 10_100  # 100² + ¼ + 100 + ½
    for dim in (1000, 8316, 10**6, 10**7):
        grid = Lattice.fit(clip=1.0, dim=dim, cohort=100, honest=100, noise_multiplier=1.0)
        assert 0 < grid.inflation < 1.2e-3
        assert grid.noise.sigma == pytest.approx(grid.bound.l2 / 10)
        assert grid.overflow == 0


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
@pytest.mark.parametrize("bits", [32, 20])
def test_the_sum_of_rows_is_decoded_with_the_declared_noise(kind: Kind, bits: int) -> None:
    grid = Lattice.fit(clip=1.0, dim=DIM, cohort=30, honest=30, noise_multiplier=1.0, bits=bits, noise=kind)
    rows = np.random.default_rng(2).normal(size=(30, DIM)) / sqrt(DIM) / 2
    encoded = [grid.encode(row, source(seed)) for seed, row in enumerate(rows)]
    assert all(row.dtype == np.uint32 and int(row.max()) < 1 << bits for row in encoded)
    error = grid.decode(np.sum(encoded, axis=0, dtype=np.uint32)) - rows.sum(0)
    deviation = sqrt(30) * grid.noise.sigma / grid.scale
    assert deviation == pytest.approx(1 + grid.inflation)
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(error / deviation / wrong, "norm").pvalue < 1e-3
    assert stats.kstest(error / deviation, "norm").pvalue > 1e-3


def test_without_noise_the_error_of_the_sum_is_below_one_step_per_row() -> None:
    rows = np.random.default_rng(3).normal(size=(10, DIM)) / sqrt(DIM) / 2
    total = sum(GRID.quantize(row, source(seed)) for seed, row in enumerate(rows))
    error = GRID.decode(np.asarray(total).astype(np.uint32)) - rows.sum(0)
    assert float(np.abs(error).max()) * GRID.scale < 10
    assert error.std() * GRID.scale == pytest.approx(sqrt(10 / 6), rel=0.2)  # E frac·(1 − frac) = 1/6


@pytest.mark.parametrize("bits", [14, 16, 32])
def test_sums_are_decoded_up_to_the_limit_and_overflow_beyond(bits: int) -> None:
    grid = Lattice(clip=1.0, dim=1, cohort=1, noise=DiscreteGaussian(3.0), steps=64.0, bits=bits)
    half = 2 ** (bits - 1)
    sums = np.array([half - 1, -half, half, -half - 1, 0, -1]) % 2**32
    decoded = np.round(grid.decode(sums.astype(np.uint32)) * grid.scale).astype(int)
    assert decoded.tolist() == [half - 1, -half, -half, half - 1, 0, -1]


def worst_sum(grid: Lattice, noise: int) -> float:
    """The decoded sum if the whole cohort is at the bound in one coordinate, with this noise."""
    total = grid.cohort * grid.max_coordinate + noise
    return float(grid.decode(np.array([total % 2**grid.bits], dtype=np.uint32))[0] * grid.scale)


@pytest.mark.parametrize("bits", [15, 16, 20, 24])
def test_the_largest_honest_sum_does_not_overflow_and_a_lattice_that_could_is_refused(bits: int) -> None:
    grid = Lattice.fit(clip=1.0, dim=DIM, cohort=50, honest=40, noise_multiplier=1.5, bits=bits)
    assert grid.overflow <= MAX_OVERFLOW
    deviation = sqrt(grid.cohort) * grid.noise.sigma
    headroom = 2 ** (bits - 1) - grid.cohort * grid.max_coordinate
    assert headroom > 9 * deviation
    assert worst_sum(grid, headroom - 1) == pytest.approx(2 ** (bits - 1) - 1)
    assert worst_sum(grid, headroom) < 0
    if bits < 20:  # with more bits the grid is as fine as needed
        with pytest.raises(UserError, match="Use more bits"):
            replace(grid, cohort=150, noise=DiscreteGaussian(grid.noise.sigma * sqrt(50 / 150)))


def test_too_few_bits_are_refused() -> None:
    with pytest.raises(UserError, match=r"Expected the sum of 50 rows .* Use more bits or fewer steps"):
        Lattice.fit(clip=1.0, dim=DIM, cohort=50, honest=40, noise_multiplier=1.5, bits=9)
    with pytest.raises(UserError, match=r"Expected rounding to 8 steps to increase norms by 80% <= 50%\. More steps"):
        Lattice.fit(clip=1.0, dim=DIM, cohort=50, honest=40, noise_multiplier=1.5, bits=11)


def test_overflow_is_impossible_if_all_noise_fits() -> None:
    assert GRID.overflow == 0
    assert GRID.cohort * (GRID.max_coordinate + GRID.noise.table.max_magnitude) < 2**31


def noise_of(grid: Lattice, seed: int) -> npt.NDArray[np.int64]:
    encoded = grid.encode(np.zeros(grid.dim), source(seed)).astype(np.int64)
    return (encoded + 2**31) % 2**32 - 2**31


def test_noise_does_not_depend_on_the_row() -> None:
    """It takes every integer value, and a row only shifts it: low-order bits reveal nothing."""
    grid = Lattice(clip=1.0, dim=20_000, cohort=2, noise=DiscreteGaussian(3.0))
    noise = noise_of(grid, 6)
    shifted = grid.decode(grid.encode(np.r_[0.5, np.zeros(grid.dim - 1)], source(6))) * grid.scale
    assert set(noise.tolist()) >= set(range(-9, 10))  # all within three standard deviations; beyond, chance decides
    assert np.round(shifted - noise).tolist() == [2048, *[0] * (grid.dim - 1)]


def test_a_bound_that_float64_cannot_divide_is_refused() -> None:
    with pytest.raises(UserError, match="clip=1e-320 to be a normal number"):
        replace(GRID, clip=1e-320)


def test_no_more_clients_are_honest_than_the_cohort_has() -> None:
    with pytest.raises(UserError, match="Expected honest=21 in"):
        Lattice.fit(clip=1.0, dim=5, cohort=20, honest=21, noise_multiplier=1.0)


@pytest.mark.parametrize("noise", [DiscreteGaussian(50.0), Skellam(50.0)])
def test_repr_rebuilds_the_lattice(noise: IntegerNoise) -> None:
    grid = Lattice(clip=1.0, dim=5, cohort=20, noise=noise)
    assert eval(repr(grid), {"Lattice": Lattice, "DiscreteGaussian": DiscreteGaussian, "Skellam": Skellam}) == grid


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_honest_clients_alone_have_the_declared_noise(kind: Kind) -> None:
    grid = Lattice.fit(clip=1.0, dim=DIM, cohort=50, honest=30, noise_multiplier=1.5, noise=kind)
    for honest in (30, 20):
        assert grid.loss(honest).rho == pytest.approx(30 / honest / (2 * 1.5**2))
    if isinstance(grid.noise, DiscreteGaussian):
        continuous = grid.noise.continuous(30, grid.bound).loss
        assert continuous.noise_multiplier == pytest.approx(1.5)


def test_what_sampling_errors_and_overflow_add_to_delta() -> None:
    grid = Lattice.fit(clip=1.0, dim=8316, cohort=100, honest=100, noise_multiplier=1.54)
    assert (grid.overflow, 100 * 8316 * grid.noise.table.error < 1e-27) == (0, True)
    small = Lattice.fit(clip=1.0, dim=8316, cohort=100, honest=100, noise_multiplier=1.54, bits=16)
    assert 0 < small.overflow < small.overflow + 100 * 8316 * small.noise.table.error < MAX_OVERFLOW
