"""Seeds of surplus noise in secure aggregation: who can open them, from which component on, and who cannot."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from protocols.secagg.federation import (
    COHORT,
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
from tacit.core.keys import Key
from tacit.core.surplus import seed_after
from tacit.errors import ProtocolError, TooFewClientsError, UserError
from tacit.protocols import crypto
from tacit.protocols.crypto import SIGNATURE
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggPolicy,
    ThreatModel,
    answer,
    join_round,
    noise_seeds,
    phase_bytes,
    shamir,
)
from tacit.protocols.secagg.secagg_messages import REVEALED, Direction, agreement_statement, pack
from tacit.wire.packing import Reader, pack_subset, pack_table

BINDING = bytes(32)
P = parameters(5, 4, surplus=2)  # of five clients, one may be lost; four shares recover a secret


def keys() -> dict[int, bytes]:
    return {point: crypto.digest("holder", bytes([point])) for point in range(1, 6)}


def dealing() -> noise_seeds.Dealing:
    dealt = noise_seeds.deal(noise_seed(1), keys(), P, 4, BINDING)
    assert len(dealt) == noise_seeds.dealing_size(2, 2)
    return noise_seeds.Dealing.read(Reader(dealt), P, 2)


@pytest.mark.parametrize("level", [1, 2])
def test_any_threshold_of_holders_recover_the_seed_of_a_level(level: int) -> None:
    shares = {point: noise_seeds.holder_share(key, BINDING, level) for point, key in keys().items()}
    for chosen in combinations(shares, 4):
        values = {point: shares[point] for point in chosen} | dealing().published(level)
        points = np.array([list(values)], np.int64)
        found = shamir.from_limbs(shamir.recover(points, np.array([list(values.values())], np.uint64))[0].tolist())
        assert found == seed_after(Key(noise_seed(1)), level - 1).value


def test_one_holder_less_learns_nothing_about_it() -> None:
    """For every seed there is a share of a fourth holder that fits what three holders and the public know."""
    known = {point: noise_seeds.holder_share(keys()[point], BINDING, 1) for point in (1, 2, 3)} | dealing().published(1)
    for other in (bytes(32), b"\xff" * 32, noise_seed(2)):
        rows = np.array([shamir.to_limbs(other), *(share.tolist() for share in known.values())], np.uint64)
        (fourth,) = shamir.interpolate([0, *known], rows, [4])
        points = np.array([[*known, 4]], np.int64)
        assert shamir.from_limbs(shamir.recover(points, np.array([[*known.values(), fourth]]))[0].tolist()) == other


def test_the_shares_of_one_level_say_nothing_about_another() -> None:
    shares = {level: noise_seeds.holder_share(keys()[1], BINDING, level).tolist() for level in (1, 2)}
    assert not set(shares[1]) & set(shares[2])
    assert shares[1] != noise_seeds.holder_share(keys()[1], b"x" * 32, 1).tolist()


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_bytes_with_surplus_are_known_in_advance(threat_model: ThreatModel) -> None:
    p = parameters(70, 9, threat_model=threat_model, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    assert p.consents(70) > p.graph(70).threshold or threat_model is ThreatModel.SEMI_HONEST
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
    statement = agreement_statement(state.binding, state.members, survivors)
    signed = {j: crypto.sign(honest.before[j, Phase.AGREE][0].identity, statement) for j in signers}
    kinds = {j: bytes([1 if j in survivors else 2]) for j in COHORT}
    body = pack_subset(survivors, state.members) + pack_table(signed, SIGNATURE) + pack_table(kinds, 1)
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
    reader = Reader(body_of(reply))
    reader.table(REVEALED, 5)
    return reader


def test_what_is_opened_follows_from_the_survivors_that_were_agreed_upon() -> None:
    """With nobody lost, shares of component 1 on; with one lost, of component 2 on, and not of the lost one."""
    honest = everyone_uploads()
    holds = honest.before[VICTIM, Phase.AGREE][0].holds
    others = tuple(j for j in COHORT if j not in (VICTIM, 5))
    binding = honest.before[VICTIM, Phase.AGREE][0].binding
    for level, survivors in ((1, frozenset(COHORT)), (2, frozenset(COHORT) - {5})):
        shares = revealed(honest, VICTIM, survivors, others).table(shamir.SHARE, 5)
        expected = {j: noise_seeds.holder_share(holds[j], binding, level) for j in survivors}
        assert shares == {j: shamir.to_bytes(share) for j, share in expected.items()}


def test_a_server_that_claims_other_losses_to_some_clients_opens_neither() -> None:
    """Two clients are told that nobody is lost, two that client 5 is: neither claim has four signatures."""
    honest = everyone_uploads()
    for survivors, told in ((frozenset(COHORT), (1, 2)), (frozenset(COHORT) - {5}, (3, 4))):
        for client in told:
            others = tuple(j for j in told if j != client)
            with pytest.raises(ProtocolError, match="Expected 4 holders of this client's shares, got 2"):
                revealed(honest, client, survivors, others)
    state = honest.before[1, Phase.AGREE][0]
    everyone = pack_subset(frozenset(COHORT), state.members)
    state, _ = answer(state, request(state.session, Phase.AGREE, state.binding, everyone, 1))
    with pytest.raises(ProtocolError, match="not those that this client has signed"):
        answer(state, opening(honest, 1, frozenset(COHORT) - {5}, (2, 3, 4)))
    with pytest.raises(ProtocolError, match="Expected 4 survivors"):
        revealed(honest, 1, frozenset({1, 2, 3}), (2, 3))


def test_on_a_sparse_graph_a_neighbourhood_alone_cannot_open_noise() -> None:
    """Signatures of all of a client's neighbours open pads; the number of losses concerns all clients."""
    p = parameters(70, 3, corrupt=Fraction(1, 20), dropout=Fraction(1, 10), surplus=7)
    federation = RecordedFederation(session(p), {j: np.full(3, j, np.uint32) for j in range(1, 71)}, serialised=False)
    federation.run()
    state, frame = federation.before[VICTIM, Phase.OPEN]
    reader = Reader(body_of(frame))
    survivors, signed, rest = reader.subset(state.members), reader.table(SIGNATURE, 70), bytes(reader.rest())
    near = {j: signature for j, signature in signed.items() if j in state.keys}
    assert len(near) + 1 >= p.graph(70).threshold
    less = pack_subset(survivors, state.members) + pack_table(near, SIGNATURE) + rest
    with pytest.raises(ProtocolError, match="Expected 37 clients to have signed the survivors"):
        answer(state, request(state.session, Phase.OPEN, state.binding, less))
    assert 2 * p.consents(70) > 70 + 3  # no two sets of survivors can have as many signatures
    without = replace(p, surplus=0)
    assert without.consents(70) == without.graph(70).threshold


def test_a_wrong_share_or_a_wrong_dealing_is_detected() -> None:
    def falsify(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        client, frame = replies[0]
        if phase is not at:
            return replies
        body = bytearray(body_of(frame))
        body[place] ^= 1
        return [(client, pack(phase, Direction.REPLY, 1, client, frame[24:56], bytes(body))), *replies[1:]]

    at, place = Phase.OPEN, -3  # in a share of a noise seed: with one to spare, it is left out
    outcome = Federation(session(P), small_vectors(), network=falsify).run()
    assert outcome.noise_seeds == opened_seeds(P, COHORT)
    at, place = Phase.SHARE, 32  # in the commitment to the first client's seeds
    with pytest.raises(TooFewClientsError, match="shares of client 1 are inconsistent"):
        Federation(session(P), small_vectors(), network=falsify).run()


def test_secrets_of_noise_are_forgotten_when_they_are_not_needed() -> None:
    federation = recorded(surplus=2)
    for (client, phase), state in federation.after.items():
        assert bool(state.noise_seed) == (phase < Phase.SHARE)
        assert set(state.holds) == ({1, 2, 3, 4, 5} if phase in (Phase.UPLOAD, Phase.AGREE) else set())
        assert noise_seed(client) not in state.to_bytes() or phase < Phase.SHARE
    assert federation.run().noise_seeds == opened_seeds(P, (1, 2, 3, 4))


@pytest.mark.parametrize("wrong", [{"surplus": 5}, {"surplus": -1}, {"surplus": 1, "dropout": Fraction(2, 5)}])
def test_surplus_that_does_not_fit_the_losses_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="surplus"):
        parameters(5, **wrong)  # type: ignore[arg-type]


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
