"""How much of the suite runs, as `pytest --scale` says: `commit`, `laws` or `campaign`.

- `commit` (`make test`): of every law, a part that another commit changes; few random trials.
- `laws` (`make laws`): every law over the whole catalogue.
- `campaign` (`make campaign`): also the tests marked `campaign`, which take minutes each, and far more random trials.

A law is a test with many parameters that is marked `law`: one property of everything registered. Tests that cost
seconds each and look at one subject are a law together: `law("audits")`. The part of a law is chosen by the ids of its
tests and the commit, and is a quarter at least (`PART`), so that a few commits try everything. A test that the command
line names by its id always runs.
"""

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import TypeVar

import pytest

SCALES = ("commit", "laws", "campaign")
PART = 4  # at the scale `commit`, one of this many of a law's parameters, rounded up
_T = TypeVar("_T")
_chosen = ["commit"]


def choose(scale: str) -> None:
    """Set the scale, before tests are imported."""
    _chosen[:] = [scale]


def scaled(usual: _T, *, campaign: _T) -> _T:
    """A number of random trials, or whatever else a campaign has more of."""
    return campaign if _chosen[0] == "campaign" else usual


def head() -> str:
    """The commit of this checkout; empty if it has none, so that the part is always the same."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return found.stdout.strip()


def part(laws: Mapping[str, str], commit: str, share: int = PART) -> set[str]:
    """The ids of those tests of laws that this commit tries: of every law some, at least one.

    Args:
        laws: the law of each test, by the test's id.
        commit: the commit.
        share: one of this many is tried.

    Example:
        >>> laws = {f"laws/test_laws.py::test_row[{method}]": "test_row" for method in range(9)}
        >>> len(part(laws, "")), part(laws, "a") == part(laws, "b")
        (3, False)
    """
    ranked = defaultdict(list)
    for each, law in laws.items():
        ranked[law].append((hashlib.sha256(f"{commit} {each}".encode()).digest(), each))
    return {each for law in ranked.values() for _, each in sorted(law)[: ceil(len(law) / share)]}


def select(items: list[pytest.Item], scale: str, commit: str) -> list[pytest.Item]:
    """Take the items out of the list that this scale leaves out, and return them; those that only skip stay."""
    if scale != "campaign":
        for item in items:
            if item.get_closest_marker("campaign"):
                item.add_marker(pytest.mark.skip(reason="minutes: pytest --scale campaign"))
    if scale != "commit":
        return []
    marks = {item.nodeid: item.get_closest_marker("law") for item in items}
    laws = {each: _law(each, mark) for each, mark in marks.items() if mark}
    left = laws.keys() - part(laws, commit)
    out = [item for item in items if item.nodeid in left]
    items[:] = [item for item in items if item.nodeid not in left]
    return out


def _law(test: str, mark: pytest.Mark) -> str:
    """The law of a test: the name that its mark gives, or its function."""
    return str(mark.args[0]) if mark.args else test.partition("[")[0]
