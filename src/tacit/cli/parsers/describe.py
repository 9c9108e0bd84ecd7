"""Describe the columns of a table of several clients: counts, means, histograms and quantiles, with intervals.

The sum over all clients is released once, with noise for every person; intervals include that noise. Ranges and
categories are declared in a file (--encoding), or they are those of the rows, which the guarantee then reports.

Examples:
  tacit describe patients.csv --client hospital --epsilon 0.5
  tacit describe patients.csv --client hospital --encoding ranges.toml --person patient --ledger hospital.db
  tacit describe patients.csv --client hospital --epsilon none        the exact pooled result, without privacy
  tacit describe patients.csv --client hospital --columns age sex --bins 10 --out runs/described

A file with declared constants:
  [numbers]
  age = [0, 110]
  [categories]
  sex = ["f", "m"]
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_analysis, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_analysis(parser)
    parser.add_argument("--columns", nargs="+", default=[], metavar="COLUMN", help="which to describe (default: all)")
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out, such as names")
    parser.add_argument("--bins", type=int, default=20, metavar="N", help="cells of a number's histogram (default: 20)")
    parser.add_argument(
        "--ranges", type=Path, metavar="FILE", help="also write ranges and categories for tacit run, as JSON"
    )
    does(parser, "analyses:describe")
