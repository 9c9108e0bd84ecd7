"""Show the runs of a folder on a live page while they train.

The page is served on this machine only (127.0.0.1) and is read-only. It lists all runs below the folder, can be sorted
and filtered, and draws the chosen one. Stop it with Ctrl-C.

Examples:
  tacit watch                           the runs below runs/, at an unused port
  tacit watch runs/reproduce --port 8080
"""

import argparse
import threading
from pathlib import Path

from tacit.cli._console import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="FOLDER", help="default: runs")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port of the page (default: an unused one)")
    parser.add_argument("--json", action="store_true", help="print the address as a JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    from tacit.errors import UserError
    from tacit.report.live import HOST, LiveServer
    from tacit.report.watching import RunWatcher

    if not args.folder.is_dir():
        raise UserError(f"Expected a folder of runs, but there is no {args.folder}. Start one with tacit run.")
    watcher = RunWatcher(args.folder)
    try:
        server = LiveServer(watcher, args.port)
    except (OSError, OverflowError) as error:
        raise UserError(f"Could not listen on {HOST}:{args.port}: {error}. Choose another --port.") from error
    with server:
        threading.Thread(target=watcher.watch, daemon=True).start()
        if args.json:
            print_json({"address": server.address, "folder": str(args.folder)})
        else:
            print(f"Live page: {server.address} (stop with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
        finally:
            watcher.close()
    return 0
