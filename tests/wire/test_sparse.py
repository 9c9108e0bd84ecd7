"""Sparse rows as bytes: exact, small, and deaf to anything else."""

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

WIRES: dict[str, WireFormat] = {
    "csr": Csr(),
    "csr of int64": Csr(index="int64"),
    "csr of the smallest": Csr(index="smallest"),
    "csr in rows": Csr(columns=7),
    "csr in rows of the smallest": Csr(columns=256, index="smallest"),
    "compact": Compact(),
}
every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
DIM = 431_080
ROW = torch.tensor([0.0, 1.5, 0.0, 0.0, -2.0, 0.25, 0.0, 0.0, 0.0, 3.0])


def pruned(count: int, dim: int = DIM) -> Tensor:
    """The `count` largest of normally distributed weights."""
    row = torch.randn(dim, generator=torch.Generator().manual_seed(count)) * 0.05
    kept = row.abs().topk(count).indices
    return torch.zeros(dim).index_copy_(0, kept, row[kept])


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Of any density; with zeros of both signs and the smallest and largest numbers."""
    dim, share = draw(st.integers(0, 400)), draw(st.floats(0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = np.where(rng.random(dim) < share, rng.standard_normal(dim) * 10.0 ** draw(st.integers(-40, 30)), 0)
    special = draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6))
    return torch.from_numpy(np.concatenate([values.astype(np.float32), np.array(special, np.float32), [-0.0]])).float()


@every_wire
@given(row=rows())
def test_what_is_encoded_is_decoded_bit_for_bit(wire: WireFormat, row: Tensor) -> None:
    back = wire.decode(wire.encode(row), row.numel())
    assert back.dtype == torch.float32
    assert back.numpy().tobytes() == row.numpy().tobytes()


@every_wire
@pytest.mark.parametrize("row", [torch.zeros(0), torch.zeros(1), torch.ones(1), torch.zeros(300), torch.ones(300)])
def test_the_ends_of_the_range(wire: WireFormat, row: Tensor) -> None:
    assert torch.equal(wire.decode(wire.encode(row), row.numel()), row)


@pytest.mark.parametrize(("count", "least"), [(43_093 + 580, 0.30), (4950 + 580, 0.30), (43_108, 0.45), (4957, 0.43)])
def test_ours_is_smaller_than_plain_csr(count: int, least: float) -> None:
    """At 10 % and at 1.15 % of LeNet's weights, decoded bitwise; plain CSR has 8 bytes for a value."""
    row = pruned(count)
    ours, plain = Compact().encode(row), Csr().encode(row)
    assert len(plain) == 19 + 2 * 4 + 8 * count
    assert 1 - len(ours) / len(plain) >= least
    assert Compact().decode(ours, DIM).numpy().tobytes() == row.numpy().tobytes()


def test_ours_is_never_longer_than_the_row_itself() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32).view(np.float32)).nan_to_num()
    assert len(Compact().encode(noise)) == 1 + 4 * noise.numel()
    assert len(Compact().encode(torch.randn(5000))) < 0.9 * 4 * 5000  # exponents alone


def test_index_types() -> None:
    count, dim = 100, 50_000
    sizes = {index: len(Csr(index=index).encode(pruned(count, dim))) for index in ("int32", "int64", "smallest")}
    assert sizes == {"int32": 19 + 2 * 4 + 8 * count, "int64": 19 + 2 * 8 + 12 * count, "smallest": 19 + 2 + 6 * count}


@every_wire
def test_every_cut_and_every_extension_is_refused(wire: WireFormat) -> None:
    data = wire.encode(ROW)
    for end in range(len(data)):
        with pytest.raises(WireError):
            wire.decode(data[:end], 10)
    for more in (b"\0", b"\1", data):
        with pytest.raises(WireError):
            wire.decode(data + more, 10)


@every_wire
def test_a_flipped_bit_gives_another_row_or_is_refused(wire: WireFormat) -> None:
    """There is one way to say a row, so that no damage goes by unseen."""
    data = wire.encode(pruned(20, 200))
    for place in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        try:
            row = wire.decode(bytes(damaged), 200)
        except WireError:
            continue
        assert torch.isfinite(row).all()
        assert wire.encode(row) == bytes(damaged)


@every_wire
@given(data=st.binary(max_size=80), dim=st.integers(0, 300))
def test_garbage_is_refused_or_says_a_row(wire: WireFormat, data: bytes, dim: int) -> None:
    try:
        row = wire.decode(data, dim)
    except WireError:
        return
    assert wire.encode(row) == data


@every_wire
def test_rows_of_another_length_and_other_numbers_are_refused(wire: WireFormat) -> None:
    data = wire.encode(pruned(20, 200))
    for dim in (0, 19, 199, 201):
        with pytest.raises(WireError):
            wire.decode(data, dim)
    for row in (torch.zeros(3, dtype=torch.float64), torch.zeros(2, 2)):
        with pytest.raises(WireError, match="Expected a row of float32"):
            wire.encode(row)


@every_wire
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_sent_but_not_read(wire: WireFormat, bad: float) -> None:
    row = ROW.clone()
    row[4] = bad
    with pytest.raises(WireError, match="finite"):
        wire.decode(wire.encode(row), 10)


def csr(columns: list[int], values: list[float], *, count: int | None = None, begin: int = 0, end: int | None = None):
    """Compressed sparse rows that say anything."""
    stated = len(columns) if count is None else count
    pointers = struct.pack("<II", begin, stated if end is None else end)
    return (
        struct.pack("<BQBBQ", 1, 10, 4, 4, stated)
        + pointers
        + b"".join(struct.pack("<I", column) for column in columns)
        + b"".join(struct.pack("<f", value) for value in values)
    )


def test_csr_by_hand() -> None:
    assert csr([1, 4, 5, 9], [1.5, -2.0, 0.25, 3.0]) == Csr().encode(ROW)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (csr([1, 10], [1.0, 1.0]), "columns below 10"),
        (csr([1, 2**31], [1.0, 1.0]), "columns below 10"),
        (csr([4, 1], [1.0, 1.0]), "ascending"),
        (csr([4, 4], [1.0, 1.0]), "each once"),
        (csr([4], [0.0]), "other than zero"),
        (csr([4], [float("nan")]), "finite"),
        (csr([4], [1.0], begin=1), "rise from 0"),
        (csr([4], [1.0], end=0), "rise from 0"),
        (csr([4], [1.0], count=2), "cut or extended"),
        (csr([4], [1.0], count=2**63, end=1), "at most 10"),
        (b"\2" + csr([4], [1.0])[1:], "in form 2"),
        (csr([4], [1.0]).replace(b"\4\4", b"\x08\4"), "columns and pointers"),
    ],
)
def test_csr_that_says_something_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Csr().decode(data, 10)


def compact(*, kinds: int = 1, support: int = 3, span: int = 1, rest: bytes) -> bytes:
    return struct.pack("<BQHQQ", 2, 10, kinds, support, span) + rest


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (compact(kinds=257, rest=bytes(10)), "cannot hold"),
        (compact(rest=bytes(300)), "at most 41 bytes"),
        (compact(support=2**62, rest=b"\x7f"), "cannot hold"),
        (compact(rest=b"\x7f\0\xff\x03" + bytes(3)), "values behind"),
        (compact(span=2**62, rest=b"\x7f\0\x01\x00\0\x01" + bytes(3)), "to span at most"),
        (compact(kinds=2, span=2, rest=b"\x7f\x80\0\x01\x00\0\x01" + bytes(3)), "exponents of 1 values"),
        (compact(kinds=2, span=1, rest=b"\x7f\x80\0\x01\x00\0\x01" + bytes(3)), "shortest form"),
        (b"\0" + torch.eye(10)[0].numpy().tobytes(), "shortest form"),
        (b"\7" + bytes(26), "in form 7"),
        (b"\2", "at least 27 bytes"),
        (b"", "at least 27 bytes"),
    ],
)
def test_compact_that_says_something_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Compact().decode(data, 10)


def test_the_smallest_compact_row_by_hand() -> None:
    """One value, 1.0, first of ten: exponent 127; support and exponent as bitmaps; sign and fraction zero."""
    data = compact(rest=b"\x7f\0\x01\x00\0\x01" + bytes(3))
    assert torch.equal(Compact().decode(data, 10), torch.eye(10)[0])


@pytest.mark.parametrize("make", [lambda: Csr(columns=0), lambda: Csr(index="int16")])  # type: ignore[arg-type]
def test_arguments(make: Callable[[], WireFormat]) -> None:
    with pytest.raises(UserError):
        make()


def test_a_type_that_does_not_suffice() -> None:
    with pytest.raises(WireError, match="Use index='smallest'"):
        Csr(columns=2**40).encode(ROW)
