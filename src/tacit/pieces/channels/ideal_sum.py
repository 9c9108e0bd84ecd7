"""The ideal functionality of secure aggregation, without cryptography: the server learns only the sum."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core import Messages, Round, View
from tacit.core.interfaces import Visibility
from tacit.core.neutral import DirectChannel


@dataclass(frozen=True)
class IdealSum(DirectChannel):
    """A trusted third party sums the messages exactly and reveals only the sum. It exists in simulations only.

    It stands for a secure aggregation protocol without its overhead: bytes are those of the payload.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    server_sees: ClassVar[Visibility] = "sum"
    aggregates: ClassVar[Visibility] = "sum"

    def upload_sizes(self, messages: Messages, now: Round) -> tuple[int, ...]:
        return messages.sizes()

    def download_size(self, view: View, now: Round, *, first: bool) -> int:
        return view.size(first=first)
