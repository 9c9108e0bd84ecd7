"""Frames and hellos, without a network: what is announced is checked first, and memory is bounded."""

import random
import tracemalloc

import pytest

from scale import scaled
from tacit.errors import ProtocolError
from tacit.federation.transport.grpc.frames import (
    FRAME_BYTES,
    FRAME_HEADER,
    MAX_REQUESTS,
    MAX_VERB,
    Kind,
    Message,
    Receiver,
    frames,
    pack_verb,
)
from tacit.federation.transport.grpc.hello import MAX_HELLO, Hello
from tacit.federation.transport.notices import LINES, SECONDS, Notices
from tacit.protocols import crypto

NUMBER = bytes(range(16))
LIMITS: dict[int, int] = {Kind.REQUEST: 5 * FRAME_BYTES, Kind.REPLY: 5 * FRAME_BYTES, Kind.ERROR: 0, Kind.FORGET: 0}
FRAMES = scaled(3000, campaign=10**6)


@pytest.mark.parametrize(
    "size", [0, 1, FRAME_BYTES - MAX_VERB, FRAME_BYTES - MAX_VERB + 1, FRAME_BYTES, 3 * FRAME_BYTES + 7]
)
@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.REQUEST])
def test_what_is_cut_into_frames_is_put_together_again(kind, size):
    body, head = random.Random(size).randbytes(size), pack_verb("train") if kind == Kind.REQUEST else b""
    receiver = Receiver(LIMITS)
    *first, last = frames(kind, NUMBER, body, head)
    assert [receiver.add(frame) for frame in first] == [None] * len(first)
    assert receiver.add(last) == Message(kind, NUMBER, body, head)
    assert all(len(frame) <= FRAME_BYTES + FRAME_HEADER.size for frame in (*first, last))


def test_messages_may_be_mixed():
    receiver, bodies = Receiver(LIMITS), [bytes([number]) * (2 * FRAME_BYTES) for number in range(MAX_REQUESTS)]
    cut = [[*frames(Kind.REPLY, bytes([number]) * 16, body)] for number, body in enumerate(bodies)]
    got = [receiver.add(frame) for step in zip(*cut, strict=True) for frame in step]
    assert [message.body for message in got if message is not None] == bodies


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"short", "without a header"),
        (FRAME_HEADER.pack(Kind.REPLY, NUMBER, 5 * FRAME_BYTES + 1) + bytes(FRAME_BYTES), "bytes, where at most"),
        (FRAME_HEADER.pack(Kind.REPLY, NUMBER, 2**64 - 1), "bytes, where at most"),
        (FRAME_HEADER.pack(Kind.PING, NUMBER, 0), "not accepted here"),
        (FRAME_HEADER.pack(77, NUMBER, 0), "not accepted here"),
        (FRAME_HEADER.pack(Kind.REPLY, NUMBER, 10) + bytes(9), "another length"),
        (FRAME_HEADER.pack(Kind.REPLY, NUMBER, 10) + bytes(11), "another length"),
        (FRAME_HEADER.pack(Kind.REPLY, NUMBER, 2 * FRAME_BYTES) + bytes(10), "another length"),
        (FRAME_HEADER.pack(Kind.ERROR, NUMBER, 1) + b"x", "bytes, where at most 0"),
        (FRAME_HEADER.pack(Kind.REQUEST, NUMBER, 3) + b"abc", "without a verb"),
    ],
)
def test_what_breaks_the_rules(frame, message):
    with pytest.raises(ProtocolError, match=message):
        Receiver(LIMITS).add(frame)


def test_what_changes_its_mind():
    begin = FRAME_HEADER.pack(Kind.REPLY, NUMBER, 2 * FRAME_BYTES) + bytes(FRAME_BYTES)
    for other in (
        FRAME_HEADER.pack(Kind.REPLY, NUMBER, 3 * FRAME_BYTES),
        FRAME_HEADER.pack(Kind.REQUEST, NUMBER, 2 * FRAME_BYTES),
    ):
        receiver = Receiver(LIMITS)
        receiver.add(begin)
        with pytest.raises(ProtocolError, match="two messages"):
            receiver.add(other + bytes(FRAME_BYTES))


def test_an_error_ends_a_reply_that_was_arriving():
    receiver = Receiver(LIMITS)
    assert receiver.add(FRAME_HEADER.pack(Kind.REPLY, NUMBER, 2 * FRAME_BYTES) + bytes(FRAME_BYTES)) is None
    assert receiver.add(next(frames(Kind.ERROR, NUMBER))) == Message(Kind.ERROR, NUMBER, b"", ends_another=True)
    assert receiver.arriving == 0


def test_what_is_not_wanted_is_read_and_not_kept():
    receiver = Receiver({Kind.REPLY: 100 * FRAME_BYTES}, lambda *_: False)
    frame = FRAME_HEADER.pack(Kind.REPLY, NUMBER, 50 * FRAME_BYTES) + bytes(FRAME_BYTES)
    tracemalloc.start()
    try:
        got = [receiver.add(frame) for _ in range(50)]
        assert tracemalloc.get_traced_memory()[1] < FRAME_BYTES
    finally:
        tracemalloc.stop()
    assert got[-1] == Message(Kind.REPLY, NUMBER, None)


def test_no_more_messages_arrive_at_once_than_a_site_may_have():
    receiver = Receiver(LIMITS)
    for number in range(MAX_REQUESTS):
        receiver.add(FRAME_HEADER.pack(Kind.REPLY, bytes([number]) * 16, 2 * FRAME_BYTES) + bytes(FRAME_BYTES))
    with pytest.raises(ProtocolError, match="too many"):
        receiver.add(FRAME_HEADER.pack(Kind.REPLY, NUMBER, 2 * FRAME_BYTES) + bytes(FRAME_BYTES))


def test_garbage_is_refused_in_bounded_memory():
    """What an authenticated peer could send, a frame after another, until one is refused; then it connects again."""
    source, refused = random.Random(0), 0
    tracemalloc.start()
    try:
        receiver = Receiver(LIMITS)
        for _ in range(FRAMES):
            total = source.choice((0, 1, 30, FRAME_BYTES, FRAME_BYTES + 5, 5 * FRAME_BYTES, 2**63))
            number = bytes([source.randrange(6)]) * 16
            frame = FRAME_HEADER.pack(source.randrange(12), number, total)
            frame += bytes(source.choice((0, 1, 30, min(total, FRAME_BYTES))))
            try:
                receiver.add(frame[: source.choice((None, None, source.randrange(30)))])
            except ProtocolError:
                refused += 1
                receiver = Receiver(LIMITS)
        assert tracemalloc.get_traced_memory()[1] < MAX_REQUESTS * 6 * FRAME_BYTES
    finally:
        tracemalloc.stop()
    assert refused > FRAMES / 4


def test_a_verb_is_a_few_letters():
    assert pack_verb("train").strip() == b"train"
    for verb in ("", "x" * 21, "a\n", "é", "A"):
        with pytest.raises(ProtocolError, match="verb"):
            pack_verb(verb)


SECRET = bytes(range(32))
HELLO = Hello(bytes(16), 1000, (NUMBER, NUMBER))


def test_a_hello_is_bound_to_nonce_certificate_process_and_requests():
    public, packed = crypto.public_identity(SECRET), HELLO.pack(b"n" * 32, "ab", SECRET)
    assert Hello.read(packed, b"n" * 32, "ab", public) == HELLO
    for nonce, certificate, key in ((b"m" * 32, "ab", public), (b"n" * 32, "ac", public), (b"n" * 32, "ab", SECRET)):
        with pytest.raises(ProtocolError, match="signature"):
            Hello.read(packed, nonce, certificate, key)
    for place in range(len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 1
        with pytest.raises(ProtocolError, match="signature"):
            Hello.read(bytes(changed), b"n" * 32, "ab", public)
    for length in (0, 10, len(packed) - 1, MAX_HELLO + 16):
        with pytest.raises(ProtocolError, match="length"):
            Hello.read(packed.ljust(length, b"x")[:length], b"n" * 32, "ab", public)


def test_notices_are_bounded_for_each_party_and_count_what_they_leave_out():
    said: list[str] = []
    now = [0.0]
    notices = Notices(said.append, lambda: now[0])
    for number in range(10 * LINES):
        notices.report("ash", f"{number}")
    notices.report("birch", "hello")
    assert len(said) == LINES + 1
    assert said[-2:] == [f"ash: {LINES - 1} Further lines of this hour are left out.", "birch: hello"]
    now[0] = SECONDS + 1
    notices.report("ash", "again")
    assert said[-2:] == [f"ash: {9 * LINES} more lines were left out in the last hour.", "ash: again"]
