"""Releases as JSON with a fixed schema, for the ledger: nothing is unpickled, and no text names a class."""

import json
from collections.abc import Mapping
from typing import Any

from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import UserError
from tacit.privacy.unit_accounting import ANYONE, Charge


def to_json(release: Release) -> dict[str, object]:
    """A release as plain values; `from_json` is the inverse. Values that most releases have are left out."""
    unusual = {name: getattr(release, name) for name, usual in _USUAL.items() if getattr(release, name) != usual}
    return {
        **unusual,
        "kind": "release",
        "loss": _loss_to_json(release.loss),
        "distance": float(release.distance),
        "sampling": {"kind": release.sampling.kind, "rate": float(release.sampling.rate)},
    }


_ADVICE = "Use the version of Tacit that wrote it."
_USUAL = {"constant": True, "failure": 0.0}


def charge_to_json(charge: Charge) -> dict[str, object]:
    """A charge as plain values: its clients by what is released about each; `charge_from_json` is the inverse."""
    groups: dict[Repeated, list[int]] = {}
    for client, repeated in sorted(charge.clients.items()):
        groups.setdefault(repeated, []).append(client)
    return {
        **({} if charge.copies == 1 else {"copies": charge.copies, "summed": charge.summed}),
        "kind": f"{charge.unit}s",
        "groups": [
            {"clients": clients, "count": repeated.times, "event": to_json(repeated.release)}
            for repeated, clients in groups.items()
        ],
    }


def charge_from_json(data: Any, unit: Unit) -> Charge:
    """The charge for this unit that `charge_to_json` described; raises `UserError` for anything else."""
    try:
        if data["kind"] != f"{unit}s":
            raise ValueError(data)
        charged = {client: repeated for group in data["groups"] for client, repeated in _read_group(group).items()}
        copies, summed = _positive_int(data.get("copies", 1)), _flag(data, "summed", usual=False)
        return Charge(unit, charged, copies, summed)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"Expected the description of a charge for {unit}s, got {str(data)[:200]}. {_ADVICE}"
        ) from error


def _read_group(group: Any) -> dict[int, Repeated]:
    repeated = Repeated(_read(group["event"]), _positive_int(group["count"]))
    clients = group["clients"]
    if any(type(client) is not int or client < ANYONE for client in clients):
        raise ValueError(clients)
    return dict.fromkeys(clients, repeated)


def _loss_to_json(loss: Gaussian | Zcdp) -> dict[str, object]:
    match loss:
        case Gaussian(noise):
            return {"kind": "gaussian", "noise": float(noise)}
        case Zcdp(rho, xi):
            return {"kind": "zcdp", "rho": float(rho), "xi": float(xi)}


def from_json(data: Any) -> Release:
    """The release that `to_json` described; raises `UserError` for anything else."""
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"Expected the description of a release, got {str(data)[:200]}. {_ADVICE}") from error


def canonical(value: object) -> str:
    """Canonical JSON text of a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _read(data: Any) -> Release:
    if data["kind"] != "release":
        raise ValueError(data)
    return Release(
        _loss(data["loss"]),
        float(data["distance"]),
        Sampling(data["sampling"]["kind"], float(data["sampling"]["rate"])),
        constant=_flag(data, "constant", usual=True),
        failure=float(data.get("failure", 0.0)),
    )


def _loss(data: Any) -> Gaussian | Zcdp:
    match data["kind"]:
        case "gaussian":
            return Gaussian(float(data["noise"]))
        case "zcdp":
            return Zcdp(float(data["rho"]), float(data["xi"]))
    raise ValueError(data)


def _flag(data: Mapping[str, Any], name: str, *, usual: bool) -> bool:
    value = data.get(name, usual)
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _positive_int(value: object) -> int:
    if type(value) is not int or value < 1:  # True is not a count
        raise ValueError(value)
    return value
