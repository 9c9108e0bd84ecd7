"""Releases as JSON with a fixed schema, for the ledger: nothing is unpickled, and no text names a class."""

import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import UserError
from tacit.privacy.unit_accounting import ANYONE, Charge

_Count = Annotated[int, Meta(ge=1)]
_USUAL = {"constant": True, "failure": 0.0}  # usual values, which are left out


class _Gaussian(Struct, tag_field="kind", tag="gaussian"):
    noise: float

    def read(self) -> Gaussian:
        return Gaussian(self.noise)


class _Zcdp(Struct, tag_field="kind", tag="zcdp"):
    rho: float
    xi: float

    def read(self) -> Zcdp:
        return Zcdp(self.rho, self.xi)


class _Release(Struct, tag_field="kind", tag="release"):
    loss: _Gaussian | _Zcdp
    distance: float
    sampling: Sampling
    constant: bool = True
    failure: float = 0.0

    def read(self) -> Release:
        loss = self.loss.read()
        return Release(loss, self.distance, self.sampling, constant=self.constant, failure=self.failure)


class _Group(Struct):
    clients: list[Annotated[int, Meta(ge=ANYONE)]]
    count: _Count
    event: _Release


class _Charge(Struct):
    kind: str
    groups: list[_Group]
    copies: _Count = 1
    summed: bool = False


def to_json(release: Release) -> dict[str, object]:
    """A release as plain values; `from_json` is the inverse."""
    loss = release.loss
    of_gaussian = {"kind": "gaussian", "noise": float(loss.noise_multiplier)} if isinstance(loss, Gaussian) else None
    return {
        **{name: getattr(release, name) for name, usual in _USUAL.items() if getattr(release, name) != usual},
        "kind": "release",
        "loss": of_gaussian or {"kind": "zcdp", "rho": float(loss.rho), "xi": float(loss.xi)},
        "distance": float(release.distance),
        "sampling": {"kind": release.sampling.kind, "rate": float(release.sampling.rate)},
    }


def from_json(data: Any) -> Release:
    """The release that `to_json` described; raises `UserError` for anything else."""
    try:
        return msgspec.convert(data, _Release).read()
    except (ValueError, msgspec.ValidationError) as error:
        raise _refused("a release", data) from error


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
    clients: dict[int, Repeated] = {}
    try:
        charge = msgspec.convert(data, _Charge)
        if charge.kind != f"{unit}s":
            raise ValueError(charge.kind)
        for group in charge.groups:
            clients |= dict.fromkeys(group.clients, Repeated(group.event.read(), group.count))
        return Charge(unit, clients, charge.copies, charge.summed)
    except (ValueError, msgspec.ValidationError) as error:
        raise _refused(f"a charge for {unit}s", data) from error


def _refused(what: str, data: Any) -> UserError:
    advice = "Use the version of Tacit that wrote it."
    return UserError(f"Expected the description of {what}, got {str(data)[:200]}. {advice}")


def canonical(value: object) -> str:
    """Canonical JSON text of a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
