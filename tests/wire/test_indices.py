import math
import struct
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.core.keys import Key
from tacit.errors import UserError, WireError
from tacit.wire.indices import pack, unpack

DIM = 1_663_370  # the Fashion-MNIST model of the FL-TOP paper
SIZES = {1663: 2411, 8316: 9545, 83_168: 60_782, 166_337: 100_138}  # bytes, by number of random coordinates
STRUCTURED = 6434  # bytes, for 8316 coordinates that are dense in small layers
LAYERS = (800, 32, 51_200, 64, 1_605_632, 512, 5_120, 10)


def random_set(count: int, dim: int, name: str = "indices") -> Tensor:
    return torch.from_numpy(np.sort(Key.from_seed(0).child(name).public_numpy().choice(dim, count, replace=False)))


def layered_set(counts: tuple[int, ...]) -> Tensor:
    """`counts[i]` random coordinates of layer i."""
    offsets = torch.tensor((0, *LAYERS)).cumsum(0).tolist()
    return torch.cat([random_set(k, n) + offset for k, n, offset in zip(counts, LAYERS, offsets, strict=False)])


def entropy(count: int, dim: int) -> float:
    """The entropy of a random set of this size, in bytes."""
    log = math.lgamma(dim + 1) - math.lgamma(count + 1) - math.lgamma(dim - count + 1)
    return log / math.log(2) / 8


@st.composite
def sets(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Sets of any size from empty to full, clustered or uniform, below any `dim`."""
    dim = draw(st.one_of(st.integers(0, 40), st.integers(0, 5000), st.integers(1, 2**62 - 1)))
    if dim <= 5000 and draw(st.booleans()):
        density = draw(st.floats(0, 1))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        return torch.from_numpy(np.flatnonzero(rng.random(dim) < density * rng.random(dim).cumprod() ** 0.01)), dim
    chosen = draw(st.sets(st.integers(0, dim - 1), max_size=300)) if dim else set()
    return torch.tensor(sorted(chosen), dtype=torch.int64), dim


@given(case=sets())
def test_unpacking_restores_what_was_packed(case: tuple[Tensor, int]) -> None:
    chosen, dim = case
    packed = pack(chosen, dim)
    assert packed.dtype == torch.uint8
    assert packed.numel() <= 1 + -(-dim // 8)
    unpacked = unpack(packed, dim)
    assert unpacked.dtype == torch.int64
    assert torch.equal(unpacked, chosen)


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 64, 72, 73, 1000, 128 * 128, DIM])
def test_sets_at_the_ends_of_the_range(dim: int) -> None:
    full = torch.arange(dim)
    for chosen in (full[:0], full[:1], full[-1:], full[[0, -1]].unique(), full, full[:-1], full[1:]):
        assert torch.equal(unpack(pack(chosen, dim), dim), chosen)


def test_sizes_of_random_masks() -> None:
    """0.5 % of the paper's model takes 1.1 % more than its entropy (9441 bytes), 10 % takes 2.7 % more."""
    sizes = {count: pack(random_set(count, DIM), DIM).numel() for count in (1663, 8316, 83_168, 166_337)}
    assert sizes == SIZES
    assert 9430 < entropy(8316, DIM) < 9450
    assert sizes[8316] <= 9700
    for count, size in sizes.items():
        assert entropy(count, DIM) - 100 < size < 1.05 * entropy(count, DIM) + 20


def test_masks_that_are_dense_in_small_layers_take_fewer_bytes() -> None:
    mask = layered_set((780, 30, 4000, 50, 2200, 256, 990, 10))
    assert mask.numel() == 8316
    assert pack(mask, DIM).numel() == STRUCTURED < SIZES[8316]


def test_a_dense_mask_is_a_bitmap() -> None:
    for count in (DIM // 2, DIM - 1, DIM):
        packed = pack(random_set(count, DIM), DIM)
        assert packed[0] == 0
        assert packed.numel() == 1 + -(-DIM // 8)
    assert pack(random_set(DIM // 10, DIM), DIM)[0] == 1


def test_packing_a_tenth_of_a_large_model_takes_milliseconds() -> None:
    """About 4 ms each way; the limit allows for a busy machine."""
    chosen = random_set(166_337, DIM)
    start = time.perf_counter()
    unpacked = unpack(pack(chosen, DIM), DIM)
    assert time.perf_counter() - start < 0.5
    assert torch.equal(unpacked, chosen)


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        (torch.tensor([1, 1]), "strictly ascending order"),
        (torch.tensor([2, 1]), "strictly ascending order"),
        (torch.tensor([0, 10]), r"from 0 to 10 in \[0, 10\)"),
        (torch.tensor([-1, 3]), r"from -1 to 3 in \[0, 10\)"),
        (torch.tensor([0.0]), "int64"),
        (torch.tensor([[0]]), "int64"),
    ],
)
def test_invalid_sets_cannot_be_packed(indices: Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pack(indices, 10)


@pytest.mark.parametrize("dim", [-1, 2**62])
def test_a_dim_out_of_range_is_a_user_error(dim: int) -> None:
    with pytest.raises(UserError, match=rf"Expected dim={dim} in \[0, 2\*\*62\)"):
        pack(torch.zeros(0, dtype=torch.int64), dim)
    with pytest.raises(UserError, match=f"Expected dim={dim}"):
        unpack(torch.zeros(1, dtype=torch.uint8), dim)


SMALL = 3000
GAPS = pack(random_set(140, SMALL), SMALL)  # two blocks
BITMAP = pack(random_set(1500, SMALL), SMALL)


def test_the_examples_cover_both_formats() -> None:
    assert [int(packed[0]) for packed in (GAPS, BITMAP)] == [1, 0]


@pytest.mark.parametrize("packed", [GAPS, BITMAP])
def test_truncated_or_extended_sets_are_rejected(packed: Tensor) -> None:
    for length in range(packed.numel()):
        with pytest.raises(WireError):
            unpack(packed[:length], SMALL)
    for more in (1, 2, 100, 1000):
        with pytest.raises(WireError):
            unpack(torch.cat([packed, torch.zeros(more, dtype=torch.uint8)]), SMALL)
        with pytest.raises(WireError):
            unpack(torch.cat([packed, torch.full((more,), 255, dtype=torch.uint8)]), SMALL)


@pytest.mark.parametrize("packed", [GAPS, BITMAP])
def test_a_changed_byte_is_rejected_or_gives_another_set(packed: Tensor) -> None:
    rng = np.random.default_rng(0)
    for position in range(packed.numel()):
        for value in (0, 255, *rng.integers(0, 256, 6)):
            changed = packed.clone()
            changed[position] = int(value)
            if not torch.equal(changed, packed):
                assert_rejected_or_other(changed, SMALL, unpack(packed, SMALL))


@given(data=st.binary(max_size=300), tag=st.sampled_from([None, 0, 1]), dim=st.sampled_from([0, 9, 1000, 2400, DIM]))
def test_random_bytes_are_rejected_or_give_a_set(data: bytes, tag: int | None, dim: int) -> None:
    start = b"" if tag is None else bytes([tag])
    assert_rejected_or_other(torch.frombuffer(bytearray(start + data + b"\1"), dtype=torch.uint8), dim)


@given(
    count=st.integers(0, 260),
    parameters=st.binary(max_size=3),
    rest=st.binary(max_size=600),
    dim=st.sampled_from([1000, DIM, 2**40, 2**62 - 1]),
)
def test_random_bytes_after_a_plausible_header(count: int, parameters: bytes, rest: bytes, dim: int) -> None:
    assert_rejected_or_other(gap_format(count, bytes(b % 64 for b in parameters) + rest), dim)


@pytest.mark.parametrize("count", [1000 * 8, 1 << 20, 1 << 40, 2**64 - 1])
def test_an_absurd_count_does_not_allocate(count: int) -> None:
    with pytest.raises(WireError, match=f"Expected {count} coordinates"):
        unpack(gap_format(count, bytes(500)), 2**62 - 1)


def test_error_messages() -> None:
    cases = [
        (torch.zeros(0, dtype=torch.uint8), "Expected a set of coordinates as bytes"),
        (torch.zeros(4), "got torch.float32"),
        (torch.tensor([2, 0], dtype=torch.uint8), "format 0 or 1, got format 2"),
        (torch.zeros(1000, dtype=torch.uint8), r"at most 126 bytes for coordinates below 1000, got 1000"),
        (torch.zeros(100, dtype=torch.uint8), "a bitmap of 126 bytes, got 100: it was truncated"),
        (torch.ones(3, dtype=torch.uint8), "gaps in 9 to 125 bytes, got 3"),
        (gap_format(1, bytes([11, 0, 0, 1])), "parameters of at most 10, got 11"),
        (gap_format(1, bytes([8, 0])), "low bits of 1 coordinates, but 11 bytes cannot hold them"),
        (gap_format(1, bytes([1, 2, 1])), "zeros after the low bits"),
        (gap_format(1, bytes([0, 3])), "Expected 1 unary codes that end in the last byte, got 2"),
        (gap_format(1, bytes([0, 1, 0])), "Expected 1 unary codes that end in the last byte, got 1"),
        (gap_format(1, bytes([10, 0, 0, 4])), "below 1000, got a larger gap"),
        (gap_format(1, bytes([10, 232, 3, 1])), "below 1000, got larger ones"),
    ]
    for packed, sentence in cases:
        with pytest.raises(WireError, match=sentence):
            unpack(packed, 1000)
    assert unpack(gap_format(1, bytes([10, 231, 3, 1])), 1000).tolist() == [999]


def gap_format(count: int, rest: bytes) -> Tensor:
    """The gap format with this count, followed by these bytes."""
    return torch.frombuffer(bytearray(struct.pack("<BQ", 1, count) + rest), dtype=torch.uint8)


def assert_rejected_or_other(packed: Tensor, dim: int, original: Tensor | None = None) -> None:
    try:
        chosen = unpack(packed, dim)
    except WireError:
        return
    assert torch.equal(unpack(pack(chosen, dim), dim), chosen)  # `pack` accepts only valid sets
    assert original is None or not torch.equal(chosen, original)
