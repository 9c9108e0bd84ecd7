"""A run in a process of its own: `runner.py SOCKET PLAN OUT`. It resumes if it has begun before."""

import sys
from pathlib import Path

from tacit.federation.federation_plan import read_plan
from tacit.federation.relay import RelayTransport
from tacit.federation.server import FederationServer
from tacit.runs.training import follow


def main(path: Path, plan: Path, out: Path) -> None:
    server = FederationServer(read_plan(plan), RelayTransport(path), noise="seeded")
    resume = (out / "manifest.json").exists()
    for run in follow(server.run_plan, source=server, out=out, resume=resume):
        sys.stdout.write(f"{run.state.round}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
