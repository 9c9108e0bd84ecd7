"""The state of a client of secure aggregation: what it keeps between two messages, and how it joins a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.errors import ProtocolError, UserError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import ProtocolId, pack_state, read_optional_key, read_state
from tacit.protocols.secagg.graph import Circle, ThreatModel
from tacit.protocols.secagg.pads import PAIR, Vector, pack_vector
from tacit.protocols.secagg.parameters import SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_messages import Phase
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
        binding: what the next request must carry: the context, then the digest of roster, order and challenge.
        root: from which its secrets derive.
        identity: its Ed25519 secret; empty where identities are not used.
        directory: the identities known in advance, by client.
        vector: its contribution to the sum, packed; empty until it is set.
        draws: orders that it has helped to draw.
        roster: the digest of the roster for which it has opened a nonce.
        members: the roster, once it is known.
        order: the seed of the clients' order.
        challenge: the server's commitment to its challenge.
        pads: the secrets of its pads with its neighbours.
        deals: the keys of the holders' shares of its secrets, until it has uploaded.
        holds: the keys of its shares of others' secrets, and of its own.
        sharers: with whom it has padded.
        survivors: who uploaded, once this client has signed it.
        noise_seed: of its surplus noise; empty without such noise, and once it is shared.
        used: the contexts of sessions that it has joined before.
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
    draws: int = 0
    roster: bytes = b""
    members: tuple[int, ...] = ()
    order: bytes = b""
    challenge: bytes = b""
    pads: Table = field(default_factory=dict)
    deals: Table = field(default_factory=dict)
    holds: Table = field(default_factory=dict)
    sharers: frozenset[int] = frozenset()
    survivors: frozenset[int] = frozenset()
    noise_seed: bytes = b""
    used: tuple[bytes, ...] = ()

    def __repr__(self) -> str:  # no secrets in logs
        return f"SecaggClientState(client={self.client}, round={self.session.round}, phase={self.phase.name})"

    @property
    def active_server(self) -> bool:
        """Whether the server may send anything, so that messages are signed."""
        return self.session.parameters.threat_model is ThreatModel.ACTIVE_SERVER

    @property
    def circle(self) -> Circle:
        """The clients in their order, once the roster is known."""
        return Circle(self.members, self.session.parameters.graph(len(self.members)), self.order)

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        numbers = map(pack_number, (self.client, self.min_announced, self.phase, self.draws))
        keys = (self.root, self.identity, self.noise_seed, self.roster, self.order, self.challenge)
        used = dict(enumerate(self.used))
        tables = [pack_table(table, KEY) for table in (self.directory, self.deals, self.holds, used)]
        tables.append(pack_table(self.pads, PAIR))
        roster = pack_table(dict.fromkeys(self.members, b""), 0)
        roster += pack_subset(self.sharers, self.members) + pack_subset(self.survivors, self.members)
        fields = (*numbers, self.binding, *map(pack_chunk, (*keys, self.vector)), *tables)
        return pack_state(ProtocolId.SECAGG, self.session.pack(), roster, *fields)

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
            sharers=reader.subset(members),
            survivors=reader.subset(members),
            client=reader.number(),
            min_announced=reader.number(),
            phase=Phase(reader.number()),
            draws=reader.number(),
            binding=reader.take(KEY),
            root=read_optional_key(reader),
            identity=read_optional_key(reader),
            noise_seed=read_optional_key(reader),
            roster=read_optional_key(reader),
            order=read_optional_key(reader),
            challenge=read_optional_key(reader),
            vector=reader.chunk(packed_size(session.parameters.dim, session.parameters.bits)),
            directory=reader.table(KEY, CLIENT_LIMIT),
            deals=reader.table(KEY, CLIENT_LIMIT),
            holds=reader.table(KEY, CLIENT_LIMIT),
            used=tuple(reader.table(KEY, CLIENT_LIMIT).values()),
            pads=reader.table(PAIR, CLIENT_LIMIT),
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
    earlier: SecaggClientState | None = None,
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
        earlier: its state of the last round that it joined, which remembers the sessions it has used; None: the first.
        entropy: source of its secrets: the operating system's everywhere but in tests.
    """
    policy.check(session.parameters)
    used = () if earlier is None else (*earlier.used, earlier.session.context)
    if session.context in used:
        raise ProtocolError("This session was used before. Use another config for every attempt of a round.")
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
        used=used,
    )


def set_vector(state: SecaggClientState, vector: Vector) -> SecaggClientState:
    """The state with the client's contribution to the sum: uint32, each value below 2^bits."""
    p = state.session.parameters
    expect(vector.dtype == np.uint32 and vector.shape == (p.dim,), f"a uint32 vector of {p.dim} values")
    expect(int(vector.max()) >> p.bits == 0, f"values below 2^{p.bits}")
    expect(state.phase <= Phase.UPLOAD, "a vector before the upload")
    return replace(state, vector=pack_vector(vector, p.bits))
