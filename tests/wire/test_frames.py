import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import WireError
from tacit.wire.frames import VERSION, FrameKind, Part, pack, size, unpack

FRAME = pack(FrameKind.MESSAGE, 5, {Part.ROW: torch.arange(6.0), Part.SAMPLES: torch.tensor(7)})


@given(
    values=st.lists(st.floats(width=32), max_size=20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    number=st.integers(0, 2**32 - 1),
)
def test_what_is_packed_is_read_back_bit_for_bit(values: list[float], dtype: torch.dtype, number: int) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    data = pack(FrameKind.VIEW, number, {Part.WEIGHTS: tensor})
    frame = unpack(data, FrameKind.VIEW)
    assert frame.round == number
    assert frame.parts[Part.WEIGHTS].numpy().tobytes() == tensor.numpy().tobytes()
    assert len(data) == size({Part.WEIGHTS: tensor})


def test_a_dense_float32_row_costs_four_bytes_a_value_and_a_small_header() -> None:
    for n in (0, 1, 1_663_370):
        assert size({Part.ROW: torch.empty(n, device="meta")}) <= 4 * n + 64


@given(cut=st.integers(0, len(FRAME) - 1))
def test_a_cut_frame_is_refused(cut: int) -> None:
    with pytest.raises(WireError):
        unpack(FRAME[:cut], FrameKind.MESSAGE)


@given(place=st.integers(0, len(FRAME) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(place: int, bit: int) -> None:
    """Anywhere but in the round's number, which the receiver compares with its own."""
    damaged = bytearray(FRAME)
    damaged[place] ^= 1 << bit
    if 8 <= place < 12:
        assert unpack(bytes(damaged), FrameKind.MESSAGE).round != 5
    else:
        with pytest.raises(WireError):
            unpack(bytes(damaged), FrameKind.MESSAGE)


@given(data=st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data, FrameKind.MESSAGE)


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(WireError, match="cut or extended"):
        unpack(FRAME + b"\0", FrameKind.MESSAGE)


def test_the_wrong_kind_is_refused() -> None:
    with pytest.raises(WireError, match="Expected a view, got kind 2"):
        unpack(FRAME, FrameKind.VIEW)


def test_another_version_is_refused() -> None:
    other = FRAME[:4] + bytes([VERSION + 1]) + FRAME[5:]
    with pytest.raises(WireError, match=f"Expected wire version {VERSION}, got {VERSION + 1}"):
        unpack(other, FrameKind.MESSAGE)


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="at most 50 bytes"):
        unpack(FRAME, FrameKind.MESSAGE, limit=50)


def test_a_length_bomb_allocates_nothing() -> None:
    """A part that claims 2^60 values in a well-formed frame."""
    body = struct.pack("<BBHQ", Part.ROW, 0, 0, 1 << 60)
    with pytest.raises(WireError, match="the frame ends before them"):
        unpack(_framed(body, parts=1), FrameKind.MESSAGE)


def test_a_part_may_stand_only_once() -> None:
    part = struct.pack("<BBHQ", Part.ROW, 0, 0, 0)
    with pytest.raises(WireError, match="ROW stands twice"):
        unpack(_framed(part + part, parts=2), FrameKind.MESSAGE)


def test_unknown_parts_and_types_are_refused() -> None:
    for tag, kind in ((99, 0), (Part.ROW, 99)):
        with pytest.raises(WireError, match="Unknown part"):
            unpack(_framed(struct.pack("<BBHQ", tag, kind, 0, 0), parts=1), FrameKind.MESSAGE)


def test_types_without_a_place_in_the_table_cannot_be_packed() -> None:
    with pytest.raises(WireError, match="bfloat16"):
        pack(FrameKind.VIEW, 0, {Part.WEIGHTS: torch.zeros(2, dtype=torch.bfloat16)})


def _framed(body: bytes, parts: int) -> bytes:
    import zlib

    return (
        struct.pack("<4sBBBBIIQ", b"TACT", VERSION, FrameKind.MESSAGE, parts, 0, 0, zlib.crc32(body), 24 + len(body))
        + body
    )
