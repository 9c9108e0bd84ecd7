"""The server outside the enclave: a generator that yields requests and is sent replies; it does no I/O.

It speaks with clients and with the enclave, carries what they say to each other, and reads none of it. What it learns
is in its minutes: who took part, how long the ciphertexts were, how many were refused and why.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.errors import Refusal
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.opening import Closing, Opening
from tacit.wire.packing import Reader, number

T = TypeVar("T")
ENCLAVE = -1  # clients have numbers from 0
Requests = Mapping[int, bytes]  # by client, or to the enclave alone
Replies = Iterable[tuple[int, bytes]]  # the sender as the transport knows it, and what it sent; in any order
Conversation = Generator[Requests, Replies, T]


@dataclass(frozen=True, eq=False)
class Minutes:
    """Bytes by verb and client, both ways, as they were packed; uploads not taken, by reason; silent clients."""

    down: Mapping[Verb, Counter[int]] = field(default_factory=lambda: {verb: Counter() for verb in Verb})
    up: Mapping[Verb, Counter[int]] = field(default_factory=lambda: {verb: Counter() for verb in Verb})
    refusals: Counter[Refusal] = field(default_factory=Counter)
    silent: set[int] = field(default_factory=set)  # asked, and did not answer as they should


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a round ended: what the enclave let out, who has accepted the enclave by now, the minutes."""

    closing: Closing
    admitted: frozenset[int]
    minutes: Minutes


def converse(opening: Opening, admitted: frozenset[int] = frozenset()) -> Conversation[Outcome]:
    """One round: attestation for those who need it, then uploads, then the aggregate.

    Args:
        opening: the round.
        admitted: clients that have accepted this very enclave already.

    Raises:
        RefusedError: the enclave does not do what it was asked for.
        ProtocolError: what came from it is no answer.
    """
    return _Host(opening).run(admitted)


@dataclass(frozen=True, eq=False)
class _Host:
    """The steps, one method each."""

    opening: Opening
    minutes: Minutes = field(default_factory=Minutes)

    def run(self, admitted: frozenset[int]) -> Conversation[Outcome]:
        """All steps."""
        fresh = yield from self._introduce([i for i in self.opening.cohort if i not in admitted])
        ready = admitted | fresh
        head = (yield from self._enclave(Verb.OPEN, self.opening.pack(), Verb.OPENED)).take(KEY)
        yield from self._collect([i for i in self.opening.cohort if i in ready], head)
        reply = yield from self._enclave(Verb.CLOSE, number(self.opening.round), Verb.RELEASE)
        closing = Closing.read(reply, self.opening.dim)
        self.minutes.refusals.update(closing.refusals)
        return Outcome(closing, ready, self.minutes)

    def _introduce(self, clients: list[int]) -> Conversation[frozenset[int]]:
        """Every client asks the enclave with its own nonce, and decides."""
        nonces = yield from self._clients(Verb.CHALLENGE, dict.fromkeys(clients, b""), Verb.NONCE, 2 * KEY)
        proofs: dict[int, bytes] = {}
        for client, question in nonces.items():
            reply = yield from self._enclave(Verb.ATTEST, question, Verb.EVIDENCE)
            proofs[client] = bytes(reply.rest())
        return frozenset((yield from self._clients(Verb.PROVE, proofs, Verb.ADMITTED, 0)))

    def _collect(self, clients: list[int], head: bytes) -> Conversation[None]:
        """Whatever comes is carried to the enclave: it alone decides what is taken."""
        request = frames.pack(Verb.DELIVER, number(self.opening.round) + head)
        self._note(self.minutes.down, Verb.DELIVER, dict.fromkeys(clients, request))
        self.minutes.silent.update(clients)
        for sender, data in (yield dict.fromkeys(clients, request)):
            try:
                upload = frames.unpack(data).reader(Verb.UPLOAD).rest()
            except ProtocolError:
                self.minutes.refusals[Refusal.MALFORMED] += 1
                continue
            self.minutes.up[Verb.UPLOAD][sender] += len(data)
            body = number(sender) + bytes(upload)
            receipt = (yield from self._enclave(Verb.DELIVERY, body, Verb.RECEIPT)).number(1)
            if receipt == Refusal.NONE:
                self.minutes.silent.discard(sender)

    def _enclave(self, verb: Verb, body: bytes, expected: Verb) -> Conversation[Reader]:
        ((_, data),) = yield {ENCLAVE: frames.pack(verb, body)}
        return frames.unpack(data).reader(expected)

    def _clients(
        self, verb: Verb, bodies: Mapping[int, bytes], expected: Verb, length: int
    ) -> Conversation[dict[int, bytes]]:
        """The first good reply of everybody that was asked."""
        if not bodies:
            return {}
        requests = {client: frames.pack(verb, body) for client, body in bodies.items()}
        self._note(self.minutes.down, verb, requests)
        got: dict[int, bytes] = {}
        for sender, data in (yield requests):
            try:
                body = bytes(frames.unpack(data).reader(expected).rest())
            except ProtocolError:
                continue
            if sender in requests and sender not in got and len(body) == length:
                got[sender] = body
                self.minutes.up[expected][sender] += len(data)
        self.minutes.silent.update(requests.keys() - got.keys())
        return got

    def _note(self, book: Mapping[Verb, Counter[int]], verb: Verb, sent: Requests) -> None:
        book[verb].update({client: len(data) for client, data in sent.items()})
