"""Seeds of surplus noise in secure aggregation: who can open them, from which component on, and who cannot."""

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
    join_round,
    phase_bytes,
    shares,
)
from tacit.protocols.secagg.secagg_messages import agreement_statement, pack_signatures, read_signatures
from tacit.wire.packing import Reader, pack_subset

P = parameters(5, 4, surplus=2)  # of five clients, one may be lost; four shares recover a secret


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_bytes_with_surplus_are_known_in_advance(threat_model: ThreatModel) -> None:
    p = parameters(70, 9, threat_model=threat_model, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    vectors = {j: np.zeros(9, np.uint32) for j in range(1, 71)}
    outcome = Federation(session(p), vectors, serialised=False).run()
    assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
    for phase, size in phase_bytes(p).items():
        assert set(outcome.transcript.up[phase].values()) == {size.up}
        assert set(outcome.transcript.down[phase].values()) == {size.down}
        assert phase_bytes(replace(p, surplus=0))[phase].up <= size.up


def opening(honest: RecordedFederation, client: int, survivors: frozenset[int], signers: tuple[int, ...]) -> bytes:
    """What a client is asked to open if these clients have signed these survivors."""
    state, _ = honest.before[client, Phase.AGREE]
    statement = agreement_statement(state.binding, state.members, state.sharers, survivors)
    signed = {j: crypto.sign(honest.before[j, Phase.AGREE][0].identity, statement) for j in signers}
    body = pack_subset(survivors, state.members) + NONE + pack_signatures(signed, state.members)
    return request(state.session, Phase.OPEN, state.binding, body, client)


def everyone_uploads() -> RecordedFederation:
    federation = RecordedFederation(session(P), small_vectors())
    federation.run()
    return federation


def revealed(honest: RecordedFederation, client: int, survivors: frozenset[int], signers: tuple[int, ...]) -> Reader:
    """A client's reply to that request, after it has agreed to these survivors."""
    state, _ = honest.before[client, Phase.AGREE]
    subset = pack_subset(survivors, state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.binding, subset, client))
    _, reply = answer(state, opening(honest, client, survivors, signers))
    return Reader(body_of(reply))


def test_what_is_opened_follows_from_the_survivors_that_were_agreed_upon() -> None:
    """With nobody lost, shares of component 1 on; with one lost, of component 2 on, and not of the lost one."""
    honest = everyone_uploads()
    holds = honest.before[VICTIM, Phase.AGREE][0].holds
    for level, survivors in ((1, frozenset(COHORT)), (2, frozenset(COHORT) - {5})):
        reader = revealed(honest, VICTIM, survivors, (1, 2, 3, 4))
        for j in COHORT:
            row = shares.elements(holds[j], P)
            places = [shares.SEED, shares.NOISE + level - 1] if j in survivors else [shares.PAD]
            for place in places:
                share = shares.to_bytes(shares.secret_part(row, place))
                assert reader.take(shares.SHARE if place < shares.NOISE else shares.NOISE_SHARE) == share
        reader.expect_end()


def test_a_server_that_claims_other_losses_to_some_clients_opens_neither() -> None:
    """Two clients are told that nobody is lost, two that client 5 is: neither claim has four signatures."""
    honest = everyone_uploads()
    for survivors, told in ((frozenset(COHORT), (1, 2)), (frozenset(COHORT) - {5}, (3, 4))):
        for client in told:
            with pytest.raises(ProtocolError, match="Expected 4 clients to have signed the survivors, got 2"):
                revealed(honest, client, survivors, told)
    state = honest.before[1, Phase.AGREE][0]
    everyone = pack_subset(frozenset(COHORT), state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.binding, everyone, 1))
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
    with pytest.raises(ProtocolError, match=f"Expected {w.quorum} clients to have signed the survivors"):
        answer(state, request(state.session, Phase.OPEN, state.binding, less))
    outside = next(j for j in state.pads if j not in state.circle.committee())
    more = start + pack_signatures({**signed, outside: bytes(SIGNATURE)}, state.members) + rest
    with pytest.raises(ProtocolError, match="clients that are not in the committee"):
        answer(state, request(state.session, Phase.OPEN, state.binding, more))
    swapped = start + pack_signatures(signed, state.members) + rest[SIGNATURE:] + rest[:SIGNATURE]
    with pytest.raises(ProtocolError, match="signature does not match"):  # of a neighbour, on the sharers
        answer(state, request(state.session, Phase.OPEN, state.binding, swapped))


def test_secrets_of_noise_are_forgotten_when_they_are_not_needed() -> None:
    federation = recorded(surplus=2)
    for (client, phase), state in federation.after.items():
        assert bool(state.noise_seed) == (phase < Phase.SHARE)
        assert set(state.holds) == ({1, 2, 3, 4, 5} if Phase.SHARE <= phase < Phase.OPEN else set())
        assert noise_seed(client) not in state.to_bytes() or phase < Phase.SHARE
    assert federation.run().noise_seeds == opened_seeds(P, (1, 2, 3, 4))


@pytest.mark.parametrize("wrong", [{"surplus": 5}, {"surplus": -1}, {"surplus": 1, "dropout": Fraction(2, 5)}])
def test_surplus_that_does_not_fit_the_losses_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="surplus"):
        parameters(5, **wrong)


def test_a_client_needs_a_seed_exactly_if_there_is_surplus_noise() -> None:
    def join(p: Parameters, seed: bytes) -> None:
        policy = SecaggPolicy(threat_model=ThreatModel.SEMI_HONEST, min_corrupt=Fraction(0))
        join_round(session(p), 1, policy, noise_seed=seed)

    plain = parameters(5, threat_model=ThreatModel.SEMI_HONEST)
    join(plain, b"")
    join(replace(plain, surplus=1), bytes(32))
    for p, seed in ((plain, bytes(32)), (replace(plain, surplus=1), b""), (replace(plain, surplus=1), bytes(31))):
        with pytest.raises(UserError, match="a noise seed of"):
            join(p, seed)
