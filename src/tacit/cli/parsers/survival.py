"""Survival of the patients of several clients: Kaplan-Meier curves with bands, medians, and the log-rank test.

One histogram of time, event and arm is released, in which each person is in one cell; bands and p include its noise.
The grid of times and the arms are declared (--horizon, --step, --encoding), or they are those of the rows, which the
guarantee then reports.

Examples:
  tacit survival patients.csv --client hospital --time days --event died --horizon 1800 --step 60 --epsilon 1
  tacit survival patients.csv --client hospital --time days --event died=yes --by arm --encoding ranges.toml
  tacit survival patients.csv --client hospital --time days --event died --epsilon none     exact, without privacy
"""

import argparse

from tacit.cli.parsers._options import add_analysis, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_analysis(parser)
    parser.add_argument("--time", required=True, metavar="COLUMN", help="the column of times since the start")
    event = "the column of events, and its value for one (default: 1)"
    parser.add_argument("--event", required=True, metavar="COLUMN[=VALUE]", help=event)
    parser.add_argument("--by", default="", metavar="COLUMN", help="the column of arms to compare")
    parser.add_argument("--horizon", type=float, metavar="T", help="the end of the grid of times")
    parser.add_argument("--step", type=float, metavar="T", help="the length of its intervals (default: a thirtieth)")
    does(parser, "analyses:survival")
