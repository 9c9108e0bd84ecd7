"""The server outside the enclave: a generator that yields requests and is sent replies; it does no I/O.

It forwards messages between clients and enclave, and can decrypt none of them. Its transcript contains all it learns:
who took part, the lengths of ciphertexts, how many uploads were rejected and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tacit.enclave import enclave_messages
from tacit.enclave.enclave_messages import MessageType, RoundRequest, RoundResult
from tacit.errors import EnclaveRefusedError, ProtocolError
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import Exchange, Outcome, ProtocolFrame, ReplyStatus, ServerSide, Transcript
from tacit.wire.packing import Reader, pack_number

_NOBODY: Mapping[int, bytes] = MappingProxyType({})
ENCLAVE = -1  # requests to the enclave; clients have numbers from 0
Heads = Mapping[int, bytes]  # by client that has accepted the enclave: the last release-log head that it saw


@dataclass(frozen=True, eq=False)
class EnclaveOutcome(Outcome[RoundResult, MessageType]):
    """The end of a round, with the clients that have accepted the enclave.

    Attributes:
        heads: of these clients.
    """

    heads: Heads = field(default_factory=dict)


def converse(request: RoundRequest, heads: Heads = _NOBODY) -> ServerSide[EnclaveOutcome]:
    """One round: the enclave draws the cohort; attestation for those that need it, then uploads, then the aggregate.

    Args:
        request: the round.
        heads: the clients that have already accepted the attestation of this enclave, and the heads they know.

    Raises:
        EnclaveRefusedError: the enclave rejects a request.
        ProtocolError: the enclave's reply is malformed.
    """
    return _Host(request).run(heads)


@dataclass(frozen=True, eq=False)
class _Host:
    """One method per step."""

    request: RoundRequest
    transcript: Transcript[MessageType] = field(default_factory=Transcript)

    def run(self, known: Heads) -> ServerSide[EnclaveOutcome]:
        opened = yield from self._ask_enclave(MessageType.OPEN_ROUND, self.request.pack(), MessageType.ROUND_OPENED)
        head, cohort = enclave_messages.read_opened(opened)
        accepted = yield from self._attest(cohort, known)
        heads = {**known, **dict.fromkeys(accepted, head)}
        answered = yield from self._collect({client: heads[client] for client in cohort if client in heads}, head)
        closed = yield from self._ask_enclave(
            MessageType.CLOSE_ROUND, pack_number(self.request.round), MessageType.RELEASE
        )
        result = RoundResult.read(closed, self.request.dim)
        self.transcript.rejected.update(result.rejected)
        heads |= dict.fromkeys(answered, head)
        lost = frozenset(cohort) - answered - accepted  # whether they saw this head is unknown: they attest again
        heads = {client: heads[client] for client in heads if client not in lost}
        return EnclaveOutcome(result, tuple(sorted(heads)), self.transcript, heads)

    def _attest(self, cohort: tuple[int, ...], known: Heads) -> ServerSide[frozenset[int]]:
        """Every client that needs it challenges the enclave with its own nonce, and decides whether to accept it.

        A client whose head the enclave never had is omitted: it, or the enclave, lost its memory. If all are omitted,
        the enclave did.
        """
        challenge = dict.fromkeys((client for client in cohort if client not in known), b"")
        nonces = yield from self._ask_clients(MessageType.CHALLENGE, challenge, MessageType.NONCE, 2 * KEY)
        evidence: dict[int, bytes] = {}
        refusal: EnclaveRefusedError | None = None
        for client, nonce in nonces.items():
            try:
                reply = yield from self._ask_enclave(MessageType.ATTEST, nonce, MessageType.EVIDENCE)
            except EnclaveRefusedError as error:
                refusal = error
                continue
            evidence[client] = bytes(reply.rest())
        if refusal is not None and not evidence and not known:
            raise refusal
        self.transcript.unresponsive.update(nonces.keys() - evidence.keys())
        accepted = yield from self._ask_clients(MessageType.PRESENT_EVIDENCE, evidence, MessageType.ENCLAVE_ACCEPTED, 0)
        return frozenset(accepted)

    def _collect(self, heads: Heads, head: bytes) -> ServerSide[frozenset[int]]:
        """Forward every upload to the enclave, which alone decides whether to accept it; returns who was accepted."""
        if not heads:
            return frozenset()
        proofs: dict[bytes, bytes] = {}
        for old in set(heads.values()):
            reply = yield from self._ask_enclave(MessageType.READ_LOG, old, MessageType.LOG_ENTRIES)
            proofs[old] = pack_number(self.request.round) + head + bytes(reply.rest())
        requests = {
            client: enclave_messages.pack(MessageType.REQUEST_UPLOAD, proofs[old]) for client, old in heads.items()
        }
        self.transcript.count_requests(MessageType.REQUEST_UPLOAD, requests)
        self.transcript.unresponsive.update(requests)
        answered = set[int]()
        for sender, data in (yield requests):
            try:
                upload = enclave_messages.read_reply(data, MessageType.UPLOAD).rest()
            except ProtocolError:
                self.transcript.rejected[ReplyStatus.MALFORMED] += 1
                continue
            self.transcript.up[MessageType.UPLOAD][sender] += len(data)
            body = pack_number(sender) + bytes(upload)
            receipt = yield from self._ask_enclave(MessageType.FORWARD_UPLOAD, body, MessageType.RECEIPT)
            if receipt.number(1) == ReplyStatus.ACCEPTED:
                self.transcript.unresponsive.discard(sender)
                answered.add(sender)
        return frozenset(answered)

    def _ask_enclave(self, kind: MessageType, body: bytes, expected: MessageType) -> ServerSide[Reader]:
        ((_, data),) = yield {ENCLAVE: enclave_messages.pack(kind, body)}
        return enclave_messages.read_reply(data, expected)

    def _ask_clients(
        self, kind: MessageType, bodies: Mapping[int, bytes], expected: MessageType, length: int
    ) -> ServerSide[dict[int, bytes]]:
        """The first valid reply, of this length, of every client that was asked."""

        def check(_: int, frame: ProtocolFrame[MessageType]) -> ReplyStatus:
            return ReplyStatus.ACCEPTED if frame.kind is expected else ReplyStatus.MALFORMED

        def read(_: int, reader: Reader) -> bytes:
            return reader.take(length)

        requests = {client: enclave_messages.pack(kind, body) for client, body in bodies.items()}
        return (yield from Exchange(kind, requests, enclave_messages.unpack, check, read).run(self.transcript))
