"""The privacy accounting of records: for every client, what was released about any one of its records.

Clients differ in the number of their records, and so in the rate at which a batch samples them, and in how often they
took part. Each client's releases are composed by themselves; ε of all is that of the worst client, which is named. Of a
person with records at several clients, and over several runs, the releases of all of these clients are composed,
whichever they are (`worst_choice`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, Self

from tacit.core.prices import Release, Repeated, Unit
from tacit.errors import expect
from tacit.privacy.accountants import Accounting, Rdp
from tacit.privacy.client_choices import Key, accounting_of, key_of, tightest, worst_choice


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
        copies: at how many clients one record, or person, may be.
        others: the accountings of other runs, whose clients need not be these.

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
    others: "tuple[RecordAccounting, ...]" = ()

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
        if not self._at_one_client:
            return self._worst_of_several(delta, fine=fine)
        groups = {key_of(releases): client for client, releases in sorted(self.released.items(), reverse=True)}
        bounds = {key: _epsilon(key, "bound", delta) for key in groups}
        found: tuple[float, Key] | None = None
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
        theirs = {client: key_of(other.released.get(client, Counter())) for client in self.released}
        pairs = {(key_of(releases), theirs[client]) for client, releases in self.released.items()}
        return any(_epsilon(mine, "fast", delta) > _epsilon(its, "fast", delta) for mine, its in pairs if mine != its)

    def of_client(self, client: int) -> Accounting:
        """The accounting of one client's records, for those that are at no other one."""
        key = key_of(self.released.get(client, Counter()))
        return accounting_of(key, tightest(key, fine=True))

    def of_worst(self, worst: Exposure, delta: float) -> Accounting:
        """The accounting by which this client, or a choice of several, has the largest ε at this δ."""
        return self.of_client(worst.client) if self._at_one_client else self._choice(delta, fine=True)

    @property
    def _at_one_client(self) -> bool:
        return self.copies == 1 and not self.others

    def _worst_of_several(self, delta: float, *, fine: bool) -> Exposure | None:
        """What is worst for one that is at several clients; it names the client whose are least protected alone."""
        alone = replace(self, copies=1, others=()).worst(delta)
        found = self._choice(delta, fine=fine)
        if found.rounds == 0:
            return None
        return Exposure(0 if alone is None else alone.client, found.epsilon(delta), found.rounds)

    def _choice(self, delta: float, *, fine: bool) -> Accounting:
        groups = tuple((frozenset(map(key_of, each.released.values())), each.copies) for each in (self, *self.others))
        return worst_choice(groups, delta, fine=fine)


@lru_cache(maxsize=4096)
def _epsilon(key: Key, how: Literal["bound", "fast", "fine"], delta: float) -> float:
    accountant = tightest(key, fine=how == "fine")
    return accounting_of(key, Rdp(accountant.adjacency) if how == "bound" else accountant).epsilon(delta)
