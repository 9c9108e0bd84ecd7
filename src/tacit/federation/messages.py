"""The messages of server and sites: five verbs, requests and signed replies, in MessagePack with a fixed schema.

::

    register   does the site take part in this plan?
    train      the first message of a round: broadcast, and the first request of the channel's protocol
    continue   every further request of that protocol
    prepare    what the channel's protocol needs before a round, such as an enclave's answer to the site's own nonce
    evaluate   like train, for the metrics on the site's own held-out data

Nothing in a message names a class, a module or a file. A site's signature binds its reply to verb and session, so a
reply of another round, attempt, plan or site is rejected.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from tacit.errors import ProtocolError, WireError
from tacit.protocols import crypto
from tacit.protocols.kit import RUN
from tacit.wire.packing import pack_number

REGISTER, TRAIN, CONTINUE, EVALUATE, PREPARE = "register", "train", "continue", "evaluate", "prepare"
RefusalCode = Literal[
    "malformed", "plan", "policy", "data", "budget", "replay", "protocol", "training", "storage", "error"
]

Digest = Annotated[bytes, Meta(min_length=crypto.KEY, max_length=crypto.KEY)]
Run = Annotated[bytes, Meta(min_length=RUN, max_length=RUN)]
_Number = Annotated[int, Meta(ge=0, lt=1 << 32)]
MAX_TEXT = 2000  # characters of a refusal
NO_SESSION = bytes(crypto.KEY)  # of a refusal of an unreadable request


class RefusedError(Exception):
    """A site's refusal to answer a request; the text contains nothing private."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        Exception.__init__(self, text)
        self.code: RefusalCode = code


class Registration(Struct, frozen=True, forbid_unknown_fields=True):
    """Does the site take part in this plan?"""

    plan: Digest
    run: Run

    @property
    def session(self) -> bytes:
        """What names this exchange."""
        return crypto.digest("federation session", REGISTER.encode(), self.plan, self.run)


class SiteRequest(Struct, frozen=True, forbid_unknown_fields=True):
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

    def session(self, verb: str) -> bytes:
        """The conversation's digest, of all that its sites have in common."""
        numbers = b"".join(map(pack_number, (self.round, self.attempt, *self.cohort)))
        return crypto.digest(
            "federation session", verb.encode(), self.plan, self.run, numbers, digest_of(self.frame), self.first_digest
        )


class Continuation(Struct, frozen=True, forbid_unknown_fields=True):
    """A further request in a conversation."""

    plan: Digest
    session: Digest
    request: bytes


class Answer(Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """A site's answer: its number, the conversation, the content, and its signature over all of it and the verb."""

    site: _Number
    session: Digest
    body: bytes
    signature: bytes = b""
    other_sessions: ClassVar[tuple[bytes, ...]] = ()

    @property
    def content(self) -> tuple[bytes, bytes]:
        """The signed content: its kind, and the rest."""
        return b"answer", self.body


class Refusal(Struct, frozen=True, forbid_unknown_fields=True, tag="refusal"):
    """Why a site does not answer; it contains nothing private."""

    site: _Number
    session: Digest
    code: RefusalCode
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    signature: bytes = b""
    other_sessions: ClassVar[tuple[bytes, ...]] = (NO_SESSION,)  # where there is no conversation

    @property
    def content(self) -> tuple[bytes, bytes]:
        """The signed content: why, and the rest."""
        return self.code.encode(), self.text.encode()


Message = TypeVar("Message", Registration, SiteRequest, Continuation)
Reply = TypeVar("Reply", Answer, Refusal)
_encoder = msgspec.msgpack.Encoder()
_replies: "msgspec.msgpack.Decoder[Answer | Refusal]" = msgspec.msgpack.Decoder(Answer | Refusal)


def pack(message: Registration | SiteRequest | Continuation | Answer | Refusal) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def read_request(data: bytes, kind: type[Message]) -> Message:
    """A request of this kind; raises `WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: half a character
        raise WireError(f"Expected a request of kind {kind.__name__}: {error}.") from None


def read_reply(
    data: bytes, verb: str, session: bytes, site: int, identities: Sequence[bytes] | dict[int, bytes]
) -> Answer | Refusal:
    """This site's reply in this conversation; raises `ProtocolError` for any other, or without its signature."""
    try:
        reply = _replies.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: half a character
        raise ProtocolError("Expected a reply of a site, got other bytes.") from None
    if reply.site != site:
        raise ProtocolError(f"Expected a reply of site {site}, got one of site {reply.site}.")
    if reply.session not in (session, *reply.other_sessions):
        raise ProtocolError("The reply belongs to another conversation: it is late, repeated or of another round.")
    crypto.verify(identities[site], reply.signature, _statement(verb, reply))
    return reply


def signed(verb: str, reply: Reply, identity: bytes) -> Reply:
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
