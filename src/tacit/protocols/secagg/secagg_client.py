"""A client of secure aggregation: `answer(state, request) -> (state, reply)`, deterministic and without I/O.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017), with the sparse
graph of Bell et al. (CCS 2020). A client adds its own pad to its vector and one pad for each neighbour, which cancels
with that neighbour's. For each client either the seed of its own pad is opened (it uploaded) or the key of the others
(it dropped out).

All secrets derive from one root of 32 bytes, drawn once. Every reply is a pure function of state and request: a state
that was restored after a crash gives the same reply again, never a second version of it (which would reuse keys). A
request that is not exactly what an honest server would send in this phase raises `ProtocolError`; the caller then
leaves the round. Store the new state before the reply is sent: an old state must not answer a second time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.errors import ProtocolError, UserError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import ProtocolId, pack_state, read_optional_key, read_state
from tacit.protocols.secagg import graph, noise_seeds, pads, secagg_messages, shamir
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.pads import (
    ShareKind,
    Vector,
    own_pad_key,
    pack_vector,
    pair_pad_key,
    reduce,
    seed_commitment,
    unpack_vector,
)
from tacit.protocols.secagg.parameters import SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_messages import (
    KEYS,
    SEALED,
    SHARES,
    Direction,
    Phase,
    Roster,
    agreement_statement,
    announcement_statement,
)
from tacit.wire.packing import (
    CLIENT_LIMIT,
    Reader,
    Table,
    pack_chunk,
    pack_number,
    pack_subset,
    pack_table,
    packed_size,
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SecaggClientState:
    """What a client keeps between two messages. It contains secrets: store its bytes as securely as the client's data.

    Data that is no longer needed is removed from the next state.

    Attributes:
        session: the round, as this client sees it.
        client: its number.
        min_announced: clients that must announce, by its policy.
        phase: the only request that it will answer next.
        binding: what the next request must carry: the context, then the roster's digest.
        root: from which its secrets derive.
        identity: its Ed25519 secret; empty where identities are not used.
        directory: the identities known in advance, by client.
        vector: its contribution to the sum, packed; empty until it is set.
        members: the roster, once it is known.
        keys: each neighbour's public pad key, and the shared secret of the channel to it.
        shares: the shares it holds, including those of its own secrets.
        survivors: who uploaded, once this client has signed it.
        noise_seed: of its surplus noise; empty without such noise, and once it is shared.
        holds: the keys of its shares of others' noise seeds, and of its own.
    """

    session: SecaggSession
    client: int
    min_announced: int
    phase: Phase = Phase.ANNOUNCE
    binding: bytes
    root: bytes
    identity: bytes = b""
    directory: Table = field(default_factory=dict)
    vector: bytes = b""
    members: tuple[int, ...] = ()
    keys: Table = field(default_factory=dict)
    shares: Table = field(default_factory=dict)
    survivors: frozenset[int] = frozenset()
    noise_seed: bytes = b""
    holds: Table = field(default_factory=dict)

    def __repr__(self) -> str:  # no secrets in logs
        return f"SecaggClientState(client={self.client}, round={self.session.round}, phase={self.phase.name})"

    @property
    def active_server(self) -> bool:
        """Whether the server may send anything, so that messages are signed."""
        return self.session.parameters.threat_model is ThreatModel.ACTIVE_SERVER

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        numbers = map(pack_number, (self.client, self.min_announced, self.phase))
        secrets = map(pack_chunk, (self.root, self.identity, self.noise_seed, self.vector))
        tables = [pack_table(table, KEY) for table in (self.directory, self.holds)]
        tables += [pack_table(self.keys, KEYS), pack_table(self.shares, SHARES)]
        roster = pack_table(dict.fromkeys(self.members, b""), 0) + pack_subset(self.survivors, self.members)
        return pack_state(ProtocolId.SECAGG, self.session.pack(), roster, *numbers, self.binding, *secrets, *tables)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SecaggClientState":
        """The inverse of `to_bytes`; raises `ProtocolError` for other bytes."""
        return read_state(ProtocolId.SECAGG, data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> "SecaggClientState":
        session, members = SecaggSession.read(reader), tuple(reader.table(0, CLIENT_LIMIT))
        return cls(
            session=session,
            members=members,
            survivors=reader.subset(members),
            client=reader.number(),
            min_announced=reader.number(),
            phase=Phase(reader.number()),
            binding=reader.take(KEY),
            root=read_optional_key(reader),
            identity=read_optional_key(reader),
            noise_seed=read_optional_key(reader),
            vector=reader.chunk(packed_size(session.parameters.dim, session.parameters.bits)),
            directory=reader.table(KEY, CLIENT_LIMIT),
            holds=reader.table(KEY, CLIENT_LIMIT),
            keys=reader.table(KEYS, CLIENT_LIMIT),
            shares=reader.table(SHARES, CLIENT_LIMIT),
        )


def new_identity(entropy: Entropy = crypto.system_entropy) -> bytes:
    """The secret of a fresh Ed25519 identity, which a client creates once and keeps."""
    return entropy(KEY)


def new_seed(entropy: Entropy = crypto.system_entropy) -> bytes:
    """A fresh seed of surplus noise, for a client whose vector has none: a simulation draws all noise at once."""
    return entropy(KEY)


def join_round(
    session: SecaggSession,
    client: int,
    policy: SecaggPolicy,
    *,
    identity: bytes = b"",
    directory: Mapping[int, bytes] | None = None,
    noise_seed: bytes = b"",
    entropy: Entropy = crypto.system_entropy,
) -> SecaggClientState:
    """The state of a client that was invited to a round.

    Args:
        session: built from what this client received itself.
        client: its number.
        policy: the minimum security it requires; weaker parameters raise `ProtocolError`.
        identity: its Ed25519 secret; required against an active server.
        directory: Ed25519 public keys of all who may take part, known in advance; required against an active server.
        noise_seed: the seed of the surplus noise in its vector; required if the parameters have such noise.
        entropy: source of its secrets: the operating system's everywhere but in tests.
    """
    policy.check(session.parameters)
    wanted = KEY if session.parameters.surplus else 0
    expect(len(noise_seed) == wanted, f"a noise seed of {wanted} bytes, got {len(noise_seed)}")
    expect(0 <= client < CLIENT_LIMIT, f"0 <= client={client} < 2^32")
    known = dict(directory or {})
    if session.parameters.threat_model is ThreatModel.ACTIVE_SERVER and (
        not identity or known.get(client) != crypto.public_identity(identity)
    ):
        raise UserError("Expected an identity listed in the directory: against an active server, keys are signed.")
    return SecaggClientState(
        session=session,
        client=client,
        min_announced=max(policy.min_cohort, session.parameters.min_survivors),
        binding=session.context,
        root=entropy(KEY),
        identity=identity,
        directory=known,
        noise_seed=noise_seed,
    )


def set_vector(state: SecaggClientState, vector: Vector) -> SecaggClientState:
    """The state with the client's contribution to the sum: uint32, each value below 2^bits."""
    p = state.session.parameters
    expect(vector.dtype == np.uint32 and vector.shape == (p.dim,), f"a uint32 vector of {p.dim} values")
    expect(int(vector.max()) >> p.bits == 0, f"values below 2^{p.bits}")
    expect(state.phase <= Phase.UPLOAD, "a vector before the upload")
    return replace(state, vector=pack_vector(vector, p.bits))


def answer(state: SecaggClientState, request: bytes) -> tuple[SecaggClientState, bytes]:
    """One step: the state to store, and the reply to send.

    Formal guarantees: with honest parameters, all requests of a semi-honest server together with the views of up to the
    corrupt fraction of clients reveal nothing beyond the sum of the other survivors, of which there are at least
    `min_survivors` minus the corrupt (Bonawitz et al., Theorems 6.3 and 6.5; Bell et al., Theorem 3.9). Under
    `ACTIVE_SERVER` the same holds for a server that sends anything, if identities are known in advance.

    Sees: the server, the roster, the survivors and the sum; a neighbour, one share of each secret.

    Raises:
        ProtocolError: the request is malformed, out of turn, for another round, or not safe to answer.
    """
    if state.phase is Phase.CLOSED:
        raise ProtocolError("The round is closed: this client has answered every request.")
    frame = secagg_messages.unpack(request, secagg_messages.max_sizes(state.session.parameters)[state.phase].down)
    expected = (state.phase, Direction.REQUEST, state.session.round, state.client, state.binding)
    if (frame.kind, frame.direction, frame.round, frame.client, frame.binding) != expected:
        raise ProtocolError(f"Expected a request to {state.phase.name.lower()} in this round, got another message.")
    after, body = _STEPS[state.phase](state, Reader(frame.body))
    header = (state.phase, Direction.REPLY, state.session.round, state.client, after.binding)
    return after, secagg_messages.pack(*header, body)


def _announce(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    reader.expect_end()
    keys, signature = _public_keys(state), b""
    if state.active_server:
        signature = crypto.sign(state.identity, announcement_statement(state.binding, state.client, keys))
    return replace(state, phase=Phase.SHARE), keys + signature


def _share(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    roster = Roster.read(reader, state.session.parameters)
    members, binding = _check_roster(state, roster)
    seed, (pad_secret, channel_secret) = _seed(state, binding), _secrets(state)
    shares = _split([seed, pad_secret], state, roster, members, binding)
    own = {state.client: shares.pop(state.client)}
    channel = crypto.load_key(channel_secret)
    keys = {j: roster.entries[j][:KEY] + crypto.agree(channel, roster.entries[j][KEY:KEYS]) for j in shares}
    signers = shares if not _surplus(state) else set(members) - {state.client}
    directory = {j: state.directory[j] for j in signers} if state.active_server else {}
    after = replace(
        state, phase=Phase.UPLOAD, binding=binding, members=members, keys=keys, shares=own, directory=directory
    )
    dealt = _deal_noise_seed(after)
    after = replace(after, noise_seed=b"")
    sealed = {j: crypto.seal(_channel_key(after, j, sends=True), share, binding) for j, share in shares.items()}
    return after, seed_commitment(binding, state.client, seed) + dealt + pack_table(sealed, SEALED)


def _upload(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    sealed = reader.table(SEALED, len(state.members))
    reader.expect_end()
    if not state.vector:
        raise ProtocolError("This client has no vector yet: it cannot upload.")
    if not sealed.keys() <= state.keys.keys():
        raise ProtocolError("Received shares from clients that are not neighbours.")
    _check_threshold(state, len(sealed) + 1)
    keys = {j: _channel_key(state, j, sends=False) for j in sealed}
    shares = {j: crypto.unseal(keys[j], share, state.binding) for j, share in sealed.items()}
    body = padded_vector(state, sorted(sealed))
    holds = {j: _holder_key(state, j, state.client) for j in (*sealed, state.client)} if _surplus(state) else {}
    after = replace(state, root=b"", vector=b"", shares={**state.shares, **shares}, holds=holds)
    after = replace(after, keys=dict.fromkeys(state.keys, bytes(KEYS)))  # only the neighbours' numbers are still needed
    return replace(after, phase=Phase.AGREE if state.active_server else Phase.OPEN), body


def _agree(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    survivors = _read_survivors(state, reader)
    reader.expect_end()
    signature = crypto.sign(state.identity, agreement_statement(state.binding, state.members, survivors))
    return replace(state, phase=Phase.OPEN, survivors=survivors, identity=b""), signature


def _open(state: SecaggClientState, reader: Reader) -> tuple[SecaggClientState, bytes]:
    survivors = _read_survivors(state, reader)
    if state.active_server:
        _check_agreement(state, survivors, reader.table(crypto.SIGNATURE, len(state.members)))
    requested = reader.table(1, len(state.members))
    reader.expect_end()
    revealed = {j: kind + _revealed_share(state, j, kind[0], survivors) for j, kind in requested.items()}
    opened = _noise_seed_shares(state, requested, survivors)
    closed = SecaggClientState(
        session=state.session,
        client=state.client,
        min_announced=state.min_announced,
        phase=Phase.CLOSED,
        binding=state.binding,
        root=b"",
    )
    return closed, pack_table(revealed, secagg_messages.REVEALED) + opened


_STEPS: dict[Phase, Callable[[SecaggClientState, Reader], tuple[SecaggClientState, bytes]]] = {
    Phase.ANNOUNCE: _announce,
    Phase.SHARE: _share,
    Phase.UPLOAD: _upload,
    Phase.AGREE: _agree,
    Phase.OPEN: _open,
}


def padded_vector(state: SecaggClientState, neighbours: list[int]) -> bytes:
    """The vector with its own pad and those of its neighbours (Bonawitz et al., Figure 4, round 2)."""
    p, secret = state.session.parameters, crypto.load_key(_secrets(state)[0])
    total = unpack_vector(state.vector, p.dim, p.bits)
    pad_keys = {j: pair_pad_key(secret, state.keys[j][:KEY], state.binding, state.client, j) for j in neighbours}
    own = own_pad_key(_seed(state, state.binding), state.binding, state.client)
    added = [own, *(pad_keys[j] for j in pad_keys if j < state.client)]
    pads.add_pads(total, added, [pad_keys[j] for j in pad_keys if j > state.client])
    return pack_vector(reduce(total, p.bits), p.bits)


# Secrets, all derived from the root


def _secrets(state: SecaggClientState) -> tuple[bytes, bytes]:
    """The private halves of the pad key and the channel key; fresh in every session."""
    context = state.session.context
    return crypto.derive(state.root, "pad key", context), crypto.derive(state.root, "channel key", context)


def _seed(state: SecaggClientState, binding: bytes) -> bytes:
    return crypto.derive(state.root, "seed", binding)


def _public_keys(state: SecaggClientState) -> bytes:
    return b"".join(crypto.public_key(crypto.load_key(secret)) for secret in _secrets(state))


def _channel_key(state: SecaggClientState, neighbour: int, *, sends: bool) -> bytes:
    """The key that encrypts one share in one direction between two neighbours."""
    direction = (state.client, neighbour) if sends else (neighbour, state.client)
    return crypto.derive(state.keys[neighbour][KEY:], "share", state.binding, *direction)


def _split(
    secrets: list[bytes], state: SecaggClientState, roster: Roster, members: tuple[int, ...], binding: bytes
) -> dict[int, bytes]:
    """Shares of the secrets for each holder."""
    holders = sorted(roster.entries)
    generator = crypto.keystream(crypto.derive(state.root, "coefficients", binding))
    points = [members.index(j) + 1 for j in holders]
    threshold = state.session.parameters.graph(len(members)).threshold
    shares = shamir.split(secrets, points, threshold, lambda count: generator.update(bytes(count)))
    return {j: shamir.to_bytes(both) for j, both in zip(holders, shares, strict=True)}


# Seeds of surplus noise


def _surplus(state: SecaggClientState) -> int:
    return state.session.parameters.surplus


def _holder_key(state: SecaggClientState, client: int, holder: int) -> bytes:
    """The key of a holder's shares of a client's noise seeds; one of the two is this client."""
    neighbour = client if holder == state.client else holder
    shared = state.root if neighbour == state.client else state.keys[neighbour][KEY:]
    return noise_seeds.holder_key(shared, state.binding, client, holder)


def _deal_noise_seed(state: SecaggClientState) -> bytes:
    """What this client publishes about its noise seeds; empty without surplus noise."""
    p, holders = state.session.parameters, sorted((*state.keys, state.client))
    if not p.surplus:
        return b""
    keys = {state.members.index(j) + 1: _holder_key(state, state.client, j) for j in holders}
    return noise_seeds.deal(state.noise_seed, keys, p, p.graph(len(state.members)).threshold, state.binding)


def _noise_seed_shares(state: SecaggClientState, requested: Table, survivors: frozenset[int]) -> bytes:
    """This client's shares of the survivors' noise seeds, at the level that follows from their number."""
    level = noise_seeds.level_of(state.session.parameters, len(survivors))
    if not level:
        return b""
    shares = {j: noise_seeds.holder_share(state.holds[j], state.binding, level) for j in requested if j in survivors}
    return pack_table({j: shamir.to_bytes(share) for j, share in shares.items()}, shamir.SHARE)


# What a client requires before it answers


def _check_roster(state: SecaggClientState, roster: Roster) -> tuple[tuple[int, ...], bytes]:
    """The members and the roster's digest, if this client may share its secrets with them."""
    members, p = tuple(sorted({*roster.entries, *roster.digests})), state.session.parameters
    if not state.min_announced <= len(members) <= p.cohort:
        raise ProtocolError(f"Expected {state.min_announced} to {p.cohort} clients, got {len(members)}.")
    keys = {j: entry[:KEYS] for j, entry in roster.entries.items()}
    if keys.get(state.client) != _public_keys(state):
        raise ProtocolError("The roster does not contain this client's own keys.")
    single = [key for both in keys.values() for key in (both[:KEY], both[KEY:])]
    if len(set(single)) != len(single):
        raise ProtocolError("Two clients announced the same key.")
    leaves = {**roster.digests, **{j: graph.roster_leaf(j, both) for j, both in keys.items()}}
    binding = graph.roster_digest(state.binding, leaves)
    degree = p.graph(len(members)).degree
    if graph.neighbours(binding, members, degree, state.client) != keys.keys() - {state.client}:
        raise ProtocolError("The neighbours in the roster are not those that its digest determines.")
    if state.active_server:
        _check_signatures(state, roster)
    return members, binding


def _check_signatures(state: SecaggClientState, roster: Roster) -> None:
    if not {*roster.entries, *roster.digests} <= state.directory.keys():
        raise ProtocolError("The roster contains clients that are not in the directory.")
    for j in roster.entries.keys() - {state.client}:  # its own keys were compared
        keys, signature = roster.entries[j][:KEYS], roster.entries[j][KEYS:]
        crypto.verify(state.directory[j], signature, announcement_statement(state.binding, j, keys))


def _check_threshold(state: SecaggClientState, holders: int) -> None:
    threshold = state.session.parameters.graph(len(state.members)).threshold
    if holders < threshold:
        raise ProtocolError(f"Expected {threshold} holders of this client's shares, got {holders}.")


def _read_survivors(state: SecaggClientState, reader: Reader) -> frozenset[int]:
    """Who uploaded, if this client is one of them and they are enough."""
    survivors, required = reader.subset(state.members), state.session.parameters.min_survivors
    if state.client not in survivors:
        raise ProtocolError("This client uploaded, but is declared a dropout.")
    if len(survivors) < required:
        raise ProtocolError(f"Expected {required} survivors, got {len(survivors)}.")
    if not survivors & state.keys.keys() <= state.shares.keys():
        raise ProtocolError("A neighbour is declared a survivor, but sent no shares.")
    _check_threshold(state, len(survivors & state.shares.keys()))
    return survivors


def _check_agreement(state: SecaggClientState, survivors: frozenset[int], signatures: dict[int, bytes]) -> None:
    """Enough neighbours, and enough clients, must have signed the same set of survivors as this client."""
    if survivors != state.survivors:
        raise ProtocolError("The survivors are not those that this client has signed.")
    if not signatures.keys() <= (survivors & state.directory.keys()):
        raise ProtocolError("Received signatures of dropouts, or of clients whose signatures are not needed.")
    statement = agreement_statement(state.binding, state.members, survivors)
    for j, signature in signatures.items():
        crypto.verify(state.directory[j], signature, statement)
    _check_threshold(state, len(signatures.keys() & state.shares.keys()) + 1)
    required = state.session.parameters.consents(len(state.members))
    if len(signatures) + 1 < required:
        raise ProtocolError(f"Expected {required} clients to have signed the survivors, got {len(signatures) + 1}.")


def _revealed_share(state: SecaggClientState, client: int, kind: int, survivors: frozenset[int]) -> bytes:
    """The one share of a client that may be revealed: of its seed if it uploaded, of its pad key if it dropped out."""
    if client not in state.shares:
        raise ProtocolError("The server requested a share that this client does not hold.")
    if kind != (ShareKind.SEED if client in survivors else ShareKind.KEY):
        raise ProtocolError("The server requested the share that must stay secret.")
    share = state.shares[client]
    return share[: shamir.SHARE] if kind == ShareKind.SEED else share[shamir.SHARE :]
