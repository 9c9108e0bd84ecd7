"""A client's side: `answer(desk, request, now) -> (desk, reply)`, without I/O and without chance.

A client asks with a nonce of its own, accepts an enclave only by its own policy, and seals what it holds to the key
that the accepted quote vouches for. A request that is not safe to answer raises `ProtocolError`; the caller then leaves
the round. A reply may leave only after the new desk is kept.
"""

import json
from dataclasses import asdict, dataclass, replace

from tacit.core.schema import call
from tacit.errors import ProtocolError, UserError, expect
from tacit.protocols import crypto
from tacit.protocols.attestation import GENESIS, Evidence, Policy, verify
from tacit.protocols.attestation.chain import follow
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.parcel import seal
from tacit.protocols.enclave.session import RUN, Session
from tacit.wire.packing import LENGTH, WORD, Reader, number, pack_chunk

_MAGIC = b"TEDK\x01"
MOST_REQUEST = 1 << 24  # bytes
DELIVER = frames.HEADER + WORD + KEY  # bytes of the request that comes down with every view
_MOST_HELD = 1 << 32


@dataclass(frozen=True, eq=False, repr=False)
class Held:
    """What a client will upload: for which round and model, how many numbers, and the plaintext."""

    round: int
    model: bytes
    dim: int
    weighed: bool
    plain: bytes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Desk:
    """All that a client keeps between two messages. It holds secrets: keep its bytes where the client's data are kept.

    Attributes:
        run: the run it takes part in.
        client: its own number.
        config: the digest of the configuration that it agreed to.
        policy: which enclaves it accepts.
        identity: its Ed25519 secret.
        root: where its nonces and fresh keys come from.
        head: the last ledger head that it saw.
        asked: how many nonces it has drawn.
        nonce: the one that is not answered yet; empty if there is none.
        key: of the enclave that it has accepted; empty if it has not.
        last: the last round that it uploaded for; -1: none.
        held: what it will upload next.
    """

    run: bytes
    client: int
    config: bytes
    policy: Policy
    identity: bytes
    root: bytes
    head: bytes = GENESIS
    asked: int = 0
    nonce: bytes = b""
    key: bytes = b""
    last: int = -1
    held: Held | None = None

    def __repr__(self) -> str:
        return f"Desk(client={self.client}, accepted={bool(self.key)}, last={self.last})"  # no secrets in logs

    def to_bytes(self) -> bytes:
        """All of it."""
        policy = json.dumps(asdict(self.policy)).encode()
        fixed = (self.run, number(self.client), self.config, self.identity, self.root, self.head)
        numbers = (number(self.asked), number(self.last + 1))
        chunks = (policy, self.nonce, self.key, _pack_held(self.held))
        return b"".join((_MAGIC, *fixed, *numbers, *map(pack_chunk, chunks)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Desk":
        """What was kept; anything else is a `ProtocolError`."""
        reader = Reader(data)
        if reader.take(len(_MAGIC)) != _MAGIC:
            raise ProtocolError("Expected a desk, got other bytes.")
        run, client = reader.take(RUN), reader.number()
        config, identity, root, head = (reader.take(KEY) for _ in range(4))
        asked, last = reader.number(), reader.number() - 1
        policy, nonce, key = reader.chunk(1 << 20), reader.chunk(KEY), reader.chunk(KEY)
        held = _read_held(reader.chunk(_MOST_HELD))
        reader.done()
        try:
            allowed = call(Policy, "desk", json.loads(policy))
        except (ValueError, UserError) as error:
            raise ProtocolError("Expected a desk, got other bytes.") from error
        return cls(
            run=run,
            client=client,
            config=config,
            policy=allowed,
            identity=identity,
            root=root,
            head=head,
            asked=asked,
            nonce=nonce,
            key=key,
            last=last,
            held=held,
        )


def join(
    run: bytes,
    client: int,
    config: bytes,
    policy: Policy,
    identity: bytes,
    *,
    head: bytes = GENESIS,
    entropy: Entropy = crypto.system_entropy,
) -> Desk:
    """A client's desk for a run.

    Args:
        run: the run's name, 16 bytes.
        client: its number.
        config: the digest of the configuration that it agreed to.
        policy: which enclaves it accepts.
        identity: its Ed25519 secret; the public half stands in the configuration's directory.
        head: the last ledger head that it saw, if it took part in this run before.
        entropy: where its secrets come from: the operating system's source everywhere but in tests.
    """
    expect(len(run) == RUN, f"a run of {RUN} bytes, got {len(run)}")
    expect(len(config) == len(identity) == len(head) == KEY, f"configuration, identity and head of {KEY} bytes")
    return Desk(run=run, client=client, config=config, policy=policy, identity=identity, head=head, root=entropy(KEY))


def hold(desk: Desk, held: Held) -> Desk:
    """The desk with what it will upload next; once per round."""
    expect(held.round > desk.last, f"a round after {desk.last}, got {held.round}", "A round is uploaded for once.")
    return replace(desk, held=held)


def answer(desk: Desk, request: bytes, now: int) -> tuple[Desk, bytes]:
    """One step: the desk to keep from now on, and the reply to send.

    Args:
        desk: what was kept.
        request: what the host sent.
        now: the time, in seconds since 1970, for the age of quotes.

    Formal guarantees: what is held leaves only sealed to a key that a quote vouches for, which the desk's policy
    accepted, in answer to a nonce of this desk, with the agreed configuration and a ledger head that follows from the
    last one seen. As far as the enclave is what its quote says, only the aggregate of at least as many contributors as
    the configuration says leaves it.

    Sees: the host, ciphertext, its length and time, who takes part; the enclave, the message.

    Raises:
        ProtocolError: the request is malformed, out of turn, or not safe to answer.
    """
    frame = frames.unpack(request, MOST_REQUEST)
    reader = Reader(frame.body)
    match frame.verb:
        case Verb.CHALLENGE:
            return _challenge(desk, reader)
        case Verb.PROVE:
            return _prove(desk, reader, now)
        case Verb.DELIVER:
            return _deliver(desk, reader)
    raise ProtocolError(f"Expected a request to a client, got {frame.verb.name.lower()}.")


def _challenge(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    reader.done()
    nonce = crypto.derive(desk.root, "nonce", number(desk.asked), desk.client)
    return replace(desk, asked=desk.asked + 1, nonce=nonce), frames.pack(Verb.NONCE, nonce + desk.head)


def _prove(desk: Desk, reader: Reader, now: int) -> tuple[Desk, bytes]:
    evidence = Evidence.read(reader)
    reader.done()
    if not desk.nonce:
        raise ProtocolError("Evidence came, but this client has no question open.")
    verdict = verify(evidence, desk.nonce, desk.policy, now)
    if not verdict.accepted:
        raise ProtocolError(f"The enclave is refused: {' '.join(verdict.against)}")
    if evidence.config != desk.config:
        raise ProtocolError("The enclave is refused: its configuration is not the one that was agreed to.")
    if follow(desk.head, evidence.links) != evidence.head:
        raise ProtocolError("The enclave is refused: its ledger does not follow from the head seen last; rolled back?")
    return replace(desk, key=evidence.key, head=evidence.head, nonce=b""), frames.pack(Verb.ADMITTED)


def _deliver(desk: Desk, reader: Reader) -> tuple[Desk, bytes]:
    index, head = reader.number(), reader.take(KEY)
    reader.done()
    if not desk.key:
        raise ProtocolError("This client has accepted no enclave yet: it does not upload.")
    if desk.held is None or desk.held.round != index:
        raise ProtocolError(f"This client holds nothing for round {index}.")
    session = Session(
        run=desk.run,
        round=index,
        model=desk.held.model,
        dim=desk.held.dim,
        weighed=desk.held.weighed,
        config=desk.config,
        head=head,
        key=desk.key,
    )
    upload = seal(session, desk.client, desk.identity, desk.root, desk.held.plain)
    return replace(desk, head=head, last=index, held=None), frames.pack(Verb.UPLOAD, upload)


def _pack_held(held: Held | None) -> bytes:
    if held is None:
        return b""
    return number(held.round) + held.model + number(held.dim, LENGTH) + number(held.weighed, 1) + held.plain


def _read_held(data: bytes) -> Held | None:
    if not data:
        return None
    reader = Reader(data)
    index, model, dim, weighed = reader.number(), reader.take(KEY), reader.number(LENGTH), reader.number(1)
    return Held(index, model, dim, bool(weighed), bytes(reader.rest()))
