"""Write a commented file for a method of your own, with a test that passes.

Examples:
  tacit new method fedprox             writes FedProx: fedprox.py and test_fedprox.py, here
  tacit new method NAME                of any other name: averaging with a server update to be replaced
  tacit run fedprox.py:fedprox         and these work at once
  tacit card fedprox.py:fedprox
  tacit probe fedprox.py:fedprox
  python -m pytest test_fedprox.py
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("method",), help="what to write")
    parser.add_argument("name", help="the name of its function and file")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    does(parser, "new:run", json=False)
