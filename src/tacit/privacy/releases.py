"""What a round releases: how sensitive it is, how its cohort is drawn, and its form as JSON in files.

The JSON has a fixed schema: nothing is unpickled, and files name no classes.

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
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tacit.core import Method, Turnout
from tacit.core.prices import Adjacency, Gaussian, Release, Sampling, Zcdp, accounted
from tacit.errors import UserError


def sensitivity(sampling: Sampling, adjacency: Adjacency) -> int:
    """Sensitivity of a sum over cohorts that are drawn so, from the table above."""
    return 2 if adjacency is Adjacency.REPLACE_ONE or sampling.kind == "fixed" else 1


def describe_sampling(sampling: Sampling) -> str:
    """How cohorts are drawn, for people.

    Example:
        >>> describe_sampling(Sampling("fixed", 1 / 60))
        'cohorts of fixed size without replacement, 1 in 60 of the clients'
    """
    fraction = Fraction(sampling.rate).limit_denominator(100_000)
    descriptions = {
        "everyone": "every client takes part",
        "poisson": f"Poisson cohorts, each client with probability {sampling.rate:.4g}",
        "fixed": f"cohorts of fixed size without replacement, {fraction.numerator} in {fraction.denominator} "
        "of the clients",
    }
    return descriptions[sampling.kind]


def release_of(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Release | None:
    """The release of round `index`, proved or nominal: as planned, or for the turnout that the round had.

    None: there is nothing to account for in (ε, δ).
    """
    found = accounted(method.mechanism.price(index, turnout))
    return found.sampled(method.sampler.sampling(population, index)) if isinstance(found, Release) else None


def to_json(release: Release) -> dict[str, object]:
    """A release as plain values; `from_json` is the inverse."""
    return {
        "kind": "release",
        "loss": _loss_to_json(release.loss),
        "distance": float(release.distance),
        "sampling": {"kind": release.sampling.kind, "rate": float(release.sampling.rate)},
    }


def _loss_to_json(loss: Gaussian | Zcdp) -> dict[str, object]:
    match loss:
        case Zcdp(rho=rho, xi=xi):
            return {"kind": "zcdp", "rho": float(rho), "xi": float(xi)}
        case Gaussian(noise_multiplier=noise):
            return {"kind": "gaussian", "noise": float(noise)}


def from_json(data: object) -> Counter[Release]:
    """The releases of one round that `to_json` or an earlier version described; raises `UserError` for anything else.

    Earlier versions wrote nested events: a sum (`gaussian`, `zcdp`), `near` it, of a cohort (`poisson`, `fixed`),
    several times (`repeated`) or with others (`all`).
    """
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"Expected the description of a release, got {str(data)[:200]}.") from error


def canonical(value: object) -> str:
    """Canonical JSON text of a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _read(data: Any) -> Counter[Release]:
    kind = data["kind"]
    if kind == "release":
        sampling = Sampling(data["sampling"]["kind"], float(data["sampling"]["rate"]))
        return Counter([Release(_loss(data["loss"]), float(data["distance"]), sampling)])
    if kind == "repeated":
        times = _positive_int(data["count"])
        return Counter({release: count * times for release, count in _read(data["event"]).items()})
    if kind == "all":
        return sum((_read(part) for part in data["events"]), Counter())
    return Counter([_read_event(data)])


def _read_event(data: Any) -> Release:
    """A sum over a cohort, as earlier versions wrote it."""
    if data["kind"] == "poisson":
        return _unsampled(data["event"]).sampled(Sampling.at(float(data["rate"]), "poisson"))
    if data["kind"] == "fixed":
        rate = _positive_int(data["size"]) / _positive_int(data["population"])
        return _unsampled(data["event"]).sampled(Sampling.at(rate, "fixed"))
    return _unsampled(data)


def _unsampled(data: Any) -> Release:
    if data["kind"] == "near":
        return Release(_loss(data["event"]), float(data["distance"]))
    return Release(_loss(data))


def _loss(data: Any) -> Gaussian | Zcdp:
    if data["kind"] == "zcdp":
        return Zcdp(float(data["rho"]), float(data["xi"]))
    return Gaussian(_noise_multiplier(data))


def _noise_multiplier(data: Mapping[str, Any]) -> float:
    """Gaussian sums over the same cohort are one Gaussian sum: their precisions add up."""
    if data["kind"] == "repeated":
        return _noise_multiplier(data["event"]) / math.sqrt(_positive_int(data["count"]))
    if data["kind"] == "all":
        parts = [_noise_multiplier(part) for part in data["events"]]
        return 0.0 if min(parts) == 0 else sum(part**-2 for part in parts) ** -0.5
    if data["kind"] != "gaussian":
        raise ValueError(data)
    return Gaussian(float(data["noise"])).noise_multiplier


def _positive_int(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(value)
    return value
