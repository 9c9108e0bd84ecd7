"""What a round released: the events of `dp_accounting`, in plain values for files and in the books' own terms.

A mechanism emits a Gaussian event whose noise multiplier is over what one client can add to the sum; the sampler
wraps it by the way it draws cohorts. Here an event becomes `Release`s, which is all that accountants look at, or
a JSON value with a fixed schema: nothing is ever unpickled, and no name of a class is read from a file.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import dp_accounting as dp

from tacit.core import Event, Method, Turnout
from tacit.core.errors import UserError, expect

Sampling = Literal["everyone", "poisson", "fixed"]


@dataclass(frozen=True)
class Release:
    """A Gaussian sum over a random cohort.

    Attributes:
        noise: standard deviation of the noise over what one client can add to the sum.
        rate: the probability that a given client is in the cohort.
        sampling: how cohorts are drawn; `everyone` if the rate is 1.
    """

    noise: float
    rate: float = 1.0
    sampling: Sampling = "everyone"

    def __post_init__(self) -> None:
        expect(0 <= self.noise < math.inf, f"noise multiplier {self.noise} >= 0 and finite")
        expect(0 < self.rate <= 1, f"sampling rate {self.rate} in (0, 1]")
        expect((self.sampling == "everyone") == (self.rate == 1), f"sampling={self.sampling!r} to fit rate={self.rate}")

    def __str__(self) -> str:
        words = {
            "everyone": "every client",
            "poisson": f"Poisson cohorts, each client with probability {self.rate:.4g}",
            "fixed": f"cohorts of fixed size without replacement, {_share(self.rate)} of the clients",
        }
        return words[self.sampling]


def event_of(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Event | None:
    """What round `index` of a method releases about a population, or did at this turnout; None: nothing is proved."""
    event = method.mechanism.event(index, turnout)
    return None if event is None else method.sampler.amplify(event, population, index)


def releases(event: Event) -> Counter[Release]:
    """An event in the books' terms: how often which release.

    Example:
        >>> releases(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.8)))
        Counter({Release(noise=1.8, rate=0.5, sampling='poisson'): 1})
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


def _release(event: Event) -> Release:
    if isinstance(event, dp.PoissonSampledDpEvent):
        return _sampled(_noise(event.event), event.sampling_probability, "poisson")
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        return _sampled(_noise(event.event), event.sample_size / event.source_dataset_size, "fixed")
    return Release(_noise(event))


def _sampled(noise: float, rate: float, sampling: Sampling) -> Release:
    return Release(noise) if rate == 1 else Release(noise, rate, sampling)


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
    return _READERS[data["kind"]](data)  # type: ignore[no-any-return]


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


_READERS = {
    "gaussian": lambda data: dp.GaussianDpEvent(float(data["noise"])),
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
