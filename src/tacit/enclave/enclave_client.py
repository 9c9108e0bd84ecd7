"""A client of an enclave: `answer(state, request) -> (state, reply)`, deterministic and without I/O.

A client challenges the enclave with its own nonce, accepts it only by its own policy, and encrypts its update to the
key that the accepted quote attests. It remembers the head of the enclave's release log, with the opening of its own
last round, and moves only to heads that follow from it; it counts the rounds that it took part in, and stops at the
limit of the configuration. Its acceptance of an enclave expires. A request that is not safe to answer raises
`ProtocolError`; the caller then leaves the round. Store the new state before the reply is sent.
"""

import json
from dataclasses import asdict, dataclass, replace

from tacit.core.serialization import Source, read_json
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.evidence import Evidence, extend_head
from tacit.enclave.attestation.verification import AttestationPolicy, verify_evidence
from tacit.enclave.configuration import EnclaveSession
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.uploads import seal
from tacit.errors import ProtocolError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import HEADER, RUN, ProtocolId, pack_state, read_optional_key, read_state
from tacit.wire.chain import GENESIS
from tacit.wire.packing import LENGTH, WORD, Reader, pack_chunk, pack_number

MAX_REQUEST = 1 << 24  # bytes
UPLOAD_REQUEST = HEADER + WORD + KEY  # bytes of the request that is sent with every broadcast, without log entries
CLOCK = 300  # seconds by which a clock may be set back
_MAX_POLICY, _MAX_PENDING = 1 << 20, 1 << 32  # bytes


@dataclass(frozen=True, eq=False, repr=False)
class PendingUpload:
    """A client's next upload.

    Attributes:
        round: index of the round.
        model: SHA-256 of the broadcast.
        dim: length of the update.
        weighted: whether the number of samples is sent with it.
        plaintext: encoded by `UploadFormat`.
    """

    round: int
    model: bytes
    dim: int
    weighted: bool
    plaintext: bytes

    def pack(self) -> bytes:
        head = pack_number(self.round) + self.model + pack_number(self.dim, LENGTH) + pack_number(self.weighted, 1)
        return head + self.plaintext

    @classmethod
    def read(cls, data: bytes) -> "PendingUpload":
        reader = Reader(data)
        index, model, dim, weighted = reader.number(), reader.take(KEY), reader.number(LENGTH), reader.number(1)
        return cls(index, model, dim, bool(weighted), bytes(reader.rest()))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EnclaveClientState:
    """What a client keeps between two messages. It contains secrets: store its bytes as securely as the client's data.

    Attributes:
        run: the run it takes part in.
        client: its number.
        config: the digest of the configuration that it agreed to.
        policy: which enclaves it accepts.
        identity: its Ed25519 secret.
        root: from which its nonces and fresh keys derive.
        limit: maximum number of rounds it takes part in, by that configuration.
        participations: number of rounds it took part in.
        head: the last release-log head that it saw.
        nonces: number of nonces it has drawn.
        nonce: the one without an answer yet; empty if there is none.
        key: of the accepted enclave; empty if there is none.
        accepted: when it was accepted, in seconds since 1970.
        last_round: the last round that it uploaded for; -1: none.
        pending: its next upload.
        now: the time, in seconds since 1970. It is not stored: a restored state verifies no evidence before it is set.
    """

    run: bytes
    client: int
    config: bytes
    policy: AttestationPolicy
    identity: bytes
    root: bytes
    limit: int
    participations: int = 0
    head: bytes = GENESIS
    nonces: int = 0
    nonce: bytes = b""
    key: bytes = b""
    accepted: int = 0
    last_round: int = -1
    pending: PendingUpload | None = None
    now: int | None = None

    def __repr__(self) -> str:  # no secrets in logs
        return f"EnclaveClientState(client={self.client}, accepted={bool(self.key)}, last_round={self.last_round})"

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        policy = json.dumps(asdict(self.policy)).encode()
        fixed = (self.run, pack_number(self.client), self.config, self.identity, self.root, self.head)
        counts = (self.limit, self.participations, self.nonces, self.last_round + 1)
        numbers = (*map(pack_number, counts), pack_number(self.accepted, LENGTH))
        chunks = (policy, self.nonce, self.key, b"" if self.pending is None else self.pending.pack())
        return pack_state(ProtocolId.ENCLAVE, *fixed, *numbers, *map(pack_chunk, chunks))

    @classmethod
    def from_bytes(cls, data: bytes) -> "EnclaveClientState":
        """The inverse of `to_bytes`; raises `ProtocolError` for other bytes."""
        return read_state(ProtocolId.ENCLAVE, data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> "EnclaveClientState":
        return cls(
            run=reader.take(RUN),
            client=reader.number(),
            config=reader.take(KEY),
            identity=reader.take(KEY),
            root=reader.take(KEY),
            head=reader.take(KEY),
            limit=reader.number(),
            participations=reader.number(),
            nonces=reader.number(),
            last_round=reader.number() - 1,
            accepted=reader.number(LENGTH),
            policy=read_json(reader.chunk(_MAX_POLICY), AttestationPolicy, Source(label="the policy")),
            nonce=read_optional_key(reader),
            key=read_optional_key(reader),
            pending=PendingUpload.read(data) if (data := reader.chunk(_MAX_PENDING)) else None,
        )


def join_run(
    run: bytes,
    client: int,
    config: bytes,
    policy: AttestationPolicy,
    identity: bytes,
    *,
    limit: int,
    head: bytes = GENESIS,
    entropy: Entropy = crypto.system_entropy,
) -> EnclaveClientState:
    """The state of a client that takes part in a run, with these attributes of `EnclaveClientState`.

    Its public identity is in the configuration's directory; `limit` is `Configuration.rounds`, or fewer; `head` is
    given if it took part in this run before. `entropy` is the operating system's everywhere but in tests.
    """
    expect(len(run) == RUN, f"a run of {RUN} bytes, got {len(run)}")
    expect(len(config) == len(identity) == len(head) == KEY, f"configuration, identity and head of {KEY} bytes")
    expect(0 <= limit < 1 << 32, f"limit={limit} in [0, 2^32)")
    return EnclaveClientState(
        run=run,
        client=client,
        config=config,
        policy=policy,
        identity=identity,
        limit=limit,
        head=head,
        root=entropy(KEY),
    )


def set_upload(state: EnclaveClientState, pending: PendingUpload) -> EnclaveClientState:
    """The state with its next upload; once per round."""
    expect(
        pending.round > state.last_round,
        f"a round after {state.last_round}, got {pending.round}",
        "A client uploads once per round.",
    )
    return replace(state, pending=pending)


def set_time(state: EnclaveClientState, now: int) -> EnclaveClientState:
    """The state with the time by the client's own clock, against which certificates and their age are checked."""
    return replace(state, now=now)


def answer(state: EnclaveClientState, request: bytes) -> tuple[EnclaveClientState, bytes]:
    """One step: the state to store, and the reply to send.

    Formal guarantees: the update is sent only encrypted to a key attested by a quote that the client's policy accepted,
    in answer to the client's own nonce, with the agreed configuration and a release-log head that follows from the last
    one seen; at most once per round, and in at most `limit` rounds. If the enclave is what its quote attests, it
    releases only aggregates, of as many contributors and with as much noise as the configuration requires.

    Sees: the host, ciphertext, its length and time, who takes part; the enclave, the update.

    Raises:
        ProtocolError: the request is malformed, out of turn, or not safe to answer.
    """
    frame = enclave_messages.unpack(request, MAX_REQUEST)
    steps = {
        MessageType.CHALLENGE: _challenge,
        MessageType.PRESENT_EVIDENCE: _check_evidence,
        MessageType.REQUEST_UPLOAD: _upload,
    }
    if frame.kind not in steps:
        raise ProtocolError(f"Expected a request to a client, got a message of type {frame.kind.label}.")
    reader = Reader(frame.body)
    after, reply = steps[frame.kind](state, reader)
    reader.expect_end()  # nothing of a longer message was stored or sent
    return after, reply


def _challenge(state: EnclaveClientState, _: Reader) -> tuple[EnclaveClientState, bytes]:
    nonce = crypto.derive(state.root, "nonce", pack_number(state.nonces), state.client)
    reply = enclave_messages.pack(MessageType.NONCE, nonce + state.head)
    return replace(state, nonces=state.nonces + 1, nonce=nonce), reply


def _check_evidence(state: EnclaveClientState, reader: Reader) -> tuple[EnclaveClientState, bytes]:
    evidence = Evidence.read(reader)
    if not state.nonce:
        raise ProtocolError("Received evidence, but this client has no open challenge.")
    if state.now is None:
        raise ProtocolError("Received evidence, but this client does not know the time: it cannot verify a quote.")
    result = verify_evidence(evidence, state.nonce, state.policy, state.now)
    if not result.accepted:
        raise ProtocolError(f"The enclave is rejected: {' '.join(result.violations)}")
    if evidence.config != state.config:
        raise ProtocolError("The enclave is rejected: its configuration is not the one that this client agreed to.")
    if extend_head(state.head, evidence.log_entries) != evidence.head:
        raise ProtocolError(
            "The enclave is rejected: its release log does not continue from the last head seen; it may have been "
            "rolled back."
        )
    after = replace(state, key=evidence.key, head=evidence.head, nonce=b"", accepted=state.now)
    return after, enclave_messages.pack(MessageType.ENCLAVE_ACCEPTED)


def _check_acceptance(state: EnclaveClientState) -> None:
    """Raise unless the enclave was verified recently: vendors revoke, and hosts are broken into."""
    hours = state.policy.acceptance_hours
    if state.now is None:
        raise ProtocolError("This client does not know the time: its acceptance of the enclave may have expired.")
    if not state.accepted - CLOCK <= state.now < state.accepted + hours * 3600:
        raise ProtocolError(
            f"This client accepted the enclave more than {hours:g} hours ago, or its clock was set back: it verifies "
            "the enclave anew before it uploads."
        )


def _upload(state: EnclaveClientState, reader: Reader) -> tuple[EnclaveClientState, bytes]:
    index, head, entries = reader.number(), reader.take(KEY), enclave_messages.read_log(reader)
    if not state.key:
        raise ProtocolError("This client has accepted no enclave yet: it does not upload.")
    _check_acceptance(state)
    if state.pending is None or state.pending.round != index:
        raise ProtocolError(f"This client has no upload for round {index}.")
    if state.participations >= state.limit:
        raise ProtocolError(f"This client took part in {state.participations} rounds, as many as it agreed to.")
    if extend_head(state.head, entries) != head:
        raise ProtocolError(
            "The round is refused: its release log does not continue from the last head seen; the enclave may have "
            "been rolled back."
        )
    session = EnclaveSession(
        run=state.run,
        round=index,
        model=state.pending.model,
        dim=state.pending.dim,
        weighted=state.pending.weighted,
        config=state.config,
        head=head,
        key=state.key,
    )
    upload = seal(session, state.client, state.identity, state.root, state.pending.plaintext)
    after = replace(state, head=head, last_round=index, participations=state.participations + 1, pending=None)
    return after, enclave_messages.pack(MessageType.UPLOAD, upload)
