"""Charging a run's rounds: each is charged before it is executed and settled after it.

What a round releases depends only on the method and the population, so the number of rounds that the budget allows is
known beforehand; a ledger that other runs charge too may end the run earlier. Importing this module imports
`dp_accounting`, which takes a second: runs without noise avoid it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Self

from tacit.core import Method, Report, Turnout
from tacit.core.prices import Gaussian, Release, Sampling, Unit, Unproved, Zcdp, accounted
from tacit.core.provenance import declaration
from tacit.errors import BudgetError, expect
from tacit.privacy.accountants import Accountant, Accounting, Rdp, default_accountant, max_rounds
from tacit.privacy.cohorts import check_cohorts, failure
from tacit.privacy.guarantee import Guarantee, delta_warning, public_population, trusted_sum
from tacit.privacy.ledger import Ledger
from tacit.privacy.planning import CohortSampling, enough_noise
from tacit.privacy.round_charges import RoundCharges

DROPOUTS = (
    "Whether a client drops out is assumed to depend neither on its data nor on who else takes part; that a round ends "
    "without a sum because too many drop out is not covered."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Charges(RoundCharges[Accounting, Release]):
    """What a run was charged so far for its clients.

    Attributes:
        population: the number of clients.
    """

    population: int

    @classmethod
    def begin(
        cls,
        method: Method,
        population: int,
        turnouts: Sequence[Turnout],
        ledger: Ledger | None = None,
        run: str = "",
    ) -> Self:
        """The charges of a method with noise after rounds with these turnouts."""
        check_cohorts(method, population)
        failed = cls.repeated(ledger, run, len(turnouts), Unit.CLIENT)
        releases = [_release(method, population, index, turnout) for index, turnout in enumerate(turnouts)]
        accounting = Accounting.of(accountant_for(method, population), releases)
        return cls(
            method=method,
            population=population,
            accounting=cls.compose_entries(accounting, failed),
            rounds_allowed=rounds_allowed(method, population),
            ledger=ledger,
            run=run,
            retries=len(failed),
        )

    @property
    def unit(self) -> Unit:
        return Unit.CLIENT

    @property
    def delta_at_budget(self) -> float | None:
        """The δ of all rounds so far, at the budget's ε; None without a budget."""
        return None if self.method.budget is None else self.accounting.delta(self.method.budget.epsilon)

    def reserve(self, key: str = "") -> Self:
        """The charges with one more round, before any of its noise is drawn from the key with this digest.

        Attempts at the round with other keys, which the ledger knows from before a crash, remain charged.

        Raises:
            BudgetError: the round would exceed the run's budget or the ledger's. Nothing was charged.
        """
        return self._reserve(_release(self.method, self.population, self.rounds), key)

    def settle(self, turnout: Turnout) -> Self:
        """The charges with the reserved round at its real turnout, before anything is released.

        A round that costs less than reserved counts less here, but not in the ledger; one that costs more is charged to
        the ledger, too.

        Raises:
            BudgetError: the round would exceed a budget. Nothing may be released; the reservation remains charged.
        """
        actual = _release(self.method, self.population, self.rounds - 1, turnout)
        if self.reserved is not None and actual != self.reserved.planned:
            self._check_proved(actual)
        return self._settle(actual)

    def _check_proved(self, release: Release) -> None:
        """Raise `BudgetError` if nothing is proved of this release for the adjacency of the run, or of its ledger."""
        shared = () if self.ledger is None else (self.ledger.accounting,)
        for adjacency in (each.accountant.adjacency for each in (self.accounting, *shared)):
            if adjacency not in release.adjacencies:
                raise BudgetError(
                    f"Round {self.rounds} cannot be charged for {adjacency} adjacency, because more clients "
                    "were lost than the noise provides for. Nothing was released."
                )

    def guarantee(self, history: Sequence[Report] = ()) -> Guarantee:
        """What is proved so far, and what is not; `history` shows how often each client took part."""
        mechanism, rounds = self.method.mechanism, self.rounds
        price = self.method.price(0)
        exclusions = (
            "Hyperparameters that were tuned on the same data are not accounted for.",
            public_population(self.population),
            delta_warning(self.delta, self.population) or "",
            declaration(self.method.own_parts),
        )
        if isinstance(price, Unproved):
            nominal = f"Nominal ε = {self.epsilon:.4g} at δ = {self.delta:g}, as if that were proved."
            return Guarantee.none(price.reason, rounds=rounds).excluding(nominal, *exclusions)
        turnouts: list[Turnout | None] = [report.turnout for report in history[:rounds]]
        turnouts += [None] * (max(rounds, 1) - len(turnouts))
        releases = [_release(self.method, self.population, index, turnout) for index, turnout in enumerate(turnouts)]
        proved = self.accounting.guarantee(self.delta, releases, releases[0].adversary).excluding(*exclusions)
        proved = replace(proved.excluding(releases[0].caveat), rounds=rounds, retries=self.retries)
        return self._against_server(proved, releases, history) if mechanism.requires == "only the sum" else proved

    def _against_server(self, proved: Guarantee, releases: Sequence[Release], history: Sequence[Report]) -> Guarantee:
        """The guarantee of noise that clients add, with the ε against a server, which knows who took part."""
        sums = trusted_sum(self.method.channel.messages_seen_by) if self._trusts_sum else ""
        found = proved.excluding("Clients are assumed to add their shares of the noise.", DROPOUTS, sums)
        worst = _most_exposed(releases, history)
        if self.retries:  # nobody recorded who took part in them
            worst[releases[0].sampled(Sampling())] += self.retries
        if not worst or proved.epsilon is None:
            return found
        rounds = worst.total()
        epsilon = Accounting.of(self.accounting.accountant).compose_all(worst, rounds).epsilon(self.delta)
        if epsilon <= proved.epsilon * (1 + 1e-6):  # sampling amplifies nothing, and ε holds against the server too
            return found
        return replace(found, server_epsilon=epsilon, server_rounds=rounds)

    @property
    def _trusts_sum(self) -> bool:
        return self.method.channel.message_format.bits is None


def _most_exposed(releases: Sequence[Release], history: Sequence[Report]) -> Counter[Release]:
    """What was released of the client to whom the rounds in which it took part cost most, without amplification."""
    found: dict[int, Counter[Release]] = defaultdict(Counter)
    for release, report in zip(releases, history, strict=False):
        unsampled = release.sampled(Sampling())
        for client in report.clients:
            found[client][unsampled] += 1
    return max(found.values(), key=_concentrated_loss, default=Counter[Release]())


def _concentrated_loss(counts: Counter[Release]) -> float:
    """The ρ of zero-concentrated differential privacy of these releases, by which participants are compared."""
    return sum(count * _rho(release.loss) for release, count in counts.items())


def _rho(loss: Gaussian | Zcdp) -> float:
    if isinstance(loss, Zcdp):
        return loss.rho + loss.xi
    return 1 / (2 * loss.noise_multiplier**2) if loss.noise_multiplier else math.inf


@cache
def calibrate(method: Method, population: int) -> Method:
    """The method with the noise that its budget needs for all of its rounds."""
    budget = method.budget
    assert budget is not None  # or the method could not have been composed
    check_cohorts(method, population)
    unit = _sized(method, 1.0)
    accountant = accountant_for(unit, population)
    release = replace(_release(unit, population, 0), distance=0.0, failure=0.0)  # they are counted below
    start = CohortSampling(method.sampler, population, release).noise_for(budget, method.rounds, accountant)

    def epsilon(noise: float) -> float:
        return Accounting.of(accountant, _releases(_sized(method, noise), population)).epsilon(budget.delta)

    return _sized(method, enough_noise(start, epsilon, budget))


def accountant_for(method: Method, population: int) -> Accountant:
    """The accountant of a run of this method, for everything that its rounds may release: see `Method.adjacency`."""
    rounds = range(method.rounds)
    releases = (release_of(method, population, index, each) for index in rounds for each in method.turnouts)
    return default_accountant(*{release for release in releases if release is not None})


def _sized(method: Method, noise: float) -> Method:
    return replace(method, mechanism=method.mechanism.sized(noise))


def rounds_allowed(method: Method, population: int) -> int:
    """The number of rounds of the method, or as many of them as its budget allows."""
    if method.budget is None:
        return method.rounds
    guess = 1
    tight = accountant_for(method, population)
    for accountant in (Rdp(tight.adjacency), tight):  # the fast one gives the first guess
        guess = _rounds_within_budget(method, population, accountant, max(guess, 1))
    advice = "Not even the first round fits: use more noise or smaller cohorts."
    expect(guess >= 1, f"a budget of {method.budget} that allows a round", advice)
    return guess


def _rounds_within_budget(method: Method, population: int, accountant: Accountant, guess: int) -> int:
    budget = method.budget
    assert budget is not None

    def fits(rounds: int) -> bool:
        if rounds > method.rounds:
            return False
        accounting = Accounting.of(accountant, islice(_releases(method, population), rounds))
        return accounting.epsilon(budget.delta) <= budget.epsilon

    return max_rounds(fits, guess)


def release_of(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Release | None:
    """The release of round `index`, proved or nominal: as planned, or for the turnout that the round had.

    None: there is nothing to account for in (ε, δ).
    """
    found = accounted(method.price(index, turnout))
    if not isinstance(found, Release):
        return None
    if turnout is not None and not _same_without_one(method, index, turnout):
        found = replace(found, constant=False)
    sampling = method.sampler.sampling(population, index)
    return replace(found, sampling=sampling, failure=failure(sampling, population, method.channel.min_cohort))


def _same_without_one(method: Method, index: int, turnout: Turnout) -> bool:
    """Whether the noise would be the same if one client less took part, and as many were lost.

    ⌊dropouts · n⌋ losses are tolerated among n clients, which may be one more than among n − 1: then the variance shows
    that n took part. A channel with a smallest cohort ends the round instead, which `DROPOUTS` excludes.
    """
    if method.channel.min_cohort or turnout.delivered in (0, turnout.cohort):
        return True
    fewer = accounted(method.price(index, Turnout(turnout.cohort - 1, turnout.delivered - 1)))
    return isinstance(fewer, Release) and fewer.constant


def _releases(method: Method, population: int) -> Iterator[Release]:
    """The release of each round."""
    return (_release(method, population, index) for index in range(method.rounds))


def _release(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Release:
    release = release_of(method, population, index, turnout)
    if release is None:  # methods without noise are not charged, so no honest client delivered any
        raise BudgetError(f"Round {index + 1} has no noise at all: no honest client delivered. Nothing was released.")
    return release
