"""The process of a server or of a site: NVFLARE's own, with our component in it.

`server KIT`, or `site KIT MODULE:FUNCTION CONFIG`. `tacit federation serve` or `tacit site serve` starts and ends it.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.app.server import server_train

from tacit.errors import TacitError
from tacit.federation.transport.nvflare import accepted_messages, kits, process
from tacit.federation.transport.relay import SOCKET


def main(line: list[str]) -> int:
    """Run until the process is ended."""
    kind, kit, *rest = line
    folder = Path(kit)
    process.end_with_parent()
    os.umask(0o077)
    logging.captureWarnings(True)
    try:
        accepted_messages.accept_only(accepted_messages.AT_SERVER if kind == "server" else accepted_messages.AT_SITE)
        process.claim(folder)
        process.host(folder / SOCKET if kind == "server" else process.OneThread(rest[0], Path(rest[1])))
    except TacitError as error:  # a mistake in the site's files
        process.say(str(error))
        return error.exit_code
    if kind == "server":
        kits.place_storage(folder)
    run = server_train.main if kind == "server" else client_train.main
    return int(MainProcessMonitor.run(main_func=run, run_dir=str(folder), args=_arguments(kind, folder)) or 0)


def _arguments(kind: str, kit: Path) -> argparse.Namespace:
    """The command line of NVFLARE's start-up scripts, parsed."""
    common = ["secure_train=true", "config_folder=config"]
    if kind == "server":
        return argparse.Namespace(workspace=str(kit), fed_server="fed_server.json", set=[*common, "org=server"])
    common += ["heart_beat_interval=3.0"]  # seconds: how soon sites notice a restart of the server
    common += [f"uid={kits.name_in_kit(kit)}"]
    return argparse.Namespace(workspace=str(kit), fed_client="fed_client.json", set=common, local_rank=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
