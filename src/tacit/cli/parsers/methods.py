"""List all methods, or those that Python files of your own define.

Examples:
  tacit methods
  tacit methods mine.py                 its functions that return a Method; the file is read, not executed
  tacit methods --json
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.py", help="list the methods of these files")
    does(parser, "methods:run")
