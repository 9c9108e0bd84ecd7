"""The bandwidth report: bytes sent and received, per client and in total."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from tacit.core import Report, Traffic
from tacit.wire import frames


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per client: a fold over reports, which contain the lengths of the frames on the wire.

    Attributes:
        sent: bytes from each client to the server; clients that never took part are not listed.
        received: bytes from the server to each client.
        phases: the overhead among these bytes, which the channel's own protocol adds to messages and broadcasts, by
            phase of the protocol.

    Example:
        >>> bandwidth = Bandwidth.of([Report(1, (4, 7), (), (10, 10), (30, 30), 1.0, 0.2, 0.1, {}, 0.1)])
        >>> bandwidth.up, bandwidth.down, bandwidth.per_client(7), bandwidth.per_client(0)
        (20, 60, (10, 30), (0, 0))
    """

    sent: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    phases: Mapping[str, Traffic] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[Report]) -> Self:
        """The bandwidth report of these rounds."""
        sent, received = Counter[int](), Counter[int]()
        phases: dict[str, Traffic] = {}
        for report in reports:
            for client, up, down in zip(report.clients, report.up, report.down, strict=True):
                sent[client] += up
                received[client] += down
            for phase, traffic in report.overhead.items():
                phases[phase] = phases.get(phase, Traffic()) + traffic
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
        """The overhead of the channel's protocol in all phases."""
        return sum(self.phases.values(), Traffic())

    def per_client(self, client: int) -> tuple[int, int]:
        """Bytes that one client sent and received."""
        return self.sent.get(client, 0), self.received.get(client, 0)


def cost(values: int, rounds: int, rate: float) -> float:
    """The cost per client and direction by the usual formula of papers: values · 4 bytes · rounds · rate.

    Only values count, with 32 bits each: no headers, no mask, no clipping bound. It is the mean over all clients, each
    of which takes part in a round with probability `rate`.

    Args:
        values: the number of values in a message; of n weights, ⌊r·n⌋ are sent at compression ratio r.
        rounds: the number of rounds.
        rate: the fraction of the clients that take part in a round, C.

    Returns:
        Kilobytes of 1000 bytes.

    Example:
        >>> round(cost(values=8316, rounds=200, rate=1 / 60), 2)
        110.88

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Tables 1 and 2: this formula gives every cost printed there, to two digits.
    """
    return values * 4 * rounds * rate / 1000


def csr_cost(nonzero: int, pointers: int, index: int = 4) -> int:
    """The size of compressed sparse rows without a header: a float32 and a column index per value, and row pointers.

    Args:
        nonzero: the number of values.
        pointers: the number of row pointers.
        index: bytes per column index or row pointer.

    Returns:
        Bytes.

    Example:
        >>> csr_cost(nonzero=43_043, pointers=580, index=8)
        521156
    """
    return (4 + index) * nonzero + index * pointers


def volume(up: float, down: float, rounds: int, cohort: int) -> float:
    """The total traffic if every client of every cohort sends `up` bytes and receives `down` bytes.

    Returns:
        Megabytes of 1,000,000 bytes.

    Example:
        >>> volume(up=4 * 430_000, down=4 * 430_000, rounds=50, cohort=10)
        1720.0

    Reference: Lin et al., ESMFL, 2020, Table 2, where clients send sparse models and receive dense ones.
    """
    return (up + down) * rounds * cohort / 1e6


@dataclass(frozen=True)
class Savings:
    """The factors by which traffic is less than in standard federated learning, with whole models both ways."""

    up: float
    down: float

    @classmethod
    def of(cls, bandwidth: Bandwidth, messages: int, weights: Tensor) -> Self:
        """The savings relative to `messages` frames in each direction that contain all weights.

        Example:
            >>> import torch
            >>> Savings.of(Bandwidth({0: 136}, {0: 4036}), messages=1, weights=torch.zeros(1000))
            Savings(up=29.676470588235293, down=1.0)
        """
        full = messages * frames.size({frames.Part.WEIGHTS: weights})
        return cls(*(full / sent if sent else 1.0 for sent in (bandwidth.up, bandwidth.down)))
