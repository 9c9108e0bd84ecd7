"""`tacit watch`: serve a live page of a folder's runs until interrupted."""

import argparse
import sys
import threading

from tacit.cli._console import answer
from tacit.errors import UserError
from tacit.report.live import HOST, LiveServer
from tacit.report.watching import RunWatcher


def run(args: argparse.Namespace) -> int:
    """Serve the page."""
    if not args.folder.is_dir():
        raise UserError(
            f"Expected a folder of runs, got {args.folder}, which does not exist. Start a run with tacit run."
        )
    watcher = RunWatcher(args.folder)
    try:
        server = LiveServer(watcher, args.port)
    except (OSError, OverflowError) as error:
        raise UserError(f"Could not listen on {HOST}:{args.port}: {error}. Choose another --port.") from error
    with server:
        threading.Thread(target=watcher.watch, daemon=True).start()
        document = {"address": server.address, "folder": str(args.folder)}
        answer(args, document, [f"Live page: {server.address} (stop with Ctrl-C)"])
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
        finally:
            watcher.close()
    return 0
