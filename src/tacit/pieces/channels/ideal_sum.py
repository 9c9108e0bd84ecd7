"""The ideal functionality of secure aggregation, without cryptography: the server learns only the sum."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from tacit.core import Messages, Method, Round, Traffic, View
from tacit.core.interfaces import Visibility
from tacit.core.neutral import DirectConversation


@dataclass(frozen=True)
class IdealSum:
    """A trusted third party sums the messages exactly and reveals only the sum. It exists in simulations only.

    It stands for a secure aggregation protocol without its overhead: bytes are those of the payload.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    server_sees: ClassVar[Visibility] = "sum"
    aggregates: ClassVar[Visibility] = "sum"
    caveat: ClassVar[str] = ""
    bits: ClassVar[int | None] = None
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True

    def send(self, messages: Messages, now: Round) -> Messages:
        return messages

    def upload_sizes(self, messages: Messages, now: Round) -> tuple[int, ...]:
        return messages.sizes()

    def download_size(self, view: View, now: Round, *, first: bool) -> int:
        return view.size(first=first)

    def overhead(self, now: Round) -> Mapping[str, Traffic]:
        return {}

    def open(
        self, method: Method, population: int, seed: int | None = None
    ) -> AbstractContextManager[DirectConversation]:
        return nullcontext(DirectConversation())
