"""What a round releases: events of `dp_accounting`, converted to `Release`s for accountants and to JSON for files.

A mechanism declares a Gaussian event, whose noise multiplier is relative to the most that one client can add to the
sum, or an event with a linear bound on its Rényi divergences; an `ApproximateEvent` is close to one of these. The
sampler wraps it according to how it draws cohorts. The JSON has a fixed schema: nothing is unpickled, and files name no
classes.

Sensitivity, relative to the most that one client can add to the sum:

| sampling | add-or-remove | replace-one |
|---|---|---|
| everyone | 1 | 2 |
| Poisson | 1 | 2 |
| fixed size, without replacement | 2: another client takes the removed client's place in the cohort | 2 |

For fixed-size cohorts and add-or-remove, couple the cohort that contains the client with the cohort in which another
client takes its place: by joint convexity, the pair is dominated by the sampled Gaussian with sensitivity 2. A bound
with sensitivity 1 does not hold, not even for a client whose update is set to zero: the other clients may lie on the
opposite side.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal

import dp_accounting as dp

from tacit.core import ApproximateEvent, Event, Method, Turnout
from tacit.errors import UserError, expect

Sampling = Literal["everyone", "poisson", "fixed"]


class Adjacency(StrEnum):
    """Which pairs of populations count as neighbours."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True)
class Release:
    """A Gaussian sum over a random cohort.

    Attributes:
        noise: standard deviation of the noise, relative to the most that one client can add to the sum.
        rate: the probability that a given client is in the cohort.
        sampling: how cohorts are drawn; `everyone` if the rate is 1.
        distance: total variation distance between what is really released and this Gaussian sum.
    """

    noise: float
    rate: float = 1.0
    sampling: Sampling = "everyone"
    distance: float = 0.0

    def __post_init__(self) -> None:
        expect(0 <= self.noise < math.inf, f"noise multiplier {self.noise} >= 0 and finite")
        _check_sampling(self.rate, self.sampling, self.distance)

    def sensitivity(self, adjacency: Adjacency) -> int:
        """Sensitivity of the sum, from the table above."""
        return 2 if adjacency is Adjacency.REPLACE_ONE or self.sampling == "fixed" else 1


@dataclass(frozen=True)
class ZcdpRelease:
    """A sum over a random cohort with D_α ≤ ρ·α + ξ at integer orders, in both directions.

    Attributes:
        rho: ρ of zero-concentrated differential privacy.
        xi: ξ, added at every order.
        rate: the probability that a given client is in the cohort.
        sampling: how cohorts are drawn; `everyone` if the rate is 1.
        distance: total variation distance between what is really released and this sum.
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


AnyRelease = Release | ZcdpRelease


def _check_sampling(rate: float, sampling: Sampling, distance: float) -> None:
    expect(0 < rate <= 1, f"sampling rate {rate} in (0, 1]")
    expect((sampling == "everyone") == (rate == 1), f"sampling={sampling!r} to fit rate={rate}")
    expect(0 <= distance <= 1, f"distance={distance} in [0, 1]")


def describe_sampling(release: AnyRelease) -> str:
    """How the cohort of a release is drawn, for people.

    Example:
        >>> describe_sampling(Release(1.0, 1 / 60, "fixed"))
        'cohorts of fixed size without replacement, 1 in 60 of the clients'
    """
    fraction = Fraction(release.rate).limit_denominator(100_000)
    descriptions = {
        "everyone": "every client takes part",
        "poisson": f"Poisson cohorts, each client with probability {release.rate:.4g}",
        "fixed": f"cohorts of fixed size without replacement, {fraction.numerator} in {fraction.denominator} "
        "of the clients",
    }
    return descriptions[release.sampling]


def event_of(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Event | None:
    """The event of round `index`: as planned, or for the turnout that the round had. None: nothing is proved."""
    event = method.mechanism.event(index, turnout)
    return None if event is None else method.sampler.amplify(event, population, index)


def releases(event: Event) -> Counter[AnyRelease]:
    """The releases that an event consists of, with their multiplicities.

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
    """An event as plain values; `from_json` is the inverse."""
    if isinstance(event, dp.GaussianDpEvent):
        return {"kind": "gaussian", "noise": float(event.noise_multiplier)}
    if isinstance(event, dp.ZCDpEvent):
        return {"kind": "zcdp", "rho": float(event.rho), "xi": float(event.xi)}
    if isinstance(event, ApproximateEvent):
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
        event = _parse(data)
        releases(event)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"Expected the description of an event, got {str(data)[:200]}.") from error
    return event


def canonical(value: object) -> str:
    """Canonical JSON text of a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _release(event: Event) -> AnyRelease:
    if isinstance(event, dp.PoissonSampledDpEvent):
        return _sampled(event.event, event.sampling_probability, "poisson")
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        return _sampled(event.event, event.sample_size / event.source_dataset_size, "fixed")
    return _sampled(event, 1.0, "everyone")


def _sampled(event: Event, rate: float, sampling: Sampling) -> AnyRelease:
    """The sum over a cohort; sampling is independent of the noise and does not increase the distance."""
    event, distance = (event.event, event.distance) if isinstance(event, ApproximateEvent) else (event, 0.0)
    kind: Sampling = "everyone" if rate == 1 else sampling
    if isinstance(event, dp.ZCDpEvent):
        return ZcdpRelease(float(event.rho), float(event.xi), rate, kind, distance)
    return Release(_noise_multiplier(event), rate, kind, distance)


def _noise_multiplier(event: Event) -> float:
    """Gaussian sums over the same cohort are one Gaussian sum: their precisions add up."""
    if isinstance(event, dp.GaussianDpEvent):
        return float(event.noise_multiplier)
    if isinstance(event, dp.SelfComposedDpEvent):
        return _noise_multiplier(event.event) / math.sqrt(event.count)
    if isinstance(event, dp.ComposedDpEvent) and event.events:
        parts = [_noise_multiplier(part) for part in event.events]
        return 0.0 if min(parts) == 0 else sum(part**-2 for part in parts) ** -0.5
    raise UserError(f"Expected an event made of Gaussian sums, got {event}.")


def _parse(data: object) -> Event:
    if not isinstance(data, Mapping):
        raise TypeError(data)
    return _PARSERS[data["kind"]](data)


def _positive_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


_PARSERS: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "gaussian": lambda data: dp.GaussianDpEvent(float(data["noise"])),
    "zcdp": lambda data: dp.ZCDpEvent(float(data["rho"]), float(data["xi"])),
    "near": lambda data: ApproximateEvent(_parse(data["event"]), float(data["distance"])),
    "poisson": lambda data: dp.PoissonSampledDpEvent(float(data["rate"]), _parse(data["event"])),
    "fixed": lambda data: dp.SampledWithoutReplacementDpEvent(
        _positive_int(data["population"]), _positive_int(data["size"]), _parse(data["event"])
    ),
    "repeated": lambda data: dp.SelfComposedDpEvent(_parse(data["event"]), _positive_int(data["count"])),
    "all": lambda data: dp.ComposedDpEvent([_parse(part) for part in data["events"]]),
}
