"""Show the runs of a folder on a live page while they train.

The page is served on this machine only (127.0.0.1) and is read-only. It lists all runs below the folder, can be sorted
and filtered, and draws the chosen one. Stop it with Ctrl-C.

Examples:
  tacit watch                           the runs below runs/, at an unused port
  tacit watch runs/reproduce --port 8080
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="FOLDER", help="default: runs")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port of the page (default: an unused one)")
    does(parser, "watch:run")
