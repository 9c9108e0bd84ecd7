"""Secrets from shares, for many clients at once, and nothing that is not proven right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.protocols.secagg import shamir
from tacit.protocols.secagg.errors import ProtocolError, TooFewError


@dataclass(frozen=True, eq=False)
class Puzzle:
    """One client's secret: the shares of it by holder's place (from 1), and how to know it when it is found."""

    client: int
    shares: Mapping[int, shamir.Field]
    fits: Callable[[bytes], bool]


def solve(puzzles: list[Puzzle], threshold: int) -> dict[int, bytes]:
    """Each client's secret; `TooFewError` if one cannot be found."""
    if not puzzles:
        return {}
    for puzzle in puzzles:
        if len(puzzle.shares) < threshold:
            raise TooFewError(f"Expected {threshold} shares of client {puzzle.client}, got {len(puzzle.shares)}.")
    firsts = _interpolate([(puzzle, sorted(puzzle.shares)[:threshold]) for puzzle in puzzles])
    return {
        puzzle.client: first if first is not None and puzzle.fits(first) else _search(puzzle, threshold)
        for puzzle, first in zip(puzzles, firsts, strict=True)
    }


def _interpolate(choices: list[tuple[Puzzle, list[int]]]) -> list[bytes | None]:
    """The secrets that the chosen shares give; None where they give no 32 bytes."""
    points = np.array([places for _, places in choices], np.int64)
    shares = np.array([[puzzle.shares[place] for place in places] for puzzle, places in choices], np.uint64)
    return [_whole(limbs) for limbs in shamir.recover(points, shares).tolist()]


def _whole(limbs: list[int]) -> bytes | None:
    try:
        return shamir.from_limbs(limbs)
    except ProtocolError:
        return None


def _search(puzzle: Puzzle, threshold: int) -> bytes:
    """Somebody gave a wrong share: leave out some in turn. One liar is always found, if there is a share to spare."""
    places = sorted(puzzle.shares)
    turns = [(places[at:] + places[:at])[:threshold] for at in range(1, len(places))]
    for found in _interpolate([(puzzle, turn) for turn in turns]):
        if found is not None and puzzle.fits(found):
            return found
    raise TooFewError(f"The shares of client {puzzle.client} do not belong together: there is no sum.")
