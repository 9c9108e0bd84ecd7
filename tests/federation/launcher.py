"""Start the processes of a federation from one that has imported everything: each has its own process, faster.

`launcher.py FOLDER`, with lines `NAME ARGUMENTS` as JSON on standard input, whenever a process is to be started: those
of a server or a site, `run` with those of a run, or `hostile` with those of `hostile.main`. Writes `NAME.pid`. It ends
when standard input does or when it is killed, and the processes with it.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from nvflare.fuel.f3.streaming import stream_utils

from federation import hostile, runner
from tacit.federation.transport.nvflare.__main__ import main


def launch(folder: Path, name: str, arguments: list[str]) -> None:
    child = os.fork()
    if child:
        (folder / f"{name}.new").write_text(str(child))
        (folder / f"{name}.new").rename(folder / f"{name}.pid")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _number_streams_anew()
    out = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os._exit(_play(arguments))


def _number_streams_anew() -> None:
    """As an interpreter of its own does: NVFLARE draws the first number when it is imported.

    If a process began with the same numbers as the one that it replaces, NVFLARE would take its messages for
    repetitions and drop them, for half a minute.
    """
    stream_utils.sid_base = int(time.time() * 1e6) + random.randint(0, 10**6)


def _play(arguments: list[str]) -> int:
    try:
        if arguments[0] == "hostile":
            return hostile.main(*arguments[1:])
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
