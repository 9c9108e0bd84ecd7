"""The privacy accounting of a unit: for every client, the releases about any one of its units.

About clients themselves, a round releases the same, whoever they are: there is one entry for anyone, composed round by
round by one accountant. Within clients, each differs in the number of its units, and so in the rate at which a batch
samples them, and in how often it took part: its releases are composed by themselves, and ε of all is that of the worst
client, which is named. Of a person with records at several clients, and over several runs, the releases of all of these
clients are composed, whichever they are (`worst_choice`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, product
from typing import Literal, Self

from tacit.core.prices import Adjacency, Release, Repeated, Unit
from tacit.errors import expect, whole
from tacit.privacy.accountants import Accountant, Accounting, Rdp
from tacit.privacy.client_choices import Key, accounting_of, drop_dominated, key_of, tightest, worst_choice

MAX_PAIRS = 64  # of clients whose data occur in one of two runs only
MAX_KINDS = 4  # of clients whose tests are compared
ANYONE = -1  # in place of a client's number: what is released about clients is the same for all


@dataclass(frozen=True)
class Charge:
    """The releases of a round about a unit of each participating client, by the client's number.

    Attributes:
        unit: clients, or what batches draw within them.
        clients: what is released, and how often; for clients themselves, about `ANYONE`.
        copies: the most clients at which one unit is; 0: unknown.
        summed: whether the noise is that of the clients' sum, not each client's own.
        identities: of the clients' data (`ClientUnits`), by the client's number; not part of what is released.
    """

    unit: Unit
    clients: Mapping[int, Repeated]
    copies: int = 0
    summed: bool = False
    identities: Mapping[int, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        whole(0, copies=self.copies)
        if self.unit.within_client:
            fixed = any(each.release.sampling.kind == "fixed" for each in self.clients.values())
            expect(not fixed, "batches that are drawn by Poisson sampling, or full ones")
            expect(min(self.clients, default=0) >= 0, "clients by their numbers")
        else:
            expect(set(self.clients) == {ANYONE}, "one release about all clients alike")

    @classmethod
    def of_clients(cls, release: Release) -> Self:
        """What a round releases about every client."""
        return cls(Unit.CLIENT, {ANYONE: release.accounted})

    @property
    def releases(self) -> frozenset[Release]:
        """The different releases."""
        return frozenset(each.release for each in self.clients.values())


@dataclass(frozen=True)
class Exposure:
    """The client whose units are least protected.

    Attributes:
        client: its number; the first one of several; None: all clients alike.
        epsilon: the ε of each of its units.
        steps: how many releases its ε composes.
    """

    client: int | None
    epsilon: float
    steps: int


@dataclass(frozen=True, eq=False)
class UnitAccounting:
    """What was released about the units of each client, over all rounds. Immutable.

    Formal guarantees: (ε, δ) holds for every unit of every client, for all releases together, as long as the rates at
    which cohorts and batches are drawn do not depend on private data: add-or-remove within clients, and for clients
    the adjacency of the accountant.

    Attributes:
        unit: about what.
        released: what was released about a unit of each client, and how often.
        rounds: the number of rounds.
        copies: the most clients at which one unit is.
        unknown: whether a charge did not say at how many clients a unit is, so that it was composed for one.
        summed: whether the noise is that of the clients' sum; then `released` includes all clients of a unit.
        identities: of the clients' data, as far as charges have them.
        others: the accountings of other runs, whose clients need not be these.
        composed: what was released about anyone, composed by one accountant; None: by the tightest, for each client.

    Example:
        >>> from tacit.core.prices import Gaussian, Sampling
        >>> step = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.02))
        >>> small = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.1))
        >>> charge = Charge(Unit.RECORD, {0: Repeated(step, 50), 1: Repeated(small, 10)})
        >>> worst = UnitAccounting(Unit.RECORD).compose(charge).worst(1e-5)
        >>> worst.client, round(worst.epsilon, 2), worst.steps
        (1, 2.85, 10)
    """

    unit: Unit
    released: Mapping[int, Counter[Release]] = field(default_factory=dict)
    rounds: int = 0
    copies: int = 1
    unknown: bool = False
    summed: bool = False
    identities: Mapping[int, str] = field(default_factory=dict)
    others: "tuple[UnitAccounting, ...]" = ()
    composed: Accounting | None = None

    @classmethod
    def of(cls, unit: Unit, charges: Iterable[Charge] = (), accountant: Accountant | None = None) -> Self:
        """The accounting of rounds with these charges; with an accountant for all, equal ones are composed at once."""
        accounting = cls(unit)
        for charge in charges:
            accounting = accounting._with(charge)
        if accountant is None:
            return accounting
        releases = accounting.released.get(ANYONE, Counter[Release]())
        return replace(accounting, composed=Accounting.of(accountant).compose_all(releases, accounting.rounds))

    def compose(self, charge: Charge) -> Self:
        """The accounting with one more round."""
        accounting = self._with(charge)
        if self.composed is None:
            return accounting
        repeated = charge.clients[ANYONE]
        return replace(accounting, composed=self.composed.compose_all({repeated.release: repeated.times}, 1))

    def _with(self, charge: Charge) -> Self:
        expect(charge.unit is self.unit, f"a charge for {self.unit}s, got one for {charge.unit}s")
        released, moved = dict(self.released), max(charge.copies, 1) if charge.summed else 1
        for client, repeated in charge.clients.items():
            release = repeated.release.at_clients(moved)
            released[client] = released.get(client, Counter()) + Counter({release: repeated.times})
        return replace(
            self,
            released=released,
            rounds=self.rounds + 1,
            copies=max(self.copies, 1 if charge.summed else charge.copies),
            unknown=self.unknown or charge.copies == 0,
            summed=self.summed or charge.summed,
            identities={**self.identities, **charge.identities},
        )

    @property
    def _identified(self) -> Mapping[str, Counter[Release]] | None:
        """What was released about a unit of each client, by the identity of its data; None: some are not known.

        A person whose clients are not counted may be at others, too.
        """
        apart = self.copies == 1 and not (self.unknown and self.unit is Unit.PERSON) and not self.others
        known = {self.identities.get(client, ""): releases for client, releases in self.released.items()}
        return known if apart and known and "" not in known and len(known) == len(self.released) else None

    def align(self, other: Self) -> Self | None:
        """The accounting of two runs together whose clients' data are partly the same; None: not known, or many.

        Formal guarantees: if a unit is at one client in each run, and that client's data are equal to those of a client
        in the other run, it is at that client there. So a unit at a client whose data occur in one run only is, in the
        other run, at such a client as well, or at none: every pair of these is listed as one client.
        """
        mine, its = self._identified, other._identified
        if mine is None or its is None or not mine.keys() & its.keys():
            return None
        apart = [[known[each] for each in known if each not in others] for known, others in ((mine, its), (its, mine))]
        pairs = product(*(each or [Counter[Release]()] for each in apart)) if any(apart) else ()
        together = {each: mine[each] + its[each] for each in mine if each in its}
        if math.prod(len(each) or 1 for each in apart) > MAX_PAIRS:
            return None
        together |= {f"pair {number}": one + two for number, (one, two) in enumerate(pairs)}
        return replace(
            self,
            released=dict(enumerate(together.values())),
            identities=dict(enumerate(together)),
            rounds=self.rounds + other.rounds,
            unknown=self.unknown or other.unknown,
        )

    def at_copies(self, clients: int) -> Self:
        """The accounting of units that are at up to this many clients, where their number was unknown."""
        if clients <= 1 or not self.unknown:
            return self
        if not self.summed:
            return replace(self, copies=max(self.copies, clients), unknown=False)
        moved = {client: _at_clients(releases, clients) for client, releases in self.released.items()}
        return replace(self, released=moved, unknown=False)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency for which it is composed."""
        return Adjacency.ADD_OR_REMOVE if self.composed is None else self.composed.accountant.adjacency

    def worst(self, delta: float, *, fine: bool = False) -> Exposure | None:
        """The client with the largest ε at this δ; None if nothing was released about any.

        Clients whose ε by the fast Rényi accountant is below another's by the tight one need not be computed tightly.
        """
        if self.composed is not None:
            return Exposure(None, self.composed.epsilon(delta), self.rounds)
        if not self._at_one_client:
            return self._worst_of_several(delta, fine=fine)
        groups = {key_of(releases): client for client, releases in sorted(self.released.items(), reverse=True)}
        bounds = {key: _epsilon(key, "bound", delta) for key in groups}
        worst: tuple[float, Key] | None = None
        for key in sorted(groups, key=lambda each: -bounds[each]):
            if worst is not None and bounds[key] <= worst[0]:
                break
            tight = min(bounds[key], _epsilon(key, "fine" if fine else "fast", delta))
            worst = max(worst or (-1.0, key), (tight, key), key=lambda each: each[0])
        if worst is None:
            return None
        return Exposure(groups[worst[1]], worst[0], sum(count for _, count in worst[1]))

    def epsilon(self, delta: float) -> float:
        """The ε at this δ of every unit of every client; infinite if nothing is proved."""
        worst = self.worst(delta)
        return 0.0 if worst is None else worst.epsilon

    def costs_more(self, other: Self, delta: float) -> bool:
        """Whether the ε at this δ of some client's units is larger than in another accounting.

        The largest ε may be the same: it can be that of a client with equal releases in both.
        """
        if self.composed is not None:
            return self.epsilon(delta) > other.epsilon(delta)
        keys = {client: key_of(other.released.get(client, Counter())) for client in self.released}
        pairs = {(key_of(releases), keys[client]) for client, releases in self.released.items()}
        return any(_epsilon(own, "fast", delta) > _epsilon(its, "fast", delta) for own, its in pairs if own != its)

    def of_client(self, client: int) -> Accounting:
        """The accounting of one client's units, for those that are at no other one."""
        key = key_of(self.released.get(client, Counter()))
        return accounting_of(key, tightest(key, fine=True))

    def of_worst(self, worst: Exposure, delta: float) -> Accounting:
        """The accounting by which this client, or a choice of several, has the largest ε at this δ."""
        if self.composed is not None:
            return self.composed
        if worst.client is not None and self._at_one_client:
            return self.of_client(worst.client)
        return self._choice(delta, fine=True)

    def detection_limit(self, false_alarms: float) -> float | None:
        """The highest detection rate of any test of one unit of any client; None: there are many kinds of clients."""
        if self.composed is not None:
            return self.composed.detection_limit(false_alarms)
        costly = [*islice(drop_dominated(self.released.values()), MAX_KINDS + 1)] if self._at_one_client else []
        if not 0 < len(costly) <= MAX_KINDS:
            return None
        keys = map(key_of, costly)
        return max(accounting_of(key, tightest(key, fine=False)).detection_limit(false_alarms) for key in keys)

    @property
    def _at_one_client(self) -> bool:
        return self.copies == 1 and not self.others

    def _worst_of_several(self, delta: float, *, fine: bool) -> Exposure | None:
        """The worst exposure of a unit at several clients; it names the client that is worst alone."""
        alone = replace(self, copies=1, others=()).worst(delta)
        accounting = self._choice(delta, fine=fine)
        if accounting.rounds == 0:
            return None
        return Exposure(0 if alone is None else alone.client, accounting.epsilon(delta), accounting.rounds)

    def _choice(self, delta: float, *, fine: bool) -> Accounting:
        groups = tuple((frozenset(map(key_of, each.released.values())), each.copies) for each in (self, *self.others))
        return worst_choice(groups, delta, fine=fine)


def _at_clients(releases: Counter[Release], clients: int) -> Counter[Release]:
    moved = Counter[Release]()
    for release, times in releases.items():
        moved[release.at_clients(clients)] += times
    return moved


@lru_cache(maxsize=4096)
def _epsilon(key: Key, how: Literal["bound", "fast", "fine"], delta: float) -> float:
    accountant = tightest(key, fine=how == "fine")
    return accounting_of(key, Rdp(accountant.adjacency) if how == "bound" else accountant).epsilon(delta)
