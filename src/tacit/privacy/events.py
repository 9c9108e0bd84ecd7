"""What a round released: the events of `dp_accounting`, in plain values for files and in the books' own terms.

A mechanism emits a Gaussian event whose noise multiplier is over what one client can add to the sum, or an event of
which a line above its Rényi divergences is known; it may say that what it releases is only `Near` to that. The sampler
wraps it by the way it draws cohorts. Here an event becomes `Release`s, which is all that accountants look at, or a JSON
value with a fixed schema: nothing is ever unpickled, and no name of a class is read from a file.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import dp_accounting as dp

from tacit.core import Event, Method, Near, Turnout
from tacit.errors import UserError, expect

Sampling = Literal["everyone", "poisson", "fixed"]


@dataclass(frozen=True)
class Release:
    """A Gaussian sum over a random cohort.

    Attributes:
        noise: standard deviation of the noise over what one client can add to the sum.
        rate: the probability that a given client is in the cohort.
        sampling: how cohorts are drawn; `everyone` if the rate is 1.
        distance: total variation between what is released and this.
    """

    noise: float
    rate: float = 1.0
    sampling: Sampling = "everyone"
    distance: float = 0.0

    def __post_init__(self) -> None:
        expect(0 <= self.noise < math.inf, f"noise multiplier {self.noise} >= 0 and finite")
        _check_sampling(self.rate, self.sampling, self.distance)

    def __str__(self) -> str:
        return _in_words(self.rate, self.sampling)


@dataclass(frozen=True)
class ZcdpRelease:
    """Any sum over a random cohort with D_α ≤ ρ·α + ξ at integer orders, in both directions.

    Attributes:
        rho: of concentrated differential privacy.
        xi: what is added to it at every order.
        rate: the probability that a given client is in the cohort.
        sampling: how cohorts are drawn; `everyone` if the rate is 1.
        distance: total variation between what is released and this.
    """

    rho: float
    xi: float = 0.0
    rate: float = 1.0
    sampling: Sampling = "everyone"
    distance: float = 0.0

    def __post_init__(self) -> None:
        expect(0 < self.rho < math.inf, f"rho={self.rho} > 0 and finite")
        expect(0 <= self.xi < math.inf, f"xi={self.xi} >= 0 and finite")
        _check_sampling(self.rate, self.sampling, self.distance)

    def __str__(self) -> str:
        return _in_words(self.rate, self.sampling)


AnyRelease = Release | ZcdpRelease


def _check_sampling(rate: float, sampling: Sampling, distance: float) -> None:
    expect(0 < rate <= 1, f"sampling rate {rate} in (0, 1]")
    expect((sampling == "everyone") == (rate == 1), f"sampling={sampling!r} to fit rate={rate}")
    expect(0 <= distance <= 1, f"distance={distance} in [0, 1]")


def _in_words(rate: float, sampling: Sampling) -> str:
    words = {
        "everyone": "every client",
        "poisson": f"Poisson cohorts, each client with probability {rate:.4g}",
        "fixed": f"cohorts of fixed size without replacement, {_share(rate)} of the clients",
    }
    return words[sampling]


def event_of(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Event | None:
    """What round `index` of a method releases about a population, or did at this turnout; None: nothing is proved."""
    event = method.mechanism.event(index, turnout)
    return None if event is None else method.sampler.amplify(event, population, index)


def releases(event: Event) -> Counter[AnyRelease]:
    """An event in the books' terms: how often which release.

    Example:
        >>> releases(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.8)))
        Counter({Release(noise=1.8, rate=0.5, sampling='poisson', distance=0.0): 1})
    """
    if isinstance(event, dp.SelfComposedDpEvent):
        return Counter({release: count * event.count for release, count in releases(event.event).items()})
    if isinstance(event, dp.ComposedDpEvent):
        return sum((releases(part) for part in event.events), Counter())
    return Counter([_release(event)])


def to_json(event: Event) -> dict[str, object]:
    """An event in plain values; `from_json` brings it back."""
    if isinstance(event, dp.GaussianDpEvent):
        return {"kind": "gaussian", "noise": float(event.noise_multiplier)}
    if isinstance(event, dp.ZCDpEvent):
        return {"kind": "zcdp", "rho": float(event.rho), "xi": float(event.xi)}
    if isinstance(event, Near):
        return {"kind": "near", "distance": event.distance, "event": to_json(event.event)}
    if isinstance(event, dp.PoissonSampledDpEvent):
        return {"kind": "poisson", "rate": float(event.sampling_probability), "event": to_json(event.event)}
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        sizes = {"population": event.source_dataset_size, "size": event.sample_size}
        return {"kind": "fixed", **sizes, "event": to_json(event.event)}
    if isinstance(event, dp.SelfComposedDpEvent):
        return {"kind": "repeated", "count": event.count, "event": to_json(event.event)}
    if isinstance(event, dp.ComposedDpEvent):
        return {"kind": "all", "events": [to_json(part) for part in event.events]}
    raise UserError(f"Expected an event made of Gaussian sums, got {event}.")


def from_json(data: object) -> Event:
    """The event that `to_json` described; raises `UserError` for anything else."""
    try:
        event = _read(data)
        releases(event)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"Expected the description of an event, got {str(data)[:200]}.") from error
    return event


def canonical(value: object) -> str:
    """A plain value as one text, always the same: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _release(event: Event) -> AnyRelease:
    if isinstance(event, dp.PoissonSampledDpEvent):
        return _sampled(event.event, event.sampling_probability, "poisson")
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        return _sampled(event.event, event.sample_size / event.source_dataset_size, "fixed")
    return _sampled(event, 1.0, "everyone")


def _sampled(event: Event, rate: float, sampling: Sampling) -> AnyRelease:
    """The sum over a cohort; its coins, which are independent of it, do not add to a distance."""
    event, distance = (event.event, event.distance) if isinstance(event, Near) else (event, 0.0)
    how: Sampling = "everyone" if rate == 1 else sampling
    if isinstance(event, dp.ZCDpEvent):
        return ZcdpRelease(float(event.rho), float(event.xi), rate, how, distance)
    return Release(_noise(event), rate, how, distance)


def _noise(event: Event) -> float:
    """Gaussian sums over the same cohort are one Gaussian sum: their precisions add up."""
    if isinstance(event, dp.GaussianDpEvent):
        return float(event.noise_multiplier)
    if isinstance(event, dp.SelfComposedDpEvent):
        return _noise(event.event) / math.sqrt(event.count)
    if isinstance(event, dp.ComposedDpEvent) and event.events:
        parts = [_noise(part) for part in event.events]
        return 0.0 if min(parts) == 0 else sum(part**-2 for part in parts) ** -0.5
    raise UserError(f"Expected an event made of Gaussian sums, got {event}.")


def _read(data: object) -> Event:
    if not isinstance(data, Mapping):
        raise TypeError(data)
    return _READERS[data["kind"]](data)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


_READERS: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "gaussian": lambda data: dp.GaussianDpEvent(float(data["noise"])),
    "zcdp": lambda data: dp.ZCDpEvent(float(data["rho"]), float(data["xi"])),
    "near": lambda data: Near(_read(data["event"]), float(data["distance"])),
    "poisson": lambda data: dp.PoissonSampledDpEvent(float(data["rate"]), _read(data["event"])),
    "fixed": lambda data: dp.SampledWithoutReplacementDpEvent(
        _count(data["population"]), _count(data["size"]), _read(data["event"])
    ),
    "repeated": lambda data: dp.SelfComposedDpEvent(_read(data["event"]), _count(data["count"])),
    "all": lambda data: dp.ComposedDpEvent([_read(part) for part in data["events"]]),
}


def _share(rate: float) -> str:
    fraction = Fraction(rate).limit_denominator(100_000)
    return f"{fraction.numerator} in {fraction.denominator}"
