"""Wire formats of sparse rows: lossless, short, and strict in what they accept."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import UserError, WireError
from tacit.wire.sparse import Compact, Csr, WireFormat

FORMATS: dict[str, WireFormat] = {
    "csr": Csr(),
    "csr with int64": Csr(index="int64"),
    "csr with the smallest type": Csr(index="smallest"),
    "csr in rows": Csr(columns=7),
    "csr in rows with the smallest type": Csr(columns=256, index="smallest"),
    "compact": Compact(),
}
every_format = pytest.mark.parametrize("wire_format", FORMATS.values(), ids=FORMATS)
DIM = 431_080
ROW = torch.tensor([0.0, 1.5, 0.0, 0.0, -2.0, 0.25, 0.0, 0.0, 0.0, 3.0])


def pruned_row(count: int, dim: int = DIM) -> Tensor:
    """The `count` largest of normally distributed weights."""
    row = torch.randn(dim, generator=torch.Generator().manual_seed(count)) * 0.05
    largest = row.abs().topk(count).indices
    return torch.zeros(dim).index_copy_(0, largest, row[largest])


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Rows of any density, with zeros of both signs and the smallest and largest numbers."""
    dim, density = draw(st.integers(0, 400)), draw(st.floats(0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = np.where(rng.random(dim) < density, rng.standard_normal(dim) * 10.0 ** draw(st.integers(-40, 30)), 0)
    special = draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6))
    return torch.from_numpy(np.concatenate([values.astype(np.float32), np.array(special, np.float32), [-0.0]])).float()


@every_format
@given(row=rows())
def test_decoding_restores_the_row_bit_for_bit(wire_format: WireFormat, row: Tensor) -> None:
    decoded = wire_format.decode(wire_format.encode(row), row.numel())
    assert decoded.dtype == torch.float32
    assert decoded.numpy().tobytes() == row.numpy().tobytes()


@every_format
@pytest.mark.parametrize("row", [torch.zeros(0), torch.zeros(1), torch.ones(1), torch.zeros(300), torch.ones(300)])
def test_empty_and_full_rows(wire_format: WireFormat, row: Tensor) -> None:
    assert torch.equal(wire_format.decode(wire_format.encode(row), row.numel()), row)


@pytest.mark.parametrize(("count", "saving"), [(43_093 + 580, 0.30), (4950 + 580, 0.30), (43_108, 0.45), (4957, 0.43)])
def test_compact_is_shorter_than_csr(count: int, saving: float) -> None:
    """For 10 % and 1.15 % of LeNet's weights; CSR takes 8 bytes per value."""
    row = pruned_row(count)
    compact, csr = Compact().encode(row), Csr().encode(row)
    assert len(csr) == 19 + 2 * 4 + 8 * count
    assert 1 - len(compact) / len(csr) >= saving
    assert Compact().decode(compact, DIM).numpy().tobytes() == row.numpy().tobytes()


def test_compact_is_never_longer_than_the_row_itself() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32).view(np.float32)).nan_to_num()
    assert len(Compact().encode(noise)) == 1 + 4 * noise.numel()
    assert len(Compact().encode(torch.randn(5000))) < 0.9 * 4 * 5000  # thanks to the exponents


def test_index_types() -> None:
    count, dim = 100, 50_000
    sizes = {index: len(Csr(index=index).encode(pruned_row(count, dim))) for index in ("int32", "int64", "smallest")}
    assert sizes == {"int32": 19 + 2 * 4 + 8 * count, "int64": 19 + 2 * 8 + 12 * count, "smallest": 19 + 2 + 6 * count}


@every_format
def test_truncated_or_extended_rows_are_rejected(wire_format: WireFormat) -> None:
    data = wire_format.encode(ROW)
    for length in range(len(data)):
        with pytest.raises(WireError):
            wire_format.decode(data[:length], 10)
    for more in (b"\0", b"\1", data):
        with pytest.raises(WireError):
            wire_format.decode(data + more, 10)


@every_format
def test_a_flipped_bit_is_rejected_or_gives_another_row(wire_format: WireFormat) -> None:
    """Every row has one encoding, so that no corruption goes undetected."""
    data = wire_format.encode(pruned_row(20, 200))
    for position in range(len(data) * 8):
        corrupted = bytearray(data)
        corrupted[position // 8] ^= 1 << position % 8
        try:
            row = wire_format.decode(bytes(corrupted), 200)
        except WireError:
            continue
        assert torch.isfinite(row).all()
        assert wire_format.encode(row) == bytes(corrupted)


@every_format
@given(data=st.binary(max_size=80), dim=st.integers(0, 300))
def test_random_bytes_are_rejected_or_give_a_row(wire_format: WireFormat, data: bytes, dim: int) -> None:
    try:
        row = wire_format.decode(data, dim)
    except WireError:
        return
    assert wire_format.encode(row) == data


@every_format
def test_rows_of_another_length_or_type_are_rejected(wire_format: WireFormat) -> None:
    data = wire_format.encode(pruned_row(20, 200))
    for dim in (0, 19, 199, 201):
        with pytest.raises(WireError):
            wire_format.decode(data, dim)
    for row in (torch.zeros(3, dtype=torch.float64), torch.zeros(2, 2)):
        with pytest.raises(WireError, match="Expected a row of float32"):
            wire_format.encode(row)


@every_format
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_rows_are_encoded_but_rejected_when_decoding(wire_format: WireFormat, value: float) -> None:
    row = ROW.clone()
    row[4] = value
    with pytest.raises(WireError, match="finite"):
        wire_format.decode(wire_format.encode(row), 10)


def csr_bytes(
    columns: list[int], values: list[float], *, count: int | None = None, begin: int = 0, end: int | None = None
) -> bytes:
    """Compressed sparse rows, valid or not."""
    stated = len(columns) if count is None else count
    pointers = struct.pack("<II", begin, stated if end is None else end)
    return (
        struct.pack("<BQBBQ", 1, 10, 4, 4, stated)
        + pointers
        + b"".join(struct.pack("<I", column) for column in columns)
        + b"".join(struct.pack("<f", value) for value in values)
    )


def test_csr_by_hand() -> None:
    assert csr_bytes([1, 4, 5, 9], [1.5, -2.0, 0.25, 3.0]) == Csr().encode(ROW)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (csr_bytes([1, 10], [1.0, 1.0]), "columns below 10"),
        (csr_bytes([1, 2**31], [1.0, 1.0]), "columns below 10"),
        (csr_bytes([4, 1], [1.0, 1.0]), "ascending"),
        (csr_bytes([4, 4], [1.0, 1.0]), "strictly ascending"),
        (csr_bytes([4], [0.0]), "other than zero"),
        (csr_bytes([4], [float("nan")]), "finite"),
        (csr_bytes([4], [1.0], begin=1), "ascending pointers from 0"),
        (csr_bytes([4], [1.0], end=0), "ascending pointers from 0"),
        (csr_bytes([4], [1.0], count=2), "truncated or extended"),
        (csr_bytes([4], [1.0], count=2**63, end=1), "at most 10"),
        (b"\2" + csr_bytes([4], [1.0])[1:], "in format 2"),
        (csr_bytes([4], [1.0]).replace(b"\4\4", b"\x08\4"), "columns and pointers"),
    ],
)
def test_invalid_csr_is_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Csr().decode(data, 10)


def compact_bytes(*, distinct: int = 1, support: int = 3, span: int = 1, rest: bytes) -> bytes:
    return struct.pack("<BQHQQ", 2, 10, distinct, support, span) + rest


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (compact_bytes(distinct=257, rest=bytes(10)), "cannot hold"),
        (compact_bytes(rest=bytes(300)), "at most 41 bytes"),
        (compact_bytes(support=2**62, rest=b"\x7f"), "cannot hold"),
        (compact_bytes(rest=b"\x7f\0\xff\x03" + bytes(3)), "values after"),
        (compact_bytes(span=2**62, rest=b"\x7f\0\x01\x00\0\x01" + bytes(3)), "to span at most"),
        (compact_bytes(distinct=2, span=2, rest=b"\x7f\x80\0\x01\x00\0\x01" + bytes(3)), "exponents of 1 values"),
        (compact_bytes(distinct=2, span=1, rest=b"\x7f\x80\0\x01\x00\0\x01" + bytes(3)), "shortest encoding"),
        (b"\0" + torch.eye(10)[0].numpy().tobytes(), "shortest encoding"),
        (b"\7" + bytes(26), "in format 7"),
        (b"\2", "at least 27 bytes"),
        (b"", "at least 27 bytes"),
    ],
)
def test_invalid_compact_rows_are_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Compact().decode(data, 10)


def test_the_smallest_compact_row_by_hand() -> None:
    """One value, 1.0, first of ten: exponent 127; support and exponent as bitmaps; sign and fraction zero."""
    data = compact_bytes(rest=b"\x7f\0\x01\x00\0\x01" + bytes(3))
    assert torch.equal(Compact().decode(data, 10), torch.eye(10)[0])


@pytest.mark.parametrize("make", [lambda: Csr(columns=0), lambda: Csr(index="int16")])  # type: ignore[arg-type]
def test_invalid_arguments(make: Callable[[], WireFormat]) -> None:
    with pytest.raises(UserError):
        make()


def test_an_index_type_that_is_too_small() -> None:
    with pytest.raises(WireError, match="Use index='smallest'"):
        Csr(columns=2**40).encode(ROW)
