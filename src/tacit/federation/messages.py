"""The messages of server and sites: five verbs, signed requests and replies, in MessagePack with a fixed schema.

::

    register   does the site take part in this plan?
    train      the first message of a round: broadcast, and the first request of the channel's protocol
    continue   every further request of that protocol
    prepare    what the channel's protocol needs before a round, such as an enclave's answer to the site's own nonce
    evaluate   like train, for the metrics on the site's own held-out data

Nothing in a message names a class, a module or a file. The server's signature binds a request to verb, session, step
and recipient: a site answers nobody else, and no request that was made for another site, run, round, attempt or phase.
A site's signature binds its reply to verb and session, so a reply of another round, attempt, plan or site is rejected.
The keys are those of the plan's directory; how the bytes travel does not matter.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from tacit.errors import ProtocolError, WireError
from tacit.protocols import crypto
from tacit.protocols.kit import RUN
from tacit.wire.packing import pack_number

REGISTER, TRAIN, CONTINUE, EVALUATE, PREPARE = "register", "train", "continue", "evaluate", "prepare"
RefusalCode = Literal[
    "malformed", "signature", "run", "plan", "policy", "data", "budget", "replay", "protocol", "training", "storage",
    "error",
]  # fmt: skip

Digest = Annotated[bytes, Meta(min_length=crypto.KEY, max_length=crypto.KEY)]
Run = Annotated[bytes, Meta(min_length=RUN, max_length=RUN)]
Ticket = Annotated[bytes, Meta(min_length=crypto.KEY, max_length=crypto.KEY)]
Signature = Annotated[bytes, Meta(max_length=crypto.SIGNATURE)]
_Number = Annotated[int, Meta(ge=0, lt=1 << 32)]
MAX_TEXT = 2000  # characters of a refusal
NO_TICKET = bytes(crypto.KEY)  # of a request that is not yet addressed


class RefusedError(Exception):
    """A site's refusal to answer a request; the text contains nothing private."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        Exception.__init__(self, text)
        self.code: RefusalCode = code


class Registration(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Does the site take part in this plan?"""

    plan: Digest
    run: Run
    signature: Signature = b""

    def session(self, verb: str) -> bytes:
        """What names this exchange."""
        return crypto.digest("federation session", verb.encode(), self.plan, self.run)

    @property
    def content(self) -> tuple[bytes, ...]:
        """The signed content beyond the session."""
        return ()


class SiteRequest(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The first message of a round or of an evaluation.

    Attributes:
        plan: the plan's digest.
        run: random bytes of the server's run, new whenever the server starts.
        round: the index of the round.
        attempt: the number of the attempt at it, from 1.
        cohort: the numbers of the cohort's sites, ascending.
        frame: the broadcast, the same bytes for all.
        first: the one-time broadcast, a frame of its own; empty for a site that has it.
        first_digest: of those bytes, for all sites; empty if there are none.
        opening: the first request of the channel's protocol; empty if it has none.
        ticket: with which the site answered the registration of this run; it shows that the run is not an earlier one.
        signature: the server's, for one site.
    """

    plan: Digest
    run: Run
    round: _Number
    attempt: Annotated[int, Meta(ge=1, lt=1 << 32)]
    cohort: Annotated[tuple[_Number, ...], Meta(min_length=1, max_length=1 << 15)]
    frame: bytes
    first: bytes = b""
    first_digest: bytes = b""
    opening: bytes = b""
    ticket: Ticket = NO_TICKET
    signature: Signature = b""

    def session(self, verb: str) -> bytes:
        """The conversation's digest, of all that its sites have in common."""
        numbers = b"".join(map(pack_number, (self.round, self.attempt, *self.cohort)))
        return crypto.digest(
            "federation session", verb.encode(), self.plan, self.run, numbers, digest_of(self.frame), self.first_digest
        )

    @property
    def content(self) -> tuple[bytes, ...]:
        """The signed content beyond the session."""
        return self.ticket, pack_number(bool(self.first)), digest_of(self.opening)


class Preparation(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A request before a round.

    Attributes:
        plan: the plan's digest.
        run: random bytes of the server's run.
        round: the index of the round.
        attempt: the number of the attempt at it.
        step: the number of this request in the run, ascending.
        request: of the channel's protocol.
        ticket: as in `SiteRequest`.
        signature: the server's, for one site.
    """

    plan: Digest
    run: Run
    round: _Number
    attempt: Annotated[int, Meta(ge=1, lt=1 << 32)]
    step: _Number
    request: bytes
    ticket: Ticket = NO_TICKET
    signature: Signature = b""

    def session(self, verb: str) -> bytes:
        """What names this exchange."""
        return crypto.digest(
            "federation session", verb.encode(), self.plan, self.run, *map(pack_number, (self.round, self.attempt))
        )

    @property
    def content(self) -> tuple[bytes, ...]:
        """The signed content beyond the session."""
        return self.ticket, pack_number(self.step), digest_of(self.request)


class Continuation(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A further request in a conversation; `step` ascends in it."""

    plan: Digest
    conversation: Digest
    step: _Number
    request: bytes
    signature: Signature = b""

    def session(self, _: str) -> bytes:
        """That of the conversation's first request."""
        return self.conversation

    @property
    def content(self) -> tuple[bytes, ...]:
        """The signed content beyond the session."""
        return self.plan, pack_number(self.step), digest_of(self.request)


class Answer(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="answer"):
    """A site's answer: its number, the conversation, the content, and its signature over all of it and the verb."""

    site: _Number
    session: Digest
    body: bytes
    signature: bytes = b""

    @property
    def content(self) -> tuple[bytes, bytes]:
        """The signed content: its kind, and the rest."""
        return b"answer", self.body


class Refusal(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="refusal"):
    """Why a site does not answer; it contains nothing private."""

    site: _Number
    session: Digest
    code: RefusalCode
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    signature: bytes = b""

    @property
    def content(self) -> tuple[bytes, bytes]:
        """The signed content: why, and the rest."""
        return self.code.encode(), self.text.encode()


Request = Registration | SiteRequest | Preparation | Continuation
REQUESTS: dict[str, type[Request]] = {
    REGISTER: Registration,
    TRAIN: SiteRequest,
    EVALUATE: SiteRequest,
    PREPARE: Preparation,
    CONTINUE: Continuation,
}
Message = TypeVar("Message", bound=Request)
Reply = TypeVar("Reply", Answer, Refusal)
_encoder = msgspec.msgpack.Encoder()
_replies: "msgspec.msgpack.Decoder[Answer | Refusal]" = msgspec.msgpack.Decoder(Answer | Refusal)


def pack(message: Request | Answer | Refusal) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def read_request(data: bytes, kind: type[Message]) -> Message:
    """A request of this kind; raises `WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: half a character
        raise WireError(f"Expected a request of kind {kind.__name__}: {error}.") from None


def sign_request(verb: str, request: Message, site: int, key: bytes) -> Message:
    """The request with the server's signature, for one site."""
    return msgspec.structs.replace(request, signature=crypto.sign(key, _request_statement(verb, request, site)))


def check_addressed(verb: str, request: Request, site: int, server: bytes) -> None:
    """Raise `RefusedError` unless the server with this public key signed the request with this verb for this site."""
    try:
        crypto.verify(server, request.signature, _request_statement(verb, request, site))
    except ProtocolError:
        raise RefusedError(
            "signature",
            "Expected a request that the server of this site's pinned directory signed for this site and this phase, "
            "got another. If this is the server, compare its public key with the directory's.",
        ) from None


def _request_statement(verb: str, request: Request, site: int) -> bytes:
    return crypto.digest(
        "federation request", verb.encode(), pack_number(site), request.session(verb), *request.content
    )


def unread(request: bytes) -> bytes:
    """The session of a refusal of a request that is unreadable, or that the server did not sign for this site."""
    return crypto.digest("federation session", b"unread", digest_of(request))


def read_reply(
    data: bytes,
    verb: str,
    session: bytes,
    site: int,
    identities: Sequence[bytes] | dict[int, bytes],
    request: bytes | None = None,
) -> Answer | Refusal:
    """This site's reply in this conversation; raises `ProtocolError` for any other, or without its signature.

    A refusal may belong to the bytes of the request alone, if they are given.
    """
    try:
        reply = _replies.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: half a character
        raise ProtocolError("Expected a reply of a site, got other bytes.") from None
    if reply.site != site:
        raise ProtocolError(f"Expected a reply of site {site}, got one of site {reply.site}.")
    to_bytes = isinstance(reply, Refusal) and request is not None and reply.session == unread(request)
    if reply.session != session and not to_bytes:
        raise ProtocolError("The reply belongs to another conversation: it is late, repeated or of another round.")
    crypto.verify(identities[site], reply.signature, _statement(verb, reply))
    return reply


def sign_reply(verb: str, reply: Reply, identity: bytes) -> Reply:
    """The reply with the site's signature."""
    return msgspec.structs.replace(reply, signature=crypto.sign(identity, _statement(verb, reply)))


def _statement(verb: str, reply: Answer | Refusal) -> bytes:
    kind, content = reply.content
    return crypto.digest(
        "federation reply", verb.encode(), reply.session, pack_number(reply.site), kind, digest_of(content)
    )


def digest_of(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()
