"""Bytes per client in `rounds.jsonl`: a negative number −n after a number says that it occurs n times in a row.

Most clients of a round send and receive equally much, so that a round of a million clients takes no more than its
cohort.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from tacit.core import Report
from tacit.core.serialization import Source


def shorten(numbers: Sequence[int]) -> list[int]:
    """The numbers, with how often they occur in a row.

    Example:
        >>> shorten([7, 7, 7, 5]), shorten([])
        ([7, -3, 5], [])
    """
    short = []
    for number, group in groupby(numbers):
        count = sum(1 for _ in group)
        short += [number, -count] if count > 1 else [number]
    return short


def with_all_bytes(report: Report, source: Source) -> Report:
    """The report with a number for every client; raises the source's error if there are more or fewer."""
    up, down = (_repeat(numbers, len(report.clients), source) for numbers in (report.up, report.down))
    return replace(report, up=up, down=down)


def _repeat(numbers: tuple[int, ...], clients: int, source: Source) -> tuple[int, ...]:
    if all(number >= 0 for number in numbers):
        return numbers
    pairs = [(n, -following if following < 0 else 1) for n, following in zip(numbers, (*numbers[1:], 0), strict=True)]
    kept = [(number, count) for number, count in pairs if number >= 0]
    total = sum(count for _, count in kept)
    if total != clients or any(n < 0 and before < 0 for before, n in pairwise((-1, *numbers))):
        raise source.problem(f"Expected {source.label} to have the bytes of {clients} clients, got those of {total}.")
    return tuple(number for number, count in kept for _ in range(count))
