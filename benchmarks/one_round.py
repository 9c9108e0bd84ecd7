"""Which files and functions of Tacit does `tacit run fl-top-dp` cross in one round?

Examples:
  python benchmarks/one_round.py             counts, and functions by how often they are called
  python benchmarks/one_round.py --hops      every function in the order of its first call

A profile of calls, not of time: it shows how far a reader must walk to follow one round, and what is done twice.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import tacit.api
from tacit.cli import main as tacit_main

PACKAGE = str(Path(tacit.api.__file__).parent) + "/"
RUN = ["run", "fl-top-dp", "--rounds", "1", "--workers", "1", "--set", "ratio=0.02", "epsilon=8", "delta=1e-3"]
ROUND = "runs/rounds.py:_step"  # from the reservation of the charge to the release of the model
ONCE = ("check_composition", "make_model", "broadcast", "initial_weights")  # what one round should do about once


class Walk:
    """Calls within the package while a profile is taken."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.edges: Counter[tuple[str, str]] = Counter()
        self.within: set[str] = set()  # the functions that were called within the round itself
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call."""
        here = _place(frame)
        if here == ROUND:
            self._depth += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or here is None:
            return
        if self._depth:
            self.within.add(here)
        self.calls[here] += 1
        caller = next((place for place in map(_place, _callers(frame)) if place is not None), None)
        if caller is not None:
            self.edges[caller, here] += 1


def main() -> None:
    """Run one round under the profile, and print what it crossed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", action="store_true", help="list every function in the order of its first call")
    args = parser.parse_args()
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(walk)
        try:
            tacit_main([*RUN, "--out", f"{folder}/run"])
        finally:
            sys.setprofile(None)
    print(f"\nThe command: {_extent(walk.calls)}, {len(walk.edges)} distinct edges.")
    print(f"The round itself: {_extent(walk.within)}.")
    for place, count in walk.calls.items():
        if args.hops or place.partition(":")[2] in ONCE:
            print(f"{count:6}  {place}")


def _extent(places: Iterable[str]) -> str:
    functions = set(places)
    return f"{len({place.partition(':')[0] for place in functions})} files, {len(functions)} functions"


def _place(frame: FrameType) -> str | None:
    code = frame.f_code
    inside = code.co_filename.startswith(PACKAGE) and code.co_name != "<module>"
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_name}" if inside else None


def _callers(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


if __name__ == "__main__":
    main()
