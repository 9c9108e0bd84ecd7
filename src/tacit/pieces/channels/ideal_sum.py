"""The ideal functionality of secure aggregation, without cryptography: the server learns only the sum."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from tacit.core import Messages, Method, Round, Traffic
from tacit.core.interfaces import Reader
from tacit.core.neutral import DirectConversation
from tacit.core.prices import Unit
from tacit.core.state import FrameFormat
from tacit.wire.sparse import WireFormat


@dataclass(frozen=True)
class IdealSum:
    """A trusted third party sums the messages exactly and reveals only the sum. It exists in simulations only.

    It stands for a secure aggregation protocol without its overhead: bytes are those of the payload.

    Formal guarantees: the server learns nothing beyond the sum. A row longer than the method's `max_norm` is rejected.
    Not covered: a client may send any other vector, such as one that is not clipped, has no noise, or has its sign
    flipped.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    messages_seen_by: ClassVar[Reader] = "nobody"
    message_format: ClassVar[FrameFormat] = FrameFormat()
    down: ClassVar[WireFormat | None] = None
    caveat: ClassVar[str] = ""
    min_cohort: ClassVar[int] = 0
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def send(self, messages: Messages, now: Round) -> Messages:
        return messages

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        return {}

    def open(
        self, method: Method, population: int, seed: int | None = None
    ) -> AbstractContextManager[DirectConversation]:
        return nullcontext(DirectConversation())
