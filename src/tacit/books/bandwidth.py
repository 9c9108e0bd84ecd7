"""The bandwidth book: how many bytes travelled, up and down, by client and in all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from tacit.core import Report


@dataclass(frozen=True)
class Bandwidth:
    """Bytes by client. A fold over reports; the lengths in them are those of the frames on the wire.

    Attributes:
        sent: bytes each client sent to the server; clients that never took part are not listed.
        received: bytes each client received from it.

    Example:
        >>> book = Bandwidth.of([Report(1, (4, 7), (), (10, 10), (30, 30), 1.0, 0.2, 0.1, {}, 0.1)])
        >>> book.up, book.down, book.per_client(7), book.per_client(0)
        (20, 60, (10, 30), (0, 0))
    """

    sent: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[Report]) -> Self:
        """The book of these rounds."""
        sent, received = Counter[int](), Counter[int]()
        for report in reports:
            for client, up, down in zip(report.clients, report.up, report.down, strict=True):
                sent[client] += up
                received[client] += down
        return cls(dict(sent), dict(received))

    @property
    def up(self) -> int:
        """All bytes from clients to the server."""
        return sum(self.sent.values())

    @property
    def down(self) -> int:
        """All bytes from the server to clients."""
        return sum(self.received.values())

    def per_client(self, client: int) -> tuple[int, int]:
        """What one client sent and received."""
        return self.sent.get(client, 0), self.received.get(client, 0)

    def __add__(self, other: "Bandwidth") -> "Bandwidth":
        return Bandwidth(_merged(self.sent, other.sent), _merged(self.received, other.received))


def _merged(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    total = Counter(one)
    total.update(other)
    return dict(total)
