"""Decoders under garbage: nothing but `ProtocolError`, and no allocation that the input's length does not explain.

The suite tries 3,000 inputs. More: `TACIT_FUZZ=1000000 python -m pytest tests/channels/secagg/test_fuzz.py`.
"""

import os
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from protocols.secagg.federation import Federation, parameters, session, total
from protocols.secagg.stages import COHORT, VICTIM, honest, vectors
from tacit.protocols.secagg import Desk, Drop, Level, Phase, ProtocolError, answer, messages
from tacit.protocols.secagg.messages import HEADER, Way
from tacit.wire.packing import Reader

Replies = list[tuple[int, bytes]]
INPUTS = int(os.environ.get("TACIT_FUZZ", "3000"))


def mutate(chance: random.Random, data: bytes) -> bytes:
    """A few changed, removed, repeated or inserted bytes; counts like to become huge."""
    text = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(5):
            case 0:
                text[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del text[at : at + chance.randint(1, 40)]
            case 2:
                text[at:at] = chance.randbytes(chance.randint(1, 40))
            case 3:
                text[at : at + 4] = struct.pack("<I", chance.choice([0, 1, 2**16, 2**31, 2**32 - 1]))
            case 4:
                text[at:at] = text[: chance.randint(0, len(text))]
    return bytes(text)


def mutated_frame(chance: random.Random, data: bytes) -> bytes:
    """Half of the time the body only, in a frame whose checksum is right."""
    if chance.random() < 0.5:
        return mutate(chance, data)
    head = struct.unpack_from("<4sBBBBIIII32s", data)
    return messages.pack(Phase(head[2]), Way(head[3]), head[5], head[6], head[9], mutate(chance, data[HEADER:]))


@pytest.mark.parametrize("level", Level)
def test_a_client_refuses_garbage_and_nothing_else_happens(level: Level) -> None:
    chance, stages, ends = random.Random(level), honest(level), Counter[str]()
    before = {at: pair for at, pair in stages.before.items() if at[0] == VICTIM}
    for _ in range(INPUTS // 2):
        desk, frame = before[chance.choice(list(before))]
        try:
            answer(desk, mutated_frame(chance, frame))
            ends["answered"] += 1  # a mutation may leave a request honest: asked for less, for example
        except ProtocolError:
            ends["refused"] += 1
    assert ends["refused"] > 0.9 * (INPUTS // 2)


def garbling(number: int, make: Callable[[random.Random, bytes], bytes]) -> Federation:
    """Five clients, in front of whose replies garbage made of them arrives in their names."""
    chance = random.Random(number)

    def garble(_: Phase, replies: Replies) -> Replies:
        return [(j, make(chance, data)) for j, data in replies for _ in range(4)] + replies

    return Federation(session(parameters(5, 4, level=Level.SEMI_HONEST)), vectors(), network=garble)


def test_damage_on_the_way_never_changes_the_sum() -> None:
    for number in range(INPUTS // 150):
        federation = garbling(number, lambda chance, data: mutate(chance, data) + b"!")
        outcome = federation.play()
        assert np.array_equal(outcome.total, total(federation.vectors, COHORT))
        assert outcome.minutes.dropped == {Drop.MALFORMED: 4 * 5 * 4}


def test_garbage_that_clients_say_themselves_ends_in_a_sum_or_a_clean_abort() -> None:
    ends = Counter[str]()
    for number in range(INPUTS // 100):
        try:
            outcome = garbling(number, mutated_frame).play()
            ends["sum"] += set(outcome.delivered) <= set(COHORT)
        except ProtocolError:
            ends["abort"] += 1
    assert ends["sum"] + ends["abort"] == INPUTS // 100
    assert min(ends.values()) > 0


def test_desks_from_garbage_are_refused() -> None:
    chance, stages = random.Random(3), honest()
    kept = [desk.to_bytes() for desk in stages.after.values()]
    refused = 0
    for _ in range(INPUTS // 5):
        try:
            Desk.from_bytes(mutate(chance, chance.choice(kept)))
        except ProtocolError:
            refused += 1
    assert refused > INPUTS // 10


def test_nothing_is_allocated_beyond_twice_the_limit() -> None:
    """Counts of 2^32 - 1, and frames as long as the limit allows, full of tables; 256 KiB for the interpreter."""
    p = parameters(60, 200_000)
    limit = messages.longest(p)
    bombs = [struct.pack("<I", 2**32 - 1) + bytes(limit - HEADER - 4), bytes(limit - HEADER)]
    bombs += [struct.pack("<I", 60) + b"".join(struct.pack("<I", j) + bytes(88) for j in range(60))]
    for bomb in bombs:
        frame = messages.pack(Phase.SHARE, Way.REPLY, 1, 1, bytes(32), bomb)
        tracemalloc.start()
        try:
            body = Reader(messages.unpack(frame, limit).body)
            body.table(88, 60)
            body.done()
        except ProtocolError:
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * limit + (1 << 18)
    with pytest.raises(ProtocolError, match="Expected a frame of 56 to"):
        messages.unpack(bytes(limit + 1), limit)


def test_a_garbled_upload_that_is_well_formed_is_that_clients_own_fault_only() -> None:
    """What secure aggregation cannot see: a client's vector is whatever it sends. All others' pads still come off."""

    def change(phase: Phase, replies: Replies) -> Replies:
        if phase is not Phase.UPLOAD:
            return replies
        client, data = replies[0]
        words = np.frombuffer(data[HEADER:], "<u4") + np.uint32(9)
        return [(client, messages.pack(phase, Way.REPLY, 1, client, data[24:56], words.tobytes())), *replies[1:]]

    federation = Federation(session(parameters(5, 4)), vectors(), network=change)
    outcome = federation.play()
    assert np.array_equal(outcome.total, total(federation.vectors, COHORT) + np.uint32(9))
