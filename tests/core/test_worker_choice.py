"""How `workers` is spelt."""

import os

import pytest

from tacit.core.worker_choice import RayChoice, Workers, available_cores, read_workers
from tacit.errors import UserError


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, None),
        (3, 3),
        ("3", 3),
        ("ray", RayChoice()),
        ("ray:4", RayChoice(4)),
        ("ray:auto", RayChoice(None, "auto")),
        ("ray:auto/2", RayChoice(2, "auto")),
        ("ray:head:6379", RayChoice(None, "head:6379")),
        ("ray:10.0.0.1:6379/12", RayChoice(12, "10.0.0.1:6379")),
        ("ray://head.example:10001", RayChoice(None, "ray://head.example:10001")),
        ("ray://head:10001/3", RayChoice(3, "ray://head:10001")),
    ],
)
def test_spellings(asked: Workers, found: int | RayChoice | None) -> None:
    assert read_workers(asked) == found


@pytest.mark.parametrize("asked", ["", "two", "rays", "ray:", "ray:head", "ray://head", "ray:4:", "-1", "ray:a b:1"])
def test_other_spellings_are_refused(asked: str) -> None:
    with pytest.raises(UserError, match=r"Expected workers as a number, ray, ray:N, ray://HOST:PORT"):
        read_workers(asked)


@pytest.mark.parametrize("asked", [0, -1, "0", "ray:0", "ray:auto/0"])
def test_nobody_is_refused(asked: Workers) -> None:
    with pytest.raises(UserError, match="Expected workers="):
        read_workers(asked)


def test_a_system_that_does_not_say_which_cores_may_be_used_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert available_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1
