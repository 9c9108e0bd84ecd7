"""Start several processes of a federation from one that has imported everything: each has its own process, faster.

`launcher.py FOLDER`, with lines `NAME ARGUMENTS` as JSON on standard input. Writes `NAME.pid`; ends when it is killed,
and the processes with it.
"""

import json
import os
import sys
from pathlib import Path

from tacit.federation.nvflare.__main__ import main


def launch(folder: Path, name: str, arguments: list[str]) -> None:
    child = os.fork()
    if child:
        (folder / f"{name}.pid").write_text(str(child))
        return
    out = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os._exit(main(arguments))


if __name__ == "__main__":
    import federation.mortal  # noqa: F401

    for line in sys.stdin:
        launch(Path(sys.argv[1]), *json.loads(line))
    while True:
        os.wait()
