"""The privacy accounting of records: for every client, what was released about any one of its records.

Clients differ in the number of their records, and so in the rate at which a batch samples them, and in how often they
took part. Each client's releases are composed by themselves; ε of all is that of the worst client, which is named. Of a
person with records at several clients, the releases of all of them are composed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from operator import or_
from typing import Literal, Self

from tacit.core.prices import Release, Repeated, Sampling, Unit
from tacit.errors import expect
from tacit.privacy.accountants import FAST_PLD, Accountant, Accounting, Pld, Rdp, default_accountant

FINE = Pld(interval=2e-4)  # for guarantees over many steps, where the error of a coarser grid adds up
MANY_STEPS = 1000


@dataclass(frozen=True)
class RecordCharge:
    """What a round releases about a record of each client that takes part in it, by the client's number.

    Attributes:
        clients: what is released, and how often.
        unit: what batches draw: records, or persons with all of their records.
        copies: at how many of the clients one of them is, at most.
        summed: whether clients have one noise, that of their sum, and not each its own.
    """

    clients: Mapping[int, Repeated]
    unit: Unit = Unit.RECORD
    copies: int = 1
    summed: bool = False

    def __post_init__(self) -> None:
        expect(self.unit is not Unit.CLIENT, "a charge for records or persons, got one for clients")
        expect(self.copies >= 1, f"copies={self.copies} >= 1")


@dataclass(frozen=True)
class Exposure:
    """The client whose records are least protected.

    Attributes:
        client: its number; the first one of several.
        epsilon: the ε of each of its records.
        steps: how many steps its ε composes.
    """

    client: int
    epsilon: float
    steps: int


@dataclass(frozen=True, eq=False)
class RecordAccounting:
    """What was released about the records of each client, over all rounds. Immutable.

    Formal guarantees: (ε, δ) holds for every record of every client, add-or-remove, for all releases together, as long
    as the rates at which batches are drawn do not depend on private data.

    Attributes:
        released: what was released about a record of each client, and how often.
        rounds: the number of rounds.
        copies: the releases of how many clients are composed, whichever these are, because one record, or person, may
            be at that many.

    Example:
        >>> from tacit.core.prices import Gaussian, Sampling
        >>> step = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.02))
        >>> small = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.1))
        >>> charge = RecordCharge({0: Repeated(step, 50), 1: Repeated(small, 10)})
        >>> worst = RecordAccounting().compose(charge).worst(1e-5)
        >>> worst.client, round(worst.epsilon, 2), worst.steps
        (1, 2.85, 10)
    """

    released: Mapping[int, Counter[Release]] = field(default_factory=dict)
    rounds: int = 0
    copies: int = 1

    @classmethod
    def of(cls, charges: Iterable[RecordCharge]) -> Self:
        """The accounting of rounds with these charges."""
        accounting = cls()
        for charge in charges:
            accounting = accounting.compose(charge)
        return accounting

    def compose(self, charge: RecordCharge) -> Self:
        """The accounting with one more round."""
        released, moved = dict(self.released), charge.copies if charge.summed else 1
        for client, repeated in charge.clients.items():
            expect(repeated.release.unit is Unit.RECORD, "a release about a record")
            release = repeated.release.at_clients(moved)
            released[client] = released.get(client, Counter()) + Counter({release: repeated.times})
        copies = max(self.copies, 1 if charge.summed else charge.copies)
        return replace(self, released=released, rounds=self.rounds + 1, copies=copies)

    def worst(self, delta: float, *, fine: bool = False) -> Exposure | None:
        """The client with the largest ε at this δ; None if nothing was released.

        Clients whose ε by the fast Rényi accountant is below another's by the tight one need not be computed tightly.
        """
        groups = {_key(releases): client for client, releases in reversed(self._of_each)}
        bounds = {key: _epsilon(key, "bound", delta) for key in groups}
        found: tuple[float, _Key] | None = None
        for key in sorted(groups, key=lambda each: -bounds[each]):
            if found is not None and bounds[key] <= found[0]:
                break
            tight = min(bounds[key], _epsilon(key, "fine" if fine else "fast", delta))
            found = max(found or (-1.0, key), (tight, key), key=lambda each: each[0])
        if found is None:
            return None
        return Exposure(groups[found[1]], found[0], sum(count for _, count in found[1]))

    def epsilon(self, delta: float) -> float:
        """The ε at this δ of every record of every client; infinite if nothing is proved."""
        worst = self.worst(delta)
        return 0.0 if worst is None else worst.epsilon

    def costs_more(self, other: Self, delta: float) -> bool:
        """Whether the ε at this δ of some client's records is larger than in another accounting.

        The largest ε may be the same: it can be that of a client about which both know the same.
        """
        theirs = {client: _key(other.released.get(client, Counter())) for client in self.released}
        pairs = {(_key(releases), theirs[client]) for client, releases in self.released.items()}
        return any(_epsilon(mine, "fast", delta) > _epsilon(its, "fast", delta) for mine, its in pairs if mine != its)

    def of_client(self, client: int) -> Accounting:
        """The accounting of one client's records; of one that is at several clients, this one among them."""
        key = _key(dict(self._of_each).get(client, Counter()))
        return _accounting(key, _tightest(key, fine=True))

    @property
    def costliest(self) -> tuple[Counter[Release], ...]:
        """What was released of a record at the clients that no other one costs surely at least as much as."""
        return tuple(undominated(releases for _, releases in self._of_each))

    @cached_property
    def _of_each(self) -> Sequence[tuple[int, Counter[Release]]]:
        """What was released of a record of each client, by its number; of one at several clients, for the worst."""
        each = sorted(self.released.items())
        if self.copies == 1 or not each:
            return each
        found = list(undominated(self.released.values()))
        client = next(number for number, releases in each if releases == found[0])
        all_of_them = reduce(or_, found)  # of each release as many as any client has
        return [(client, Counter({release: times * self.copies for release, times in all_of_them.items()}))]


def undominated(releases: Iterable[Counter[Release]]) -> Iterator[Counter[Release]]:
    """Those that none of the others surely costs at least as much as; of equal ones, one."""
    distinct = {_key(each): each for each in releases}.values()
    kept: list[Counter[Release]] = []
    for each in sorted(distinct, key=_weight, reverse=True):  # what dominates has at least the weight
        if not any(_dominates(other, each) for other in kept):
            kept.append(each)
            yield each


def _weight(releases: Counter[Release]) -> float:
    return sum(times * release.sampling.rate for release, times in releases.items())


def _dominates(costlier: Counter[Release], other: Counter[Release]) -> bool:
    """Whether the first surely costs at least as much: as many releases of each kind, at rates at least as high.

    At rate q' < q, a release is that at rate q with probability q'/q, and otherwise what it is without the unit: by
    joint convexity it costs no more.
    """
    kinds = {_without_rate(release) for release in other}
    return all(_at_least(_rates(costlier, kind), _rates(other, kind)) for kind in kinds)


def _without_rate(release: Release) -> Release:
    return release.sampled(Sampling())


def _rates(releases: Counter[Release], kind: Release) -> list[tuple[float, int]]:
    """The rates of this kind of release, descending, each with the number of releases at it or above."""
    found = sorted(
        ((each.sampling.rate, n) for each, n in releases.items() if _without_rate(each) == kind), reverse=True
    )
    return [(rate, total) for (rate, _), total in zip(found, accumulate(n for _, n in found), strict=True)]


def _at_least(costlier: list[tuple[float, int]], other: list[tuple[float, int]]) -> bool:
    return all(max((n for known, n in costlier if known >= rate), default=0) >= total for rate, total in other)


_Key = frozenset[tuple[Release, int]]


def _key(releases: Counter[Release]) -> _Key:
    return frozenset(releases.items())


def _tightest(key: _Key, *, fine: bool) -> Accountant:
    accountant = default_accountant(*(release for release, _ in key))
    many = fine and sum(count for _, count in key) > MANY_STEPS
    return FINE if many and accountant is FAST_PLD else accountant


def _accounting(key: _Key, accountant: Accountant) -> Accounting:
    return Accounting.of(accountant).compose_all(dict(key), sum(count for _, count in key))


@lru_cache(maxsize=4096)
def _epsilon(key: _Key, how: Literal["bound", "fast", "fine"], delta: float) -> float:
    accountant = Rdp() if how == "bound" else _tightest(key, fine=how == "fine")
    return _accounting(key, accountant).epsilon(delta)
