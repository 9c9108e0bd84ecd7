"""Describe a method: its pieces, what each party sees, and what is guaranteed.

Examples:
  tacit card fedavg
  tacit card fl-std --set rounds=50 descent.lr=0.1   with other arguments than the defaults
  tacit card mine.py:fedprox                         a function of your own that returns a tacit.Method
  tacit card fedavg --json
"""

import argparse

from tacit.cli.parsers._options import add_method, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_method(parser)
    does(parser, "names:method", "card:run")
