"""Seeds of surplus noise in secure aggregation: who shares them, whose are opened, and whose are not."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import (
    COHORT,
    NONE,
    VICTIM,
    Federation,
    RecordedFederation,
    body_of,
    noise_seed,
    opened_seeds,
    parameters,
    recorded,
    request,
    session,
    small_vectors,
)
from tacit.errors import ProtocolError, UserError
from tacit.protocols import crypto
from tacit.protocols.crypto import SIGNATURE
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggPolicy,
    ThreatModel,
    answer,
    cohort_bytes,
    join_round,
    phase_bytes,
    secagg_messages,
    set_vector,
    shares,
)
from tacit.protocols.secagg.secagg_messages import agreement_statement, pack_signatures, read_signatures
from tacit.protocols.secagg.shares import Shared
from tacit.wire.packing import Reader, pack_subset

P = parameters(5, 4, surplus=2)  # of five clients, one may be lost; four shares recover a secret


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_bytes_with_surplus_are_known_in_advance(threat_model: ThreatModel) -> None:
    p = parameters(70, 9, threat_model=threat_model, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    vectors = {j: np.zeros(9, np.uint32) for j in range(1, 71)}
    outcome = Federation(session(p), vectors, serialised=False).run()
    assert outcome.noise_seeds == opened_seeds(p, outcome.clients) == {j: noise_seed(j) for j in range(1, 8)}
    for phase, size in cohort_bytes(p).items():
        up, down = outcome.transcript.up[phase], outcome.transcript.down[phase]
        assert (up.total(), down.total()) == (size.up, size.down)
        assert max(up.values()) <= secagg_messages.max_sizes(p)[phase].up
        assert all(up[j] == phase_bytes(p)[phase].up for j in up if j > 7 and phase is not Phase.OPEN)


def opening(honest: RecordedFederation, client: int, survivors: frozenset[int], signers: tuple[int, ...]) -> bytes:
    """What a client is asked to open if these clients have signed these survivors."""
    state, _ = honest.before[client, Phase.AGREE]
    statement = agreement_statement(state.expected_binding, state.members, survivors)
    signed = {j: crypto.sign(honest.before[j, Phase.AGREE][0].identity, statement) for j in signers}
    body = pack_subset(survivors, state.members) + NONE + pack_signatures(signed, state.members)
    return request(state.session, Phase.OPEN, state.expected_binding, body, client)


def everyone_uploads() -> RecordedFederation:
    federation = RecordedFederation(session(P), small_vectors())
    federation.run()
    return federation


def revealed(honest: RecordedFederation, client: int, survivors: frozenset[int], signers: tuple[int, ...]) -> Reader:
    """A client's reply to that request, after it has agreed to these survivors."""
    state, _ = honest.before[client, Phase.AGREE]
    subset = pack_subset(survivors, state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.expected_binding, subset, client))
    _, reply = answer(state, opening(honest, client, survivors, signers))
    return Reader(body_of(reply))


def test_what_is_opened_follows_from_the_survivors_that_were_agreed_upon() -> None:
    """With nobody lost, shares of two clients' keys; with one lost, of one survivor's, and not of the lost one's."""
    honest = everyone_uploads()
    holds = honest.before[VICTIM, Phase.AGREE][0].holds
    for lost, removed in ((frozenset[int](), (1, 2)), (frozenset({5}), (1,)), (frozenset({1}), (2,))):
        survivors = frozenset(COHORT) - lost
        reader = revealed(honest, VICTIM, survivors, tuple(sorted(survivors))[:4])
        for j in COHORT:
            secrets = [Shared.SEED] if j in survivors else [Shared.PAD]
            for secret in [*secrets, *[Shared.NOISE] * (j in removed)]:
                assert reader.take(shares.SHARE) == shares.to_bytes(shares.elements_of(holds[j], P, secret, 0))
        reader.expect_end()


def test_a_server_that_claims_other_losses_to_some_clients_opens_neither() -> None:
    """Two clients are told that nobody is lost, two that client 5 is: neither claim has four signatures."""
    honest = everyone_uploads()
    for survivors, told in ((frozenset(COHORT), (1, 2)), (frozenset(COHORT) - {5}, (3, 4))):
        for client in told:
            with pytest.raises(ProtocolError, match="Expected 4 clients to have signed, got 2"):
                revealed(honest, client, survivors, told)
    state = honest.before[1, Phase.AGREE][0]
    everyone = pack_subset(frozenset(COHORT), state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.expected_binding, everyone, 1))
    with pytest.raises(ProtocolError, match="not those that this client has signed"):
        answer(state, opening(honest, 1, frozenset(COHORT) - {5}, (2, 3, 4)))
    with pytest.raises(ProtocolError, match="Expected 4 clients, got 3"):
        revealed(honest, 1, frozenset({1, 2, 3}), (2, 3))


def test_on_a_sparse_graph_neighbours_outside_the_committee_open_nothing() -> None:
    """All that is opened depends on one set of survivors, on which all clients agree, through the committee."""
    p = parameters(70, 3, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    federation = RecordedFederation(session(p), {j: np.full(3, j, np.uint32) for j in range(1, 71)}, serialised=False)
    federation.run()
    state, frame = federation.before[VICTIM, Phase.OPEN]
    reader, w = Reader(body_of(frame)), p.graph(70)
    survivors, none = reader.subset(state.members), reader.take(len(NONE))
    signed = read_signatures(reader, state.members, 70)
    assert len(signed) == w.quorum
    assert 2 * w.quorum > w.committee + 3  # no two sets of survivors can have as many signatures
    rest, start = bytes(reader.rest()), pack_subset(survivors, state.members) + none
    less = start + pack_signatures(dict(list(signed.items())[1:]), state.members) + rest
    with pytest.raises(ProtocolError, match=f"Expected {w.quorum} clients to have signed"):
        answer(state, request(state.session, Phase.OPEN, state.expected_binding, less))
    outside = next(j for j in state.near if j not in state.circle.committee())
    more = start + pack_signatures({**signed, outside: bytes(SIGNATURE)}, state.members) + rest
    with pytest.raises(ProtocolError, match="clients that are not in the committee"):
        answer(state, request(state.session, Phase.OPEN, state.expected_binding, more))
    first, second = list(signed)[:2]
    swapped = {**signed, first: signed[second], second: signed[first]}
    with pytest.raises(ProtocolError, match="signature does not match"):
        answer(
            state,
            request(state.session, Phase.OPEN, state.expected_binding, start + pack_signatures(swapped, state.members)),
        )


def test_secrets_of_noise_are_forgotten_when_they_are_not_needed() -> None:
    federation = recorded(surplus=2)
    for (client, phase), state in federation.after.items():
        assert bool(state.noise_seed) == (phase < Phase.UPLOAD)
        assert set(state.holds) == ({1, 2, 3, 4, 5} if Phase.SHARE <= phase < Phase.OPEN else set())
        assert noise_seed(client) not in state.to_bytes() or phase < Phase.UPLOAD
    assert federation.run().noise_seeds == opened_seeds(P, (1, 2, 3, 4))


@pytest.mark.parametrize("cohort", [5, 20])
def test_whoever_is_lost_before_and_after_the_roster_removed_noise_is_that_of_dealers(cohort: int) -> None:
    """Every way of losing some of five, and random ones of twenty; the same number of shares stays in the sum."""
    chance, tolerated = random.Random(cohort), cohort // 4 + 1
    p = parameters(cohort, surplus=tolerated, dropout=Fraction(tolerated, cohort))
    everyone = range(1, cohort + 1)
    subsets = [chance.sample(everyone, chance.randint(0, tolerated)) for _ in range(300)]
    if cohort == 5:
        subsets = [list(lost) for count in range(tolerated + 1) for lost in itertools.combinations(everyone, count)]
    for lost in subsets:
        for early in range(len(lost) + 1):
            members, survivors = set(everyone) - set(lost[:early]), set(everyone) - set(lost)
            dealers, removed = shares.noise_dealers(p, members), shares.noise_removed(p, survivors)
            assert removed <= dealers & survivors
            assert len(survivors - removed) == cohort - tolerated
            assert len(dealers) == tolerated - early


@pytest.mark.parametrize("wrong", [{"surplus": 5}, {"surplus": -1}, {"surplus": 1, "dropout": Fraction(2, 5)}])
def test_surplus_that_does_not_fit_the_losses_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="surplus"):
        parameters(5, **wrong)


def test_a_client_needs_a_seed_exactly_if_there_is_surplus_noise() -> None:
    def join(p: Parameters, seed: bytes) -> None:
        policy = SecaggPolicy(threat_model=ThreatModel.SEMI_HONEST, min_corrupt=Fraction(0))
        set_vector(join_round(session(p), 1, policy), np.zeros(p.dim, np.uint32), seed)

    plain = parameters(5, threat_model=ThreatModel.SEMI_HONEST)
    join(plain, b"")
    join(replace(plain, surplus=1), bytes(32))
    for p, seed in ((plain, bytes(32)), (replace(plain, surplus=1), b""), (replace(plain, surplus=1), bytes(31))):
        with pytest.raises(UserError, match="a noise seed of"):
            join(p, seed)
