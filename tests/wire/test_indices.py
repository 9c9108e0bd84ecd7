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
SIZES = {1663: 2411, 8316: 9545, 83_168: 60_782, 166_337: 100_138}  # bytes, of so many random coordinates
STRUCTURED = 6434  # bytes, of 8316 coordinates that are dense in small layers
LAYERS = (800, 32, 51_200, 64, 1_605_632, 512, 5_120, 10)


def drawn(count: int, dim: int, name: str = "indices") -> Tensor:
    return torch.from_numpy(np.sort(Key.from_seed(0).child(name).numpy().choice(dim, count, replace=False)))


def layered(counts: tuple[int, ...]) -> Tensor:
    """So many coordinates of each layer, at random within it."""
    starts = torch.tensor((0, *LAYERS)).cumsum(0).tolist()
    return torch.cat([drawn(k, n) + at for k, n, at in zip(counts, LAYERS, starts, strict=False)])


def entropy(count: int, dim: int) -> float:
    """Bytes that no code can do without, on average over all sets of this size."""
    log = math.lgamma(dim + 1) - math.lgamma(count + 1) - math.lgamma(dim - count + 1)
    return log / math.log(2) / 8


@st.composite
def sets(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Any size from empty to full, clustered or even, below any `dim`."""
    dim = draw(st.one_of(st.integers(0, 40), st.integers(0, 5000), st.integers(1, 2**62 - 1)))
    if dim <= 5000 and draw(st.booleans()):
        share = draw(st.floats(0, 1))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        return torch.from_numpy(np.flatnonzero(rng.random(dim) < share * rng.random(dim).cumprod() ** 0.01)), dim
    chosen = draw(st.sets(st.integers(0, dim - 1), max_size=300)) if dim else set()
    return torch.tensor(sorted(chosen), dtype=torch.int64), dim


@given(what=sets())
def test_what_is_packed_is_read_back(what: tuple[Tensor, int]) -> None:
    chosen, dim = what
    packed = pack(chosen, dim)
    assert packed.dtype == torch.uint8
    assert packed.numel() <= 1 + -(-dim // 8)
    back = unpack(packed, dim)
    assert back.dtype == torch.int64
    assert torch.equal(back, chosen)


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 64, 72, 73, 1000, 128 * 128, DIM])
def test_the_ends_of_the_range(dim: int) -> None:
    every = torch.arange(dim)
    for wanted in (every[:0], every[:1], every[-1:], every[[0, -1]].unique(), every, every[:-1], every[1:]):
        assert torch.equal(unpack(pack(wanted, dim), dim), wanted)


def test_sizes_of_random_masks() -> None:
    """0.5 % of the paper's model costs 1.1 % more than its entropy (9441 bytes), 10 % costs 2.7 % more."""
    sizes = {count: pack(drawn(count, DIM), DIM).numel() for count in (1663, 8316, 83_168, 166_337)}
    assert sizes == SIZES
    assert 9430 < entropy(8316, DIM) < 9450
    assert sizes[8316] <= 9700
    for count, size in sizes.items():
        assert entropy(count, DIM) - 100 < size < 1.05 * entropy(count, DIM) + 20


def test_a_mask_that_is_dense_in_small_layers_costs_less() -> None:
    top = layered((780, 30, 4000, 50, 2200, 256, 990, 10))
    assert top.numel() == 8316
    assert pack(top, DIM).numel() == STRUCTURED < SIZES[8316]


def test_a_dense_mask_is_a_bitmap() -> None:
    for count in (DIM // 2, DIM - 1, DIM):
        packed = pack(drawn(count, DIM), DIM)
        assert packed[0] == 0
        assert packed.numel() == 1 + -(-DIM // 8)
    assert pack(drawn(DIM // 10, DIM), DIM)[0] == 1


def test_a_tenth_of_a_large_model_takes_milliseconds() -> None:
    """About 4 ms each; the limit leaves room for a busy machine."""
    chosen = drawn(166_337, DIM)
    start = time.perf_counter()
    back = unpack(pack(chosen, DIM), DIM)
    assert time.perf_counter() - start < 0.5
    assert torch.equal(back, chosen)


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        (torch.tensor([1, 1]), "ascending order"),
        (torch.tensor([2, 1]), "ascending order"),
        (torch.tensor([0, 10]), r"from 0 to 10 in \[0, 10\)"),
        (torch.tensor([-1, 3]), r"from -1 to 3 in \[0, 10\)"),
        (torch.tensor([0.0]), "int64"),
        (torch.tensor([[0]]), "int64"),
    ],
)
def test_what_is_no_set_cannot_be_packed(indices: Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pack(indices, 10)


@pytest.mark.parametrize("dim", [-1, 2**62])
def test_a_dim_out_of_range_is_the_callers_fault(dim: int) -> None:
    with pytest.raises(UserError, match=rf"Expected dim={dim} in \[0, 2\*\*62\)"):
        pack(torch.zeros(0, dtype=torch.int64), dim)
    with pytest.raises(UserError, match=f"Expected dim={dim}"):
        unpack(torch.zeros(1, dtype=torch.uint8), dim)


SMALL = 3000
GAPS = pack(drawn(140, SMALL), SMALL)  # two blocks
BITMAP = pack(drawn(1500, SMALL), SMALL)


def test_the_examples_are_of_both_forms() -> None:
    assert (GAPS[0], BITMAP[0]) == (1, 0)


@pytest.mark.parametrize("packed", [GAPS, BITMAP])
def test_cut_or_extended_sets_are_refused(packed: Tensor) -> None:
    for cut in range(packed.numel()):
        with pytest.raises(WireError):
            unpack(packed[:cut], SMALL)
    for more in (1, 2, 100, 1000):
        with pytest.raises(WireError):
            unpack(torch.cat([packed, torch.zeros(more, dtype=torch.uint8)]), SMALL)
        with pytest.raises(WireError):
            unpack(torch.cat([packed, torch.full((more,), 255, dtype=torch.uint8)]), SMALL)


@pytest.mark.parametrize("packed", [GAPS, BITMAP])
def test_a_changed_byte_is_refused_or_gives_another_set(packed: Tensor) -> None:
    rng = np.random.default_rng(0)
    for place in range(packed.numel()):
        for value in (0, 255, *rng.integers(0, 256, 6)):
            damaged = packed.clone()
            damaged[place] = int(value)
            if not torch.equal(damaged, packed):
                assert_refused_or_other(damaged, SMALL, unpack(packed, SMALL))


@given(data=st.binary(max_size=300), form=st.sampled_from([None, 0, 1]), dim=st.sampled_from([0, 9, 1000, 2400, DIM]))
def test_garbage_is_refused_or_gives_a_set(data: bytes, form: int | None, dim: int) -> None:
    start = b"" if form is None else bytes([form])
    assert_refused_or_other(torch.frombuffer(bytearray(start + data + b"\1"), dtype=torch.uint8), dim)


@given(
    count=st.integers(0, 260),
    parameters=st.binary(max_size=3),
    rest=st.binary(max_size=600),
    dim=st.sampled_from([1000, DIM, 2**40, 2**62 - 1]),
)
def test_garbage_behind_a_plausible_header(count: int, parameters: bytes, rest: bytes, dim: int) -> None:
    assert_refused_or_other(made(count, bytes(b % 64 for b in parameters) + rest), dim)


@pytest.mark.parametrize("count", [1000 * 8, 1 << 20, 1 << 40, 2**64 - 1])
def test_an_absurd_count_allocates_nothing(count: int) -> None:
    with pytest.raises(WireError, match=f"says {count} coordinates"):
        unpack(made(count, bytes(500)), 2**62 - 1)


def test_sentences() -> None:
    cases = [
        (torch.zeros(0, dtype=torch.uint8), "Expected a set of coordinates as bytes"),
        (torch.zeros(4), "got torch.float32"),
        (torch.tensor([2, 0], dtype=torch.uint8), "form 0 or 1, got form 2"),
        (torch.zeros(1000, dtype=torch.uint8), r"at most 126 bytes for coordinates below 1000, got 1000"),
        (torch.zeros(100, dtype=torch.uint8), "a bitmap of 126 bytes, got 100: it was cut"),
        (torch.ones(3, dtype=torch.uint8), "gaps in 9 to 125 bytes, got 3"),
        (made(1, bytes([11, 0, 0, 1])), "parameters of at most 10, got 11"),
        (made(1, bytes([8, 0])), "low bits of 1 coordinates pass the end"),
        (made(1, bytes([1, 2, 1])), "something else than zeros"),
        (made(1, bytes([0, 3])), "Expected 1 unary codes up to the last byte, got 2"),
        (made(1, bytes([0, 1, 0])), "Expected 1 unary codes up to the last byte, got 1"),
        (made(1, bytes([10, 0, 0, 4])), "below 1000, got a larger gap"),
        (made(1, bytes([10, 232, 3, 1])), "below 1000, got larger ones"),
    ]
    for packed, sentence in cases:
        with pytest.raises(WireError, match=sentence):
            unpack(packed, 1000)
    assert unpack(made(1, bytes([10, 231, 3, 1])), 1000).tolist() == [999]


def made(count: int, rest: bytes) -> Tensor:
    """A gap form with this count and these bytes behind it."""
    return torch.frombuffer(bytearray(struct.pack("<BQ", 1, count) + rest), dtype=torch.uint8)


def assert_refused_or_other(packed: Tensor, dim: int, than: Tensor | None = None) -> None:
    try:
        chosen = unpack(packed, dim)
    except WireError:
        return
    assert torch.equal(unpack(pack(chosen, dim), dim), chosen)  # which `pack` takes for nothing but a set
    assert than is None or not torch.equal(chosen, than)
