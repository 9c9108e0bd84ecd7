"""The bandwidth book: how many bytes travelled, up and down, by client and in all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from tacit.core import Report, Traffic
from tacit.wire import frames


@dataclass(frozen=True)
class Bandwidth:
    """Bytes by client. A fold over reports; the lengths in them are those of the frames on the wire.

    Attributes:
        sent: bytes each client sent to the server; clients that never took part are not listed.
        received: bytes each client received from it.
        phases: the part of these that the channel's own protocol took beside rows and views, by its phases.

    Example:
        >>> book = Bandwidth.of([Report(1, (4, 7), (), (10, 10), (30, 30), 1.0, 0.2, 0.1, {}, 0.1)])
        >>> book.up, book.down, book.per_client(7), book.per_client(0)
        (20, 60, (10, 30), (0, 0))
    """

    sent: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    phases: Mapping[str, Traffic] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[Report]) -> Self:
        """The book of these rounds."""
        sent, received = Counter[int](), Counter[int]()
        phases: dict[str, Traffic] = {}
        for report in reports:
            for client, up, down in zip(report.clients, report.up, report.down, strict=True):
                sent[client] += up
                received[client] += down
            for name, taken in report.overhead.items():
                phases[name] = phases.get(name, Traffic()) + taken
        return cls(dict(sent), dict(received), phases)

    @property
    def up(self) -> int:
        """All bytes from clients to the server."""
        return sum(self.sent.values())

    @property
    def down(self) -> int:
        """All bytes from the server to clients."""
        return sum(self.received.values())

    @property
    def overhead(self) -> Traffic:
        """What the channel's protocol took beside rows and views, in all phases."""
        return sum(self.phases.values(), Traffic())

    def per_client(self, client: int) -> tuple[int, int]:
        """What one client sent and received."""
        return self.sent.get(client, 0), self.received.get(client, 0)

    def __add__(self, other: "Bandwidth") -> "Bandwidth":
        names = [*self.phases, *(name for name in other.phases if name not in self.phases)]
        phases = {name: self.phases.get(name, Traffic()) + other.phases.get(name, Traffic()) for name in names}
        return Bandwidth(_merged(self.sent, other.sent), _merged(self.received, other.received), phases)


def cost(values: int, rounds: int, rate: float) -> float:
    """What one direction costs a client by the usual formula of papers: values · 4 bytes · rounds · rate.

    Only values count, at 32 bits each: no headers, no mask, no bound. It is the mean over all clients, of which each
    takes part in a round with probability `rate`.

    Args:
        values: how many numbers a message has; of n weights, ⌊r·n⌋ are sent at a compression ratio r.
        rounds: how many rounds there were.
        rate: the share of the clients that take part in one, C.

    Returns:
        Kilobytes of 1000 bytes.

    Example:
        >>> round(cost(values=8316, rounds=200, rate=1 / 60), 2)
        110.88

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Tables 1 and 2: every cost that is printed there is this one, to two digits.
    """
    return values * 4 * rounds * rate / 1000


def csr_cost(nonzero: int, pointers: int, index: int = 4) -> int:
    """What compressed sparse rows take without a header: a float32 and a column for every value, and row pointers.

    Args:
        nonzero: how many values there are.
        pointers: how many row pointers.
        index: bytes of a column or a pointer.

    Returns:
        Bytes.

    Example:
        >>> csr_cost(nonzero=43_043, pointers=580, index=8)
        521156
    """
    return (4 + index) * nonzero + index * pointers


def volume(up: float, down: float, rounds: int, cohort: int) -> float:
    """All that travels if every client of every cohort sends `up` bytes and receives `down`.

    Returns:
        Megabytes of 1,000,000 bytes.

    Example:
        >>> volume(up=4 * 430_000, down=4 * 430_000, rounds=50, cohort=10)
        1720.0

    Reference: Lin et al., ESMFL, 2020, Table 2, where sparse models go up and dense ones down.
    """
    return (up + down) * rounds * cohort / 1e6


@dataclass(frozen=True)
class Savings:
    """How many times fewer bytes than standard federated learning, which sends whole models both ways."""

    up: float
    down: float

    @classmethod
    def of(cls, book: Bandwidth, messages: int, weights: Tensor) -> Self:
        """Of so many messages each way about these weights, headers included.

        Example:
            >>> import torch
            >>> Savings.of(Bandwidth({0: 136}, {0: 4036}), messages=1, weights=torch.zeros(1000))
            Savings(up=29.676470588235293, down=1.0)
        """
        whole = messages * frames.size({frames.Part.WEIGHTS: weights})
        return cls(*(whole / taken if taken else 1.0 for taken in (book.up, book.down)))


def _merged(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    total = Counter(one)
    total.update(other)
    return dict(total)
