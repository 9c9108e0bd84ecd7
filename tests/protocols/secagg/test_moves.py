"""Sixteen moves of a malicious server, each refused by the client; most of them work on a framework in use today.

Behind each move stands an honest conversation up to the same point, so that nothing but the move can be the reason.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from protocols.secagg.federation import DIRECTORY, IDENTITIES, entropy, parameters, seat, session, total
from protocols.secagg.stages import COHORT, VICTIM, Stages, body, honest, request, vectors
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, SIGNATURE
from tacit.protocols.secagg import (
    Desk,
    Level,
    Phase,
    Policy,
    ProtocolError,
    Session,
    answer,
    client,
    invite,
    ring,
    statements,
)
from tacit.protocols.secagg.messages import KEYS, SEALED, Kind, Roster
from tacit.wire.packing import Reader, number, pack_subset, pack_table

Move = Callable[[Stages], tuple[Desk, bytes]]  # the victim's desk, and what the server sends it
ACTIVE = Level.ACTIVE_SERVER
MOVES: dict[str, tuple[Move, str]] = {}


def move(reason: str) -> Callable[[Move], Move]:
    """Register a move, with what the client says to it."""

    def register(function: Move) -> Move:
        MOVES[function.__name__] = (function, reason)
        return function

    return register


def opening(stages: Stages) -> tuple[Desk, frozenset[int], dict[int, bytes], dict[int, bytes]]:
    """The victim's desk before it opens anything, and the three parts of the honest request."""
    desk, frame = stages.before[VICTIM, Phase.OPEN]
    reader = Reader(body(frame))
    return desk, reader.subset(desk.members), reader.table(SIGNATURE, 9), reader.table(1, 9)


def ask_open(desk: Desk, survivors: frozenset[int], signed: dict[int, bytes], wanted: bytes) -> bytes:
    parts = pack_subset(survivors, desk.members) + pack_table(signed, SIGNATURE) + wanted
    return request(desk.session, Phase.OPEN, desk.tag, parts)


def roster(stages: Stages) -> tuple[Desk, dict[int, bytes]]:
    desk, frame = stages.before[VICTIM, Phase.SHARE]
    return desk, Roster.read(Reader(body(frame)), desk.session.parameters).near


def ask_share(desk: Desk, near: dict[int, bytes], far: dict[int, bytes] | None = None) -> bytes:
    return request(desk.session, Phase.SHARE, desk.tag, Roster(near, far or {}).pack(ACTIVE))


@move("ascending order")
def both_shares_of_one_client(stages: Stages) -> tuple[Desk, bytes]:
    desk, survivors, signed, _ = opening(stages)
    twice = number(2) + number(1) + bytes([Kind.SEED]) + number(1) + bytes([Kind.KEY])
    return desk, ask_open(desk, survivors, signed, twice)


@move("must stay closed")
def a_survivor_also_listed_as_lost(stages: Stages) -> tuple[Desk, bytes]:
    desk, survivors, signed, wanted = opening(stages)
    return desk, ask_open(desk, survivors, signed, pack_table({**wanted, 1: bytes([Kind.KEY])}, 1))


@move("signature does not belong")
def a_split_view_of_who_delivered(stages: Stages) -> tuple[Desk, bytes]:
    """The victim is told that 5 delivered as well; the others' signatures are under another set."""
    desk, _ = stages.before[VICTIM, Phase.AGREE]
    everybody = frozenset(COHORT)
    desk = replace(desk, shares={**desk.shares, 5: bytes(72)})
    desk, _ = answer(desk, request(desk.session, Phase.AGREE, desk.tag, pack_subset(everybody, desk.members)))
    _, _, signed, wanted = opening(stages)
    return desk, ask_open(desk, everybody, signed, pack_table({**wanted, 5: bytes([Kind.SEED])}, 1))


@move("signature does not belong")
def swapped_keys(stages: Stages) -> tuple[Desk, bytes]:
    desk, near = roster(stages)
    return desk, ask_share(desk, {**near, 1: near[2], 2: near[1]})


@move("signature does not belong")
def a_forged_signature(stages: Stages) -> tuple[Desk, bytes]:
    desk, near = roster(stages)
    own = crypto.public(crypto.load(b"x" * 32)) + crypto.public(crypto.load(b"y" * 32))
    forged = own + crypto.sign(b"z" * 32, statements.announced(desk.tag, 1, own))
    return desk, ask_share(desk, {**near, 1: forged})


@move("other neighbours")
def a_smaller_neighbourhood_and_threshold(stages: Stages) -> tuple[Desk, bytes]:
    """The server cannot say a threshold; it can only name fewer holders."""
    desk, near = roster(stages)
    far = {1: client.graph.leaf(1, near[1][:KEYS])}
    return desk, ask_share(desk, {j: entry for j, entry in near.items() if j != 1}, far)


@move("Expected 4 to 5 clients, got 3")
def a_cohort_below_the_floor(stages: Stages) -> tuple[Desk, bytes]:
    desk, near = roster(stages)
    return desk, ask_share(desk, {j: near[j] for j in (1, 2, VICTIM)})


@move("Expected a request to open")
def a_phase_again(stages: Stages) -> tuple[Desk, bytes]:
    _, frame = stages.before[VICTIM, Phase.AGREE]
    return stages.after[VICTIM, Phase.AGREE], frame


@move("Expected a request to share in this round")
def a_message_of_an_old_round(stages: Stages) -> tuple[Desk, bytes]:
    desk, _ = honest(number=2).before[VICTIM, Phase.SHARE]
    return desk, stages.before[VICTIM, Phase.SHARE][1]


def _told_otherwise(stages: Stages, other: Session) -> tuple[Desk, bytes]:
    """The victim has another model or configuration, and the server plays along, with the victim's own context."""
    desk = seat(other, VICTIM, COHORT)
    desk, reply = answer(desk, request(other, Phase.ANNOUNCE, desk.tag, b""))
    _, near = roster(stages)
    return desk, ask_share(desk, {**near, VICTIM: body(reply)})


@move("signature does not belong")
def another_model(stages: Stages) -> tuple[Desk, bytes]:
    return _told_otherwise(stages, replace(stages.session, model=b"o" * 32))


@move("signature does not belong")
def another_configuration(stages: Stages) -> tuple[Desk, bytes]:
    return _told_otherwise(stages, replace(stages.session, config=b"o" * 32))


@move("ascending order")
def one_client_twice_in_the_roster(stages: Stages) -> tuple[Desk, bytes]:
    desk, near = roster(stages)
    entries = [(1, near[1]), *((j, near[j]) for j in (1, 2, VICTIM, 4))]
    table = number(5) + b"".join(number(j) + entry for j, entry in entries) + number(0)
    return desk, request(desk.session, Phase.SHARE, desk.tag, table)


@move("declared lost")
def the_victim_declared_lost(stages: Stages) -> tuple[Desk, bytes]:
    desk, _ = stages.before[VICTIM, Phase.AGREE]
    others = frozenset(COHORT) - {VICTIM}
    return desk, request(desk.session, Phase.AGREE, desk.tag, pack_subset(others, desk.members))


@move("altered on its way")
def an_altered_share(stages: Stages) -> tuple[Desk, bytes]:
    desk, frame = stages.before[VICTIM, Phase.UPLOAD]
    sealed = Reader(body(frame)).table(SEALED, 9)
    altered = bytes([sealed[1][0] ^ 1]) + sealed[1][1:]
    return desk, request(desk.session, Phase.UPLOAD, desk.tag, pack_table({**sealed, 1: altered}, SEALED))


@move("low order")
def a_point_of_low_order(stages: Stages) -> tuple[Desk, bytes]:
    """Signed by a client that colludes with the server."""
    desk, near = roster(stages)
    keys = near[1][:KEY] + bytes(KEY)
    signed = keys + crypto.sign(IDENTITIES[1], statements.announced(desk.tag, 1, keys))
    return desk, ask_share(desk, {**near, 1: signed})


@move("closed")
def a_second_opening(stages: Stages) -> tuple[Desk, bytes]:
    return stages.after[VICTIM, Phase.OPEN], stages.before[VICTIM, Phase.OPEN][1]


@pytest.fixture(scope="module")
def stages() -> Stages:
    return honest()


def test_there_are_sixteen() -> None:
    assert len(MOVES) == 16


@pytest.mark.parametrize("name", MOVES)
def test_the_client_refuses(name: str, stages: Stages) -> None:
    play, reason = MOVES[name]
    desk, frame = play(stages)
    with pytest.raises(ProtocolError, match=reason):
        answer(desk, frame)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase < Phase.CLOSED])
def test_the_same_client_answers_the_honest_request(phase: Phase, stages: Stages) -> None:
    """The control: the moves are refused for what they are."""
    desk, frame = stages.before[VICTIM, phase]
    after, first = answer(desk, frame)
    assert (after.phase, first) == (stages.after[VICTIM, phase].phase, answer(desk, frame)[1])


def test_parameters_below_the_policy_are_refused_before_anything_is_said() -> None:
    policy = Policy(level=ACTIVE, corrupt=Fraction(1, 10), cohort=5, survivors=4)
    good = parameters(5, corrupt=Fraction(1, 10), dropout=Fraction(1, 5))
    keys = {"identity": IDENTITIES[1], "directory": DIRECTORY, "entropy": entropy(0)}
    invite(session(good), 1, policy, **keys)
    for less in ({"corrupt": Fraction(0)}, {"level": Level.SEMI_HONEST}, {"cohort": 4}, {"least": 3}):
        with pytest.raises(ProtocolError):
            invite(session(replace(good, **less)), 1, policy, **keys)


def test_more_refusals(stages: Stages) -> None:
    """Relatives of the sixteen."""
    desk, near = roster(stages)
    own = near[VICTIM]
    with pytest.raises(ProtocolError, match="own keys"):
        answer(desk, ask_share(desk, {**near, VICTIM: near[1]}))
    with pytest.raises(ProtocolError, match="same key"):
        answer(desk, ask_share(desk, {**near, 1: own}))
    with pytest.raises(ProtocolError, match="not known"):
        answer(replace(desk, directory={VICTIM: DIRECTORY[VICTIM]}), ask_share(desk, near))
    desk, survivors, signed, wanted = opening(stages)
    with pytest.raises(ProtocolError, match="Expected 4 holders"):
        answer(desk, ask_open(desk, survivors, dict(list(signed.items())[:2]), pack_table(wanted, 1)))
    with pytest.raises(ProtocolError, match="than this client has signed"):
        answer(desk, ask_open(desk, survivors | {5}, signed, pack_table(wanted, 1)))
    with pytest.raises(ProtocolError, match="lost or no neighbours"):
        answer(desk, ask_open(desk, survivors, {**signed, 5: bytes(SIGNATURE)}, pack_table(wanted, 1)))
    with pytest.raises(ProtocolError, match="does not hold"):
        answer(desk, ask_open(desk, survivors, signed, pack_table({77: b"\1"}, 1)))
    desk, frame = stages.before[VICTIM, Phase.UPLOAD]
    with pytest.raises(ProtocolError, match="no vector"):
        answer(replace(desk, vector=b""), frame)
    few = {1: Reader(body(frame)).table(SEALED, 9)[1]}
    with pytest.raises(ProtocolError, match="Expected 4 holders"):
        answer(desk, request(desk.session, Phase.UPLOAD, desk.tag, pack_table(few, SEALED)))


def test_a_pad_key_of_low_order_stops_the_upload(stages: Stages) -> None:
    desk, frame = stages.before[VICTIM, Phase.UPLOAD]
    low = {**desk.keys, 1: bytes(KEY) + desk.keys[1][KEY:]}
    with pytest.raises(ProtocolError, match="low order"):
        answer(replace(desk, keys=low), frame)


def test_an_honest_server_drops_who_announces_a_point_of_low_order() -> None:
    """Otherwise one bad client would make all its neighbours leave the round."""

    def collude(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        if phase is not Phase.ANNOUNCE:
            return replies
        keys = bytes(KEY) + body(replies[0][1])[KEY:KEYS]
        entry = keys + crypto.sign(IDENTITIES[1], statements.announced(low.session.context, 1, keys))
        return [(1, client.messages.pack(phase, client.Way.REPLY, 1, 1, low.session.context, entry)), *replies[1:]]

    low = Stages(session(parameters(5, 4)), vectors(), network=collude)
    outcome = low.play()
    assert outcome.delivered == (2, 3, 4, 5)
    assert np.array_equal(outcome.total, total(low.vectors, outcome.delivered))


def test_a_client_given_another_model_contributes_uniform_noise() -> None:
    """Even if every check were skipped: its pads are bound to its own context and cancel with nobody's."""
    stages = honest(dim=100_000)
    desks = {j: stages.before[j, Phase.UPLOAD][0] for j in (1, 2, VICTIM, 4)} | {5: stages.after[5, Phase.SHARE]}
    assert np.array_equal(_unpadded(desks), total(stages.vectors, COHORT))
    desks[VICTIM] = replace(desks[VICTIM], tag=b"another context".ljust(32))
    noise = np.frombuffer(_unpadded(desks).tobytes(), np.uint8)
    assert 0.001 <= chisquare(np.bincount(noise, minlength=256)).pvalue <= 0.999


def _unpadded(desks: dict[int, Desk]) -> ring.Vector:
    """What a server sees that has all uploads and all seeds."""
    summed = np.zeros(100_000, np.uint32)
    for j, desk in desks.items():
        summed += np.frombuffer(client.padded(desk, sorted(set(desks) - {j})), np.uint32)
        ring.add_pads(summed, [], [statements.own_pad(client._seed(desk, desk.tag), desk.tag, j)])
    return summed
