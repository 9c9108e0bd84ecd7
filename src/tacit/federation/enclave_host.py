"""The server of a federation as the host of an enclave: it forwards what sites and enclave send one another.

The conversation is `tacit.protocols.tee.converse`. Requests to the enclave go through its socket, those to sites
through the federation's transport: first the steps of attestation, for sites that have not accepted this enclave, then
the round's first message with the request for the upload. Sites that are absent are not asked, and are dropouts.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

from tacit.core import State
from tacit.core.state import Traffic
from tacit.errors import EnclaveUnavailableError
from tacit.federation.enrolled_sites import EnrolledSites
from tacit.federation.messages import TRAIN, SiteRequest
from tacit.federation.round_reports import RoundOutcome, SiteBytes
from tacit.pieces.channels import Enclave
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import HEADER, Requests, play
from tacit.protocols.tee import (
    ENCLAVE,
    OVERHEAD,
    EnclaveOutcome,
    MessageType,
    RoundRequest,
    converse,
    enclave_messages,
    mechanism_memory,
)
from tacit.protocols.tee.connection import TIMEOUT
from tacit.protocols.tee.host import Heads

_NO_MODEL = bytes(KEY)  # whoever opens a round to learn its cohort does not know the broadcast yet


class EnclaveLink(Protocol):
    """A connection to an enclave."""

    def ask(self, request: bytes) -> bytes:
        """The enclave's reply; raises `EnclaveUnavailableError` if there is none."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class EnclaveHost:
    """The host of a plan's enclave. A `with` statement ends its connection.

    Args:
        sites: the enclave's clients.
        connect: makes a connection to the enclave, verified by the server's own policy.
        idle: seconds without a request after which the enclave may have disconnected, so that a new connection is made.
        clock: seconds.
    """

    def __init__(
        self,
        sites: EnrolledSites,
        connect: Callable[[], EnclaveLink],
        idle: float = TIMEOUT / 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sites, self._connect, self._idle, self._clock = sites, connect, idle, clock
        self._link: EnclaveLink | None = None
        self._used = 0.0
        self._heads: Heads = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def check(self) -> None:
        """Raise unless the enclave answers, before anything is charged."""
        if self._link is None:
            self.connected()
            self.close()

    def connected(self) -> EnclaveLink:
        """The connection, a new one if there is none; raises `EnclaveUnavailableError` if nothing answers."""
        if self._link is not None and self._clock() > self._used + self._idle:
            self.close()
        if self._link is None:
            self._link, self._heads = self._connect(), {}  # it may have restarted: sites verify it again
        self._used = self._clock()
        return self._link

    def close(self) -> None:
        """Disconnect."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def cohort(self, state: State, dim: int) -> list[int]:
        """The cohort that the enclave draws for the next round: the same one, however often the round is opened."""
        request = enclave_messages.pack(MessageType.OPEN_ROUND, round_request(state, dim, _NO_MODEL).pack())
        reply = enclave_messages.read_reply(self._ask(request), MessageType.ROUND_OPENED)
        return list(enclave_messages.read_opened(reply)[1])

    def aggregate(self, state: State, dim: int, asked: SiteRequest, present: Iterable[int]) -> RoundOutcome:
        """What the enclave releases of the messages of those of the cohort that are present."""
        here, traffic = set(present), SiteBytes()

        def ask(requests: Requests) -> list[tuple[int, bytes]]:
            if ENCLAVE in requests:
                return [(ENCLAVE, self._ask(requests[ENCLAVE]))]
            reached = {number: request for number, request in requests.items() if number in here}
            kind = enclave_messages.unpack(next(iter(requests.values()))).kind
            if kind is MessageType.REQUEST_UPLOAD:
                return [*self._short(self._sites.ask_round(TRAIN, asked, reached, traffic), dim)]
            return [*self._sites.attest(asked, reached, traffic).items()]

        outcome = play(converse(round_request(state, dim, asked.session(TRAIN)), self._heads), ask)
        self._heads = outcome.heads
        self._note_rejected(outcome)
        release, phases = outcome.result.release, _phases(outcome, here)
        protocol = sum(phases.values(), Traffic())
        uploads = outcome.transcript.up[MessageType.UPLOAD]
        envelope = traffic.beyond(uploads.total() - OVERHEAD * len(uploads), asked, _count(outcome, here))
        phases["envelope"] = Traffic(envelope.up - protocol.up, envelope.down - protocol.down)
        return RoundOutcome(
            total=release.total,
            clients=release.contributors,
            overhead=phases,
            traffic=traffic,
            memory=release.memory,
        )

    def _short(self, uploads: Mapping[int, bytes], dim: int) -> Iterator[tuple[int, bytes]]:
        """The uploads that the enclave reads; it would close the connection of who forwards a longer one."""
        channel = self._sites.plan.method.channel
        assert isinstance(channel, Enclave)
        limit = HEADER + channel.message_format.max_size(dim)
        for number, upload in uploads.items():
            if len(upload) <= limit:
                yield number, upload
            else:
                self._sites.fail(number, f"expected an upload of at most {limit} bytes, got {len(upload)}")

    def _note_rejected(self, outcome: EnclaveOutcome) -> None:
        """Note whom the enclave rejected, by name; who was absent or refused is noted already."""
        seen = outcome.transcript
        for number in seen.up[MessageType.NONCE].keys() - seen.down[MessageType.PRESENT_EVIDENCE].keys():
            self._sites.fail(number, "it remembers a release of the enclave that the enclave does not know")
        for number in seen.up[MessageType.UPLOAD].keys() & seen.unresponsive:
            self._sites.fail(number, "the enclave rejected its upload")

    def _ask(self, request: bytes) -> bytes:
        link = self.connected()
        try:
            return link.ask(request)
        except EnclaveUnavailableError:
            self.close()
            raise
        finally:
            self._used = self._clock()


def _phases(outcome: EnclaveOutcome, present: set[int]) -> dict[str, Traffic]:
    """The bytes of the protocol beyond messages, by part, of the sites that were reached."""
    up, down = outcome.transcript.up, outcome.transcript.down

    def received(*kinds: MessageType) -> int:
        return sum(size for kind in kinds for number, size in down[kind].items() if number in present)

    attested = sum(up[kind].total() for kind in (MessageType.NONCE, MessageType.ENCLAVE_ACCEPTED))
    return {
        "attestation": Traffic(attested, received(MessageType.CHALLENGE, MessageType.PRESENT_EVIDENCE)),
        "deliver": Traffic(OVERHEAD * len(up[MessageType.UPLOAD]), received(MessageType.REQUEST_UPLOAD)),
    }


def _count(outcome: EnclaveOutcome, present: set[int]) -> int:
    """How many sites the broadcast was sent to."""
    return len(present & outcome.transcript.down[MessageType.REQUEST_UPLOAD].keys())


def round_request(state: State, dim: int, model: bytes) -> RoundRequest:
    """The next round, as the host announces it; `model` names everything that the sites received."""
    return RoundRequest(state.round, model, dim, state.layers, mechanism_memory(state))
