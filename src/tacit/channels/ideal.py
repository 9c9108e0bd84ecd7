"""What secure aggregation is for, without the cryptography: the server learns the sum and nothing else."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Self

from tacit.core import Messages, Method, Round, State, Sum, Traffic, View
from tacit.core.pieces import Blur, Sees, SumUp


@dataclass(frozen=True)
class IdealSum:
    """A perfectly trusted party adds up the messages exactly and shows only their sum. It exists in simulations only.

    It stands for a secure aggregation protocol, whose own messages are not counted: bytes are those of the payload.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    shows: ClassVar[Sees] = "sum"
    bits: ClassVar[int | None] = None
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = True
    feeds: ClassVar[Sees] = "sum"
    caveat: ClassVar[str] = ""

    def send(self, messages: Messages, now: Round) -> Messages:
        """The messages themselves."""
        return messages

    def meet(self, messages: Messages, state: State, now: Round, add: SumUp) -> Sum:
        """Where nobody looks: only their sum gets out."""
        return add(messages)

    def release(self, total: Sum, now: Round, blur: Blur) -> Sum:
        """The sum, blurred."""
        return blur(total)

    def upload(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """One frame per message."""
        return messages.sizes()

    def download(self, view: View, now: Round, *, first: bool) -> int:
        """One frame with the view's parts."""
        return view.size(first=first)

    def phases(self, now: Round) -> Mapping[str, Traffic]:
        """None are counted."""
        return {}

    def attend(self, method: Method, population: int, seed: int) -> AbstractContextManager[Self]:
        """Nothing is needed."""
        return nullcontext(self)

    def seconds(self) -> Mapping[str, float]:
        """Nothing is measured."""
        return {}
