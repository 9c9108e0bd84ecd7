"""All that a client keeps between two messages, as bytes and back.

Everything secret comes from one root of 32 bytes, drawn once. From then on a client's answers are a pure function of
its desk and the request: a desk that was restored after a crash gives the same answer again, never a second version of
it (which would use keys twice). What is no longer needed is left out of the next desk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.errors import UserError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.secagg import ring
from tacit.protocols.secagg.errors import ProtocolError
from tacit.protocols.secagg.messages import KEYS, SHARES, Phase
from tacit.protocols.secagg.parameters import Level, Policy
from tacit.protocols.secagg.session import Session
from tacit.wire.packing import MOST, Reader, Table, number, pack_subset, pack_table

_MAGIC = b"TDSK\x01"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Desk:
    """A client's state in one round. It holds secrets: keep its bytes where the client's data are kept.

    Attributes:
        session: which round it is, as this client sees it.
        client: its own number.
        floor: how many clients must announce, by its policy.
        phase: what it will answer next, and nothing else.
        tag: what the next request must carry: the context, then the roster's digest.
        root: where its secrets come from.
        identity: its Ed25519 secret; empty where identities are not used.
        directory: the identities known beforehand, by client.
        vector: what it will add to the sum, packed; empty until it is known.
        members: the roster, once it is known.
        keys: each neighbour's public pad key, and the secret of the channel with it.
        shares: the shares it holds, its own included.
        survivors: who delivered, once this client has signed it.
    """

    session: Session
    client: int
    floor: int
    phase: Phase = Phase.ANNOUNCE
    tag: bytes
    root: bytes
    identity: bytes = b""
    directory: Table = field(default_factory=dict)
    vector: bytes = b""
    members: tuple[int, ...] = ()
    keys: Table = field(default_factory=dict)
    shares: Table = field(default_factory=dict)
    survivors: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"Desk(client={self.client}, round={self.session.round}, phase={self.phase.name})"  # no secrets in logs

    def to_bytes(self) -> bytes:
        """All of it."""
        numbers = (self.client, self.floor, int(self.phase), len(self.root), len(self.identity), len(self.vector))
        fixed = self.session.pack() + b"".join(map(number, numbers)) + self.tag + self.root + self.identity
        tables = (pack_table(self.directory, KEY), pack_table(self.keys, KEYS), pack_table(self.shares, SHARES))
        roster = pack_table(dict.fromkeys(self.members, b""), 0) + pack_subset(self.survivors, self.members)
        return b"".join((_MAGIC, fixed, self.vector, *tables, roster))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Desk":
        """What was kept."""
        reader = Reader(data)
        if reader.take(len(_MAGIC)) != _MAGIC:
            raise ProtocolError("Expected a desk, got other bytes.")
        try:
            desk = _read(reader)
        except (ValueError, ZeroDivisionError) as error:  # numbers outside their ranges
            raise ProtocolError("Expected a desk, got other bytes.") from error
        reader.done()
        return desk


def _read(reader: Reader) -> Desk:
    session = Session.read(reader)
    client, floor, phase, roots, identities, vectors = (reader.number() for _ in range(6))
    if {roots, identities} - {0, KEY}:
        raise ProtocolError("Expected a desk with secrets of 32 bytes.")
    tag, root, identity, vector = (reader.take(length) for length in (KEY, roots, identities, vectors))
    directory, keys, shares = (reader.table(width, MOST) for width in (KEY, KEYS, SHARES))
    members = tuple(reader.table(0, MOST))
    survivors = reader.subset(members)
    return Desk(
        session=session,
        client=client,
        floor=floor,
        phase=Phase(phase),
        tag=tag,
        root=root,
        identity=identity,
        directory=directory,
        vector=vector,
        members=members,
        keys=keys,
        shares=shares,
        survivors=survivors,
    )


def new_identity(entropy: Entropy = crypto.system_entropy) -> bytes:
    """The secret of a fresh Ed25519 identity, which a client makes once and keeps."""
    return entropy(KEY)


def invite(
    session: Session,
    client: int,
    policy: Policy,
    *,
    identity: bytes = b"",
    directory: Mapping[int, bytes] | None = None,
    entropy: Entropy = crypto.system_entropy,
) -> Desk:
    """A client's desk for a round that it was invited to.

    Args:
        session: built from what this client was really given.
        client: its number.
        policy: what it insists on; parameters below it raise `ProtocolError`.
        identity: its Ed25519 secret; needed against an active server.
        directory: Ed25519 public keys of all who may take part, known beforehand; needed against an active server.
        entropy: where its secrets come from: the operating system's source everywhere but in tests.
    """
    policy.check(session.parameters)
    expect(0 <= client < MOST, f"0 <= client={client} < 2^32")
    known = dict(directory or {})
    if session.parameters.level is Level.ACTIVE_SERVER and (
        not identity or known.get(client) != crypto.identity(identity)
    ):
        raise UserError("Expected an identity that stands in the directory: against an active server keys are signed.")
    floor = max(policy.cohort, session.parameters.survivors)
    root = entropy(KEY)
    return Desk(
        session=session,
        client=client,
        floor=floor,
        tag=session.context,
        root=root,
        identity=identity,
        directory=known,
    )


def hold(desk: Desk, vector: ring.Vector) -> Desk:
    """The desk with the vector that it will add: uint32, each value below 2^bits."""
    p = desk.session.parameters
    expect(vector.dtype == np.uint32 and vector.shape == (p.dim,), f"a uint32 vector of {p.dim} values")
    expect(int(vector.max()) >> p.bits == 0, f"values below 2^{p.bits}")
    expect(desk.phase <= Phase.UPLOAD, "a vector before it is sent")
    return replace(desk, vector=ring.pack(vector, p.bits))
