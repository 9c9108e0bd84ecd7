"""Planning of a method's rounds for each unit: their charges, the rounds that a budget allows, and the noise."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

from scipy.optimize import brentq
from scipy.stats import binom

from tacit.core import Budget, Method, Turnout
from tacit.core.prices import ClientUnits, Release, Unit
from tacit.errors import BudgetError, expect
from tacit.privacy.accountants import Accountant, Accounting, Rdp, default_accountant, max_rounds
from tacit.privacy.calibration import CohortSampling, bracket, enough_noise
from tacit.privacy.cohorts import check_cohorts, failure
from tacit.privacy.unit_accounting import Charge, UnitAccounting

_T = TypeVar("_T")
UNLIKELY = 0.01  # that some client takes part more often than its noise is calibrated for


def charge_of(
    method: Method, units: ClientUnits, index: int, cohort: Sequence[int], turnout: Turnout | None = None
) -> Charge:
    """The charge of round `index` for the units of these clients: as planned, or for its actual turnout.

    What is released about clients to those who receive the models does not depend on the turnout.

    Raises:
        BudgetError: it has no noise at all. Methods without noise are not charged, so no honest client delivered any.
    """
    if not units.unit.within_client:
        release = release_of(method, len(units.sizes), index)
        return Charge.of_clients(_noisy(release, index))
    sizes = {units.sizes[client] for client in cohort}
    unit_prices = {size: method.terms.price(units.unit, samples=size, turnout=turnout) for size in sizes}
    prices = {size: _noisy(None if price is None else price.accounted, index) for size, price in unit_prices.items()}
    clients = {client: prices[units.sizes[client]] for client in cohort}
    identities = {client: units.identities[client] for client in cohort} if units.identities else {}
    summed = method.terms.record_bound is not None
    return Charge(units.unit, clients, units.clients, summed, identities)


def _noisy(noise: _T | None, index: int) -> _T:
    if noise is None:
        raise BudgetError(f"Round {index + 1} has no noise at all: no honest client delivered. Nothing was released.")
    return noise


def release_of(method: Method, population: int, index: int) -> Release | None:
    """The release of round `index` about a client, to those who do not know its cohort, proved or nominal.

    None: there is nothing to account for in (ε, δ).
    """
    release = _release(method, index)
    if release is None:
        return None
    sampling = method.sampler.sampling(population, index)
    return replace(release, sampling=sampling, failure=failure(sampling, population, method.channel.min_cohort))


def release_inside(method: Method, population: int, index: int, turnout: Turnout) -> Release | None:
    """The release of round `index` about a client of its cohort, to the server and the cohort's other clients.

    They know who takes part, and clients their own noise. None: there was no honest noise.
    """
    sampling = method.sampler.sampling(population, index)
    mean = max(int(sampling.mean_cohort(population)), 1) if sampling.rate < 1 else 0
    return _release(method, index, replace(turnout, secret_mean=mean))


def _release(method: Method, index: int, turnout: Turnout | None = None) -> Release | None:
    """The release of a client in the cohort, whatever the population."""
    price = method.terms.price(Unit.CLIENT, index=index, turnout=turnout)
    return None if price is None or price.accounted is None else price.accounted.release


def accountant_of(method: Method, units: ClientUnits) -> Accountant | None:
    """The accountant of a run for these units; None: the tightest for what is released about each client."""
    return None if units.unit.within_client else accountant_for(method, len(units.sizes))


def accountant_for(method: Method, population: int) -> Accountant:
    """The accountant of clients, for everything that the rounds may release about them."""
    releases = (release_of(method, population, index) for index in range(method.rounds))
    return default_accountant(*{release for release in releases if release is not None})


def rounds_allowed(method: Method, units: ClientUnits) -> int:
    """The number of rounds of the method, or as many of them as its budget allows.

    Within clients, participation in random cohorts is not known in advance: such a run stops before the round that
    would exceed the budget for one of its clients.
    """
    budget, clients = method.budget, len(units.sizes)
    random = any(method.sampler.sampling(clients, index).rate < 1 for index in range(method.rounds))
    if budget is None or (units.unit.within_client and random):
        return method.rounds
    rounds, advice = method.rounds, "use more noise, smaller batches or fewer local steps"
    tight = accountant_of(method, units)
    if tight is not None:
        rounds, advice = 1, "use more noise or smaller cohorts"
    for accountant in (tight,) if tight is None else (Rdp(tight.adjacency), tight):  # the fast one gives a first guess
        rounds = max_rounds(partial(_fits, method, units, accountant), max(rounds, 1))
    expect(rounds >= 1, f"a budget of {budget} that allows a round", f"Not even the first round fits: {advice}.")
    return rounds


def _fits(method: Method, units: ClientUnits, accountant: Accountant | None, rounds: int) -> bool:
    """Whether this many rounds are within the method's and within its budget."""
    budget = method.budget
    assert budget is not None  # `rounds_allowed` checked
    if rounds > method.rounds:
        return False
    if accountant is None:
        return _after(method, units, rounds).epsilon(budget.delta) <= budget.epsilon
    releases = _releases(method, len(units.sizes), rounds)
    return Accounting.of(accountant, releases).epsilon(budget.delta) <= budget.epsilon


def _releases(method: Method, population: int, rounds: int) -> Iterator[Release]:
    """The release of each of the first rounds about a client."""
    return (_noisy(release_of(method, population, index), index) for index in range(rounds))


def _after(method: Method, units: ClientUnits, rounds: int) -> UnitAccounting:
    """For units within clients: the accounting after this many rounds in which every client takes part."""
    once = UnitAccounting(units.unit).compose(charge_of(method, units, 0, range(len(units.sizes))))
    released = {
        client: Counter({release: times * rounds for release, times in each.items()})
        for client, each in once.released.items()
    }
    return replace(once, released=released, rounds=rounds)


@cache
def calibrate(method: Method, units: ClientUnits) -> Method:
    """The method with the noise that its budget requires in all rounds, for the units of the worst client."""
    budget, unit = method.budget, units.unit
    assert budget is not None  # or the method could not have been composed
    if unit.within_client:
        participations = planned_participations(method, len(units.sizes))
        start = _noise_within(budget, method, units, participations)

        def epsilon(noise: float) -> float:
            return _after(method.with_noise_multiplier(noise, unit), units, participations).epsilon(budget.delta)

    else:
        population = len(units.sizes)
        check_cohorts(method, population)
        one = method.with_noise_multiplier(1.0, unit)
        accountant = accountant_for(one, population)
        release = replace(
            _noisy(release_of(one, population, 0), 0), distance=0.0, failure=0.0
        )  # they are counted below
        start = CohortSampling(method.sampler, population, release).noise_for(budget, method.rounds, accountant)

        def epsilon(noise: float) -> float:
            releases = _releases(method.with_noise_multiplier(noise, unit), population, method.rounds)
            return Accounting.of(accountant, releases).epsilon(budget.delta)

    return method.with_noise_multiplier(enough_noise(start, epsilon, budget), unit)


def planned_participations(method: Method, population: int) -> int:
    """The most rounds in which any client takes part, except with probability 0.01."""
    rates = [method.sampler.sampling(population, index).rate for index in range(method.rounds)]
    fixed, random = sum(rate == 1 for rate in rates), [rate for rate in rates if rate < 1]
    if not random:
        return fixed
    return max(1, fixed + int(binom.isf(UNLIKELY / population, len(random), max(random))))


def _noise_within(budget: Budget, method: Method, units: ClientUnits, often: int) -> float:
    """About the smallest noise, for the client that is worst at the noise which the fast accountant suggests."""

    @cache
    def fast(noise: float) -> float:
        accounting = _after(
            method.with_noise_multiplier(noise, units.unit), _some(units, min(units.sizes), max(units.sizes)), often
        )
        composed = (Accounting.of(Rdp()).compose_all(each, 1) for each in accounting.released.values())
        return max(each.epsilon(budget.delta) for each in composed) - budget.epsilon

    start = float(brentq(fast, *bracket(fast, 1.0, 2.0), rtol=1e-3))
    worst = _after(method.with_noise_multiplier(start, units.unit), units, often).worst(budget.delta)
    assert worst is not None
    assert worst.client is not None
    size = units.sizes[worst.client]

    @cache
    def tight(noise: float) -> float:
        accounting = _after(method.with_noise_multiplier(noise, units.unit), _some(units, size), often)
        return accounting.epsilon(budget.delta) - budget.epsilon

    return float(brentq(tight, *bracket(tight, start, 1.1), rtol=1e-5))


def _some(units: ClientUnits, *sizes: int) -> ClientUnits:
    """As if there were only clients of these sizes, as many of each as one unit may be at."""
    return replace(units, sizes=tuple(sorted(set(sizes))) * units.copies)
