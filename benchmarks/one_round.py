"""Which files and functions of Tacit does one round cross, in a simulation and at a site of a federation?

The simulation is `tacit run fl-top-dp`. The site is one of four that are set up as those of `tacit federation demo`
(records are protected, updates are summed by secure aggregation), all in this process. Its second round is counted,
from the server's first request to the site's last reply: what is done once, before the first round, is not.

Examples:
  python benchmarks/one_round.py             counts
  python benchmarks/one_round.py --hops      every function in the order of its first call, too

A profile of calls, not of time: it shows how far a reader must walk to follow one round, and what is done twice.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import tacit.api
from tacit.cli import main as tacit_main
from tacit.federation.demonstration import demonstration
from tacit.federation.messages import EVALUATE, REGISTER
from tacit.federation.plan.directory import read_server_key
from tacit.federation.server.server import FederationServer
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import InProcess
from tacit.runs.training import follow

PACKAGE = str(Path(tacit.api.__file__).parent) + "/"
RUN = ["run", "fl-top-dp", "--rounds", "1", "--workers", "1", "--set", "ratio=0.02", "epsilon=8", "delta=1e-3"]
ROUND = "runs/rounds.py:_step"  # from the reservation of the charge to the release of the model
ONCE = ("check_composition", "make_model", "broadcast", "initial_weights")  # what one round should do about once
SITES, WATCHED, SECOND = 4, "site-1", 2


class Walk:
    """Calls within the package while a profile is taken."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.edges: Counter[tuple[str, str]] = Counter()
        self.within: set[str] = set()  # the functions that were called within a simulated round itself
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

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Count the calls of this block."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


@dataclass
class WatchedSite:
    """A site whose second round is counted.

    Attributes:
        site: the site.
        walk: its calls.
        round: the number of the round that the server is in.
    """

    site: Site
    walk: Walk
    round: int = 1

    def handle(self, verb: str, request: bytes) -> bytes:
        """The site's reply."""
        if self.round != SECOND or verb in (REGISTER, EVALUATE):
            return self.site.handle(verb, request)
        with self.walk.taken():
            return self.site.handle(verb, request)


def main() -> None:
    """Play the rounds under the profile, and print what they crossed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", action="store_true", help="list every function in the order of its first call")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        simulated, at_site = simulated_walk(Path(folder) / "run"), site_walk(Path(folder) / "federation")
    print(f"\nThe command: {_extent(simulated.calls)}, {len(simulated.edges)} distinct edges.")
    print(f"The round itself: {_extent(simulated.within)}.")
    _list(simulated, every=args.hops)
    print(f"A round at a site: {_extent(at_site.calls)}, {len(at_site.edges)} distinct edges.")
    _list(at_site, every=args.hops)


def simulated_walk(folder: Path) -> Walk:
    """`tacit run` with one round."""
    walk = Walk()
    with walk.taken():
        tacit_main([*RUN, "--out", str(folder)])
    return walk


def site_walk(folder: Path) -> Walk:
    """The second round of a site of the demonstration."""
    federation = demonstration(folder, SITES, SECOND)
    sites = {name: Site.open(folder / "homes" / name / "site.toml") for name in federation.names}
    watched = WatchedSite(sites[WATCHED], Walk())
    handlers = {name: site.handle for name, site in sites.items()} | {WATCHED: watched.handle}
    server = FederationServer(federation.plan, InProcess(handlers), read_server_key(folder))
    for run in follow(server.run_spec, source=server):
        watched.round = run.state.round + 1
    assert not server.sites.problems
    return watched.walk


def _list(walk: Walk, *, every: bool) -> None:
    for place, count in walk.calls.items():
        if every or place.partition(":")[2] in ONCE:
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
