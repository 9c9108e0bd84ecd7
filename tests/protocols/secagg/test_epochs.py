"""Epochs of several rounds: one set-up, exact sums whoever is lost and comes back, and attacks between rounds.

The suite plays 40 epochs, on each of which a lying server tries replays and a split of the survivors. A campaign plays
10,000, smaller ones:
`python -m pytest --scale campaign tests/protocols/secagg/test_epochs.py`.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import (
    COHORT,
    IDENTITIES,
    NONE,
    VICTIM,
    Federation,
    body_of,
    contributed,
    directory,
    entropy,
    exact_sum,
    opened_seeds,
    parameters,
    request,
    session,
)
from protocols.secagg.liars import Liars, Lie, at, lie_of, wrong
from scale import scaled
from tacit.errors import ProtocolError, TooFewClientsError, UserError
from tacit.protocols import crypto
from tacit.protocols.kit import Replies, Requests, play
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggClientState,
    SecaggOutcome,
    SecaggSession,
    ThreatModel,
    answer,
    by_part,
    cohort_bytes,
    graph,
    next_round,
    secagg_messages,
    set_up,
    shares,
)
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.secagg_client import _pair_secrets
from tacit.protocols.secagg.secagg_messages import agreement_statement, certain_shares, count_asked, pack_signatures
from tacit.protocols.secagg.shares import Shared
from tacit.wire.packing import Reader, pack_subset

EPOCHS = scaled(40, campaign=10_000)
FIRST = int(os.environ.get("TACIT_SEED", "0"))  # number of the first epoch
Drops = Mapping[tuple[int, Phase], frozenset[int]]  # who is silent from a phase of a round on, until the round ends
At = tuple[int, int, Phase]  # a round, a client, a phase


@dataclass
class PlayedEpoch(Federation):
    """Clients over the rounds of an epoch, with every state and request on the way.

    Attributes:
        drops: who is silent, and from when until the end of the round; in the set-up (round -1), for good.
        before: the state and the request of each answer.
        after: the state behind it.
    """

    drops: Drops = field(default_factory=dict)
    before: dict[At, tuple[SecaggClientState, bytes]] = field(default_factory=dict)
    after: dict[At, SecaggClientState] = field(default_factory=dict)

    def begin(self) -> None:
        self.turn = -1
        self.cohort, self.gone, self.silent = self.start(), set[int](), set[int]()
        known, challenge = directory(self.session.parameters, self.cohort), entropy((self.seed, "challenge"))
        self.server = play(set_up(self.session, self.cohort, known, entropy=challenge), self._exchange)
        self.gone |= self.silent

    def sum(self, turn: int, vectors: Mapping[int, Vector]) -> SecaggOutcome:
        self.turn, self.silent = turn, set(self.gone)
        here = self.session_of(turn)
        for j, state in self.states.items():
            if j not in self.gone and state.sharers:
                if turn > state.turn:
                    state = next_round(state, here, turn)
                self.states[j] = contributed(state, vectors[j])
        return play(self.server.converse(here, turn), self._exchange)

    def session_of(self, turn: int) -> SecaggSession:
        return replace(self.session, round=self.session.round + turn, model=bytes([turn]) * 32)

    def _exchange(self, requests: Requests) -> Replies:
        phase = Phase(next(iter(requests.values()))[5])
        self.silent |= self.drops.get((self.turn, phase), frozenset())
        sent = [(j, self.reply(j, frame)) for j, frame in requests.items() if j not in self.silent]
        return self.network(phase, sent)

    def reply(self, client: int, request: bytes) -> bytes:
        at = (self.turn, client, Phase(request[5]))
        self.before[at] = self.states[client], request
        reply = super().reply(client, request)
        self.after[at] = self.states[client]
        return reply


def vectors_of(p: Parameters, cohort: range, turn: int) -> dict[int, Vector]:
    words = np.random.default_rng((turn, len(cohort)))
    return {j: words.integers(0, 1 << p.bits, p.dim, dtype=np.uint64).astype(np.uint32) for j in cohort}


def epoch_of(p: Parameters, drops: Drops | None = None, index: int = 1, seed: object = 0) -> PlayedEpoch:
    """An epoch after its set-up; clients are numbered from 1, and the first round's model is that of a later one."""
    first = replace(session(p, index=index), model=bytes(32))
    zeros = {j: np.zeros(p.dim, np.uint32) for j in range(1, p.cohort + 1)}
    epoch = PlayedEpoch(first, zeros, drops=drops or {}, seed=seed)
    epoch.begin()
    return epoch


P = parameters(5, 4, rounds=4, surplus=2)
LOST = {(0, Phase.UPLOAD): frozenset({5}), (1, Phase.AGREE): frozenset({4}), (2, Phase.UPLOAD): frozenset({1})}


@pytest.fixture(scope="module")
def honest() -> PlayedEpoch:
    """Four rounds of five clients: one is lost and comes back, in three rounds."""
    epoch = epoch_of(P, LOST)
    for turn in range(4):
        vectors = vectors_of(P, range(1, 6), turn)
        outcome = epoch.sum(turn, vectors)
        assert outcome.clients == tuple(j for j in COHORT if (turn, j) not in {(0, 5), (2, 1)})
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
        assert outcome.noise_seeds == opened_seeds(P, outcome.clients)
        assert not outcome.misbehaviour.named
    return epoch


def test_the_set_up_is_done_once_and_a_lost_client_comes_back(honest: PlayedEpoch) -> None:
    phases = Counter((at[0], at[2]) for at in honest.before)
    assert {phase for turn, phase in phases if turn == -1} == {phase for phase in Phase if phase < Phase.UPLOAD} - {
        Phase.DRAW
    }
    assert {phase for turn, phase in phases if turn >= 0} == {Phase.UPLOAD, Phase.AGREE, Phase.OPEN}
    assert [phases[turn, Phase.UPLOAD] for turn in range(4)] == [4, 5, 4, 5]
    first, later = honest.before[0, 2, Phase.UPLOAD][1], honest.before[1, 2, Phase.UPLOAD][1]
    assert len(first) > len(later) == 40  # signatures on the sharers come once
    assert len(honest.before[1, 5, Phase.UPLOAD][1]) == len(first)  # to client 5 only now


def test_states_lose_a_rounds_secrets_after_it_and_the_epochs_at_its_end(honest: PlayedEpoch) -> None:
    for (turn, _, phase), state in honest.after.items():
        again = SecaggClientState.from_bytes(state.to_bytes())
        assert again.to_bytes() == state.to_bytes()
        assert not (state.vector or state.noise_seed) or phase < Phase.UPLOAD
        assert not state.survivors or phase is Phase.AGREE
        if turn == 3 and phase is Phase.OPEN:
            assert not any((state.root, state.identity, state.holds, state.deals, state.directory))
    with pytest.raises(ProtocolError, match="the epoch is over"):
        next_round(honest.after[3, VICTIM, Phase.OPEN], honest.session_of(3), 3)


def test_bytes_of_a_set_up_and_of_each_round_are_known_in_advance() -> None:
    for p in (
        parameters(6, 9, rounds=3, surplus=2),
        parameters(70, 3, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7, rounds=2),
    ):
        epoch = epoch_of(p)
        for turn in range(2):
            transcript = epoch.sum(turn, vectors_of(p, range(1, p.cohort + 1), turn)).transcript
            sizes = cohort_bytes(p, turn, epoch.server._around.circle)
            assert {phase: each.total() for phase, each in transcript.up.items()} == {k: v.up for k, v in sizes.items()}
            assert {phase: each.total() for phase, each in transcript.down.items()} == {
                k: v.down for k, v in sizes.items()
            }
            assert ("set-up" in by_part(sizes)) == (turn == 0)


# Attacks between rounds

Target = tuple[SecaggClientState, bytes]
ATTACKS: dict[str, tuple[Callable[[PlayedEpoch], Target], str]] = {}


def attack(reason: str) -> Callable[[Callable[[PlayedEpoch], Target]], Callable[[PlayedEpoch], Target]]:
    def register(function: Callable[[PlayedEpoch], Target]) -> Callable[[PlayedEpoch], Target]:
        ATTACKS[function.__name__] = (function, reason)
        return function

    return register


@attack("Expected a request to upload in this round")
def an_upload_request_of_an_earlier_round(honest: PlayedEpoch) -> Target:
    return honest.before[2, VICTIM, Phase.UPLOAD][0], honest.before[1, VICTIM, Phase.UPLOAD][1]


@attack("Expected a request to open in this round")
def an_opening_of_an_earlier_round(honest: PlayedEpoch) -> Target:
    """Who was lost in round 0 uploads in round 1: with both secrets the server could read its vector."""
    return honest.before[1, VICTIM, Phase.OPEN][0], honest.before[0, VICTIM, Phase.OPEN][1]


@attack("Expected a request to agree in this round")
def survivors_of_an_earlier_round(honest: PlayedEpoch) -> Target:
    return honest.before[1, VICTIM, Phase.AGREE][0], honest.before[0, VICTIM, Phase.AGREE][1]


@attack("signature does not match")
def signatures_of_an_earlier_round(honest: PlayedEpoch) -> Target:
    """Round 0's quorum has signed that client 5 is lost; the victim has agreed to that for round 1 as well."""
    state, _ = honest.before[1, VICTIM, Phase.AGREE]
    subset = pack_subset(frozenset(COHORT) - {5}, state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.expected_binding, subset))
    body = body_of(honest.before[0, VICTIM, Phase.OPEN][1])
    return state, request(state.session, Phase.OPEN, state.expected_binding, body)


@attack("The round is closed")
def a_second_opening_of_a_round(honest: PlayedEpoch) -> Target:
    return honest.after[1, VICTIM, Phase.OPEN], honest.before[1, VICTIM, Phase.OPEN][1]


@attack("The round is closed")
def the_next_round_before_the_client_has_begun_it(honest: PlayedEpoch) -> Target:
    return honest.after[1, VICTIM, Phase.OPEN], honest.before[2, VICTIM, Phase.UPLOAD][1]


@attack("Expected a request to upload in this round")
def another_model_than_the_client_received(honest: PlayedEpoch) -> Target:
    state, frame = honest.before[2, VICTIM, Phase.UPLOAD]
    return replace(state, session=replace(state.session, model=b"o" * 32)), frame


@attack("Expected a frame of")
def a_set_up_in_the_middle_of_an_epoch(honest: PlayedEpoch) -> Target:
    return honest.before[2, VICTIM, Phase.UPLOAD][0], honest.before[-1, VICTIM, Phase.SHARE][1]


@attack("signature does not match")
def signatures_on_other_sharers(honest: PlayedEpoch) -> Target:
    """A server splits the clients: each part would pad with itself alone, and its sum would be read."""
    state, _ = honest.before[-1, VICTIM, Phase.CONFIRM]
    few = pack_subset(frozenset(COHORT) - {5}, state.members) + NONE
    state, _ = answer(state, request(state.session, Phase.CONFIRM, state.binding, few))
    return state, honest.before[0, VICTIM, Phase.UPLOAD][1]


@attack("Expected 4 clients to have signed")
def no_signatures_on_the_sharers(honest: PlayedEpoch) -> Target:
    state, _ = honest.before[0, VICTIM, Phase.UPLOAD]
    body = pack_signatures({}, state.members)
    return state, request(state.session, Phase.UPLOAD, state.expected_binding, body)


@attack("truncated")
def an_upload_request_without_the_signatures_on_the_sharers(honest: PlayedEpoch) -> Target:
    state, _ = honest.before[0, VICTIM, Phase.UPLOAD]
    return state, request(state.session, Phase.UPLOAD, state.expected_binding, b"")


@pytest.mark.parametrize("name", ATTACKS)
def test_the_client_refuses(name: str, honest: PlayedEpoch) -> None:
    make, reason = ATTACKS[name]
    state, frame = make(honest)
    with pytest.raises(ProtocolError, match=reason):
        answer(state, frame)


def test_a_round_is_joined_once_and_in_order(honest: PlayedEpoch) -> None:
    """Also by a client that was lost in the one before; a session of another run or of other terms is refused."""
    state = honest.after[1, VICTIM, Phase.UPLOAD]  # it was lost before it agreed
    assert next_round(state, honest.session_of(3), 3).phase is Phase.UPLOAD
    for turn in (0, 1, 4):
        with pytest.raises(ProtocolError, match="Expected a round of the same epoch after number 1"):
            next_round(state, honest.session_of(2), turn)
    fewer = replace(P, corrupt=Fraction(1, 10))
    for other in (replace(honest.session_of(2), run=b"o" * 16), replace(honest.session_of(2), parameters=fewer)):
        with pytest.raises(ProtocolError, match="Expected a round of the same epoch"):
            next_round(state, other, 2)
    assert next_round(state, replace(honest.session_of(2), parameters=replace(P, dim=9, bits=20)), 2).turn == 2
    with pytest.raises(ProtocolError, match="has not completed the set-up"):
        next_round(honest.after[-1, VICTIM, Phase.CHECK], honest.session_of(2), 2)
    with pytest.raises(UserError, match="Expected a round after 3 of the epoch"):
        play(honest.server.converse(honest.session_of(2), 2), lambda _: [])


def test_a_repeated_request_with_signatures_is_answered_if_they_are_right(honest: PlayedEpoch) -> None:
    """The server repeats them if a reply was lost on the way."""
    state, _ = honest.before[1, VICTIM, Phase.UPLOAD]
    body = body_of(honest.before[0, VICTIM, Phase.UPLOAD][1])
    plain = answer(state, request(state.session, Phase.UPLOAD, state.expected_binding, b""))
    repeated = answer(state, request(state.session, Phase.UPLOAD, state.expected_binding, body))
    assert body_of(repeated[1]) == body_of(plain[1])
    wrong = request(state.session, Phase.UPLOAD, state.expected_binding, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(ProtocolError, match="signature does not match"):
        answer(state, wrong)


# What openings reveal


def test_all_openings_of_other_rounds_together_do_not_open_a_round(honest: PlayedEpoch) -> None:
    """A client's secrets of all rounds, its pads and its escrows differ, though it was lost in one and survived others.

    Everything that is opened in rounds 0, 1 and 3 is at hand, all shares of everybody; round 2 stays closed.
    """
    states = {j: honest.before[2, j, Phase.UPLOAD][0] for j in (2, 3, 4, 5)}
    victim, seen = states[VICTIM], set[bytes]()
    for secret in Shared:
        for turn in range(4):
            held = [shares.elements_of(victim.holds[j], P, secret, turn).tobytes() for j in victim.holds]
            assert not seen & set(held)
            seen |= set(held)
    pairs = [honest.before[turn, VICTIM, Phase.UPLOAD][0] for turn in range(4)]
    secrets = [
        _pair_secrets(s, s.circle.own_pads(VICTIM, s.near), s.expected_binding)[j] for s in pairs for j in (2, 4)
    ]
    assert len(set(secrets)) == 8


def test_what_is_escrowed_for_a_lost_client_is_not_a_share(honest: PlayedEpoch) -> None:
    """A pad's secret derives from its owner's share by HKDF: who decrypts it learns no share of the owner's secret.

    Otherwise a server that drops `threshold` neighbours of a client would recover the secret behind all its pads.
    """
    state = honest.before[2, VICTIM, Phase.UPLOAD][0]
    secrets = _pair_secrets(state, state.near, state.expected_binding)
    for j in state.near:
        part = shares.elements_of(state.deals[j], P, Shared.PAD, 2)
        assert secrets[j] == shares.pair_secret(part, state.expected_binding, VICTIM, j)
        assert secrets[j] != shares.to_bytes(part)


def test_each_pad_has_one_owner_and_each_client_owns_half_of_its_pads() -> None:
    for count, degree in ((5, 4), (6, 5), (70, 16)):
        p = parameters(count, corrupt=Fraction(1, 20) if count > 64 else Fraction(0), dropout=Fraction(1, 10))
        drawn = graph.Circle(tuple(range(count)), p.graph(count), b"order")
        assert drawn.parameters.degree == degree
        near = drawn.neighbourhoods()
        owned = {j: drawn.own_pads(j, near[j]) for j in near}
        assert all((j in owned[i]) != (i in owned[j]) for i in near for j in near[i])
        assert {len(each) for each in owned.values()} == {degree // 2, (degree + 1) // 2}


def test_a_reveal_contains_shares_of_its_own_round_only(honest: PlayedEpoch) -> None:
    """Of client 5, the pads' secret in round 0, in which it was lost, and its seed in round 1: never both of one."""
    for turn, lost in ((0, {5}), (1, set[int]()), (2, {1}), (3, set[int]())):
        state, frame = honest.before[turn, VICTIM, Phase.OPEN]
        removed = list(opened_seeds(P, tuple(j for j in COHORT if j not in lost)))
        wanted = [(j, Shared.PAD if j in lost else Shared.SEED) for j in COHORT]
        wanted = [each for j, secret in wanted for each in [(j, secret), *[(j, Shared.NOISE)] * (j in removed)]]
        expected = b"".join(
            shares.to_bytes(shares.elements_of(state.holds[j], P, secret, turn)) for j, secret in wanted
        )
        assert body_of(answer(state, frame)[1]) == expected


@pytest.fixture(scope="module")
def sparse() -> PlayedEpoch:
    """Three rounds of 70 clients on a sparse graph."""
    p = parameters(70, 3, rounds=3, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    epoch = epoch_of(p)
    for turn in range(3):
        vectors = vectors_of(p, range(1, 71), turn)
        assert np.array_equal(epoch.sum(turn, vectors).result, exact_sum(vectors, tuple(range(1, 71))))
    return epoch


def test_only_the_committee_is_asked_to_agree_and_only_some_to_open(sparse: PlayedEpoch) -> None:
    """Until the last round, after which nobody keeps secrets of the epoch."""
    p, circle = sparse.session.parameters, sparse.before[0, VICTIM, Phase.UPLOAD][0].circle
    for turn in range(3):
        by_phase = {phase: {j for t, j, each in sparse.before if (t, each) == (turn, phase)} for phase in Phase}
        assert by_phase[Phase.UPLOAD] == set(range(1, 71))
        assert by_phase[Phase.AGREE] == circle.committee()
        assert len(by_phase[Phase.OPEN]) == (70 if turn == 2 else count_asked(p, Phase.OPEN, turn)) > 35
        enough = min(len((circle.neighbours(j) | {j}) & by_phase[Phase.OPEN]) for j in circle.members)
        assert enough >= certain_shares(p, circle) == p.graph(70).threshold + p.graph(70).max_wrong
    assert all(not state.holds for state in sparse.states.values())


def test_a_client_outside_the_committee_opens_for_a_quorum_and_once(sparse: PlayedEpoch) -> None:
    """It signs nothing: what it checks of survivors, it checks when it opens."""
    committee = sparse.before[0, VICTIM, Phase.UPLOAD][0].circle.committee()
    client = next(j for t, j, phase in sparse.before if (t, phase) == (1, Phase.OPEN) and j not in committee)
    state, frame = sparse.before[1, client, Phase.OPEN]
    after, _ = answer(state, frame)
    with pytest.raises(ProtocolError, match="The round is closed"):
        answer(after, frame)
    reader = Reader(body_of(frame))
    survivors, rest = reader.subset(state.members), bytes(reader.rest())
    near = sorted(state.near - committee)
    for claimed, why in (
        (survivors - {near[0]}, "signature does not match"),
        (survivors - {client}, "declared a dropout"),
        (frozenset(sorted(survivors)[:10]) | {client}, "Expected 63 clients"),
    ):
        body = pack_subset(claimed, state.members) + rest
        with pytest.raises(ProtocolError, match=why):
            answer(state, request(state.session, Phase.OPEN, state.expected_binding, body, client))
    unsigned = pack_subset(survivors, state.members) + NONE + pack_signatures({}, state.members)
    with pytest.raises(ProtocolError, match="clients to have signed"):
        answer(state, request(state.session, Phase.OPEN, state.expected_binding, unsigned, client))
    with pytest.raises(ProtocolError, match="in this round"):
        answer(sparse.before[2, client, Phase.OPEN][0], frame)


@pytest.mark.parametrize("liars", [1, 3])
def test_the_others_are_asked_if_the_first_openings_are_not_certain(liars: int) -> None:
    """One liar is enough: so few shares are asked for that each must fit. It is not asked first in the next round."""
    p = parameters(70, 3, rounds=4, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    drops = {(0, Phase.UPLOAD): frozenset({7, 9}), (1, Phase.OPEN): frozenset({20})}
    epoch = epoch_of(p, drops)
    circle = epoch.states[VICTIM].circle
    first = secagg_messages.first_openers(p, 0, circle, frozenset(range(1, 71)) - {7, 9})
    wrong_ones = sorted(first)[:liars]
    epoch.network = Liars({j: at(Phase.OPEN, lambda body: wrong(body, [*range(len(body) // 4)])) for j in wrong_ones})
    openers = []
    for turn in range(3):
        vectors = vectors_of(p, range(1, 71), turn)
        outcome = epoch.sum(turn, vectors)
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
        assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
        assert outcome.misbehaviour.named == set(wrong_ones)
        openers.append(sum((t, phase) == (turn, Phase.OPEN) for t, _, phase in epoch.before))
    assert openers[0] == 68  # all who were there
    assert openers[1] >= 68  # client 20 did not answer
    assert openers[2] < 60  # without the liars


def test_a_colluding_quorum_cannot_open_both_secrets_of_a_client_in_one_round() -> None:
    """Even a server with three of five identities: a client signs one set of survivors in a round."""
    epoch = epoch_of(parameters(5, 4, rounds=3, corrupt=Fraction(1, 5), dropout=Fraction(1, 5)))
    epoch.sum(0, vectors_of(P, range(1, 6), 0))
    state, frame = epoch.before[0, VICTIM, Phase.OPEN]
    others = frozenset(COHORT) - {5}
    statement = agreement_statement(state.expected_binding, state.members, others)
    signed = {j: crypto.sign(IDENTITIES[j], statement) for j in (1, 2, 4)}
    forged = pack_subset(others, state.members) + NONE + pack_signatures(signed, state.members)
    with pytest.raises(ProtocolError, match="not those that this client has signed"):
        answer(state, request(state.session, Phase.OPEN, state.expected_binding, forged))
    with pytest.raises(ProtocolError, match="Expected a request to open"):
        answer(state, epoch.before[0, VICTIM, Phase.AGREE][1])
    assert answer(state, frame)


# Campaigns


def random_epoch(chance: random.Random) -> tuple[Parameters, Drops]:
    count = 8 + int((4 if EPOCHS > 1000 else 13) * chance.random() ** 2)
    p = parameters(
        count,
        chance.randint(1, 9),
        rounds=chance.randint(1, 3 if EPOCHS > 1000 else 5),
        bits=chance.choice([32, 32, 17, 20, 8]),
        threat_model=chance.choice(list(ThreatModel)),
        corrupt=Fraction(1, 10) if chance.random() < 0.2 else Fraction(1, 8) if count < 16 else Fraction(1, 10),
        dropout=Fraction(1, 8),
    )
    assert p.graph(count).max_wrong == p.colluding
    p = replace(p, surplus=p.cohort - p.min_survivors if chance.random() < 0.5 else 0)
    drops: dict[tuple[int, Phase], frozenset[int]] = {}
    for turn in range(-1, p.rounds):
        phases = [each for each in Phase if (each < Phase.UPLOAD) == (turn < 0) and each < Phase.CLOSED]
        for j in range(1, count + 1):
            if chance.random() < (0.01 if turn < 0 else 0.05):
                at = (turn, chance.choice(phases))
                drops[at] = drops.get(at, frozenset()) | {j}
    return p, drops


def check_replays(epoch: PlayedEpoch, chance: random.Random, honest: list[int], old: list[bytes]) -> int:
    """Frames of other rounds and epochs, and their contents in new frames: refused, or answered as the right one is.

    A plausible set of sharers or survivors that a client has not signed another one for is answered with a signature.
    """
    seen = [(where, *target) for where, target in epoch.before.items() if where[1] in honest]
    tried = 0
    for where, state, frame in chance.sample(seen, min(6, len(seen))):
        other = chance.choice([*(each for _, _, each in chance.sample(seen, min(4, len(seen)))), *old])
        body, phase = body_of(other), Phase(other[5])
        binding = state.expected_binding if chance.random() < 0.7 else other[24:40]
        forged = request(state.session, phase, binding, body, state.client)
        tried += 1
        try:
            _, reply = answer(state, forged)
        except ProtocolError:
            continue
        if phase in (Phase.CONFIRM, Phase.AGREE):
            continue
        assert body_of(reply) == body_of(answer(state, frame)[1]), (where, phase)
    return tried


def check_split(epoch: PlayedEpoch, turn: int, chance: random.Random, liars: frozenset[int]) -> int:
    """The server tells two parts of the honest clients different survivors; all liars sign both for it."""
    states = {j: state for (t, j, phase), (state, _) in epoch.before.items() if (t, phase) == (turn, Phase.AGREE)}
    honest = sorted(states.keys() - liars)
    if len(honest) < 3:
        return 0
    some = states[honest[0]]
    p, members, victim = some.session.parameters, some.members, chance.choice(honest)
    everybody = frozenset(states)
    if len(everybody) - 1 < p.min_survivors:
        return 0
    parts = {everybody: chance.sample(honest, len(honest) // 2)}
    parts[everybody - {victim}] = [j for j in honest if j not in parts[everybody] and j != victim]
    opened = []
    for survivors, part in parts.items():
        signed, agreed = dict[int, bytes](), dict[int, SecaggClientState]()
        for j in part:
            frame = request(
                states[j].session, Phase.AGREE, states[j].expected_binding, pack_subset(survivors, members), j
            )
            agreed[j], reply = answer(states[j], frame)
            signed[j] = body_of(reply)
        statement = agreement_statement(some.expected_binding, members, survivors)
        signed |= {j: crypto.sign(IDENTITIES[j], statement) for j in liars & survivors & frozenset(members)}
        body = pack_subset(survivors, members) + NONE + pack_signatures(signed, members)
        for j, state in agreed.items():
            try:
                answer(state, request(state.session, Phase.OPEN, state.expected_binding, body, j))
            except ProtocolError:
                continue
            opened.append(survivors)
    assert len(set(opened)) < 2, "both secrets of the victim are open"
    return 1


def check_epoch(index: int, ends: Counter[str], old: list[bytes]) -> None:
    """An epoch with liars in every role, losses in every phase, clients that come back, and a server that lies."""
    chance = random.Random(index)
    p, drops = random_epoch(chance)
    liars = frozenset(chance.sample(range(1, p.cohort + 1), p.colluding))
    lies: dict[int, Lie] = {j: lie_of(chance) for j in liars}
    lost = frozenset[int]().union(*drops.values())
    try:
        first = replace(session(p, index=index), model=bytes(32))
        epoch = PlayedEpoch(first, {j: np.zeros(p.dim, np.uint32) for j in range(1, p.cohort + 1)}, drops=drops)
        epoch.seed, epoch.network, epoch.serialised = index, Liars(lies), index % 8 == 0
        epoch.begin()
    except TooFewClientsError:
        ends["no set-up"] += 1
        return
    for turn in range(p.rounds):
        if chance.random() < 0.1:
            continue  # a round that the server skips
        vectors = vectors_of(p, range(1, p.cohort + 1), turn)
        try:
            outcome = epoch.sum(turn, vectors)
        except TooFewClientsError:
            ends["no sum"] += 1
            continue
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients, p.bits)), index
        assert outcome.misbehaviour.named <= liars, index
        assert all(liars & set(pair) for pair in outcome.misbehaviour.disputed), index
        expected = {j: seed for j, seed in opened_seeds(p, outcome.clients).items() if j not in liars}
        assert {j: seed for j, seed in outcome.noise_seeds.items() if j not in liars} == expected, index
        ends["sum"] += 1
        ends["back"] += bool(lost & set(outcome.clients))
        ends["named"] += bool(outcome.misbehaviour.named)
        if p.threat_model is ThreatModel.ACTIVE_SERVER:
            ends["split"] += check_split(epoch, turn, chance, liars)
    if p.threat_model is ThreatModel.ACTIVE_SERVER:
        honest = [j for j in range(1, p.cohort + 1) if j not in liars]
        ends["replayed"] += check_replays(epoch, chance, honest, old)
        old[:] = [*old[-20:], *(frame for _, frame in chance.sample([*epoch.before.values()], 4))]


def test_a_lie_with_more_losses_than_declared_gives_no_sum_instead_of_a_wrong_one() -> None:
    """Of eleven clients one may be lost; three do not open, so that exactly the threshold is left, a liar among it."""
    p = parameters(11, 3, rounds=2, corrupt=Fraction(1, 8), dropout=Fraction(1, 8))
    assert (p.graph(11).threshold, p.graph(11).max_wrong, p.min_survivors) == (8, 1, 10)
    for silent, liar in (({3, 5, 9}, 4), ({3, 5}, 4), ({3, 5, 9}, 0), ({3, 5}, 0)):
        epoch = epoch_of(p, {(0, Phase.OPEN): frozenset(silent)})
        epoch.network = Liars({liar: at(Phase.OPEN, lambda body: wrong(body, [0]))} if liar else {})
        vectors = vectors_of(p, range(1, 12), 0)
        if liar or len(silent) > 2:
            with pytest.raises(TooFewClientsError, match="too few or inconsistent"):
                epoch.sum(0, vectors)
        else:
            assert np.array_equal(epoch.sum(0, vectors).result, exact_sum(vectors, tuple(range(1, 12))))


def test_random_epochs_have_exact_sums_reveal_nothing_else_and_blame_nobody_honest() -> None:
    ends, old = Counter[str](), list[bytes]()
    for index in range(FIRST, FIRST + EPOCHS):
        check_epoch(index, ends, old)
    assert min(ends[end] for end in ("sum", "no sum", "back", "named", "split", "replayed")) > EPOCHS // 40, ends


def test_nobody_is_named_if_fewer_wrong_shares_are_corrected_than_clients_may_lie() -> None:
    """Before, the one liar of eleven, of whom three may be lost, had an honest client excluded and named."""
    p = parameters(11, 3, corrupt=Fraction(1, 11), dropout=Fraction(3, 11))
    assert (p.graph(11).max_wrong, p.colluding) == (0, 1)
    lie = at(Phase.CHECK, lambda body: wrong(body, [18]))  # of client 10
    vectors = {j: np.full(3, j, np.uint32) for j in range(1, 12)}
    outcome = Federation(session(p), vectors, network=Liars({7: lie})).run()
    assert outcome.misbehaviour.named == frozenset()
    assert outcome.clients == tuple(j for j in range(1, 12) if j != 10)


def test_epochs_on_a_sparse_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_COMPLETE", 10)
    graph.graph_parameters.cache_clear()
    p = parameters(30, 3, rounds=3, corrupt=Fraction(1, 20), dropout=Fraction(1, 5), surplus=6)
    drops = {(0, Phase.UPLOAD): frozenset({4, 9}), (1, Phase.AGREE): frozenset({4}), (1, Phase.UPLOAD): frozenset({20})}
    epoch = epoch_of(p, drops)
    assert p.draws
    for turn in range(3):
        vectors = vectors_of(p, range(1, 31), turn)
        outcome = epoch.sum(turn, vectors)
        gone = drops.get((turn, Phase.UPLOAD), frozenset())
        assert outcome.clients == tuple(j for j in range(1, 31) if j not in gone)
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
        assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
    graph.graph_parameters.cache_clear()
