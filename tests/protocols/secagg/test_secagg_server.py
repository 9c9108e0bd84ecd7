import tracemalloc
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import (
    COHORT,
    DIRECTORY,
    Federation,
    body_of,
    exact_sum,
    parameters,
    session,
    small_vectors,
)
from tacit.errors import UserError
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.secagg import (
    Phase,
    ThreatModel,
    converse,
    phase_bytes,
    secagg_messages,
)
from tacit.protocols.secagg.secagg_messages import Direction, count_asked

Replies = list[tuple[int, bytes]]


def tampered(phase: Phase, change: Callable[[Replies], Replies]) -> Federation:
    """Five clients, whose replies in one phase are changed in transit."""
    p = parameters(5, 4)
    return Federation(
        session(p), small_vectors(), network=lambda at, replies: change(replies) if at is phase else replies
    )


def rewritten(phase: Phase, client: int, binding: bytes, body: bytes, index: int = 1) -> tuple[int, bytes]:
    return client, secagg_messages.pack(phase, Direction.REPLY, index, client, binding, body)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.DRAW, Phase.CLOSED)])
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
def test_a_damaged_reply_excludes_its_sender_and_nobody_else(phase: Phase, damage: Callable[[bytes], bytes]) -> None:
    federation = tampered(phase, lambda replies: [(replies[0][0], damage(replies[0][1])), *replies[1:]])
    outcome = federation.run()
    assert outcome.clients == (COHORT if phase > Phase.UPLOAD else COHORT[1:])
    assert np.array_equal(outcome.result, exact_sum(federation.vectors, outcome.clients))
    assert outcome.transcript.rejected == Counter({ReplyStatus.MALFORMED: 1})


def test_replies_of_unexpected_senders_or_of_another_session_are_rejected() -> None:
    def add(replies: Replies) -> Replies:
        binding = replies[0][1][24:40]
        body = body_of(replies[0][1])
        unexpected = [(2, replies[0][1]), (99, replies[0][1]), rewritten(Phase.UPLOAD, 77, binding, body)]
        wrong_session = [rewritten(Phase.UPLOAD, 1, binding, body, index=2)]
        wrong_session += [rewritten(Phase.UPLOAD, 1, b"x" * 32, body)]
        return unexpected + wrong_session + replies + replies[:1]

    federation = tampered(Phase.UPLOAD, add)
    outcome = federation.run()
    assert np.array_equal(outcome.result, exact_sum(federation.vectors, COHORT))
    assert outcome.transcript.rejected == {
        ReplyStatus.UNEXPECTED_SENDER: 3,
        ReplyStatus.WRONG_SESSION: 2,
        ReplyStatus.DUPLICATE: 1,
    }


def test_signatures_of_unknown_identities_are_rejected() -> None:
    def forge(replies: Replies) -> Replies:
        client, frame = replies[0]
        return [rewritten(Phase(frame[5] & 0x7F), client, frame[24:40], bytes(len(body_of(frame)))), *replies[1:]]

    for phase in (Phase.ANNOUNCE, Phase.AGREE):
        assert tampered(phase, forge).run().transcript.rejected == {ReplyStatus.MALFORMED: 1}


@pytest.mark.parametrize("threat_model", ThreatModel)
@pytest.mark.parametrize(("count", "dim", "bits"), [(5, 7, 32), (5, 7, 13), (70, 9, 16)])
def test_bytes_are_known_in_advance(threat_model: ThreatModel, count: int, dim: int, bits: int) -> None:
    p = parameters(count, dim, threat_model=threat_model, bits=bits, corrupt=Fraction(1, 20), dropout=Fraction(1, 10))
    vectors = {j: np.zeros(dim, np.uint32) for j in range(1, count + 1)}
    transcript = Federation(session(p), vectors, serialised=False).run().transcript
    for phase, size in phase_bytes(p).items():
        assert set(transcript.up[phase].values()) == {size.up}
        assert set(transcript.down[phase].values()) == {size.down}
        assert len(transcript.up[phase]) == count_asked(p, phase)
        assert size.up <= secagg_messages.max_sizes(p)[phase].up
        assert size.down <= secagg_messages.max_sizes(p)[phase].down
    assert not transcript.rejected


def test_a_lazy_network_keeps_one_vector_in_memory() -> None:
    """12 clients with 1 MB each: the server holds the sum and the upload it reads."""
    dim = 250_000
    p = parameters(12, dim, threat_model=ThreatModel.SEMI_HONEST)
    federation = Federation(session(p), {j: np.full(dim, j, np.uint32) for j in range(1, 13)}, serialised=False)
    federation.start()
    conversation = converse(federation.session, federation.vectors)
    requests = next(conversation)
    for _ in range(4):  # announce, share, check, confirm
        requests = conversation.send([(j, federation.reply(j, request)) for j, request in requests.items()])
    tracemalloc.start()
    conversation.send((j, federation.reply(j, request)) for j, request in requests.items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * dim < peak < 8 * 4 * dim


def test_the_cohort_must_be_that_of_the_parameters() -> None:
    with pytest.raises(UserError, match="Expected 5 clients, got 4"):
        converse(session(parameters(5)), [1, 2, 3, 4, 4], DIRECTORY)
