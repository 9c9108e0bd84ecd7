"""Sixteen attacks by a malicious server, each refused by the client; most of them work on a framework in use today.

Each attack follows an honest conversation up to the same point, so that nothing but the attack can be the reason.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from protocols.secagg.federation import (
    COHORT,
    DIRECTORY,
    IDENTITIES,
    VICTIM,
    RecordedFederation,
    body_of,
    entropy,
    exact_sum,
    joined,
    parameters,
    recorded,
    request,
    session,
    small_vectors,
)
from tacit.errors import ProtocolError, UserError
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, SIGNATURE
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggClientState,
    SecaggPolicy,
    SecaggSession,
    ThreatModel,
    answer,
    graph,
    join_round,
    pads,
    secagg_client,
    secagg_messages,
    set_vector,
)
from tacit.protocols.secagg.pads import ShareKind, Vector
from tacit.protocols.secagg.secagg_messages import KEYS, SEALED, Direction, Roster, announcement_statement
from tacit.wire.packing import Reader, pack_number, pack_subset, pack_table

Target = tuple[SecaggClientState, bytes]  # the victim's state, and what the server sends it
Attack = Callable[[RecordedFederation], Target]
ACTIVE = ThreatModel.ACTIVE_SERVER
ATTACKS: dict[str, tuple[Attack, str]] = {}


def attack(reason: str) -> Callable[[Attack], Attack]:
    """Register an attack, with the reason for which the client refuses it."""

    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = (function, reason)
        return function

    return register


def open_request(
    honest: RecordedFederation,
) -> tuple[SecaggClientState, frozenset[int], dict[int, bytes], dict[int, bytes]]:
    """The victim's state before it reveals shares, and the three parts of the honest request."""
    state, frame = honest.before[VICTIM, Phase.OPEN]
    reader = Reader(body_of(frame))
    return state, reader.subset(state.members), reader.table(SIGNATURE, 9), reader.table(1, 9)


def ask_open(state: SecaggClientState, survivors: frozenset[int], signed: dict[int, bytes], requested: bytes) -> bytes:
    parts = pack_subset(survivors, state.members) + pack_table(signed, SIGNATURE) + requested
    return request(state.session, Phase.OPEN, state.binding, parts)


def share_request(honest: RecordedFederation) -> tuple[SecaggClientState, dict[int, bytes]]:
    state, frame = honest.before[VICTIM, Phase.SHARE]
    return state, Roster.read(Reader(body_of(frame)), state.session.parameters).entries


def ask_share(state: SecaggClientState, entries: dict[int, bytes], digests: dict[int, bytes] | None = None) -> bytes:
    return request(state.session, Phase.SHARE, state.binding, Roster(entries, digests or {}).pack(ACTIVE))


@attack("ascending order")
def both_shares_of_one_client(honest: RecordedFederation) -> Target:
    state, survivors, signed, _ = open_request(honest)
    twice = pack_number(2) + pack_number(1) + bytes([ShareKind.SEED]) + pack_number(1) + bytes([ShareKind.KEY])
    return state, ask_open(state, survivors, signed, twice)


@attack("must stay secret")
def a_survivor_also_listed_as_dropout(honest: RecordedFederation) -> Target:
    state, survivors, signed, requested = open_request(honest)
    return state, ask_open(state, survivors, signed, pack_table({**requested, 1: bytes([ShareKind.KEY])}, 1))


@attack("signature does not match")
def a_split_view_of_the_survivors(honest: RecordedFederation) -> Target:
    """The victim is sent 5 as a survivor too; the others' signatures are on another set."""
    state, _ = honest.before[VICTIM, Phase.AGREE]
    everyone = frozenset(COHORT)
    state = replace(state, shares={**state.shares, 5: bytes(72)})
    state, _ = answer(state, request(state.session, Phase.AGREE, state.binding, pack_subset(everyone, state.members)))
    _, _, signed, requested = open_request(honest)
    return state, ask_open(state, everyone, signed, pack_table({**requested, 5: bytes([ShareKind.SEED])}, 1))


@attack("signature does not match")
def swapped_keys(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    return state, ask_share(state, {**entries, 1: entries[2], 2: entries[1]})


@attack("signature does not match")
def a_forged_signature(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    own = b"".join(crypto.public_key(crypto.load_key(secret)) for secret in (b"x" * 32, b"y" * 32))
    forged = own + crypto.sign(b"z" * 32, announcement_statement(state.binding, 1, own))
    return state, ask_share(state, {**entries, 1: forged})


@attack("not those that its digest determines")
def a_smaller_neighbourhood_and_threshold(honest: RecordedFederation) -> Target:
    """The server cannot choose a threshold; it can only name fewer holders."""
    state, entries = share_request(honest)
    digests = {1: graph.roster_leaf(1, entries[1][:KEYS])}
    return state, ask_share(state, {j: entry for j, entry in entries.items() if j != 1}, digests)


@attack("Expected 4 to 5 clients, got 3")
def a_cohort_below_the_minimum(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    return state, ask_share(state, {j: entries[j] for j in (1, 2, VICTIM)})


@attack("Expected a request to open")
def a_phase_again(honest: RecordedFederation) -> Target:
    _, frame = honest.before[VICTIM, Phase.AGREE]
    return honest.after[VICTIM, Phase.AGREE], frame


@attack("Expected a request to share in this round")
def a_message_of_an_old_round(honest: RecordedFederation) -> Target:
    state, _ = recorded(index=2).before[VICTIM, Phase.SHARE]
    return state, honest.before[VICTIM, Phase.SHARE][1]


def _with_session(honest: RecordedFederation, other: SecaggSession) -> Target:
    """The victim has another model or configuration, and the server uses the victim's own context."""
    state = joined(other, VICTIM, COHORT)
    state, reply = answer(state, request(other, Phase.ANNOUNCE, state.binding, b""))
    _, entries = share_request(honest)
    return state, ask_share(state, {**entries, VICTIM: body_of(reply)})


@attack("signature does not match")
def another_model(honest: RecordedFederation) -> Target:
    return _with_session(honest, replace(honest.session, model=b"o" * 32))


@attack("signature does not match")
def another_configuration(honest: RecordedFederation) -> Target:
    return _with_session(honest, replace(honest.session, config=b"o" * 32))


@attack("ascending order")
def one_client_twice_in_the_roster(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    listed = [(1, entries[1]), *((j, entries[j]) for j in (1, 2, VICTIM, 4))]
    table = pack_number(5) + b"".join(pack_number(j) + entry for j, entry in listed) + pack_number(0)
    return state, request(state.session, Phase.SHARE, state.binding, table)


@attack("declared a dropout")
def the_victim_declared_a_dropout(honest: RecordedFederation) -> Target:
    state, _ = honest.before[VICTIM, Phase.AGREE]
    others = frozenset(COHORT) - {VICTIM}
    return state, request(state.session, Phase.AGREE, state.binding, pack_subset(others, state.members))


@attack("the ciphertext was altered")
def an_altered_share(honest: RecordedFederation) -> Target:
    state, frame = honest.before[VICTIM, Phase.UPLOAD]
    sealed = Reader(body_of(frame)).table(SEALED, 9)
    altered = bytes([sealed[1][0] ^ 1]) + sealed[1][1:]
    return state, request(state.session, Phase.UPLOAD, state.binding, pack_table({**sealed, 1: altered}, SEALED))


@attack("low order")
def a_point_of_low_order(honest: RecordedFederation) -> Target:
    """Signed by a client that colludes with the server."""
    state, entries = share_request(honest)
    keys = entries[1][:KEY] + bytes(KEY)
    signed = keys + crypto.sign(IDENTITIES[1], announcement_statement(state.binding, 1, keys))
    return state, ask_share(state, {**entries, 1: signed})


@attack("closed")
def a_second_opening(honest: RecordedFederation) -> Target:
    return honest.after[VICTIM, Phase.OPEN], honest.before[VICTIM, Phase.OPEN][1]


@pytest.fixture(scope="module")
def honest() -> RecordedFederation:
    return recorded()


def test_there_are_sixteen_attacks() -> None:
    assert len(ATTACKS) == 16


@pytest.mark.parametrize("name", ATTACKS)
def test_the_client_refuses(name: str, honest: RecordedFederation) -> None:
    make, reason = ATTACKS[name]
    state, frame = make(honest)
    with pytest.raises(ProtocolError, match=reason):
        answer(state, frame)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase < Phase.CLOSED])
def test_the_same_client_answers_the_honest_request(phase: Phase, honest: RecordedFederation) -> None:
    """The control: each attack is refused for what it is."""
    state, frame = honest.before[VICTIM, phase]
    after, first = answer(state, frame)
    assert (after.phase, first) == (honest.after[VICTIM, phase].phase, answer(state, frame)[1])


def test_parameters_below_the_policy_are_refused_before_the_first_reply() -> None:
    policy = SecaggPolicy(threat_model=ACTIVE, min_corrupt=Fraction(1, 10), min_cohort=5, min_survivors=4)
    good = parameters(5, corrupt=Fraction(1, 10), dropout=Fraction(1, 5))

    def join(p: Parameters) -> SecaggClientState:
        return join_round(session(p), 1, policy, identity=IDENTITIES[1], directory=DIRECTORY, entropy=entropy(0))

    join(good)
    weaker = (
        replace(good, corrupt=Fraction(0)),
        replace(good, threat_model=ThreatModel.SEMI_HONEST),
        replace(good, cohort=4),
        replace(good, min_uploads=3),
    )
    for less in weaker:
        with pytest.raises(ProtocolError):
            join(less)


def test_variants_of_the_attacks_are_refused(honest: RecordedFederation) -> None:
    state, entries = share_request(honest)
    own = entries[VICTIM]
    with pytest.raises(ProtocolError, match="own keys"):
        answer(state, ask_share(state, {**entries, VICTIM: entries[1]}))
    with pytest.raises(ProtocolError, match="same key"):
        answer(state, ask_share(state, {**entries, 1: own}))
    with pytest.raises(ProtocolError, match="not in the directory"):
        answer(replace(state, directory={VICTIM: DIRECTORY[VICTIM]}), ask_share(state, entries))
    state, survivors, signed, requested = open_request(honest)
    with pytest.raises(ProtocolError, match="Expected 4 holders"):
        answer(state, ask_open(state, survivors, dict(list(signed.items())[:2]), pack_table(requested, 1)))
    with pytest.raises(ProtocolError, match="not those that this client has signed"):
        answer(state, ask_open(state, survivors | {5}, signed, pack_table(requested, 1)))
    with pytest.raises(ProtocolError, match="signatures of dropouts, or of clients whose signatures are not needed"):
        answer(state, ask_open(state, survivors, {**signed, 5: bytes(SIGNATURE)}, pack_table(requested, 1)))
    with pytest.raises(ProtocolError, match="does not hold"):
        answer(state, ask_open(state, survivors, signed, pack_table({77: b"\1"}, 1)))
    state, frame = honest.before[VICTIM, Phase.UPLOAD]
    with pytest.raises(ProtocolError, match="no vector"):
        answer(replace(state, vector=b""), frame)
    few = {1: Reader(body_of(frame)).table(SEALED, 9)[1]}
    with pytest.raises(ProtocolError, match="Expected 4 holders"):
        answer(state, request(state.session, Phase.UPLOAD, state.binding, pack_table(few, SEALED)))


def test_a_pad_key_of_low_order_stops_the_upload(honest: RecordedFederation) -> None:
    state, frame = honest.before[VICTIM, Phase.UPLOAD]
    low = {**state.keys, 1: bytes(KEY) + state.keys[1][KEY:]}
    with pytest.raises(ProtocolError, match="low order"):
        answer(replace(state, keys=low), frame)


def test_an_honest_server_rejects_an_announced_point_of_low_order() -> None:
    """Otherwise one bad client would make all its neighbours leave the round."""

    def collude(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        if phase is not Phase.ANNOUNCE:
            return replies
        keys = bytes(KEY) + body_of(replies[0][1])[KEY:KEYS]
        entry = keys + crypto.sign(IDENTITIES[1], announcement_statement(low.session.context, 1, keys))
        return [(1, secagg_messages.pack(phase, Direction.REPLY, 1, 1, low.session.context, entry)), *replies[1:]]

    low = RecordedFederation(session(parameters(5, 4)), small_vectors(), network=collude)
    outcome = low.run()
    assert outcome.clients == (2, 3, 4, 5)
    assert np.array_equal(outcome.result, exact_sum(low.vectors, outcome.clients))


def test_a_client_with_another_model_contributes_uniform_noise() -> None:
    """Even without any check: its pads are bound to its own context and cancel with no other pad."""
    honest = recorded(dim=100_000)
    states = {j: honest.before[j, Phase.UPLOAD][0] for j in (1, 2, VICTIM, 4)} | {5: honest.after[5, Phase.SHARE]}
    assert np.array_equal(_unpadded(states), exact_sum(honest.vectors, COHORT))
    states[VICTIM] = replace(states[VICTIM], binding=b"another context".ljust(32))
    noise = np.frombuffer(_unpadded(states).tobytes(), np.uint8)
    assert 0.001 <= chisquare(np.bincount(noise, minlength=256)).pvalue <= 0.999


def _unpadded(states: dict[int, SecaggClientState]) -> Vector:
    """What a server computes that has all uploads and all seeds."""
    summed = np.zeros(100_000, np.uint32)
    for j, state in states.items():
        summed += np.frombuffer(secagg_client.padded_vector(state, sorted(set(states) - {j})), np.uint32)
        seed = secagg_client._seed(state, state.binding)
        pads.add_pads(summed, [], [pads.own_pad_key(seed, state.binding, j)])
    return summed


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_states_survive_serialisation_and_lose_what_is_no_longer_needed(threat_model: ThreatModel) -> None:
    federation = recorded(threat_model)
    for state in [*federation.after.values(), *(state for state, _ in federation.before.values())]:
        again = SecaggClientState.from_bytes(state.to_bytes())
        assert again.to_bytes() == state.to_bytes()
        assert again.session == state.session
        assert state.root.hex() not in repr(state) or not state.root
        if state.phase > Phase.UPLOAD:
            assert (state.root, state.vector) == (b"", b"")
        if state.phase is Phase.CLOSED:
            assert not any((state.identity, state.shares, state.keys, state.directory))


def test_vectors_that_do_not_fit_are_refused(honest: RecordedFederation) -> None:
    state, _ = honest.before[1, Phase.ANNOUNCE]
    misfits: list[Any] = [np.zeros(5, np.uint32), np.zeros(4, np.int64), np.zeros((4, 1), np.uint32)]
    for wrong in misfits:
        with pytest.raises(UserError, match="uint32 vector of 4 values"):
            set_vector(state, wrong)
    with pytest.raises(UserError, match="before the upload"):
        set_vector(honest.after[1, Phase.UPLOAD], np.zeros(4, np.uint32))
