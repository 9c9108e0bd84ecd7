"""Decoders under fuzzing: nothing but `ProtocolError`, and no allocation beyond the length of the input.

The suite tries 3,000 inputs. A campaign tries more:
`python -m pytest --scale campaign tests/protocols/secagg/test_fuzz.py`.
"""

import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from laws.mutations import change_bytes
from protocols.secagg.federation import (
    COHORT,
    VICTIM,
    Federation,
    exact_sum,
    parameters,
    recorded,
    session,
    small_vectors,
)
from scale import scaled
from tacit.errors import ProtocolError
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.secagg import (
    Phase,
    SecaggClientState,
    ThreatModel,
    answer,
    secagg_messages,
)
from tacit.protocols.secagg.secagg_messages import PREAMBLE, Direction
from tacit.wire.packing import Reader

Replies = list[tuple[int, bytes]]
INPUTS = scaled(3000, campaign=100_000)


def mutated_frame(chance: random.Random, data: bytes) -> bytes:
    """Half of the time only the body changes, in a frame with a valid checksum."""
    if chance.random() < 0.5:
        return change_bytes(chance, data)
    kind, index, client, binding = struct.unpack_from("<5xB10xII16s", data)
    phase, direction = Phase(kind & 0x7F), Direction.REPLY if kind & 0x80 else Direction.REQUEST
    return secagg_messages.pack(phase, direction, index, client, binding, change_bytes(chance, data[PREAMBLE:]))


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_a_client_refuses_garbage_and_nothing_else_happens(threat_model: ThreatModel) -> None:
    chance, federation, ends = random.Random(threat_model), recorded(threat_model, surplus=2), Counter[str]()
    before = {at: pair for at, pair in federation.before.items() if at[0] == VICTIM}
    for _ in range(INPUTS // 2):
        state, frame = before[chance.choice(list(before))]
        try:
            answer(state, mutated_frame(chance, frame))
            ends["answered"] += 1  # a mutated request may still be valid, such as one for fewer shares
        except ProtocolError:
            ends["refused"] += 1
    assert ends["refused"] > 0.9 * (INPUTS // 2)


def garbling(seed: int, make: Callable[[random.Random, bytes], bytes]) -> Federation:
    """Five clients; before each reply, mutations of it arrive with its sender's number."""
    chance = random.Random(seed)

    def garble(_: Phase, replies: Replies) -> Replies:
        return [(j, make(chance, data)) for j, data in replies for _ in range(4)] + replies

    p = parameters(5, 4, threat_model=ThreatModel.SEMI_HONEST, surplus=2)
    return Federation(session(p), small_vectors(), network=garble)


def test_damage_in_transit_never_changes_the_sum() -> None:
    for seed in range(INPUTS // 150):
        federation = garbling(seed, lambda chance, data: change_bytes(chance, data) + b"!")
        outcome = federation.run()
        assert np.array_equal(outcome.result, exact_sum(federation.vectors, COHORT))
        assert outcome.transcript.rejected == {ReplyStatus.MALFORMED: 4 * 5 * 6}


def test_garbage_sent_by_clients_ends_in_a_sum_or_a_clean_abort() -> None:
    ends = Counter[str]()
    for seed in range(INPUTS // 100):
        try:
            outcome = garbling(seed, mutated_frame).run()
            ends["sum"] += set(outcome.clients) <= set(COHORT)
        except ProtocolError:
            ends["abort"] += 1
    assert ends["sum"] + ends["abort"] == INPUTS // 100
    assert min(ends.values()) > 0


def test_states_from_garbage_are_refused() -> None:
    chance, federation = random.Random(3), recorded(surplus=2)
    stored = [state.to_bytes() for state in federation.after.values()]
    refused = 0
    for _ in range(INPUTS // 5):
        try:
            SecaggClientState.from_bytes(change_bytes(chance, chance.choice(stored)))
        except ProtocolError:
            refused += 1
    assert refused > INPUTS // 10


def test_nothing_is_allocated_beyond_twice_the_limit() -> None:
    """Counts of 2^32 - 1, and frames as long as the limit allows, full of tables; 256 KiB for the interpreter."""
    p = parameters(60, 200_000)
    limit = secagg_messages.max_reply_size(p)
    bombs = [struct.pack("<I", 2**32 - 1) + bytes(limit - PREAMBLE - 4), bytes(limit - PREAMBLE)]
    bombs += [struct.pack("<I", 60) + b"".join(struct.pack("<I", j) + bytes(88) for j in range(60))]
    for bomb in bombs:
        frame = secagg_messages.pack(Phase.SHARE, Direction.REPLY, 1, 1, bytes(32), bomb)
        tracemalloc.start()
        try:
            body = Reader(secagg_messages.unpack(frame, limit).body)
            body.table(88, 60)
            body.expect_end()
        except ProtocolError:
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * limit + (1 << 18)
    with pytest.raises(ProtocolError, match="Expected a frame of 40 to"):
        secagg_messages.unpack(bytes(limit + 1), limit)


def test_a_well_formed_but_wrong_upload_changes_only_that_clients_contribution() -> None:
    """Secure aggregation cannot detect it: a client may send any vector. All pads are still removed."""

    def change(phase: Phase, replies: Replies) -> Replies:
        if phase is not Phase.UPLOAD:
            return replies
        client, data = replies[0]
        words = np.frombuffer(data[PREAMBLE:], "<u4") + np.uint32(9)
        return [
            (client, secagg_messages.pack(phase, Direction.REPLY, 1, client, data[24:40], words.tobytes())),
            *replies[1:],
        ]

    federation = Federation(session(parameters(5, 4)), small_vectors(), network=change)
    outcome = federation.run()
    assert np.array_equal(outcome.result, exact_sum(federation.vectors, COHORT) + np.uint32(9))
