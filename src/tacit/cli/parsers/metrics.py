"""Measure a model on private rows: AUROC and calibration from one noisy histogram of scores.

The table has a score from 0 to 1 for each row, such as the probability that tacit predict writes, and the outcome. The
measurement is charged like any other analysis, instead of being excused.

Examples:
  tacit predict runs/private held-out.csv --out scored.csv
  tacit metrics scored.csv --client hospital --score "probability died=1" --event died --epsilon 1
"""

import argparse

from tacit.cli.parsers._options import add_analysis, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_analysis(parser)
    parser.add_argument("--score", required=True, metavar="COLUMN", help="the column of scores from 0 to 1")
    event = "the column of outcomes, and its value for one (default: 1)"
    parser.add_argument("--event", required=True, metavar="COLUMN[=VALUE]", help=event)
    parser.add_argument("--intervals", type=int, default=50, metavar="N", help="of the histogram (default: 50)")
    does(parser, "analyses:metrics")
