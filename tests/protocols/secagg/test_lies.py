"""Clients that lie about shares, in every role: the sum is exact, and nobody honest is named."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from protocols.secagg.federation import NONE, Federation, RecordedFederation, exact_sum, parameters, request, session
from protocols.secagg.liars import Liars, Lie, at, elements, falsified, forger, wrong
from tacit.errors import ProtocolError, TooFewClientsError
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.secagg import Misbehaviour, Phase, SecaggOutcome, answer, secagg_messages, shares
from tacit.wire.packing import pack_subset

ELEVEN = {j: np.full(3, 1000 * j, np.uint32) for j in range(1, 12)}
ONE, TWO = Fraction(1, 11), Fraction(2, 11)


def played(
    misbehaviour: Callable[[Federation], dict[int, Lie]], corrupt: Fraction, dropout: Fraction = ONE
) -> SecaggOutcome:
    """A round of eleven clients, the largest number of liars among whom is declared."""
    network = Liars({})
    federation = Federation(session(parameters(11, 3, corrupt=corrupt, dropout=dropout)), ELEVEN, network=network)
    network.misbehaviour = misbehaviour(federation)
    return federation.run()


def eleven(lies: dict[int, Lie], corrupt: Fraction = TWO) -> SecaggOutcome:
    """Such a round, whose sum is exact."""
    outcome = played(lambda _: lies, corrupt)
    assert np.array_equal(outcome.result, exact_sum(ELEVEN, outcome.clients))
    return outcome


def test_shares_outside_the_field_are_the_dealers_own_and_concern_nobody_else() -> None:
    """Before, such shares to 4 of 11 holders ended the round, and holders that revealed them were called malformed."""

    def outside(body: bytes) -> bytes:
        words = elements(body)
        words[::5] = shares.PRIME + 3
        return bytes(words.tobytes())

    outcome = eleven({4: at(Phase.SHARE, outside)})
    assert outcome.clients == tuple(j for j in range(1, 12) if j != 4)
    assert outcome.transcript.rejected == {ReplyStatus.MALFORMED: 1}  # the dealer's own reply
    assert outcome.transcript.unresponsive == {4}
    assert outcome.misbehaviour == Misbehaviour()


@pytest.mark.parametrize("holders", [1, 2, 3, 4])
def test_a_dealer_whose_shares_fit_some_holders_only(holders: int) -> None:
    """Up to one wrong correction here either could lie, from two on it is the dealer, before anybody pads with it."""
    p = parameters(11, 3, corrupt=Fraction(1, 11), dropout=Fraction(1, 11))
    width, spare = shares.columns(p, noisy=False), 11 - p.graph(11).threshold + 1
    assert (p.graph(11).max_wrong, spare) == (1, 4)
    places = [width * row + 3 for row in range(holders)]
    outcome = eleven({4: at(Phase.SHARE, lambda body: wrong(body, places))}, Fraction(1, 11))
    assert outcome.misbehaviour.named == (frozenset({4}) if holders > 1 else frozenset())
    assert len(outcome.misbehaviour.disputed) == (1 if holders == 1 else 0)
    assert (4 in outcome.clients) == (holders == 1)
    assert not outcome.transcript.rejected


def test_two_holders_that_reveal_wrong_shares_of_everybody_are_named() -> None:
    """Before, two liars defeated the search."""
    outcome = eleven({3: at(Phase.OPEN, falsified), 9: at(Phase.OPEN, falsified)})
    assert outcome.misbehaviour == Misbehaviour(holders=frozenset({3, 9}))
    assert outcome.clients == tuple(range(1, 12))


def test_a_holder_that_lies_once_is_named_if_it_has_answered_otherwise_before() -> None:
    outcome = eleven({3: at(Phase.OPEN, lambda body: wrong(body, [40]))})
    assert outcome.misbehaviour == Misbehaviour(holders=frozenset({3}))


def test_a_client_that_disputes_with_itself_is_named() -> None:
    """Before, the two of them were reported as a pair of whom one misbehaviour."""
    outcome = eleven({3: at(Phase.CHECK, lambda body: wrong(body, [4]))})
    assert outcome.misbehaviour == Misbehaviour(dealers=frozenset({3}))
    assert outcome.clients == tuple(range(1, 12))


def test_a_holder_that_disputes_with_everybody_is_named_and_with_one_nobody_is() -> None:
    everybody = eleven({3: at(Phase.CHECK, lambda body: wrong(body, [*range(22)]))})
    assert everybody.misbehaviour.holders == {3}
    one = eleven({3: at(Phase.CHECK, lambda body: wrong(body, [0]))})
    assert one.misbehaviour == Misbehaviour(disputed=frozenset({(1, 3)}))
    assert everybody.clients == one.clients == tuple(range(1, 12))


@pytest.mark.parametrize("gone", [Phase.UPLOAD, Phase.AGREE])
def test_whatever_secret_a_client_shares_for_its_pads_they_are_removed_if_it_drops_out(gone: Phase) -> None:
    """What its neighbours escrowed removes their pads with it: only its shares are used."""
    outcome = played(lambda federation: {4: forger(federation, 4, gone)}, TWO)
    assert np.array_equal(outcome.result, exact_sum(ELEVEN, outcome.clients))
    assert outcome.misbehaviour == Misbehaviour()
    assert (4 in outcome.clients) == (gone is Phase.AGREE)


@pytest.mark.parametrize("gone", [Phase.AGREE, Phase.OPEN])
@pytest.mark.parametrize("disputed", [(), (9,)])
def test_a_wrong_secret_and_a_neighbour_that_is_lost_later_leave_the_exact_sum(
    gone: Phase, disputed: tuple[int, ...]
) -> None:
    """Before, this ended without a sum: only the two of them knew their pad. With and without a dispute of the two."""
    lost = {9: at(gone, lambda _: None)}
    outcome = played(lambda federation: {4: forger(federation, 4, Phase.UPLOAD, frozenset(disputed)), **lost}, ONE, TWO)
    assert outcome.clients == tuple(j for j in range(1, 12) if j != 4)
    assert np.array_equal(outcome.result, exact_sum(ELEVEN, outcome.clients))
    assert outcome.misbehaviour == Misbehaviour(disputed=frozenset((4, j) for j in disputed))


def test_a_neighbour_that_lies_about_its_pad_with_a_liar_changes_its_own_vector_only() -> None:
    """It could have sent any vector."""

    def spared(body: bytes) -> bytes:
        return body[:-112] + wrong(body[-112:], [*range(25)])  # the corrections of its spare for 4, before its vector

    def spoil(federation: Federation) -> dict[int, Lie]:
        return {4: forger(federation, 4, Phase.UPLOAD, frozenset({9})), 9: at(Phase.UPLOAD, spared)}

    outcome = played(spoil, TWO)
    assert outcome.clients == tuple(j for j in range(1, 12) if j != 4)
    assert outcome.misbehaviour == Misbehaviour(disputed=frozenset({(4, 9)}))
    assert not np.array_equal(outcome.result, exact_sum(ELEVEN, outcome.clients))


def test_a_server_cannot_use_disputes_to_open_a_pad_between_survivors() -> None:
    p = parameters(11, 3, corrupt=ONE, dropout=ONE)
    honest = RecordedFederation(session(p), ELEVEN, {Phase.UPLOAD: frozenset({5})})
    honest.run()
    (state, _), (_, upload) = honest.before[3, Phase.CONFIRM], honest.before[3, Phase.UPLOAD]
    sharers = pack_subset(state.sharers | frozenset(ELEVEN), state.members)
    for disputed, reason in ((3, "disputes with neighbours"), (12, "disputes with neighbours"), (4, "")):
        body = sharers + secagg_messages.pack_disputed([disputed])
        asked = request(state.session, Phase.CONFIRM, state.binding, body)
        if reason:
            with pytest.raises(ProtocolError, match=reason):
                answer(state, asked)
    plain, _ = answer(state, request(state.session, Phase.CONFIRM, state.binding, sharers + NONE))
    spared, _ = answer(state, asked)
    assert len(answer(spared, upload)[1]) == len(answer(plain, upload)[1]) + shares.SHARE * (
        11 - p.graph(11).threshold + 1
    )
    state, frame = honest.before[3, Phase.OPEN]
    begin = secagg_messages.PREAMBLE + len(pack_subset(state.survivors, state.members))
    for pair in ((1, 2), (5, 1), (1, 12), (12, 5)):
        body = (
            frame[secagg_messages.PREAMBLE : begin] + secagg_messages.pack_spares([pair]) + frame[begin + len(NONE) :]
        )
        with pytest.raises(ProtocolError, match="spare shares of survivors' secrets with dropouts"):
            answer(state, request(state.session, Phase.OPEN, state.expected_binding, body))
    body = frame[secagg_messages.PREAMBLE : begin] + secagg_messages.pack_spares([(1, 5)]) + frame[begin + len(NONE) :]
    reply = answer(state, request(state.session, Phase.OPEN, state.expected_binding, body))[1]
    assert len(reply) == len(answer(state, frame)[1]) + shares.SHARE


def test_more_liars_than_declared_end_the_round_without_a_sum_rather_than_with_a_wrong_one() -> None:
    with pytest.raises(TooFewClientsError, match="too few or inconsistent"):
        eleven({j: at(Phase.OPEN, partial(wrong, places=[j])) for j in (1, 4, 7, 9)}, Fraction(0))
