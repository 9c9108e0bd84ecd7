"""The life of a charged round, whoever's privacy it costs: reserved, then failed, or settled and released."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

from tacit.core import Method, State
from tacit.core.prices import Release, Unit
from tacit.errors import BudgetError
from tacit.privacy.ledger import Ledger, LedgerEntry
from tacit.privacy.record_accounting import RecordCharge

P = TypeVar("P", bound=Release | RecordCharge)
A = TypeVar("A", bound="UnitAccounting")


class UnitAccounting(Protocol):
    """What was released about a unit so far, composed: an `Accounting` or a `RecordAccounting`."""

    @property
    def rounds(self) -> int:
        """The number of rounds."""

    def compose(self, price: Any, /) -> Self:
        """The accounting with one more round."""

    def epsilon(self, delta: float) -> float:
        """The ε at this δ."""

    def costs_more(self, other: Self, delta: float) -> bool:
        """Whether anybody's ε at this δ is larger than in the other."""


@dataclass(frozen=True, eq=False)
class Reservation(Generic[A, P]):
    """A round that is charged, and neither released nor failed yet.

    Attributes:
        earlier: the accounting of everything before it.
        planned: what it releases if everybody delivers.
        failed: how many attempts at the same round it includes.
        entry: the round in the ledger, if there is one.
    """

    earlier: A
    planned: P
    failed: int
    entry: LedgerEntry | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundCharges(ABC, Generic[A, P]):
    """What a run was charged so far, for one unit of privacy.

    Attributes:
        method: the method that is run.
        accounting: the accounting of the run's rounds, and of all attempts at them.
        rounds_allowed: the number of rounds that the method and its budget allow.
        ledger: the ledger to which they are charged, if any.
        run: the run's name in the ledger, from which its noise is derived.
        retries: how many charged attempts beside one for each round the accounting includes.
        failed: how many of these were attempts at the next round.
        reserved: the round that was reserved last, until it failed or another one is reserved.
    """

    method: Method
    accounting: A
    rounds_allowed: int
    ledger: Ledger | None = None
    run: str = ""
    retries: int = 0
    failed: int = 0
    reserved: Reservation[A, P] | None = None

    @property
    def rounds(self) -> int:
        """The rounds that were charged, each counted once, however many attempts it took."""
        return self.accounting.rounds - self.retries

    @property
    def delta(self) -> float:
        """The δ at which ε is reported."""
        return self.method.delta

    @cached_property
    def epsilon(self) -> float:
        """The ε of all rounds so far, at that δ."""
        return self.accounting.epsilon(self.delta)

    def fail(self) -> Self:
        """The charges after an attempt at the reserved round that released nothing, so that the round can be repeated.

        The attempt remains charged: what clients sent is not taken back. The next one needs a new key.
        """
        assert self.reserved is not None  # only a reserved round can fail
        return replace(self, retries=self.retries + 1, failed=self.reserved.failed + 1, reserved=None)

    def release(self, state: State) -> None:
        """Mark the round as released, with a digest of the resulting model."""
        if self.ledger is None or self.reserved is None or self.reserved.entry is None:
            return
        weights = state.weights.detach().cpu().contiguous().numpy()
        self.ledger.release(self.reserved.entry, hashlib.sha256(weights.data).hexdigest())

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """Whose privacy is charged."""

    @staticmethod
    def repeated(ledger: Ledger | None, run: str, rounds: int, unit: Unit) -> list[LedgerEntry]:
        """The attempts at the first rounds of a run that were charged beside those that succeeded.

        Raises:
            LedgerError: one of these rounds was never charged to the ledger.
        """
        if ledger is None:
            return []
        ledger.check_charged(run, rounds, unit)
        return [each for number in range(1, rounds + 1) for each in ledger.attempts(run, number, unit)[:-1]]

    @staticmethod
    def compose_entries(accounting: A, entries: Sequence[LedgerEntry]) -> A:
        """The accounting with these entries of the ledger, each as a round."""
        for entry in entries:
            accounting = accounting.compose(entry.charge)
        return accounting

    def _reserve(self, price: P, key: str) -> Self:
        """The charges with one more round, before any of its noise is drawn from the key with this digest.

        Attempts at the round with other keys, which the ledger knows from before a crash, remain charged.
        """
        unknown = self._other_attempts(key)[self.failed :]
        reserved = Reservation(self.compose_entries(self.accounting, unknown), price, self.failed + len(unknown))
        charged = replace(
            self,
            accounting=reserved.earlier.compose(price),
            retries=self.retries + len(unknown),
            failed=0,
            reserved=reserved,
        )
        charged._check_budget()  # earlier rounds may have cost more than planned
        if self.ledger is None:
            return charged
        entry = self.ledger.reserve(self.run, charged.rounds, price, self.method.name, key)
        return replace(charged, reserved=replace(reserved, entry=entry))

    def _other_attempts(self, key: str) -> list[LedgerEntry]:
        """The attempts at the next round with other keys, of which the ledger knows."""
        attempts = () if self.ledger is None else self.ledger.attempts(self.run, self.rounds + 1, self.unit)
        return [each for each in attempts if each.key != key]

    def _settle(self, actual: P) -> Self:
        """The charges with the reserved round at its real price, before anything is released."""
        assert self.reserved is not None  # only a reserved round is settled
        if actual == self.reserved.planned:
            return self
        settled = replace(self, accounting=self.reserved.earlier.compose(actual))
        if settled.accounting.costs_more(self.accounting, self.delta):
            settled._check_budget(", because too few clients delivered their noise")
            if self.ledger is not None and self.reserved.entry is not None:
                self.ledger.increase(self.reserved.entry, actual)
        return settled

    def _check_budget(self, why: str = "") -> None:
        budget = self.method.budget
        if budget is not None and self.epsilon > budget.epsilon:
            raise BudgetError(
                f"Round {self.rounds} would exceed the budget of {budget}{self._whose}{why}. Nothing was released."
            )

    @property
    def _whose(self) -> str:
        """Whose budget it is, if not everyone's alike."""
        return ""
