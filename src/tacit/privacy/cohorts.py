"""Random cohorts that are too small for the channel: their probability, and the methods rejected for it.

A round without enough clients is played as one without clients. If at least `least` clients other than a given one are
drawn, the round is as its price declares, whether that client is drawn or not; otherwise nothing is claimed. The
probability of the latter depends neither on data nor on that client, so it is added to δ as it is (joint convexity).
"""

from bisect import bisect_left
from functools import lru_cache

from scipy.stats import binom

from tacit.core import Method
from tacit.core.prices import Sampling
from tacit.errors import UserError

MAX_PART = 0.1  # of δ that too small cohorts may take


@lru_cache
def failure(sampling: Sampling, population: int, least: int) -> float:
    """The probability that fewer than `least` clients other than a given one are drawn; 0 if sizes are public."""
    if least == 0 or sampling.kind != "poisson":
        return 0.0
    return float(binom.cdf(least - 1, population - 1, sampling.rate))


def check_cohorts(method: Method, population: int) -> None:
    """Raise `UserError` if a random cohort is too small for the channel with a probability that matters at this δ."""
    least = method.channel.min_cohort
    if least == 0:
        return
    samplings = [method.sampler.sampling(population, index) for index in range(method.rounds)]
    failures = {sampling: failure(sampling, population, least) for sampling in set(samplings)}
    total, limit = sum(failures[sampling] for sampling in samplings), MAX_PART * method.delta
    if total <= limit:
        return
    smallest = smallest_cohort(population, least, limit / method.rounds)
    larger = f"Poisson cohorts of at least {smallest} clients, " if smallest is not None else ""
    raise UserError(
        f"{method.name}: a Poisson cohort can have fewer than the {least} clients that secure aggregation needs. In "
        f"{method.rounds} rounds this has a probability of up to {min(total, 1.0):.2g}, but at δ = {method.delta:g} "
        f"it may be at most {limit:.2g}. Use {larger}Everyone or FixedSize."
    )


def smallest_cohort(population: int, least: int, limit: float) -> int | None:
    """The smallest mean of Poisson cohorts that fail with at most this probability per round; None: none does."""

    def enough(size: int) -> bool:
        return failure(Sampling(kind="poisson", rate=size / population), population, least) <= limit

    smallest = 1 + bisect_left(range(1, population), True, key=enough)
    return smallest if smallest < population else None
