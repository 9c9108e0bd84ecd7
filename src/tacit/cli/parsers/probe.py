"""Test a method of your own against the laws on which guarantees rest.

Every piece of your own is tried with hostile rows and data, and the method as a whole with runs on a few clients. A
failed trial is a violation; passing proves nothing. The exit code is 1 if a trial failed.

Examples:
  tacit probe mine.py:fedprox                a function that returns a tacit.Method
  tacit probe mine.py:fedprox --set mu=0.1   with other arguments than the defaults
  tacit probe fl-top                         a method by name
"""

import argparse

from tacit.cli.parsers._options import add_method, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_method(parser)
    does(parser, "names:method", "probe:run")
