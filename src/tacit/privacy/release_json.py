"""Releases as JSON with a fixed schema, for the ledger: nothing is unpickled, and no text names a class."""

import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tacit.core.prices import Gaussian, Laplace, Release, Repeated, Sampling, Unit, Zcdp
from tacit.errors import UserError
from tacit.privacy.unit_accounting import ANYONE, Charge

_Count = Annotated[int, Meta(ge=1)]
_USUAL = {"constant": True, "failure": 0.0}  # usual values, which are left out


class _Gaussian(Struct, tag_field="kind", tag="gaussian"):
    noise: float

    def read(self) -> Gaussian:
        return Gaussian(self.noise)


class _Laplace(Struct, tag_field="kind", tag="laplace"):
    noise: float

    def read(self) -> Laplace:
        return Laplace(self.noise)


class _Zcdp(Struct, tag_field="kind", tag="zcdp"):
    rho: float
    xi: float
    symmetric: bool = False  # usual, and left out

    def read(self) -> Zcdp:
        return Zcdp(self.rho, self.xi, self.symmetric)


class _Release(Struct, tag_field="kind", tag="release"):
    loss: _Gaussian | _Laplace | _Zcdp
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
    data: list[str] = []  # the identities of the clients' data, if known


class _Charge(Struct):
    kind: str
    groups: list[_Group]
    copies: Annotated[int, Meta(ge=0)] = 0  # of entries of earlier versions: one, or unknown
    summed: bool = False


def to_json(release: Release) -> dict[str, object]:
    """A release as plain values; `from_json` is the inverse."""
    return {
        **{name: getattr(release, name) for name, usual in _USUAL.items() if getattr(release, name) != usual},
        "kind": "release",
        "loss": _loss_to_json(release.loss),
        "distance": float(release.distance),
        "sampling": {"kind": release.sampling.kind, "rate": float(release.sampling.rate)},
    }


def _loss_to_json(loss: Gaussian | Laplace | Zcdp) -> dict[str, object]:
    match loss:
        case Gaussian(noise):
            return {"kind": "gaussian", "noise": float(noise)}
        case Laplace(noise):
            return {"kind": "laplace", "noise": float(noise)}
        case Zcdp(rho, xi, symmetric):
            return {"kind": "zcdp", "rho": float(rho), "xi": float(xi), **({"symmetric": True} if symmetric else {})}


def from_json(data: Any) -> Release:
    """The release that `to_json` described; raises `UserError` for anything else."""
    try:
        return msgspec.convert(data, _Release).read()
    except (ValueError, msgspec.ValidationError) as error:
        raise _refusal("a release", data) from error


def charge_to_json(charge: Charge) -> dict[str, object]:
    """A charge as plain values: its clients by what is released about each; `charge_from_json` is the inverse."""
    groups: dict[Repeated, list[int]] = {}
    for client, repeated in sorted(charge.clients.items()):
        groups.setdefault(repeated, []).append(client)
    return {
        **({"copies": charge.copies} if charge.copies else {}),
        **({"summed": True} if charge.summed else {}),
        "kind": f"{charge.unit}s",
        "groups": [
            {
                "clients": clients,
                "count": repeated.times,
                "event": to_json(repeated.release),
                **({"data": [charge.identities[each] for each in clients]} if charge.identities else {}),
            }
            for repeated, clients in groups.items()
        ],
    }


def charge_from_json(data: Any, unit: Unit) -> Charge:
    """The charge for this unit that `charge_to_json` described; raises `UserError` for anything else."""
    clients: dict[int, Repeated] = {}
    identities: dict[int, str] = {}
    try:
        charge = msgspec.convert(data, _Charge)
        if charge.kind != f"{unit}s":
            raise ValueError(charge.kind)
        for group in charge.groups:
            clients |= dict.fromkeys(group.clients, Repeated(group.event.read(), group.count))
            identities |= dict(zip(group.clients, group.data, strict=False))
        return Charge(unit, clients, charge.copies, charge.summed, identities)
    except (ValueError, msgspec.ValidationError) as error:
        raise _refusal(f"a charge for {unit}s", data) from error


def _refusal(what: str, data: Any) -> UserError:
    advice = "Use the version of Tacit that wrote it."
    return UserError(f"Expected the description of {what}, got {str(data)[:200]}. {advice}")


def canonical(value: object) -> str:
    """Canonical JSON text of a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
