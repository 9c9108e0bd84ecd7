import tracemalloc
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import DIRECTORY, Federation, parameters, session, total
from protocols.secagg.stages import COHORT, body, honest, vectors
from tacit.errors import UserError
from tacit.protocols.secagg import Desk, Drop, Level, Phase, TooFewError, converse, expected, hold, messages, ring
from tacit.protocols.secagg.errors import ProtocolError
from tacit.protocols.secagg.messages import Way

Replies = list[tuple[int, bytes]]


def tampered(phase: Phase, change: Callable[[Replies], Replies], **more: object) -> Federation:
    """Five clients, whose replies in one phase are changed on their way."""
    p = parameters(5, 4, **more)
    return Federation(session(p), vectors(), network=lambda at, replies: change(replies) if at is phase else replies)


def rewritten(phase: Phase, client: int, tag: bytes, text: bytes, number: int = 1) -> tuple[int, bytes]:
    return client, messages.pack(phase, Way.REPLY, number, client, tag, text)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase < Phase.CLOSED])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:0],
        lambda data: bytes(len(data)),
    ],
)
def test_a_damaged_reply_loses_its_sender_and_nobody_else(phase: Phase, damage: Callable[[bytes], bytes]) -> None:
    federation = tampered(phase, lambda replies: [(replies[0][0], damage(replies[0][1])), *replies[1:]])
    outcome = federation.play()
    assert outcome.delivered == (COHORT if phase > Phase.UPLOAD else COHORT[1:])
    assert np.array_equal(outcome.total, total(federation.vectors, outcome.delivered))
    assert outcome.minutes.dropped == Counter({Drop.MALFORMED: 1})


def test_replies_in_anothers_name_of_another_round_or_roster_are_dropped() -> None:
    def add(replies: Replies) -> Replies:
        tag = replies[0][1][24:56]
        text = body(replies[0][1])
        strange = [(2, replies[0][1]), (99, replies[0][1]), rewritten(Phase.UPLOAD, 77, tag, text)]
        foreign = [rewritten(Phase.UPLOAD, 1, tag, text, number=2)]
        foreign += [rewritten(Phase.UPLOAD, 1, b"x" * 32, text)]
        return strange + foreign + replies + replies[:1]

    federation = tampered(Phase.UPLOAD, add)
    outcome = federation.play()
    assert np.array_equal(outcome.total, total(federation.vectors, COHORT))
    assert outcome.minutes.dropped == {Drop.STRANGER: 3, Drop.FOREIGN: 2, Drop.DUPLICATE: 1}


def test_a_liar_with_shares_is_found_out() -> None:
    """One wrong share of everybody's seed: with one to spare the sum is exact, without there is none."""

    def lie(replies: Replies) -> Replies:
        client, frame = replies[0]
        parts = messages.Reader(body(frame)).table(messages.OPENED, 9)
        wrong = {j: part[:5] + bytes([part[5] ^ 1]) + part[6:] for j, part in parts.items()}
        text = messages.pack_table(wrong, messages.OPENED)
        return [rewritten(Phase.OPEN, client, frame[24:56], text), *replies[1:]]

    federation = tampered(Phase.OPEN, lie)
    assert np.array_equal(federation.play().total, total(federation.vectors, COHORT))
    with pytest.raises(TooFewError, match="do not belong together"):
        tampered(Phase.OPEN, lambda replies: lie(replies[:4])).play()


def test_signatures_that_nobody_known_made_are_dropped() -> None:
    def forge(replies: Replies) -> Replies:
        client, frame = replies[0]
        return [rewritten(Phase(frame[5]), client, frame[24:56], bytes(len(body(frame)))), *replies[1:]]

    for phase in (Phase.ANNOUNCE, Phase.AGREE):
        assert tampered(phase, forge).play().minutes.dropped == {Drop.MALFORMED: 1}


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize(("count", "dim", "bits"), [(5, 7, 32), (5, 7, 13), (70, 9, 16)])
def test_bytes_are_known_beforehand(level: Level, count: int, dim: int, bits: int) -> None:
    p = parameters(count, dim, level=level, bits=bits, corrupt=Fraction(1, 20), dropout=Fraction(1, 10))
    minutes = Federation(session(p), {j: np.zeros(dim, np.uint32) for j in range(1, count + 1)}).play().minutes
    for phase, size in expected(p).items():
        assert set(minutes.up[phase].values()) == {size.up}
        assert set(minutes.down[phase].values()) == {size.down}
        assert len(minutes.up[phase]) == count
        assert size.up <= messages.limit(phase, Way.REPLY, p)
        assert size.down <= messages.limit(phase, Way.REQUEST, p)
    assert not minutes.dropped


def test_a_lazy_network_keeps_one_vector_in_memory() -> None:
    """12 clients with 1 MB each: the server holds the sum and the upload it reads."""
    dim = 250_000
    p = parameters(12, dim, level=Level.SEMI_HONEST)
    federation = Federation(session(p), {j: np.full(dim, j, np.uint32) for j in range(1, 13)}, kept=False)
    federation.start()
    conversation = converse(federation.session, federation.vectors)
    requests = next(conversation)
    for _ in range(2):  # announce, share
        requests = conversation.send([(j, federation.reply(j, request)) for j, request in requests.items()])
    tracemalloc.start()
    conversation.send((j, federation.reply(j, request)) for j, request in requests.items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * dim < peak < 8 * 4 * dim


def test_the_cohort_must_be_that_of_the_parameters() -> None:
    with pytest.raises(UserError, match="Expected 5 clients, got 4"):
        converse(session(parameters(5)), [1, 2, 3, 4, 4], DIRECTORY)


@pytest.mark.parametrize("level", Level)
def test_desks_are_the_same_after_a_night_in_bytes_and_hold_no_longer_what_is_not_needed(level: Level) -> None:
    stages = honest(level)
    for desk in [*stages.after.values(), *(desk for desk, _ in stages.before.values())]:
        again = Desk.from_bytes(desk.to_bytes())
        assert again.to_bytes() == desk.to_bytes()
        assert again.session == desk.session
        assert desk.root.hex() not in repr(desk) or not desk.root
        if desk.phase > Phase.UPLOAD:
            assert (desk.root, desk.vector) == (b"", b"")
        if desk.phase is Phase.CLOSED:
            assert not any((desk.identity, desk.shares, desk.keys, desk.directory))


def test_vectors_that_do_not_fit_are_refused() -> None:
    desk, _ = honest().before[1, Phase.ANNOUNCE]
    for wrong in (np.zeros(5, np.uint32), np.zeros(4, np.int64), np.zeros((4, 1), np.uint32)):
        with pytest.raises(UserError, match="uint32 vector of 4 values"):
            hold(desk, wrong)
    with pytest.raises(UserError, match="before it is sent"):
        hold(honest().after[1, Phase.UPLOAD], np.zeros(4, np.uint32))


@pytest.mark.parametrize("bits", range(1, 33))
def test_vectors_of_every_width_are_packed_tightly(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, 65_536 + 13, dtype=np.uint64).astype(np.uint32)
    values[:2] = 0, (1 << bits) - 1
    packed = ring.pack(values, bits)
    assert len(packed) == ring.size(values.size, bits) == -(-values.size * bits // 8)
    assert np.array_equal(ring.unpack(packed, values.size, bits), values)
    with pytest.raises(ProtocolError):
        ring.unpack(packed[:-1], values.size, bits)
    if values.size * bits % 8:
        with pytest.raises(ProtocolError, match="beyond its last value"):
            ring.unpack(packed[:-1] + b"\xff", values.size, bits)
