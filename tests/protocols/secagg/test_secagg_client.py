"""Attacks by a malicious server, each refused by the client; most of them work on a framework in use today.

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
    NONE,
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
    shares,
)
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.secagg_messages import (
    Direction,
    Roster,
    announcement_statement,
    pack_signatures,
    read_signatures,
)
from tacit.wire.packing import Reader, pack_number, pack_subset

Target = tuple[SecaggClientState, bytes]  # the victim's state, and what the server sends it
Attack = Callable[[RecordedFederation], Target]
ACTIVE = ThreatModel.ACTIVE_SERVER
ATTACKS: dict[str, tuple[Attack, str]] = {}
LOW = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")  # a point of order 8


def attack(reason: str) -> Callable[[Attack], Attack]:
    """Register an attack, with the reason for which the client refuses it."""

    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = (function, reason)
        return function

    return register


def open_request(honest: RecordedFederation) -> tuple[SecaggClientState, frozenset[int], dict[int, bytes]]:
    """The victim's state before it reveals shares, and the parts of the honest request."""
    state, frame = honest.before[VICTIM, Phase.OPEN]
    reader = Reader(body_of(frame))
    survivors, _ = reader.subset(state.members), reader.take(len(NONE))
    return state, survivors, read_signatures(reader, state.members, 9)


def ask_open(state: SecaggClientState, survivors: frozenset[int], signed: dict[int, bytes]) -> bytes:
    parts = pack_subset(survivors, state.members) + NONE + pack_signatures(signed, state.members)
    return request(state.session, Phase.OPEN, state.expected_binding, parts)


def share_request(honest: RecordedFederation) -> tuple[SecaggClientState, dict[int, bytes]]:
    state, frame = honest.before[VICTIM, Phase.SHARE]
    return state, Roster.read(Reader(body_of(frame)), state.session.parameters).entries


def ask_share(state: SecaggClientState, entries: dict[int, bytes], nonces: dict[int, bytes] | None = None) -> bytes:
    body = Roster(bytes(KEY), entries, nonces or {}).pack(state.session.parameters)
    return request(state.session, Phase.SHARE, state.binding, body)


@attack("Expected the end of the message")
def a_request_for_both_shares_of_one_client(honest: RecordedFederation) -> Target:
    """What is revealed follows from the survivors: a request for more cannot be written."""
    state, survivors, signed = open_request(honest)
    asked = pack_number(1) + pack_number(1) + b"\2"
    return state, request(
        state.session, Phase.OPEN, state.expected_binding, body_of(ask_open(state, survivors, signed)) + asked
    )


@attack("not those that this client has signed")
def a_survivor_declared_a_dropout_afterwards(honest: RecordedFederation) -> Target:
    state, survivors, signed = open_request(honest)
    return state, ask_open(state, (survivors - {1}) | {5}, signed)


@attack("signature does not match")
def a_split_view_of_the_survivors(honest: RecordedFederation) -> Target:
    """The victim is sent 5 as a survivor too; the others' signatures are on another set."""
    state, _ = honest.before[VICTIM, Phase.AGREE]
    everyone = frozenset(COHORT)
    state, _ = answer(
        state, request(state.session, Phase.AGREE, state.expected_binding, pack_subset(everyone, state.members))
    )
    return state, ask_open(state, everyone, open_request(honest)[2])


@attack("signature does not match")
def a_split_view_of_the_sharers(honest: RecordedFederation) -> Target:
    """The victim would pad with fewer clients than the others, but does not upload at all."""
    state, _ = honest.before[VICTIM, Phase.CONFIRM]
    sharers = pack_subset(frozenset(COHORT) - {5}, state.members) + NONE
    state, _ = answer(state, request(state.session, Phase.CONFIRM, state.binding, sharers))
    return state, honest.before[VICTIM, Phase.UPLOAD][1]


@attack("not the one that the server has committed to")
def another_challenge(honest: RecordedFederation) -> Target:
    """With two challenges, answers would reveal combinations of shares."""
    state, frame = honest.before[VICTIM, Phase.CHECK]
    return state, request(state.session, Phase.CHECK, state.binding, bytes(KEY) + body_of(frame)[KEY:])


@attack("Expected a request to confirm")
def a_second_challenge(honest: RecordedFederation) -> Target:
    state = honest.after[VICTIM, Phase.CHECK]
    return state, request(state.session, Phase.CHECK, state.binding, b"")


@attack("signature does not match")
def swapped_keys(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    return state, ask_share(state, {**entries, 1: entries[2], 2: entries[1]})


@attack("signature does not match")
def a_forged_signature(honest: RecordedFederation) -> Target:
    state, entries = share_request(honest)
    own = crypto.public_key(crypto.load_key(b"x" * 32))
    forged = own + crypto.sign(b"z" * 32, announcement_statement(state.binding, 1, own, b""))
    return state, ask_share(state, {**entries, 1: forged})


@attack("not those that the drawn order determines")
def a_smaller_neighbourhood_and_threshold(honest: RecordedFederation) -> Target:
    """The server cannot choose a threshold; it can only name fewer holders."""
    state, entries = share_request(honest)
    nonces = {1: bytes(graph.NONCE)}
    return state, ask_share(state, {j: entry for j, entry in entries.items() if j != 1}, nonces)


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
    return state, request(state.session, Phase.SHARE, state.binding, bytes(KEY) + table)


@attack("declared a dropout")
def the_victim_declared_a_dropout(honest: RecordedFederation) -> Target:
    state, _ = honest.before[VICTIM, Phase.AGREE]
    others = frozenset(COHORT) - {VICTIM}
    return state, request(state.session, Phase.AGREE, state.expected_binding, pack_subset(others, state.members))


@attack("did not share its secrets")
def a_survivor_that_never_shared(honest: RecordedFederation) -> Target:
    state, _ = honest.before[VICTIM, Phase.AGREE]
    state = replace(state, sharers=state.sharers - {5})
    everyone = pack_subset(frozenset(COHORT), state.members)
    return state, request(state.session, Phase.AGREE, state.expected_binding, everyone)


def _with_keys(honest: RecordedFederation, keys: bytes) -> Target:
    """Signed by a client that colludes with the server."""
    state, entries = share_request(honest)
    signed = keys + crypto.sign(IDENTITIES[1], announcement_statement(state.binding, 1, keys, b""))
    return state, ask_share(state, {**entries, 1: signed})


@attack("low order")
def a_key_of_low_order(honest: RecordedFederation) -> Target:
    return _with_keys(honest, LOW)


@attack("low order")
def a_key_of_zeros(honest: RecordedFederation) -> Target:
    return _with_keys(honest, bytes(KEY))


@attack("closed")
def a_second_opening(honest: RecordedFederation) -> Target:
    return honest.after[VICTIM, Phase.OPEN], honest.before[VICTIM, Phase.OPEN][1]


@pytest.fixture(scope="module")
def honest() -> RecordedFederation:
    return recorded()


def test_there_are_twenty_attacks() -> None:
    assert len(ATTACKS) == 20


@pytest.mark.parametrize("name", ATTACKS)
def test_the_client_refuses(name: str, honest: RecordedFederation) -> None:
    make, reason = ATTACKS[name]
    state, frame = make(honest)
    with pytest.raises(ProtocolError, match=reason):
        answer(state, frame)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.DRAW, Phase.CLOSED)])
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
    with pytest.raises(ProtocolError, match="own key"):
        answer(state, ask_share(state, {**entries, VICTIM: entries[1]}))
    with pytest.raises(ProtocolError, match="same key"):
        answer(state, ask_share(state, {**entries, 1: own}))
    with pytest.raises(ProtocolError, match="not in the directory"):
        answer(replace(state, directory={VICTIM: DIRECTORY[VICTIM]}), ask_share(state, entries))
    state, survivors, signed = open_request(honest)
    with pytest.raises(ProtocolError, match="Expected 4 clients to have signed, got 2"):
        answer(state, ask_open(state, survivors, dict(list(signed.items())[:2])))
    with pytest.raises(ProtocolError, match="not those that this client has signed"):
        answer(state, ask_open(state, survivors | {5}, signed))
    with pytest.raises(ProtocolError, match="signatures of dropouts, or of clients that are not in the committee"):
        answer(state, ask_open(state, survivors, {**signed, 5: bytes(SIGNATURE)}))
    state, frame = honest.before[VICTIM, Phase.UPLOAD]
    with pytest.raises(ProtocolError, match="no vector"):
        answer(replace(state, vector=b""), frame)
    state, _ = honest.before[VICTIM, Phase.CONFIRM]
    few = pack_subset(frozenset({1, VICTIM}), state.members) + NONE
    with pytest.raises(ProtocolError, match="Expected 4 clients, got 2"):
        answer(state, request(state.session, Phase.CONFIRM, state.binding, few))
    relaxed = replace(
        state, session=replace(state.session, parameters=replace(state.session.parameters, min_uploads=3))
    )
    few = pack_subset(frozenset({1, 2, VICTIM}), state.members) + NONE
    with pytest.raises(ProtocolError, match="Expected 3 neighbours of this client, got 2"):
        answer(relaxed, request(state.session, Phase.CONFIRM, state.binding, few))
    without = pack_subset(frozenset(COHORT) - {VICTIM}, state.members) + NONE
    with pytest.raises(ProtocolError, match="declared a dropout"):
        answer(state, request(state.session, Phase.CONFIRM, state.binding, without))


def test_a_session_that_was_used_before_is_refused() -> None:
    """A server could otherwise put announcements whose keys it has recovered into a new roster."""
    policy = SecaggPolicy(min_corrupt=Fraction(0))

    def join(s: SecaggSession, earlier: SecaggClientState | None) -> SecaggClientState:
        return join_round(s, 1, policy, identity=IDENTITIES[1], directory=DIRECTORY, earlier=earlier)

    one, two = session(parameters(5), index=1), session(parameters(5), index=2)
    second = SecaggClientState.from_bytes(join(two, join(one, None)).to_bytes())
    for used in (one, two):
        with pytest.raises(ProtocolError, match="This session was used before"):
            join(used, second)
    assert join(session(parameters(5), index=2, config=b"d" * 32), second).used == (one.context, two.context)
    assert recorded().after[1, Phase.OPEN].used == ()


def test_an_honest_server_rejects_an_announced_point_of_low_order() -> None:
    """Otherwise one bad client would make all its neighbours leave the round."""

    def collude(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        if phase is not Phase.ANNOUNCE:
            return replies
        keys = bytes(KEY)
        entry = keys + crypto.sign(IDENTITIES[1], announcement_statement(low.session.context, 1, keys, b""))
        return [(1, secagg_messages.pack(phase, Direction.REPLY, 1, 1, low.session.context, entry)), *replies[1:]]

    low = RecordedFederation(session(parameters(5, 4)), small_vectors(), network=collude)
    outcome = low.run()
    assert outcome.clients == (2, 3, 4, 5)
    assert np.array_equal(outcome.result, exact_sum(low.vectors, outcome.clients))


def test_a_client_with_another_model_contributes_uniform_noise() -> None:
    """Even without any check: its pads are bound to its own context and cancel with no other pad."""
    honest = recorded(dim=100_000)
    states = {j: honest.before[j, Phase.UPLOAD][0] for j in (1, 2, VICTIM, 4)} | {5: honest.after[5, Phase.CONFIRM]}
    assert np.array_equal(_unpadded(states), exact_sum(honest.vectors, COHORT))
    other = replace(states[VICTIM].session, model=b"o" * 32)
    states[VICTIM] = replace(states[VICTIM], session=other)
    noise = np.frombuffer(_unpadded(states).tobytes(), np.uint8)
    assert 0.001 <= chisquare(np.bincount(noise, minlength=256)).pvalue <= 0.999


def _unpadded(states: dict[int, SecaggClientState]) -> Vector:
    """What a server computes that has all uploads and all seeds."""
    summed = np.zeros(100_000, np.uint32)
    for j, state in states.items():
        binding = state.expected_binding
        secrets = secagg_client._pair_secrets(state, state.circle.own_pads(j, state.near), binding)
        summed += np.frombuffer(secagg_client.pad_vector(state, secrets), np.uint32)
        seed = secagg_client._secret(state, shares.Shared.SEED, 0)
        pads.add_pads(summed, [], [pads.own_pad_key(seed, binding, j)])
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
            assert not any((state.identity, state.holds, state.directory))


def test_vectors_that_do_not_fit_are_refused(honest: RecordedFederation) -> None:
    state, _ = honest.before[1, Phase.ANNOUNCE]
    misfits: list[Any] = [np.zeros(5, np.uint32), np.zeros(4, np.int64), np.zeros((4, 1), np.uint32)]
    for wrong in misfits:
        with pytest.raises(UserError, match="uint32 vector of 4 values"):
            set_vector(state, wrong)
    with pytest.raises(UserError, match="before the upload"):
        set_vector(honest.after[1, Phase.UPLOAD], np.zeros(4, np.uint32))
