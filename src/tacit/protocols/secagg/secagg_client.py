"""A client of secure aggregation: `answer(state, request) -> (state, reply)`, deterministic and without I/O.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017), with the sparse
graph as in Bell et al. (CCS 2020). A client adds its own pad to its vector and one pad for each neighbour, which
cancels with that neighbour's. For each client either the seed of its own pad is opened (it uploaded) or the key of the
others (it dropped out).

A client sets up once for all rounds of an epoch: keys, neighbours, shares of the secrets of every round, and with whom
it pads. In a round it uploads, agrees and opens. Only the committee's agreement counts, so against an active server
nobody else is asked for it. Whoever is lost in a round may take part in the next one (`secagg_messages.next_round`).

All secrets derive from one root of 32 bytes, drawn once in an epoch. Every reply is a pure function of state and
request: a state that was restored after a crash gives the same reply again, never a second version of it (which would
reuse keys). A request that is not exactly what an honest server would send in this phase raises `ProtocolError`; the
caller then leaves the round. Store the new state before the reply is sent: an old state must not answer a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, SIGNATURE, PrivateKey
from tacit.protocols.secagg import graph, pads, secagg_messages, shares
from tacit.protocols.secagg.graph import MAX_DRAWS, NONCE, Circle
from tacit.protocols.secagg.pads import (
    own_pad_key,
    pack_vector,
    pair_pad_key,
    reduce,
    unpack_vector,
)
from tacit.protocols.secagg.secagg_messages import (
    Direction,
    Phase,
    Roster,
    SecaggClientState,
    agreement_statement,
    announcement_statement,
    read_disputed,
    read_signatures,
    read_spares,
    sharers_statement,
)
from tacit.protocols.secagg.shares import Shared
from tacit.wire.packing import Reader, Table


def answer(state: SecaggClientState, request: bytes) -> tuple[SecaggClientState, bytes]:
    """One step: the state to store, and the reply to send.

    Formal guarantees: all requests of a semi-honest server together with the views of up to the corrupt fraction of
    clients reveal nothing beyond the sum of the other survivors, of which there are at least `min_survivors` minus the
    corrupt (Bonawitz et al., Theorems 6.3 and 6.5; on sparse graphs except with probability 2^-40, as proved in
    `tacit.protocols.secagg.graph`). Under `ACTIVE_SERVER` the same holds for a server that sends anything and chooses
    whom to drop after it has seen the graph, if identities are known in advance.

    Sees: the server, the roster, the survivors and the sum; a neighbour, one share of each secret.

    Raises:
        ProtocolError: the request is malformed, out of turn, for another round, or not safe to answer.
    """
    if state.phase is Phase.CLOSED:
        raise ProtocolError("The round is closed: this client has answered every request.")
    phases = {state.phase, Phase.SHARE} if state.draws and state.phase is Phase.DRAW else {state.phase}
    sizes = secagg_messages.max_sizes(state.session.parameters)
    frame = secagg_messages.unpack(request, max(sizes[phase].down for phase in phases))
    expected = (Direction.REQUEST, state.session.round, state.client)
    addressed = (frame.direction, frame.round, frame.client) == expected and frame.is_bound(state.expected_binding)
    if frame.kind not in phases or not addressed:
        raise ProtocolError(f"Expected a request to {state.phase.name.lower()} in this round, got another message.")
    reader = Reader(frame.body)
    after, body = _STEPS[frame.kind](state, reader)
    reader.expect_end()  # nothing of a longer message was stored or sent
    binding = state.expected_binding if frame.kind >= Phase.UPLOAD else after.binding
    header = (frame.kind, Direction.REPLY, state.session.round, state.client, binding)
    return after, secagg_messages.pack(*header, body)


def _announce(state: SecaggClientState, _: Reader) -> tuple[SecaggClientState, bytes]:
    draws = state.session.parameters.draws
    key, signature = crypto.public_key(_private_key(state)), b""
    committed = graph.commitment(_nonces(state)[0]) if draws else b""
    if state.active_server:
        signature = crypto.sign(state.identity, announcement_statement(state.binding, state.client, key, committed))
    return replace(state, phase=Phase.DRAW if draws else Phase.SHARE), key + committed + signature


def _draw(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    roster = reader.take(KEY)
    if state.draws == MAX_DRAWS:
        raise ProtocolError(f"Expected at most {MAX_DRAWS} draws of an order.")
    return replace(state, draws=state.draws + 1, roster=roster), _nonces(state)[state.draws]


def _share(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    roster = Roster.read(reader, state.session.parameters)
    circle, binding = _check_roster(state, roster)
    key = _private_key(state)
    near = sorted(roster.entries.keys() - {state.client})
    shared = {j: crypto.agree(key, roster.entries[j][:KEY]) for j in near}
    shared[state.client] = crypto.derive(state.root, "own share", binding)
    deals = {j: shares.holder_key(shared[j], binding, state.client, j) for j in shared}
    signers = {*near, *circle.committee()} if state.active_server else set()
    after = replace(
        state,
        phase=Phase.CHECK,
        binding=binding,
        members=circle.members,
        order=circle.order,
        challenge=roster.challenge,
        deals=deals,
        holds={j: shares.holder_key(shared[j], binding, j, state.client) for j in shared},
        directory={j: state.directory[j] for j in signers},
    )
    return after, _deal(after, circle.parameters.threshold)


def _check(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    challenge, dealers = reader.take(KEY), reader.subset(state.members)
    if crypto.digest("challenge", challenge) != state.challenge:
        raise ProtocolError("The challenge is not the one that the server has committed to.")
    _check_present(state, dealers, "has shared its secrets")
    p, noisy = state.session.parameters, state.noise_dealers
    rows = [shares.elements(state.holds[j], p, noisy=j in noisy) for j in sorted(dealers & state.holds.keys())]
    body = shares.to_bytes(shares.answers_about(rows, challenge, state.binding))
    return replace(state, phase=Phase.CONFIRM, challenge=b""), body


def _confirm(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    sharers, disputed = reader.subset(state.members), read_disputed(reader, state.session.parameters)
    _check_present(state, sharers, "has shared its secrets")
    if not disputed <= state.near & sharers:
        raise ProtocolError("Expected disputes with neighbours that have shared their secrets, got other clients.")
    signature = b""
    if state.active_server:
        signature = crypto.sign(state.identity, sharers_statement(state.binding, state.members, sharers))
    after = replace(
        state,
        phase=Phase.UPLOAD,
        sharers=sharers,
        disputed=disputed,
        holds=_only(state.holds, sharers),
    )
    return after, signature


def _upload(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    if not state.vector:
        raise ProtocolError("This client has no vector yet: it cannot upload.")
    if state.active_server and not (state.confirmed and reader.at_end):  # a server repeats itself if a reply was lost
        _check_quorum(state, reader, state.sharers, sharers_statement(state.binding, state.members, state.sharers))
    circle, binding, p = state.circle, state.expected_binding, state.session.parameters
    owned = circle.own_pads(state.client, state.near)
    secrets = _pair_secrets(state, owned, binding)
    escrowed = [_escrow_secret(state, j, secrets[j], binding) for j in owned]
    spares = [_spare(state, j, secrets[j]) for j in sorted(state.disputed)]
    noise = b""
    if state.client in state.noise_dealers:
        noise = shares.wrap(state.noise_seed, _secret(state, Shared.NOISE, state.turn), binding, state.client)
    body = b"".join((*escrowed, *spares, noise, pad_vector(state, secrets)))
    last = state.turn == p.rounds - 1
    after = replace(
        state,
        phase=Phase.AGREE if state.active_server and state.client in circle.committee() else Phase.OPEN,
        root=b"" if last else state.root,
        deals={} if last else state.deals,
        vector=b"",
        noise_seed=b"",
        confirmed=True,
    )
    return after, body


def _agree(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    survivors = _read_survivors(state, reader)
    signature = crypto.sign(state.identity, agreement_statement(state.expected_binding, state.members, survivors))
    return replace(state, phase=Phase.OPEN, survivors=survivors), signature


def _open(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    survivors = reader.subset(state.members) if state.survivors else _read_survivors(state, reader)
    spares = read_spares(reader, state.session.parameters)
    if state.survivors not in (survivors, frozenset()):  # those were checked
        raise ProtocolError("The survivors are not those that this client has signed.")
    if state.active_server:
        statement = agreement_statement(state.expected_binding, state.members, survivors)
        _check_quorum(state, reader, survivors, statement)
    if not all(j in state.holds.keys() & survivors and lost in state.sharers - survivors for j, lost in spares):
        raise ProtocolError("Expected spare shares of survivors' secrets with dropouts, got a request for others.")
    removed = shares.noise_removed(state.session.parameters, survivors)
    body = b"".join(_reveal(state, j, survivors, removed) for j in sorted(state.holds))
    opened = [shares.spare_elements(state.holds[j], state.expected_binding, lost) for j, lost in spares]
    body += b"".join(map(shares.to_bytes, opened))
    return _after_round(state), body


def _after_round(state: SecaggClientState) -> SecaggClientState:
    """The state after a round: without its secrets, and after the last round without those of the epoch."""
    if state.turn < state.session.parameters.rounds - 1:
        return replace(state, phase=Phase.CLOSED, survivors=frozenset())
    return SecaggClientState(
        session=state.session,
        turn=state.turn,
        client=state.client,
        min_announced=state.min_announced,
        phase=Phase.CLOSED,
        binding=state.binding,
        root=b"",
        used=state.used,
    )


_STEPS: dict[Phase, Callable[[SecaggClientState, Reader], tuple[SecaggClientState, bytes]]] = {
    Phase.ANNOUNCE: _announce,
    Phase.DRAW: _draw,
    Phase.SHARE: _share,
    Phase.CHECK: _check,
    Phase.CONFIRM: _confirm,
    Phase.UPLOAD: _upload,
    Phase.AGREE: _agree,
    Phase.OPEN: _open,
}


def pad_vector(state: SecaggClientState, secrets: Table) -> bytes:
    """The vector with its own pad and those of its neighbours (Bonawitz et al., Figure 4, round 2)."""
    p, binding = state.session.parameters, state.expected_binding
    total = unpack_vector(state.vector, p.dim, p.bits).copy()
    own = own_pad_key(_secret(state, Shared.SEED, state.turn), binding, state.client)
    keys = {j: pair_pad_key(secret, binding, state.client, j) for j, secret in secrets.items()}
    added = [own, *(key for j, key in keys.items() if j < state.client)]
    pads.add_pads(total, added, [key for j, key in keys.items() if j > state.client])
    return pack_vector(reduce(total, p.bits), p.bits)


def _pair_secrets(state: SecaggClientState, owned: Iterable[int], binding: bytes) -> dict[int, bytes]:
    """The secrets of this client's pads in this round, by neighbour, of which it owns some."""
    p, client, secrets = state.session.parameters, state.client, dict[int, bytes]()
    for j in sorted(state.near):
        key, pair = (state.deals[j], (client, j)) if j in owned else (state.holds[j], (j, client))
        secrets[j] = shares.pair_secret(shares.elements_of(key, p, Shared.PAD, state.turn), binding, *pair)
    return secrets


def _escrow_secret(state: SecaggClientState, neighbour: int, secret: bytes, binding: bytes) -> bytes:
    """The secret of an owned pad, which can be read if the neighbour drops out, and this client, too, by then."""
    part = shares.elements_of(state.holds[neighbour], state.session.parameters, Shared.PAD, state.turn)
    return shares.escrow(secret, part, binding, neighbour, state.client)


def _spare(state: SecaggClientState, neighbour: int, secret: bytes) -> bytes:
    """The same secret, shared among all holders: for a neighbour whose share at this client is disputed."""
    keys = [state.deals[j] for j in sorted(state.deals)]
    elements = [shares.spare_elements(key, state.expected_binding, neighbour) for key in keys]
    none = np.zeros(0, np.uint64)  # nothing is checked
    return shares.corrections([secret], none, elements, state.circle.parameters.threshold)


def _only(table: Table, clients: Iterable[int]) -> dict[int, bytes]:
    return {j: table[j] for j in table.keys() & set(clients)}


# Secrets, all derived from the root


def _private_key(state: SecaggClientState) -> PrivateKey:
    """The private key of the epoch, from which all that neighbours have in common derives."""
    return crypto.load_key(crypto.derive(state.root, "key", state.session.context))


def _secret(state: SecaggClientState, secret: Shared, turn: int) -> bytes:
    """One of this client's secrets in one round."""
    return shares.new_secret(crypto.derive(state.root, secret.name.lower(), state.binding, turn))


def _nonces(state: SecaggClientState) -> list[bytes]:
    return graph.chain(crypto.derive(state.root, "nonces", state.session.context))


def _deal(state: SecaggClientState, threshold: int) -> bytes:
    """Deal shares of this client's secrets in all rounds to its holders."""
    p, noisy = state.session.parameters, state.client in state.noise_dealers
    masks = shares.uniform(shares.PADS, crypto.derive(state.root, "masks", state.binding))
    kept = [secret for secret in Shared if noisy or secret is not Shared.NOISE]
    places = {shares.place_of(p, secret, turn): (secret, turn) for secret in kept for turn in range(p.rounds)}
    secrets = [_secret(state, *places[place]) for place in sorted(places)]
    held = [shares.elements(state.deals[j], p, noisy=noisy) for j in sorted(state.deals)]
    return shares.corrections(secrets, masks, held, threshold)


# What a client requires before it answers


def _check_roster(state: SecaggClientState, roster: Roster) -> tuple[Circle, bytes]:
    """The clients in their order and the binding, if this client may share its secrets with them."""
    members, p = tuple(sorted({*roster.entries, *roster.nonces})), state.session.parameters
    if not state.min_announced <= len(members) <= p.cohort:
        raise ProtocolError(f"Expected {state.min_announced} to {p.cohort} clients, got {len(members)}.")
    keys = {j: entry[:KEY] for j, entry in roster.entries.items()}
    if keys.get(state.client) != crypto.public_key(_private_key(state)):
        raise ProtocolError("The roster does not contain this client's own key.")
    if len(set(keys.values())) != len(keys):
        raise ProtocolError("Two clients announced the same key.")
    nonces = _check_nonces(state, roster) if p.draws else {}
    committed = {j: graph.commitment(nonce, state.draws) for j, nonce in nonces.items()}
    leaves = {j: graph.roster_leaf(keys.get(j, b""), committed.get(j, b"")) for j in members}
    digest = graph.roster_digest(state.binding, leaves)
    if p.draws and digest != state.roster:
        raise ProtocolError("The roster is not the one for which this client has opened its nonce.")
    circle = Circle(members, p.graph(len(members)), graph.draw_order(digest, nonces))
    if circle.neighbours(state.client) != keys.keys() - {state.client}:
        raise ProtocolError("The neighbours in the roster are not those that the drawn order determines.")
    if state.active_server:
        _check_signatures(state, roster, committed)
    return circle, roster_binding(digest, circle.order, roster.challenge)


def roster_binding(roster: bytes, order: bytes, challenge: bytes) -> bytes:
    """The digest that binds every key, pad and signature once the roster is known."""
    return crypto.digest("binding", roster, order, challenge)


def _check_nonces(state: SecaggClientState, roster: Roster) -> dict[int, bytes]:
    """All clients' nonces of the last draw; whether they open the commitments shows the roster's digest."""
    nonces = {j: entry[KEY : KEY + NONCE] for j, entry in roster.entries.items()}
    if not state.draws or nonces[state.client] != _nonces(state)[state.draws - 1]:
        raise ProtocolError("The roster does not contain the nonce that this client has opened.")
    return {**nonces, **roster.nonces}


def _check_signatures(state: SecaggClientState, roster: Roster, committed: Mapping[int, bytes]) -> None:
    if not {*roster.entries, *roster.nonces} <= state.directory.keys():
        raise ProtocolError("The roster contains clients that are not in the directory.")
    for j in roster.entries.keys() - {state.client}:  # its own keys were compared
        key, signature = roster.entries[j][:KEY], roster.entries[j][-SIGNATURE:]
        statement = announcement_statement(state.binding, j, key, committed.get(j, b""))
        crypto.verify(state.directory[j], signature, statement)


def _check_present(state: SecaggClientState, present: frozenset[int], claim: str) -> None:
    """Of those present, this client must be one, and enough of its neighbours, and enough of all."""
    if state.client not in present:
        raise ProtocolError(f"This client {claim}, but is declared a dropout.")
    required = state.session.parameters.min_survivors
    if len(present) < required:
        raise ProtocolError(f"Expected {required} clients, got {len(present)}.")
    floor, near = state.circle.parameters.floor, len(present & state.near)
    if near < floor:
        raise ProtocolError(f"Expected {floor} neighbours of this client, got {near}.")


def _read_survivors(state: SecaggClientState, reader: Reader) -> frozenset[int]:
    """Who uploaded, if this client is one of them, and they are enough, also around every survivor."""
    survivors = reader.subset(state.members)
    if not survivors <= state.sharers:
        raise ProtocolError("A client is declared a survivor, but did not share its secrets.")
    _check_present(state, survivors, "uploaded")
    state.circle.check_survivors(survivors)
    return survivors


def _check_quorum(state: SecaggClientState, reader: Reader, signers: frozenset[int], statement: bytes) -> None:
    """A quorum of the committee must have signed what this client has."""
    circle = state.circle
    signatures = read_signatures(reader, state.members, len(state.members))
    if not signatures.keys() <= circle.committee() & signers:
        raise ProtocolError("Received signatures of dropouts, or of clients that are not in the committee.")
    for j, signature in signatures.items():
        crypto.verify(state.directory[j], signature, statement)
    if len(signatures) < circle.parameters.quorum:
        raise ProtocolError(f"Expected {circle.parameters.quorum} clients to have signed, got {len(signatures)}.")


def _reveal(state: SecaggClientState, client: int, survivors: frozenset[int], removed: frozenset[int]) -> bytes:
    """Reveal one share of a client: of its seed if it uploaded, of its pads' secret if it dropped out.

    Also one share of the key of its noise, if its noise is removed.
    """
    wanted = [Shared.SEED if client in survivors else Shared.PAD, *[Shared.NOISE] * (client in removed)]
    held = (shares.elements_of(state.holds[client], state.session.parameters, each, state.turn) for each in wanted)
    return b"".join(map(shares.to_bytes, held))
