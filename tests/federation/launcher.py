"""Start the processes of a federation from one that has imported everything: each has its own process, faster.

`launcher.py FOLDER`, with lines `NAME ARGUMENTS` as JSON on standard input, whenever a process is to be started: those
of a server or a site, or `run` with those of a run. Writes `NAME.pid`. It ends
when standard input does or when it is killed, and the processes with it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import tacit.federation.transport.grpc.server_end
import tacit.federation.transport.grpc.site_end
from federation import runner
from tacit.federation.transport.grpc.__main__ import main


def launch(folder: Path, name: str, arguments: list[str]) -> None:
    child = os.fork()
    if child:
        (folder / f"{name}.new").write_text(str(child))
        (folder / f"{name}.new").rename(folder / f"{name}.pid")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os._exit(_play(arguments))


def _play(arguments: list[str]) -> int:
    try:
        return runner.main(*map(Path, arguments[1:])) if arguments[0] == "run" else main(arguments)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    import federation.mortal  # noqa: F401
    import tacit.privacy.ledger
    import tacit.privacy.unit_accounting  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        launch(Path(sys.argv[1]), *json.loads(line))
