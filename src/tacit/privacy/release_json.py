"""Releases as JSON with a fixed schema, for the ledger: nothing is unpickled, and no text names a class."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import UserError
from tacit.privacy.record_accounting import RecordCharge


def to_json(release: Release | RecordCharge) -> dict[str, object]:
    """A release as plain values; `from_json` is the inverse. Values that most releases have are left out.

    A charge for records lists its clients by what is released about each of their records; `charge_from_json` is the
    inverse.
    """
    if isinstance(release, RecordCharge):
        return _charge_to_json(release)
    unusual = {name: getattr(release, name) for name, usual in _USUAL.items() if getattr(release, name) != usual}
    return {
        **unusual,
        "kind": "release",
        "loss": _loss_to_json(release.loss),
        "distance": float(release.distance),
        "sampling": {"kind": release.sampling.kind, "rate": float(release.sampling.rate)},
    }


_USUAL = {"constant": True, "failure": 0.0}
_WITHIN = {f"{unit}s": unit for unit in Unit if unit is not Unit.CLIENT}


def _charge_to_json(charge: RecordCharge) -> dict[str, object]:
    groups: dict[Repeated, list[int]] = {}
    for client, repeated in sorted(charge.clients.items()):
        groups.setdefault(repeated, []).append(client)
    return {
        "kind": f"{charge.unit}s",
        "groups": [
            {"clients": clients, "count": repeated.times, "event": to_json(repeated.release)}
            for repeated, clients in groups.items()
        ],
    }


def charge_from_json(data: Any) -> RecordCharge:
    """The charge for records or persons that `to_json` described; raises `UserError` for anything else."""
    try:
        unit = _WITHIN[data["kind"]]
        charged = {client: repeated for group in data["groups"] for client, repeated in _read_group(group).items()}
        return RecordCharge(charged, unit)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"Expected the description of a charge for records, got {str(data)[:200]}.") from error


def _read_group(group: Any) -> dict[int, Repeated]:
    (release,) = _read(group["event"])
    repeated = Repeated(release, _positive_int(group["count"]))
    clients = group["clients"]
    if any(type(client) is not int or client < 0 for client in clients):
        raise ValueError(clients)
    return dict.fromkeys(clients, repeated)


def _loss_to_json(loss: Gaussian | Zcdp) -> dict[str, object]:
    match loss:
        case Gaussian(noise):
            return {"kind": "gaussian", "noise": float(noise)}
        case Zcdp(rho, xi):
            return {"kind": "zcdp", "rho": float(rho), "xi": float(xi)}


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
        release = Release(
            _loss(data["loss"]),
            float(data["distance"]),
            sampling,
            constant=_flag(data, "constant"),
            failure=float(data.get("failure", 0.0)),
        )
        return Counter([release])
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


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name, True)
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _positive_int(value: object) -> int:
    if type(value) is not int or value < 1:  # True is not a count
        raise ValueError(value)
    return value
