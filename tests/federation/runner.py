"""A run in a process of its own: `runner.py SOCKET PLAN OUT`. It resumes if it has begun before.

Who answered is written down beside its log. Its randomness is seeded, so that it ends where a simulation ends, unless
the method adds noise: a repeated round must not repeat it.
"""

import sys
from pathlib import Path

from federation.consortium import SERVER
from federation.replay import RecordingTransport
from tacit.core import Randomness
from tacit.federation.journal import AuditLog
from tacit.federation.plan.plan import read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.relay import RelayTransport
from tacit.runs.training import follow


def main(path: Path, plan: Path, out: Path) -> int:
    read = read_plan(plan, trusted=True)
    randomness: Randomness = "secret" if read.method.terms.accounted else "seeded"
    transport = RecordingTransport(RelayTransport(path), out.with_suffix(".exchanges"))
    server = FederationServer(read, transport, SERVER, AuditLog(out.with_suffix(".log")), randomness=randomness)
    resume = (out / "manifest.json").exists()
    for run in follow(server.run_spec, source=server, out=out, resume=resume):
        sys.stdout.write(f"{run.state.round}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
