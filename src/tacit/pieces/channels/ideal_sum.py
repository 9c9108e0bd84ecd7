"""The ideal functionality of secure aggregation, without cryptography: the server learns only the sum."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.interfaces import Channel, Reader
from tacit.core.prices import Unit


@dataclass(frozen=True)
class IdealSum(Channel):
    """A trusted third party sums the messages exactly and reveals only the sum. It exists in simulations only.

    It stands for a secure aggregation protocol without its overhead: bytes are those of the payload.

    Formal guarantees: the server learns nothing beyond the sum.
    Not covered: a client may send any vector, such as one that is not clipped, has no noise, or has its sign flipped:
    nobody sees it.

    Sees: the server, the sum of a round's messages and who took part; nobody, a single message.
    """

    messages_seen_by: ClassVar[Reader] = "nobody"
    streams: ClassVar[bool] = True
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
