"""Charging a run's rounds, for any unit: each is reserved before it is played, then fails, or is settled and released.

What a round releases about clients depends only on the method and the population, so the number of rounds within the
budget is known in advance. A ledger that other runs charge too may end the run earlier. Within clients, batches are
drawn by the clients, with secret coins, so that sampling amplifies against everybody, the server included.
Participation is public there: sampling of clients amplifies nothing, and each client is charged for the rounds in which
it takes part. Importing this module imports `dp_accounting`, which takes a second: runs without noise avoid it.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Self

from tacit.core import Method, Report, State, Turnout
from tacit.core.prices import Adjacency, ClientUnits, Release, Sampling, Unit
from tacit.core.provenance import declaration
from tacit.errors import BudgetError
from tacit.privacy.accountants import Accounting, describe_stages
from tacit.privacy.cohorts import check_cohorts
from tacit.privacy.guarantee import (
    AT_SEVERAL,
    COPIES,
    COUNTS,
    DROPOUTS,
    FALSE_ALARMS,
    IN_COMMON,
    LAST_BITS,
    NO_NOISE_INSIDE,
    PERSONS,
    PUBLIC_POPULATION,
    SHARES,
    SIZES,
    TRUSTED_ENCLAVE,
    TRUSTED_SUM,
    TUNED,
    Guarantee,
    delta_warning,
    within_adversary,
)
from tacit.privacy.ledger import Ledger, LedgerEntry
from tacit.privacy.planned_charges import accountant_of, charge_of, release_inside, rounds_allowed
from tacit.privacy.unit_accounting import ANYONE, Charge, UnitAccounting


@dataclass(frozen=True, eq=False)
class Reservation:
    """A round that is charged, and neither released nor failed yet.

    Attributes:
        earlier: the accounting of everything before it.
        planned: what it releases if everybody delivers.
        failed: how many attempts at the same round it includes.
        entry: the round in the ledger, if there is one.
    """

    earlier: UnitAccounting
    planned: Charge
    failed: int
    entry: LedgerEntry | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Charges:
    """The charges of a run so far, for one unit of privacy.

    Attributes:
        method: the method that is run.
        units: the units of every client, as far as they are public.
        accounting: the accounting of the run's rounds, and of all attempts at them.
        rounds_allowed: the number of rounds that the method and its budget allow.
        ledger: the ledger to which they are charged, if any.
        run: the run's name in the ledger, from which its noise is derived.
        retries: the number of charged attempts beyond one for each round.
        failed: how many of these were attempts at the next round.
        reserved: the round that was reserved last, until it failed or another one is reserved.
    """

    method: Method
    units: ClientUnits
    accounting: UnitAccounting
    rounds_allowed: int
    ledger: Ledger | None = None
    run: str = ""
    retries: int = 0
    failed: int = 0
    reserved: Reservation | None = None

    @classmethod
    def begin(
        cls,
        method: Method,
        units: ClientUnits,
        history: Sequence[Report] = (),
        ledger: Ledger | None = None,
        run: str = "",
    ) -> Self:
        """The charges of a method that adds noise for these units, after these rounds.

        Raises:
            LedgerError: one of these rounds was never charged to the ledger.
        """
        if not units.unit.within_client:
            check_cohorts(method, len(units.sizes))
        failed: list[Charge] = []  # at these rounds, beside the attempts that succeeded
        if ledger is not None:
            ledger.check_charged(run, len(history), units.unit)
            numbers = range(1, len(history) + 1)
            failed = [each.charge for number in numbers for each in ledger.attempts(run, number, units.unit)[:-1]]
        charges = [
            charge_of(method, units, index, report.clients, report.turnout) for index, report in enumerate(history)
        ]
        accounting = UnitAccounting.of(units.unit, charges, accountant_of(method, units))
        return cls(
            method=method,
            units=units,
            accounting=reduce(UnitAccounting.compose, failed, accounting),
            rounds_allowed=rounds_allowed(method, units),
            ledger=ledger,
            run=run,
            retries=len(failed),
        )

    @property
    def unit(self) -> Unit:
        """The unit that is charged."""
        return self.units.unit

    @property
    def rounds(self) -> int:
        """The number of charged rounds, each counted once for all of its attempts."""
        return self.accounting.rounds - self.retries

    @property
    def delta(self) -> float:
        """The δ at which ε is reported."""
        return self.method.delta

    @cached_property
    def epsilon(self) -> float:
        """The ε of all rounds so far, at that δ."""
        return self.accounting.epsilon(self.delta)

    @property
    def delta_at_budget(self) -> float | None:
        """The δ of all rounds so far, at the budget's ε; None without a budget, and within clients."""
        budget, composed = self.method.budget, self.accounting.composed
        return None if budget is None or composed is None else composed.delta(budget.epsilon)

    def reserve(self, key: str = "", cohort: Sequence[int] = ()) -> Self:
        """The charges with one more round of these clients, before any of its noise is drawn.

        Attempts with other keys, which the ledger recorded before a crash, remain charged.

        Args:
            key: the digest of the key from which the noise is drawn.
            cohort: the clients that take part; irrelevant where clients themselves are charged, as all are alike.

        Raises:
            BudgetError: the round would exceed the run's budget, or the ledger's, for a unit of one of them. Nothing
                was charged.
        """
        charge = charge_of(self.method, self.units, self.rounds, cohort)
        attempts = () if self.ledger is None else self.ledger.attempts(self.run, self.rounds + 1, self.unit)
        unknown = [each.charge for each in attempts if each.key != key][self.failed :]
        earlier = reduce(UnitAccounting.compose, unknown, self.accounting)
        reserved = Reservation(earlier, charge, self.failed + len(unknown))
        charged = replace(
            self,
            accounting=earlier.compose(charge),
            retries=self.retries + len(unknown),
            failed=0,
            reserved=reserved,
        )
        charged._check_budget()  # earlier rounds may have cost more than planned
        if self.ledger is None:
            return charged
        entry = self.ledger.reserve(self.run, charged.rounds, charge, self.method.name, key)
        return replace(charged, reserved=replace(reserved, entry=entry))

    def settle(self, turnout: Turnout) -> Self:
        """The charges with the reserved round at its real turnout, before anything is released.

        With noise in shares, too few make a round cost more. One that costs less than reserved counts less here, but
        not in the ledger; one that costs more is charged to the ledger, too.

        Raises:
            BudgetError: the round would exceed a budget. Nothing may be released; the reservation remains charged.
        """
        assert self.reserved is not None  # only a reserved round is settled
        actual = charge_of(self.method, self.units, self.rounds - 1, tuple(self.reserved.planned.clients), turnout)
        if actual == self.reserved.planned:
            return self
        self._check_proved(actual)
        settled = replace(self, accounting=self.reserved.earlier.compose(actual))
        if settled.accounting.costs_more(self.accounting, self.delta):
            settled._check_budget(", because too few clients delivered their noise")
            if self.ledger is not None and self.reserved.entry is not None:
                self.ledger.increase(self.reserved.entry, actual)
        return settled

    def fail(self) -> Self:
        """The charges after an attempt at the reserved round that released nothing, so that the round can be repeated.

        The attempt remains charged: sent messages cannot be recalled. The next one needs a new key.
        """
        assert self.reserved is not None  # only a reserved round can fail
        return replace(self, retries=self.retries + 1, failed=self.reserved.failed + 1, reserved=None)

    def release(self, state: State) -> None:
        """Mark the round as released, with a digest of the resulting model."""
        if self.ledger is None or self.reserved is None or self.reserved.entry is None:
            return
        weights = state.weights.detach().cpu().contiguous().numpy()
        self.ledger.release(self.reserved.entry, hashlib.sha256(weights.data).hexdigest())

    def guarantee(self, history: Sequence[Report] = ()) -> Guarantee:
        """The guarantee for every unit so far, and its limits; `history` shows how often each client took part."""
        price = self.method.terms.prices[Unit.RECORD if self.unit.within_client else Unit.CLIENT]
        if price.reason:
            nominal = f"Nominal ε = {self.epsilon:.4g} at δ = {self.delta:g}, as if that were proved."
            return Guarantee.none(price.reason, self.rounds, self.unit).with_limits(nominal, *self._not_covered)
        worst = self.accounting.worst(self.delta, fine=True)
        if worst is None or math.isinf(worst.epsilon):
            reason = "nothing was released yet" if worst is None else f"no finite ε holds at δ = {self.delta:g}"
            return Guarantee.none(reason, self.rounds, self.unit).with_limits(*self._not_covered)
        releases = self._releases(worst.client)
        adversary = releases[0].adversary
        if self.unit.within_client:
            adversary = within_adversary(sums=adversary if self._in_sum else "")
        guarantee = replace(
            self.accounting.of_worst(worst, self.delta).guarantee(self.delta, releases, adversary),
            epsilon=worst.epsilon,
            rounds=self.rounds,
            retries=self.retries,
            unit=self.unit,
            worst_client=worst.client,
            steps=0 if worst.client is None else worst.steps,
            copies=self.units.copies,
            sampling=self._sampling(releases),
            detection=self.accounting.detection_limit(FALSE_ALARMS),
            honest_clients=self._honest_clients(releases, history),
        ).with_limits(*self._not_covered, releases[0].caveat)
        if self.unit.within_client or self.method.mechanism.requires != "only the sum":
            return guarantee
        return self._against_server(guarantee, releases, history)

    def _honest_clients(self, releases: Sequence[Release], history: Sequence[Report]) -> int | None:
        """How many honest clients' noise the rounds rest on, at least; None: none, or sizes of cohorts are secret."""
        if not self.unit.within_client and any(release.sampling.rate < 1 for release in releases):
            return None
        if self.unit.within_client and not self._in_sum:
            return None
        cohorts = {len(report.clients) for report in history if report.clients} or {len(self.units.sizes)}
        counts = [self.method.mechanism.honest_clients(cohort) for cohort in cohorts]
        return min((count for count in counts if count is not None), default=None)

    def _releases(self, client: int | None) -> list[Release]:
        """The releases about a unit of this client; about clients, one for each round."""
        if client is not None:
            return list(self.accounting.released[client])
        charges = (charge_of(self.method, self.units, index, ()) for index in range(max(self.rounds, 1)))
        return [charge.clients[ANYONE].release for charge in charges]

    def _sampling(self, releases: Sequence[Release]) -> str:
        """How cohorts were drawn or, within clients, batches."""
        if not self.unit.within_client:
            return describe_stages(release.sampling for release in releases)
        clients = {self.units.sizes[client]: client for client in self.accounting.released}.values()
        charge = charge_of(self.method, self.units, 0, tuple(clients))
        rates = {release.sampling.rate for release in charge.releases}
        low, high = min(rates), max(rates)
        if low == 1:
            return f"every batch contains every {self.unit}"
        probability = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}, by the size of the client"
        return f"Poisson batches, each {self.unit} with probability {probability}"

    @property
    def _in_sum(self) -> bool:
        """Whether the noise for units within clients is that of their sum."""
        return self.unit.within_client and self.method.terms.record_bound is not None

    @property
    def _counts(self) -> Iterator[str]:
        """The numbers of units within clients that the method contains, in words."""
        mechanism = self.method.mechanism
        if mechanism.row_bound is not None and mechanism.record_bound:
            yield f"{mechanism.row_bound / mechanism.record_bound:,.10g} for which a client's row has room"
        yield from (f"{count:,.10g} {where}" for count, where in self.method.server.counts)

    @property
    def _trusted_sum(self) -> str:
        """Who is trusted to sum real-valued shares of noise; empty: nobody has to be."""
        channel = self.method.channel
        if channel.message_format.bits is not None:
            return ""
        return TRUSTED_ENCLAVE if channel.messages_seen_by == "enclave" else TRUSTED_SUM

    @property
    def _not_covered(self) -> tuple[str, ...]:
        """What the guarantee does not cover, as sentences, empty where it does not apply."""
        within, in_sum, several = self.unit.within_client, self._in_sum, self.units.clients > 0
        alone = PERSONS if self.unit is Unit.RECORD else "" if several else AT_SEVERAL.format(unit=self.unit)
        return (
            TUNED,
            PUBLIC_POPULATION.format(population=len(self.units.sizes)),
            SIZES.format(unit=self.unit) if within and not in_sum else "",
            COUNTS.format(unit=self.unit, counts=", ".join(self._counts)) if in_sum else "",
            COPIES.format(unit=self.unit) if several else "",
            *((alone, IN_COMMON, LAST_BITS.format(unit=self.unit)) if within else ()),
            *((SHARES, DROPOUTS, self._trusted_sum) if in_sum else ()),
            delta_warning(self.delta, sum(self.units.sizes), self.unit) or "",
            declaration(self.method.terms.own_parts),
        )

    def _against_server(self, proved: Guarantee, releases: Sequence[Release], history: Sequence[Report]) -> Guarantee:
        """The guarantee of noise that clients add, with ε against those who know who took part."""
        population, guarantee = len(self.units.sizes), proved.with_limits(SHARES, DROPOUTS, self._trusted_sum)
        inside = [release_inside(self.method, population, index, each.turnout) for index, each in enumerate(history)]
        if None in inside:
            return guarantee.with_limits(NO_NOISE_INSIDE)
        worst = _most_exposed([release for release in inside if release is not None], history)
        if self.retries:  # nobody recorded who took part in them
            worst[replace(releases[0].sampled(Sampling()), constant=False)] += self.retries
        if not worst or proved.epsilon is None or self.accounting.composed is None:
            return guarantee
        rounds = worst.total()
        accountant = replace(self.accounting.composed.accountant, adjacency=Adjacency.ZERO_OUT)
        epsilon = Accounting.of(accountant).compose_all(worst, rounds).epsilon(self.delta)
        if epsilon <= proved.epsilon * (1 + 1e-6):  # sampling amplifies nothing, and ε holds against them, too
            return guarantee
        return replace(guarantee, server_epsilon=epsilon, server_rounds=rounds)

    def _check_proved(self, charge: Charge) -> None:
        """Raise `BudgetError` if this charge has no proof for the adjacency of the run, or of its ledger."""
        shared = () if self.ledger is None else (self.ledger.accounts[self.unit],)
        for adjacency in (each.adjacency for each in (self.accounting, *shared)):
            if any(adjacency not in release.adjacencies for release in charge.releases):
                raise BudgetError(
                    f"Round {self.rounds} cannot be charged for {adjacency} adjacency, because more clients "
                    "were lost than the noise provides for. Nothing was released."
                )

    def _check_budget(self, why: str = "") -> None:
        budget = self.method.budget
        if budget is not None and self.epsilon > budget.epsilon:
            worst = self.accounting.worst(self.delta)
            client = None if worst is None else worst.client
            scope = "" if client is None else f" for the {self.unit}s of client {client}"
            raise BudgetError(
                f"Round {self.rounds} would exceed the budget of {budget}{scope}{why}. Nothing was released."
            )


def begin_charges(
    method: Method,
    clients: int,
    within: ClientUnits | None,
    history: Sequence[Report] = (),
    ledger: Ledger | None = None,
    run: str = "",
) -> dict[Unit, Charges]:
    """The charges after these rounds, for every unit that is accounted for.

    Args:
        method: what is run.
        clients: their number.
        within: the units within each of them; None: they are not known, and not charged.
        history: the rounds so far.
        ledger: a ledger to charge, too.
        run: the run's name there.
    """
    whole = ClientUnits.whole(clients)
    charged = (within if unit.within_client else whole for unit in method.terms.accounted)
    return {units.unit: Charges.begin(method, units, history, ledger, run) for units in charged if units is not None}


def _most_exposed(releases: Sequence[Release], history: Sequence[Report]) -> Counter[Release]:
    """The releases about the client whose rounds cost most, without amplification."""
    by_client: dict[int, Counter[Release]] = defaultdict(Counter)
    for release, report in zip(releases, history, strict=False):
        unsampled = release.sampled(Sampling())
        for client in report.clients:
            by_client[client][unsampled] += 1
    return max(by_client.values(), key=_zcdp_of, default=Counter[Release]())


def _zcdp_of(counts: Counter[Release]) -> float:
    """The ρ of zero-concentrated differential privacy of these releases, for the comparison of clients."""
    return sum(count * (release.loss.rho + release.loss.xi) for release, count in counts.items())
