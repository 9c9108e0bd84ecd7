"""The privacy terms of a method: its units, their prices, the adjacency, and the custom parts that they rest on.

They follow from the pieces and are computed once for each method. They are in `core` because the composition rules need
them while a method is built, before any accountant is imported.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

from tacit.core.interfaces import Mechanism, Trainer
from tacit.core.prices import (
    Adjacency,
    ClientUnits,
    Leakage,
    Price,
    RecordSum,
    Release,
    Repeated,
    Sampling,
    Uncalibrated,
    Unit,
    UnitPrice,
    Unproved,
)
from tacit.core.provenance import CustomPart, own_parts, rests_on
from tacit.core.state import Turnout
from tacit.errors import expect

if TYPE_CHECKING:
    from tacit.core.method import Method

NoiseOrigin = Literal["steps", "messages", "shares", "sum"]
Question = tuple[bool, int, int, Turnout | None]  # within clients, round, number of units, who took part
MAX_KNOWN = 4096
FOR_RECORDS = Unproved("the noise is scaled to what one record adds to an update, and not to a whole update")


@dataclass(frozen=True, eq=False)
class Terms:
    """The privacy terms of a method, for any population.

    Statements about records hold for persons where the data assign records to persons.

    Attributes:
        mechanism: the piece that adds noise to messages, or to their sum.
        trainer: the piece that may add noise for records.
        own_parts: the parts of the method's pieces that its user wrote.
        known: prices computed so far, at most `MAX_KNOWN`: pieces are frozen, so that prices do not change.
    """

    mechanism: Mechanism
    trainer: Trainer
    own_parts: tuple[CustomPart, ...]
    known: dict[Question, UnitPrice | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, method: "Method") -> Self:
        """The terms of a method."""
        return cls(method.mechanism, method.trainer, own_parts(method))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units of its guarantees, proved or not; the record only if noise is added for it."""
        if Unit.RECORD not in self.prices:
            return (Unit.CLIENT,)
        return (Unit.CLIENT, Unit.RECORD) if self.record_bound is None and self.changes_rows else (Unit.RECORD,)

    def units_with(self, within: Unit) -> tuple[Unit, ...]:
        """The same units on data whose clients have such units."""
        return tuple(within if unit.within_client else unit for unit in self.units)

    @cached_property
    def prices(self) -> dict[Unit, UnitPrice]:
        """The expected price of the first round for each unit; without records if no noise is added for them."""
        prices = {unit: self.price(unit) for unit in (Unit.CLIENT, Unit.RECORD)}
        return {unit: price for unit, price in prices.items() if price is not None}

    @cached_property
    def accounted(self) -> tuple[Unit, ...]:
        """The units whose ε an accountant can compute; not before the noise multiplier is known."""
        return tuple(unit for unit, price in self.prices.items() if price.accounted is not None)

    @cached_property
    def uncalibrated(self) -> tuple[Unit, ...]:
        """The units whose noise multiplier is yet to be computed from the budget and the population."""
        of_clients = self.record_bound is None and isinstance(self._of_mechanism, Uncalibrated)
        of_records = isinstance(self.prices.get(Unit.RECORD), Uncalibrated)
        return (*(Unit.CLIENT,) * of_clients, *(Unit.RECORD,) * of_records)

    @property
    def leakage(self) -> Leakage | None:
        """The d-privacy of its rounds; None: they are not accounted as d-privacy."""
        return self.prices[Unit.CLIENT].leakage

    def max_participations(self, dim: int) -> int | None:
        """In how many rounds a client takes part, with messages of `dim` numbers, before it declines; None: any."""
        return None if self.leakage is None else self.leakage.max_participations(dim)

    @cached_property
    def adjacency(self) -> Adjacency:
        """The adjacency of its guarantee, which is fixed before the first round; add-or-remove if nothing is proved."""
        accounted = self.prices[Unit.CLIENT].accounted
        adjacencies = () if accounted is None else accounted.release.adjacencies
        return next(iter(adjacencies), Adjacency.ADD_OR_REMOVE)

    @cached_property
    def changes_rows(self) -> bool:
        """Whether its mechanism clips rows or adds noise at all."""
        price = self._of_mechanism
        return self.mechanism.requires != "anything" or not isinstance(price, Unproved) or price.noisy

    @cached_property
    def noise_from(self) -> tuple[NoiseOrigin, ...]:
        """Where noise is added: in a client's training `steps`, to its `messages`, in `shares`, or to the `sum`."""
        steps: tuple[NoiseOrigin, ...] = ("steps",) if self.protects_records and self.record_bound is None else ()
        price = self._of_mechanism
        if isinstance(price, Unproved) and not price.noisy:
            return steps
        origins: dict[str, NoiseOrigin] = {"only the sum": "shares", "anything": "messages"}
        return (*steps, origins.get(self.mechanism.requires, "sum"))

    @property
    def protects_records(self) -> bool:
        """Whether noise is added for records, proved or not, calibrated or not."""
        return Unit.RECORD in self.prices

    @property
    def adds_noise(self) -> bool:
        """Whether noise is added, or rows are clipped, for any unit."""
        return self.changes_rows or self.protects_records

    @cached_property
    def record_bound(self) -> float | None:
        """The bound on what one record adds to a row, where the mechanism's noise is for records; None: it is not."""
        return self.mechanism.record_bound

    def public_units(self, units: ClientUnits) -> ClientUnits:
        """These units of every client, with the numbers that are public: one each where no price depends on them."""
        return units if self.record_bound is None else replace(units, sizes=(1,) * len(units.sizes))

    @cached_property
    def record_sum(self) -> RecordSum | None:
        """How far one record can change a client's row, where rows are sums over records; None: they are not."""
        return self.trainer.record_sum

    def noisy_slot(self, unit: Unit) -> Literal["mechanism", "trainer"]:
        """The piece whose noise protects this unit."""
        return "trainer" if unit.within_client and self.record_bound is None else "mechanism"

    def price(
        self, unit: Unit, *, index: int = 0, samples: int = 1, turnout: Turnout | None = None
    ) -> UnitPrice | None:
        """The price of a round for a unit of a participating client, if all pieces are Tacit's own or declared.

        Noise for records is the trainer's own, and everything after it post-processing; or it is that of a sum over the
        clients (`RecordClip`), where Poisson batches amplify it. Which clients take part may then be known, so that
        noise of another variance reveals nothing about a record.

        Args:
            unit: which; a person is priced as a record of the data that were drawn with it.
            index: the round, on which the noise for clients may depend.
            samples: how many such units its client has.
            turnout: who took part in it; None: as expected.

        Returns:
            The price; None: the method adds no noise for this unit.
        """
        question = (unit.within_client, index, samples, turnout)
        if question not in self.known:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            if not unit.within_client:
                self.known[question] = self._whole(index, turnout)
            elif self.record_bound is None:
                self.known[question] = self._in_training(samples)
            else:
                self.known[question] = self._in_sums(turnout)
        return self.known[question]

    def _whole(self, index: int, turnout: Turnout | None) -> UnitPrice:
        """The price for a client."""
        if self.record_bound is not None:
            return FOR_RECORDS
        expected = index == 0 and turnout is None
        mechanism_price = self._of_mechanism if expected else self.mechanism.price(index, turnout)
        price = rests_on(mechanism_price, self.own_parts)
        return price.accounted if isinstance(price, Release) else price

    @cached_property
    def _of_mechanism(self) -> Price:
        """The expected price of the first round, by the mechanism alone."""
        return self.mechanism.price(0)

    def _in_training(self, samples: int) -> UnitPrice | None:
        """The price for records, by the trainer's own noise."""
        price = self.trainer.record_price(samples)
        if not isinstance(price, Repeated):
            return price
        expect(price.release.sampling.kind != "fixed", "batches that are drawn by Poisson sampling, or full ones")
        before = tuple(part for part in self.own_parts if part.slot in ("trainer", "codec", "mechanism"))
        return _record_price(price, before)

    def _in_sums(self, turnout: Turnout | None) -> UnitPrice | None:
        """The price for records, by noise in the sum over all clients."""
        price, rows = self._of_mechanism if turnout is None else self.mechanism.price(0, turnout), self.record_sum
        if isinstance(price, Unproved):
            return replace(price, nominal=None)  # nothing nominal is accounted for records
        if not isinstance(price, Release) or rows is None:
            return price if isinstance(price, Uncalibrated) else None
        sampling = Sampling.at(rows.rate, "poisson")
        return _record_price(Repeated(replace(price, sampling=sampling, constant=True)), self.own_parts)


def _record_price(price: Repeated, parts: tuple[CustomPart, ...]) -> UnitPrice:
    """The price for records, if all of these parts are Tacit's own or declare their sensitivity."""
    release = rests_on(price.release, parts)
    return replace(price, release=release) if isinstance(release, Release) else Unproved(release.reason)
