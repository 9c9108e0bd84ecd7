import struct
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import WireError
from tacit.wire.frames import WIRE_VERSION, FrameKind, Part, pack, size, unpack

FRAME = pack(FrameKind.MESSAGE, 5, {Part.ROW: torch.arange(6.0), Part.SAMPLES: torch.tensor(7)})


@given(
    values=st.lists(st.floats(width=32), max_size=20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    round_index=st.integers(0, 2**32 - 1),
)
def test_unpacking_restores_what_was_packed(values: list[float], dtype: torch.dtype, round_index: int) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    data = pack(FrameKind.VIEW, round_index, {Part.WEIGHTS: tensor})
    frame = unpack(data, FrameKind.VIEW)
    assert frame.round == round_index
    assert frame.parts[Part.WEIGHTS].numpy().tobytes() == tensor.numpy().tobytes()
    assert len(data) == size({Part.WEIGHTS: tensor})


def test_dense_rows_take_four_bytes_per_value_and_a_small_header() -> None:
    for n in (0, 1, 1_663_370):
        assert size({Part.ROW: torch.empty(n, device="meta")}) <= 4 * n + 64


@given(length=st.integers(0, len(FRAME) - 1))
def test_truncated_frames_are_rejected(length: int) -> None:
    with pytest.raises(WireError):
        unpack(FRAME[:length], FrameKind.MESSAGE)


@given(position=st.integers(0, len(FRAME) - 1), bit=st.integers(0, 7))
def test_flipped_bits_are_detected(position: int, bit: int) -> None:
    corrupted = bytearray(FRAME)
    corrupted[position] ^= 1 << bit
    with pytest.raises(WireError):
        unpack(bytes(corrupted), FrameKind.MESSAGE)


@given(data=st.binary(max_size=200))
def test_random_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data, FrameKind.MESSAGE)


def test_trailing_bytes_are_rejected() -> None:
    with pytest.raises(WireError, match="truncated or extended"):
        unpack(FRAME + b"\0", FrameKind.MESSAGE)


def test_frames_of_another_kind_are_rejected() -> None:
    with pytest.raises(WireError, match="Expected a view, got kind 2"):
        unpack(FRAME, FrameKind.VIEW)


def test_other_versions_are_rejected() -> None:
    other = FRAME[:4] + bytes([WIRE_VERSION + 1]) + FRAME[5:]
    with pytest.raises(WireError, match=f"Expected wire version {WIRE_VERSION}, got {WIRE_VERSION + 1}"):
        unpack(other, FrameKind.MESSAGE)


def test_a_length_bomb_does_not_allocate() -> None:
    """A part that claims 2^60 values in a well-formed frame."""
    body = struct.pack("<BBHQ", Part.ROW, 0, 0, 1 << 60)
    with pytest.raises(WireError, match="the frame ends before them"):
        unpack(_framed(body, parts=1), FrameKind.MESSAGE)


def test_duplicate_parts_are_rejected() -> None:
    part = struct.pack("<BBHQ", Part.ROW, 0, 0, 0)
    with pytest.raises(WireError, match="got ROW twice"):
        unpack(_framed(part + part, parts=2), FrameKind.MESSAGE)


def test_unknown_parts_and_types_are_rejected() -> None:
    for tag, number in ((99, 0), (Part.ROW, 99)):
        with pytest.raises(WireError, match="Expected a known part and type"):
            unpack(_framed(struct.pack("<BBHQ", tag, number, 0, 0), parts=1), FrameKind.MESSAGE)


def test_unsupported_types_cannot_be_packed() -> None:
    with pytest.raises(WireError, match="bfloat16"):
        pack(FrameKind.VIEW, 0, {Part.WEIGHTS: torch.zeros(2, dtype=torch.bfloat16)})


def _framed(body: bytes, parts: int) -> bytes:
    def header(checksum: int) -> bytes:
        fields = (b"TACT", WIRE_VERSION, FrameKind.MESSAGE, parts, 0, 0, 0, checksum, 24 + len(body))
        return struct.pack("<4sBBBBIIII", *fields)

    return header(zlib.crc32(header(0) + body)) + body
