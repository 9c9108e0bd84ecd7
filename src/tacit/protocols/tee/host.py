"""The server outside the enclave: a generator that yields requests and is sent replies; it does no I/O.

It forwards messages between clients and enclave, and can decrypt none of them. What it learns is in its transcript: who
took part, the lengths of ciphertexts, how many uploads were rejected and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import Exchange, Outcome, ProtocolFrame, ReplyStatus, ServerSide, Transcript
from tacit.protocols.tee import enclave_messages
from tacit.protocols.tee.enclave_messages import MessageType, RoundRequest, RoundResult
from tacit.wire.packing import Reader, pack_number

ENCLAVE = -1  # requests to the enclave; clients have numbers from 0
EnclaveOutcome = Outcome[RoundResult, MessageType]  # with the clients that have accepted the enclave


def converse(request: RoundRequest, attested: frozenset[int] = frozenset()) -> ServerSide[EnclaveOutcome]:
    """One round: attestation for clients that need it, then uploads, then the aggregate.

    Args:
        request: the round.
        attested: clients that have already accepted the attestation of this enclave.

    Raises:
        EnclaveRefusedError: the enclave rejects a request.
        ProtocolError: the enclave's reply is malformed.
    """
    return _Host(request).run(attested)


@dataclass(frozen=True, eq=False)
class _Host:
    """One method per step."""

    request: RoundRequest
    transcript: Transcript[MessageType] = field(default_factory=Transcript)

    def run(self, attested: frozenset[int]) -> ServerSide[EnclaveOutcome]:
        fresh = yield from self._attest([i for i in self.request.cohort if i not in attested])
        attested = attested | fresh
        opened = yield from self._ask_enclave(MessageType.OPEN_ROUND, self.request.pack(), MessageType.ROUND_OPENED)
        yield from self._collect([i for i in self.request.cohort if i in attested], opened.take(KEY))
        closed = yield from self._ask_enclave(
            MessageType.CLOSE_ROUND, pack_number(self.request.round), MessageType.RELEASE
        )
        result = RoundResult.read(closed, self.request.dim)
        self.transcript.rejected.update(result.rejected)
        return EnclaveOutcome(result, tuple(sorted(attested)), self.transcript)

    def _attest(self, clients: list[int]) -> ServerSide[frozenset[int]]:
        """Every client challenges the enclave with its own nonce, and decides whether to accept it."""
        challenge = dict.fromkeys(clients, b"")
        nonces = yield from self._ask_clients(MessageType.CHALLENGE, challenge, MessageType.NONCE, 2 * KEY)
        evidence: dict[int, bytes] = {}
        for client, nonce in nonces.items():
            reply = yield from self._ask_enclave(MessageType.ATTEST, nonce, MessageType.EVIDENCE)
            evidence[client] = bytes(reply.rest())
        accepted = yield from self._ask_clients(MessageType.PRESENT_EVIDENCE, evidence, MessageType.ENCLAVE_ACCEPTED, 0)
        return frozenset(accepted)

    def _collect(self, clients: list[int], head: bytes) -> ServerSide[None]:
        """Forward every upload to the enclave, which alone decides whether it is accepted."""
        if not clients:
            return
        request = enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(self.request.round) + head)
        requests = dict.fromkeys(clients, request)
        self.transcript.count_requests(MessageType.REQUEST_UPLOAD, requests)
        self.transcript.unresponsive.update(clients)
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
            body = reader.take(length)
            reader.expect_end()
            return body

        requests = {client: enclave_messages.pack(kind, body) for client, body in bodies.items()}
        return (yield from Exchange(kind, requests, enclave_messages.unpack, check, read).run(self.transcript))
