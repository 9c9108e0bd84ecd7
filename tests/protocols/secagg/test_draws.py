"""The order of the clients on sparse graphs: a server can neither choose it nor try many rosters."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import (
    VICTIM,
    Federation,
    RecordedFederation,
    body_of,
    exact_sum,
    parameters,
    request,
    session,
)
from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import Phase, SecaggClientState, ThreatModel, answer, graph
from tacit.protocols.secagg.graph import MAX_DRAWS, NONCE
from tacit.protocols.secagg.secagg_messages import Roster
from tacit.wire.packing import Reader

P = parameters(70, 3, threat_model=ThreatModel.SEMI_HONEST, corrupt=Fraction(1, 20), dropout=Fraction(1, 10))
VECTORS = {j: np.array([j, j << 20, 2**32 - j], np.uint32) for j in range(1, 71)}


@pytest.fixture(scope="module")
def honest() -> RecordedFederation:
    federation = RecordedFederation(session(P), VECTORS, serialised=False)
    federation.run()
    return federation


def shared(honest: RecordedFederation) -> tuple[SecaggClientState, Roster]:
    """The victim's state after it has opened its nonce, and the roster that it is sent then."""
    state, frame = honest.before[VICTIM, Phase.SHARE]
    return state, Roster.read(Reader(body_of(frame)), P)


def ask(state: SecaggClientState, roster: Roster) -> bytes:
    return request(state.session, Phase.SHARE, state.binding, roster.pack(P))


def test_the_graph_is_sparse_and_the_honest_request_is_answered(honest: RecordedFederation) -> None:
    state, roster = shared(honest)
    assert P.graph(70).degree < 69
    assert answer(state, ask(state, roster))[0].phase is Phase.CHECK


def test_a_roster_cannot_be_changed_once_a_nonce_is_open(honest: RecordedFederation) -> None:
    """Grinding: before, a server could try rosters, with or without some clients, until the graph suited it."""
    state, roster = shared(honest)
    without = {j: nonce for j, nonce in roster.nonces.items() if j != max(roster.nonces)}
    for changed in (
        replace(roster, nonces=without),
        replace(roster, nonces={**roster.nonces, max(without): bytes(NONCE)}),
    ):
        with pytest.raises(ProtocolError, match="not the one for which this client has opened its nonce"):
            answer(state, ask(state, changed))


def test_a_colluder_cannot_choose_its_nonce_once_it_knows_the_others(honest: RecordedFederation) -> None:
    state, roster = shared(honest)
    far, near = max(roster.nonces), min(roster.entries.keys() - {VICTIM})
    chosen = replace(roster, nonces={**roster.nonces, far: bytes(NONCE)})
    entry = roster.entries[near][:KEY] + bytes(NONCE)
    for changed in (chosen, replace(roster, entries={**roster.entries, near: entry})):
        with pytest.raises(ProtocolError, match="not the one for which this client has opened its nonce"):
            answer(state, ask(state, changed))
    own = {**roster.entries, VICTIM: roster.entries[VICTIM][:KEY] + bytes(NONCE)}
    with pytest.raises(ProtocolError, match="the nonce that this client has opened"):
        answer(state, ask(state, replace(roster, entries=own)))


def test_nobody_shares_before_a_draw_and_draws_are_limited(honest: RecordedFederation) -> None:
    state, roster = shared(honest)
    before, _ = honest.before[VICTIM, Phase.DRAW]
    with pytest.raises(ProtocolError, match="Expected a"):
        answer(before, ask(before, roster))
    another = request(state.session, Phase.DRAW, state.binding, bytes(32))
    again, reply = answer(state, another)
    assert (again.draws, again.roster) == (2, bytes(32))
    assert graph.commitment(body_of(reply), 2) == graph.commitment(body_of(answer(before, another)[1]))
    with pytest.raises(ProtocolError, match="does not contain the nonce"):
        answer(again, ask(again, roster))  # with the first draw's nonces
    with pytest.raises(ProtocolError, match=f"at most {MAX_DRAWS} draws"):
        answer(replace(state, draws=MAX_DRAWS), another)


def test_whoever_does_not_open_its_nonce_is_lost_and_the_others_draw_again(honest: RecordedFederation) -> None:
    """The server gains one more draw, which the bound includes, and not the choice among orders with and without it."""
    gone = iter([frozenset({7}), frozenset({9, 11}), frozenset[int]()])

    def lose(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        lost = next(gone) if phase is Phase.DRAW else frozenset()
        return [reply for reply in replies if reply[0] not in lost]

    federation = Federation(session(P), VECTORS, network=lose, serialised=False)
    outcome = federation.run()
    assert outcome.clients == tuple(j for j in VECTORS if j not in {7, 9, 11})
    assert np.array_equal(outcome.result, exact_sum(VECTORS, outcome.clients))
    assert outcome.transcript.unresponsive == {7, 9, 11}
    orders = {honest.after[VICTIM, Phase.SHARE].order, federation.states[VICTIM].order}
    assert len(orders) == 2
