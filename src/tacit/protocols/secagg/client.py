"""A client's side of secure aggregation: `answer(desk, request) -> (desk, reply)`, without I/O and without chance.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017), with the sparse
graph of Bell et al. (CCS 2020). Each vector gets a pad of its own and one for each neighbour, which the neighbour
takes away again. For each client either the seed of the first is opened (it delivered) or the key of the others (it was
lost).

A request that is not exactly what an honest server would send in this phase raises `ProtocolError`. The caller then
leaves the round. A reply may leave only after the new desk is kept: an old desk must not answer a second time.
"""

from collections.abc import Callable
from dataclasses import replace

from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import graph, messages, ring, shamir
from tacit.protocols.secagg.desk import Desk
from tacit.protocols.secagg.errors import ProtocolError
from tacit.protocols.secagg.messages import KEYS, SEALED, Kind, Phase, Roster, Way
from tacit.protocols.secagg.parameters import Level
from tacit.protocols.secagg.statements import agreed, announced, committed, own_pad, pair_pad
from tacit.wire.packing import Reader, pack_table

Step = Callable[[Desk, Reader], tuple[Desk, bytes]]


def answer(desk: Desk, request: bytes) -> tuple[Desk, bytes]:
    """One step: the desk to keep from now on, and the reply to send.

    Formal guarantees: with honest parameters, all requests of a semi-honest server together with the views of up to the
    corrupt fraction of clients reveal nothing beyond the sum of the other clients that delivered, of which there are at
    least `survivors` minus the corrupt (Bonawitz et al., Theorems 6.3 and 6.5; Bell et al., Theorem 3.9). At level
    `ACTIVE_SERVER` the same holds for a server that sends anything, if identities are known beforehand.

    Sees: the server, the roster, who delivered, the sum; a neighbour, one share of each secret.

    Raises:
        ProtocolError: the request is malformed, out of turn, for another round, or not safe to answer.
    """
    if desk.phase is Phase.CLOSED:
        raise ProtocolError("This round is closed: everything asked for was given.")
    frame = messages.unpack(request, messages.limit(desk.phase, Way.REQUEST, desk.session.parameters))
    expected = (desk.phase, Way.REQUEST, desk.session.round, desk.client, desk.tag)
    if (frame.phase, frame.way, frame.round, frame.client, frame.tag) != expected:
        raise ProtocolError(f"Expected a request to {desk.phase.name.lower()} in this round, got another message.")
    after, body = _STEPS[desk.phase](desk, Reader(frame.body))
    return after, messages.pack(desk.phase, Way.REPLY, desk.session.round, desk.client, after.tag, body)


def _announce(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    reader.done()
    keys = _public(desk)
    signature = crypto.sign(desk.identity, announced(desk.tag, desk.client, keys)) if _active(desk) else b""
    return replace(desk, phase=Phase.SHARE), keys + signature


def _share(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    roster = Roster.read(reader, desk.session.parameters)
    members, binding = _check_roster(desk, roster)
    threshold = desk.session.parameters.wiring(len(members)).threshold
    holders = sorted(roster.near)
    seed, (pad, _) = _seed(desk, binding), _secrets(desk)
    draw = _coefficients(desk, binding)
    shares = shamir.split([seed, pad], [members.index(j) + 1 for j in holders], threshold, draw)
    texts = {j: shamir.to_bytes(both) for j, both in zip(holders, shares, strict=True)}
    own = {desk.client: texts.pop(desk.client)}
    channel = crypto.load(_secrets(desk)[1])
    keys = {j: roster.near[j][:KEY] + crypto.agree(channel, roster.near[j][KEY:KEYS]) for j in texts}
    known = {j: desk.directory[j] for j in texts} if _active(desk) else {}
    after = replace(desk, phase=Phase.UPLOAD, tag=binding, members=members, keys=keys, shares=own, directory=known)
    sealed = {j: crypto.seal(_channel(after, j, sends=True), text, binding) for j, text in texts.items()}
    return after, committed(binding, desk.client, seed) + pack_table(sealed, SEALED)


def _upload(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    sealed = reader.table(SEALED, len(desk.members))
    reader.done()
    if not desk.vector:
        raise ProtocolError("This client holds no vector yet: it cannot upload.")
    if not sealed.keys() <= desk.keys.keys():
        raise ProtocolError("Shares came from clients that are no neighbours.")
    _check_enough(desk, len(sealed) + 1)
    shares = {j: crypto.unseal(_channel(desk, j, sends=False), text, desk.tag) for j, text in sealed.items()}
    body = padded(desk, sorted(sealed))
    after = replace(desk, root=b"", vector=b"", shares={**desk.shares, **shares})
    after = replace(after, keys=dict.fromkeys(desk.keys, bytes(KEYS)))  # whose they were is still needed, not they
    return replace(after, phase=Phase.AGREE if _active(desk) else Phase.OPEN), body


def _agree(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    survivors = _survivors(desk, reader)
    reader.done()
    signature = crypto.sign(desk.identity, agreed(desk.tag, desk.members, survivors))
    return replace(desk, phase=Phase.OPEN, survivors=survivors, identity=b""), signature


def _open(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    survivors = _survivors(desk, reader)
    if _active(desk):
        _check_agreement(desk, survivors, reader.table(crypto.SIGNATURE, len(desk.members)))
    wanted = reader.table(1, len(desk.members))
    reader.done()
    opened = {j: kind + _part(desk, j, kind[0], survivors) for j, kind in wanted.items()}
    closed = Desk(
        session=desk.session, client=desk.client, floor=desk.floor, phase=Phase.CLOSED, tag=desk.tag, root=b""
    )
    return closed, pack_table(opened, messages.OPENED)


_STEPS: dict[Phase, Step] = {
    Phase.ANNOUNCE: _announce,
    Phase.SHARE: _share,
    Phase.UPLOAD: _upload,
    Phase.AGREE: _agree,
    Phase.OPEN: _open,
}


def padded(desk: Desk, neighbours: list[int]) -> bytes:
    """The vector with its own pad and those of its neighbours (Bonawitz et al., Figure 4, round 2)."""
    p, secret = desk.session.parameters, crypto.load(_secrets(desk)[0])
    total = ring.unpack(desk.vector, p.dim, p.bits)
    pads = {j: pair_pad(secret, desk.keys[j][:KEY], desk.tag, desk.client, j) for j in neighbours}
    plus = [own_pad(_seed(desk, desk.tag), desk.tag, desk.client), *(pads[j] for j in pads if j < desk.client)]
    ring.add_pads(total, plus, [pads[j] for j in pads if j > desk.client])
    return ring.pack(ring.reduce(total, p.bits), p.bits)


# Secrets, all from the root


def _secrets(desk: Desk) -> tuple[bytes, bytes]:
    """The private halves of the pad key and the channel key; fresh in every session."""
    context = desk.session.context
    return crypto.derive(desk.root, "pad key", context), crypto.derive(desk.root, "channel key", context)


def _seed(desk: Desk, binding: bytes) -> bytes:
    return crypto.derive(desk.root, "seed", binding)


def _coefficients(desk: Desk, binding: bytes) -> Callable[[int], bytes]:
    generator = crypto.stream(crypto.derive(desk.root, "coefficients", binding))
    return lambda count: generator.update(bytes(count))


def _public(desk: Desk) -> bytes:
    return b"".join(crypto.public(crypto.load(secret)) for secret in _secrets(desk))


def _channel(desk: Desk, neighbour: int, *, sends: bool) -> bytes:
    """The key under which one share goes one way between two neighbours."""
    ways = (desk.client, neighbour) if sends else (neighbour, desk.client)
    return crypto.derive(desk.keys[neighbour][KEY:], "share", desk.tag, *ways)


# What a client insists on


def _active(desk: Desk) -> bool:
    return desk.session.parameters.level is Level.ACTIVE_SERVER


def _check_roster(desk: Desk, roster: Roster) -> tuple[tuple[int, ...], bytes]:
    """The members and the roster's digest, if it is one that this client may share its secrets with."""
    members = tuple(sorted({*roster.near, *roster.far}))
    if not desk.floor <= len(members) <= desk.session.parameters.cohort:
        raise ProtocolError(f"Expected {desk.floor} to {desk.session.parameters.cohort} clients, got {len(members)}.")
    near = {j: entry[:KEYS] for j, entry in roster.near.items()}
    if near.get(desk.client) != _public(desk):
        raise ProtocolError("The roster does not hold this client's own keys.")
    halves = [half for keys in near.values() for half in (keys[:KEY], keys[KEY:])]
    if len(set(halves)) != len(halves):
        raise ProtocolError("Two clients announced the same key.")
    binding = graph.roster_digest(desk.tag, {**roster.far, **{j: graph.leaf(j, keys) for j, keys in near.items()}})
    degree = desk.session.parameters.wiring(len(members)).degree
    if graph.neighbours(binding, members, degree, desk.client) != near.keys() - {desk.client}:
        raise ProtocolError("The roster names other neighbours than its digest does.")
    if _active(desk):
        _check_signatures(desk, roster)
    return members, binding


def _check_signatures(desk: Desk, roster: Roster) -> None:
    if not {*roster.near, *roster.far} <= desk.directory.keys():
        raise ProtocolError("The roster names clients that are not known.")
    for j in roster.near.keys() - {desk.client}:  # its own keys were compared
        keys, signature = roster.near[j][:KEYS], roster.near[j][KEYS:]
        crypto.verify(desk.directory[j], signature, announced(desk.tag, j, keys))


def _check_enough(desk: Desk, holders: int) -> None:
    threshold = desk.session.parameters.wiring(len(desk.members)).threshold
    if holders < threshold:
        raise ProtocolError(f"Expected {threshold} holders of this client's shares, got {holders}.")


def _survivors(desk: Desk, reader: Reader) -> frozenset[int]:
    """Who delivered, if this client is one of them and they are enough."""
    survivors = reader.subset(desk.members)
    if desk.client not in survivors:
        raise ProtocolError("This client delivered, but is declared lost.")
    if len(survivors) < desk.session.parameters.survivors:
        raise ProtocolError(
            f"Expected {desk.session.parameters.survivors} clients that delivered, got {len(survivors)}."
        )
    if not survivors & desk.keys.keys() <= desk.shares.keys():
        raise ProtocolError("A neighbour is said to have delivered, but shared nothing.")
    _check_enough(desk, len(survivors & desk.shares.keys()))
    return survivors


def _check_agreement(desk: Desk, survivors: frozenset[int], signatures: dict[int, bytes]) -> None:
    """Enough neighbours must have signed the very set that this client signed."""
    if survivors != desk.survivors:
        raise ProtocolError("Other clients delivered than this client has signed.")
    if not signatures.keys() <= (survivors & desk.directory.keys()):
        raise ProtocolError("Signatures came from clients that are lost or no neighbours.")
    statement = agreed(desk.tag, desk.members, survivors)
    for j, signature in signatures.items():
        crypto.verify(desk.directory[j], signature, statement)
    _check_enough(desk, len(signatures) + 1)


def _part(desk: Desk, client: int, kind: int, survivors: frozenset[int]) -> bytes:
    """The one share of a client that may be opened: of its seed if it delivered, of its pad key if it was lost."""
    if client not in desk.shares:
        raise ProtocolError("Asked for a share that this client does not hold.")
    if kind != (Kind.SEED if client in survivors else Kind.KEY):
        raise ProtocolError("Asked for the share that must stay closed.")
    share = desk.shares[client]
    return share[: shamir.SHARE] if kind == Kind.SEED else share[shamir.SHARE :]
