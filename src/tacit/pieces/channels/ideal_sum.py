"""What secure aggregation is for, without the cryptography: the server learns the sum and nothing else."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core import Messages, Round, View
from tacit.core.neutral import Direct
from tacit.core.pieces import Visibility


@dataclass(frozen=True)
class IdealSum(Direct):
    """A perfectly trusted party adds up the messages exactly and shows only their sum. It exists in simulations only.

    It stands for a secure aggregation protocol, whose own messages are not counted: bytes are those of the payload.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    server_sees: ClassVar[Visibility] = "sum"
    aggregates: ClassVar[Visibility] = "sum"

    def upload(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """One frame per message."""
        return messages.sizes()

    def download(self, view: View, now: Round, *, first: bool) -> int:
        """One frame with the view's parts."""
        return view.size(first=first)
