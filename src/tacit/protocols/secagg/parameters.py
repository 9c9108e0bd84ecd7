"""How many neighbours, how many shares: found from the cohort, the corrupt fraction and the dropout rate.

Up to 64 clients everybody shares with everybody (Bonawitz et al., CCS 2017); above, with the neighbours in a random
Harary graph (Bell et al., CCS 2020). The rule is that of `graph_parameter_finder.cc` in federated-compute (Google):
security 2^-40, correctness 2^-20. All probabilities are ratios of exact integers, so every machine finds the same.
Server and clients both compute degree and threshold from who announced: the server cannot dictate them.
"""

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from math import comb

from tacit.errors import expect
from tacit.protocols.secagg.errors import ProtocolError, TooFewError

COMPLETE = 64  # the largest cohort in which everybody is everybody's neighbour
LEAST = 3  # with two clients, either could subtract itself from the sum
_SECURITY, _CORRECTNESS = 41, 20  # bits: half of 2^-40 for the graph, half for the shares


class Level(IntEnum):
    """Against which server single messages stay hidden; a higher level implies the lower one."""

    SEMI_HONEST = 1  # it follows the protocol
    ACTIVE_SERVER = 2  # it may send anything


@dataclass(frozen=True)
class Wiring:
    """How the clients that announced are connected.

    Attributes:
        degree: how many neighbours each has.
        threshold: how many shares give a secret; held by the neighbours and the client itself.
    """

    degree: int
    threshold: int


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What all clients of a round must agree on; a part of the context that binds every key.

    Attributes:
        cohort: how many clients are invited.
        dim: how many numbers a vector has.
        bits: sums are modulo 2^bits.
        level: against which server single messages stay hidden.
        corrupt: the fraction of the cohort that may collude with the server.
        dropout: the fraction that may be lost.
        least: how many must deliver for the round to end with a sum; 0: all but the dropouts that are tolerated.
    """

    cohort: int
    dim: int
    bits: int = 32
    level: Level = Level.ACTIVE_SERVER
    corrupt: Fraction = Fraction(1, 10)
    dropout: Fraction = Fraction(1, 5)
    least: int = 0

    def __post_init__(self) -> None:
        expect(LEAST <= self.cohort < 1 << 15, f"{LEAST} <= cohort={self.cohort} < 32768")
        expect(1 <= self.dim <= 1 << 28, f"1 <= dim={self.dim} <= 2^28")
        expect(1 <= self.bits <= 32, f"1 <= bits={self.bits} <= 32")
        expect(0 <= self.corrupt < 1, f"0 <= corrupt={self.corrupt} < 1")
        expect(0 <= self.dropout < 1, f"0 <= dropout={self.dropout} < 1")
        expect(max(self.corrupt.denominator, self.dropout.denominator) < 1 << 32, "fractions with short denominators")
        expect(0 <= self.least <= self.cohort, f"0 <= least={self.least} <= cohort={self.cohort}")

    @property
    def survivors(self) -> int:
        """How many must deliver, at least: what noise in shares may count on, colluders included."""
        return max(LEAST, self.least or self.cohort - _part(self.dropout, self.cohort))

    def wiring(self, announced: int) -> Wiring:
        """Degree and threshold, if so many announced; all colluders of the cohort may be among them."""
        return wire(announced, self.level, _part(self.corrupt, self.cohort), _part(self.dropout, announced))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a client insists on, whatever a server proposes.

    Attributes:
        level: at least this level.
        corrupt: at least this fraction must be allowed to collude.
        cohort: at least so many clients must announce.
        survivors: at least so many must deliver before anything is opened.
    """

    level: Level = Level.ACTIVE_SERVER
    corrupt: Fraction = Fraction(1, 20)
    cohort: int = LEAST
    survivors: int = LEAST

    def check(self, offered: Parameters) -> None:
        """Refuse parameters below the floors."""
        if offered.level < self.level:
            raise ProtocolError(f"Expected level {self.level.name} or more, got {offered.level.name}.")
        if offered.corrupt < self.corrupt:
            raise ProtocolError(
                f"Expected corrupt={offered.corrupt} >= {self.corrupt}: the threshold would be too low."
            )
        if offered.cohort < self.cohort:
            raise ProtocolError(f"Expected cohort={offered.cohort} >= {self.cohort}.")
        if offered.survivors < self.survivors:
            raise ProtocolError(f"Expected survivors={offered.survivors} >= {self.survivors}.")


@lru_cache(maxsize=1024)
def wire(count: int, level: Level, bad: int, lost: int) -> Wiring:
    """Degree and threshold for so many clients, of which some collude and some are lost.

    Raises:
        TooFewError: no threshold is both safe and reachable.

    Example:
        >>> wire(100, Level.SEMI_HONEST, bad=10, lost=20)
        Wiring(degree=28, threshold=11)
    """
    if count > COMPLETE:
        for degree in range(2, count - 1, 2):
            if _hangs_together(count, degree, bad + lost):
                threshold = _sparse_threshold(count, degree, level, bad)
                if threshold <= _reachable(count, degree, count - lost):
                    return Wiring(degree, threshold)
    return Wiring(count - 1, _complete_threshold(count, level, bad, lost))


def _complete_threshold(count: int, level: Level, bad: int, lost: int) -> int:
    """Two thirds and one, if that is both safe and reachable; otherwise as near to it as may be."""
    low = max(2, bad + 1 if level is Level.SEMI_HONEST else (count + bad) // 2 + 1)
    high = count - lost
    if low > high:
        raise TooFewError(f"{count} clients are too few: {low} shares are needed, {high} are sure. Use more clients.")
    return min(max(low, (2 * count + 2) // 3 + 1), high)


def _sparse_threshold(count: int, degree: int, level: Level, bad: int) -> int:
    """One more than colluders can have; against an active server, of both kinds together.

    An honest neighbour gives one kind of share, a corrupt one both, the client itself (one more holder) only that of
    its seed: 2·threshold must exceed degree + 1 + colluders.
    """
    near = _most_colluders(count, bad, degree)
    return max(2, near + 1 if level is Level.SEMI_HONEST else (degree + 1 + near) // 2 + 1)


def _part(fraction: Fraction, count: int) -> int:
    return int(fraction * count)


def _hangs_together(count: int, degree: int, bad: int) -> bool:
    """Whether the graph without its bad nodes stays connected but with probability 2^-41 (Bell et al., Theorem 3.7)."""
    pairs = count * (count - degree - 1) // 2
    return (pairs * comb(bad, degree) << _SECURITY) <= comb(count, degree)


def _counts(total: int, marked: int, drawn: int) -> list[int]:
    """In how many of all C(total, drawn) draws exactly x are marked, from the smallest possible x on."""
    low, high = max(0, drawn + marked - total), min(marked, drawn)
    terms = [comb(marked, low) * comb(total - marked, drawn - low)]
    for x in range(low, high):
        terms.append(terms[-1] * (marked - x) * (drawn - x) // ((x + 1) * (total - marked - drawn + x + 1)))
    return terms


def _most_colluders(count: int, bad: int, degree: int) -> int:
    """How many neighbours may collude, but with probability 2^-41 for any client at all."""
    terms, tail = _counts(count, bad, degree), 0
    limit = comb(count, degree)
    for x in range(min(bad, degree), -1, -1):
        tail += terms.pop() if terms else 0
        if (tail * count << _SECURITY) > limit:
            return x
    return 0


def _reachable(count: int, degree: int, good: int) -> int:
    """How many neighbours are left at least, but with probability 2^-20 for any client at all."""
    terms, below = _counts(count, good, degree), 0
    limit = comb(count, degree)
    for x, term in enumerate(terms, max(0, degree + good - count)):
        below += term
        if (below * count << _CORRECTNESS) >= limit:
            return x
    return 0
