"""The workers of a simulation, as the argument `workers` names them; parsed before PyTorch is imported."""

import os
import re
from dataclasses import dataclass
from typing import Literal, get_args

from tacit.errors import UserError, expect

Workers = int | str | None
Waves = Literal["fitting", "single"]  # of clients that a simulation trains together
WAVES: tuple[Waves, ...] = get_args(Waves)
SPELLINGS = "a number, ray, ray:N, ray://HOST:PORT, ray:HOST:PORT or ray:auto, the last three also with /N"
_RAY = re.compile(r"ray(?::(?P<count>\d+)|:(?P<address>auto|(?://)?[^/\s]+:\d+)(?:/(?P<limit>\d+))?)?")


@dataclass(frozen=True)
class RayChoice:
    """Actors of a Ray cluster.

    Attributes:
        count: how many; None: one per core of the cluster.
        address: of a running cluster, as `ray.init` takes it; None: a cluster on this machine, started for the run.
    """

    count: int | None = None
    address: str | None = None


def available_cores() -> int:
    """The number of cores that this process may use; where the system does not report it, as on macOS, all."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def read_workers(asked: Workers) -> int | RayChoice | None:
    """The number of processes on this machine (None: one per core), or actors of a Ray cluster.

    Example:
        >>> read_workers("4"), read_workers("ray:4")
        (4, RayChoice(count=4, address=None))
        >>> read_workers("ray://head:10001/8")
        RayChoice(count=8, address='ray://head:10001')
        >>> read_workers("ray:10.0.0.1:6379").address
        '10.0.0.1:6379'
    """
    if isinstance(asked, str) and not asked.isdigit():
        return _read_ray(asked)
    count = None if asked is None else int(asked)
    expect(count is None or count >= 1, f"workers={asked} >= 1")
    return count


def _read_ray(asked: str) -> RayChoice:
    match = _RAY.fullmatch(asked)
    if match is None:
        raise UserError(f"Expected workers as {SPELLINGS}, got {asked!r}.")
    count, address = match["count"] or match["limit"], match["address"]
    expect(count is None or int(count) >= 1, f"workers={asked} with at least one actor")
    if address is not None and address.startswith("//"):
        address = f"ray:{address}"
    return RayChoice(None if count is None else int(count), address)
