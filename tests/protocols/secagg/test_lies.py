"""Clients that lie about shares, in every role: the sum is exact, and nobody honest is named.

The suite runs 15 random rounds with the declared share of liars. A campaign runs more:
`TACIT_LIARS=1000 python -m pytest tests/protocols/secagg/test_lies.py`.
"""

import math
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.secagg.federation import Federation, body_of, exact_sum, opened_seeds, parameters, session
from tacit.errors import TooFewClientsError
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.secagg import Lies, Parameters, Phase, SecaggOutcome, ThreatModel, dealing, secagg_messages, shamir
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.secagg_messages import Direction

ROUNDS = int(os.environ.get("TACIT_LIARS", "15"))
Replies = list[tuple[int, bytes]]
Lie = Callable[[Phase, bytes], bytes | None]  # what becomes of the body of a liar's reply; None: it is silent


def elements(body: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(body, "<u4").copy()


def wrong(body: bytes, places: list[int]) -> bytes:
    """Other elements of the field at these places."""
    words = elements(body)
    words[places] = (words[places] + np.uint32(12345)) % np.uint32(shamir.PRIME)
    return bytes(words.tobytes())


@dataclass
class Liars:
    """A network in which the replies of some clients are lies."""

    lies: dict[int, Lie]
    silent: set[int] = field(default_factory=set)

    def __call__(self, phase: Phase, replies: Replies) -> Replies:
        return [(j, data) for j, reply in replies for data in self.sent(phase, j, reply) if j not in self.silent]

    def sent(self, phase: Phase, client: int, reply: bytes) -> list[bytes]:
        body = self.lies[client](phase, body_of(reply)) if client in self.lies else body_of(reply)
        if body is None:
            self.silent.add(client)
            return []
        index = int.from_bytes(reply[16:20], "little")
        return [secagg_messages.pack(phase, Direction.REPLY, index, client, reply[24:56], body)]


def at(wanted: Phase, change: Callable[[bytes], bytes | None]) -> Lie:
    return lambda phase, body: change(body) if phase is wanted else body


def eleven(lies: dict[int, Lie], corrupt: Fraction = Fraction(2, 11), **changes: object) -> SecaggOutcome:
    """A round of eleven clients, the largest number of liars among whom is declared."""
    p = replace(parameters(11, 3, corrupt=corrupt, dropout=Fraction(1, 11)), **changes)  # type: ignore[arg-type]
    vectors = {j: np.full(3, 1000 * j, np.uint32) for j in range(1, 12)}
    outcome = Federation(session(p), vectors, network=Liars(lies)).run()
    assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
    return outcome


def test_shares_outside_the_field_are_the_dealers_own_and_concern_nobody_else() -> None:
    """Before, such shares to 4 of 11 holders ended the round, and holders that revealed them were called malformed."""

    def outside(body: bytes) -> bytes:
        words = elements(body)
        words[::5] = shamir.PRIME + 7
        return bytes(words.tobytes())

    outcome = eleven({4: at(Phase.SHARE, outside)})
    assert outcome.clients == tuple(j for j in range(1, 12) if j != 4)
    assert outcome.transcript.rejected == {ReplyStatus.MALFORMED: 1}  # the dealer's own reply
    assert outcome.transcript.unresponsive == {4}
    assert outcome.lies == Lies()


@pytest.mark.parametrize("holders", [1, 2, 3, 4])
def test_a_dealer_whose_shares_fit_some_holders_only(holders: int) -> None:
    """Up to one wrong correction here either could lie, from two on it is the dealer, before anybody pads with it."""
    p = parameters(11, 3, corrupt=Fraction(1, 11), dropout=Fraction(1, 11))
    width, spare = 20, 11 - p.graph(11).threshold + 1
    assert (p.graph(11).liars, spare) == (1, 4)
    places = [width * row + 3 for row in range(holders)]
    outcome = eleven({4: at(Phase.SHARE, lambda body: wrong(body, places))}, Fraction(1, 11))
    assert outcome.lies.named == (frozenset({4}) if holders > 1 else frozenset())
    assert len(outcome.lies.disputed) == (1 if holders == 1 else 0)
    assert (4 in outcome.clients) == (holders == 1)
    assert not outcome.transcript.rejected


def falsified(body: bytes) -> bytes:
    return wrong(body, [*range(0, len(body) // 4, 9)])


def test_two_holders_that_reveal_wrong_shares_of_everybody_are_named() -> None:
    """Before, two liars defeated the search."""
    outcome = eleven({3: at(Phase.OPEN, falsified), 9: at(Phase.OPEN, falsified)})
    assert outcome.lies == Lies(holders=frozenset({3, 9}))
    assert outcome.clients == tuple(range(1, 12))


def test_a_holder_that_lies_once_is_named_if_it_has_answered_otherwise_before() -> None:
    outcome = eleven({3: at(Phase.OPEN, lambda body: wrong(body, [40]))})
    assert outcome.lies == Lies(holders=frozenset({3}))


def test_a_holder_that_disputes_with_everybody_is_named_and_with_one_nobody_is() -> None:
    everybody = eleven({3: at(Phase.CHECK, lambda body: wrong(body, [*range(22)]))})
    assert everybody.lies.holders == {3}
    one = eleven({3: at(Phase.CHECK, lambda body: wrong(body, [0]))})
    assert one.lies == Lies(disputed=frozenset({(1, 3)}))
    assert everybody.clients == one.clients == tuple(range(1, 12))


def forged(body: bytes, p: Parameters, clients: int) -> bytes:
    """Consistent shares of another pad key: a polynomial is added that vanishes where no correction is published."""
    threshold, words = p.graph(clients).threshold, elements(body).reshape(-1, dealing.columns(p)).astype(object)
    for row in range(len(words)):
        shift = math.prod(threshold + row - point for point in range(1, threshold)) % shamir.PRIME
        words[row, shamir.LIMBS] = (words[row, shamir.LIMBS] + shift) % shamir.PRIME
    return bytes(words.astype("<u4").tobytes())


def forger(p: Parameters, clients: int, gone: Phase) -> Lie:
    return lambda phase, body: None if phase >= gone else forged(body, p, clients) if phase is Phase.SHARE else body


@pytest.mark.parametrize("gone", [Phase.UPLOAD, Phase.AGREE])
def test_a_client_that_shares_another_key_than_it_announced_is_named_if_it_drops_out(gone: Phase) -> None:
    """Its neighbours' own keys remove their pads with it; if it has uploaded, its key is never needed."""
    p = parameters(11, 3, corrupt=Fraction(2, 11), dropout=Fraction(1, 11))
    outcome = eleven({4: forger(p, 11, gone)})
    assert outcome.lies.dealers == (frozenset({4}) if gone is Phase.UPLOAD else frozenset())
    assert (4 in outcome.clients) == (gone is Phase.AGREE)


def test_a_wrong_key_and_a_lost_neighbour_leave_no_sum_and_no_wrong_one() -> None:
    """The one combination that is not corrected."""
    p = parameters(11, 3, corrupt=Fraction(1, 11), dropout=Fraction(2, 11))
    with pytest.raises(TooFewClientsError, match="Client 4 shared a wrong key and dropped out, and so did a neighbour"):
        eleven({4: forger(p, 11, Phase.UPLOAD), 5: at(Phase.OPEN, lambda _: None)}, Fraction(1, 11), dropout=p.dropout)


def test_more_liars_than_declared_end_the_round_without_a_sum_rather_than_with_a_wrong_one() -> None:
    with pytest.raises(TooFewClientsError, match="too few or inconsistent"):
        eleven({j: at(Phase.OPEN, partial(wrong, places=[j])) for j in (1, 4, 7, 9)}, Fraction(0))


# A campaign


def lie_of(chance: random.Random) -> Lie:
    """A random role: dealer, holder, silent or with garbage in some phase, or all of them.

    Garbage instead of keys or of a vector is not a lie: almost all bytes are keys, and all are vectors.
    """
    role = chance.choice(["dealer", "holder", "answers", "silent", "garbage", "all"])
    at_phase = chance.choice([phase for phase in Phase if phase < Phase.CLOSED])
    part = chance.choice([0.02, 0.2, 1.0])

    def some(body: bytes) -> list[int]:
        words = range(len(body) // 4)
        return sorted(chance.sample(words, max(1, int(part * len(words)))))

    def lie(phase: Phase, body: bytes) -> bytes | None:
        if phase is at_phase and role in ("silent", "all"):
            return None
        if phase is at_phase and role == "garbage" and phase not in (Phase.ANNOUNCE, Phase.UPLOAD):
            return chance.randbytes(len(body))
        lies = {Phase.SHARE: ("dealer", "all"), Phase.CHECK: ("answers", "all"), Phase.OPEN: ("holder", "all")}
        return wrong(body, some(body)) if role in lies.get(phase, ()) and body and len(body) % 4 == 0 else body

    return lie


def setting(chance: random.Random) -> tuple[Parameters, dict[int, Vector]]:
    """10 % of the clients lie and 20 % may be lost: liars that are excluded, and honest dropouts."""
    count = chance.choice([10, 10, 11, 13, 20, 20, 30])
    p = parameters(
        count, 3, threat_model=chance.choice(list(ThreatModel)), corrupt=Fraction(1, 10), dropout=Fraction(1, 5)
    )
    if chance.random() < 0.3:
        p = replace(p, surplus=p.cohort - p.min_survivors)
    words = np.random.default_rng(chance.getrandbits(64))
    return p, {j: words.integers(0, 1 << 32, 3, dtype=np.uint64).astype(np.uint32) for j in range(1, count + 1)}


def test_with_the_declared_share_of_liars_every_round_has_the_right_sum_and_blames_nobody_honest() -> None:
    """All roles at once, but forgers come without losses after the uploads, and without other liars.

    A liar that reveals a wrong key of its pad with a forger changes the sum as if it had sent another vector.
    """
    ends: Counter[str] = Counter()
    for index in range(ROUNDS):
        chance = random.Random(index)
        p, vectors = setting(chance)
        clients = list(vectors)
        liars = frozenset(chance.sample(clients, p.colluding))
        forges = chance.random() < 0.2
        network = Liars({j: lie_of(chance) for j in liars})
        others = [j for j in clients if j not in liars]
        drops = chance.sample(others, chance.randint(0, p.cohort - p.min_survivors - len(liars)))
        when = {j: chance.choice([phase for phase in Phase if not forges or phase is Phase.UPLOAD]) for j in drops}
        if forges:
            network.lies = {min(liars): forger(p, p.cohort, Phase.UPLOAD)}
        dropouts = {phase: frozenset(j for j in drops if when[j] is phase) for phase in Phase}
        outcome = Federation(session(p, index=index), vectors, dropouts, network, seed=index).run()
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients)), index
        assert frozenset(clients) - liars - frozenset(drops) <= frozenset(outcome.clients), index
        assert outcome.lies.named <= liars, index
        assert all(liars & set(pair) for pair in outcome.lies.disputed), index
        assert outcome.transcript.unresponsive <= liars | frozenset(drops), index
        honest = frozenset(outcome.clients) - liars
        expected = opened_seeds(p, outcome.clients)
        assert all(outcome.noise_seeds[j] == seed for j, seed in expected.items() if j in honest), index
        ends["named"] += bool(outcome.lies.named)
        ends["disputed"] += bool(outcome.lies.disputed)
        ends["nobody"] += outcome.lies == Lies()
    assert min(ends["named"], ends["disputed"], ends["nobody"]) > 0, ends
