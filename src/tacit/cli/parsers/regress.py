"""Regression on the tables of several clients: coefficients with intervals, ratios, calibration and AUROC; or curves.

Rounds and steps follow from a public rule of ε and the numbers of persons and coefficients, which is printed. Where ε
allows no useful intervals, the result says so. Ranges and categories are declared in a file (--encoding), or they are
those of the rows, which the guarantee then reports. Rows with a missing value are left out, except by ebm.

cox is for times to an event: hazards that are constant in the pieces of a grid, times hazard ratios. ebm is an additive
model for events, by boosting: a curve for every number, and a score for every category.

Examples:
  tacit regress patients.csv --client hospital --target died --epsilon 1 --encoding ranges.toml
  tacit regress patients.csv --client hospital --target status=dead --columns age sex stage --person patient
  tacit regress patients.csv --client hospital --target visits --family poisson --epsilon 3
  tacit regress patients.csv --client hospital --family cox --time days --event died --horizon 1800 --step 360
  tacit regress patients.csv --client hospital --family ebm --target died --epsilon 1 --encoding ranges.toml
  tacit regress patients.csv --client hospital --target died --epsilon none     exact, without privacy

A file with declared constants, also those of the outcome where it is a number:
  [numbers]
  age = [0, 110]
  visits = [0, 12]
  [categories]
  sex = ["f", "m"]
"""

import argparse

from tacit.cli.parsers._options import add_analysis, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_analysis(parser, sampling=False)
    outcome = "the column of the outcome, and for logistic and ebm the value of an event (default: 1)"
    parser.add_argument("--target", metavar="COLUMN[=VALUE]", help=outcome)
    families = ("logistic", "linear", "poisson", "cox", "ebm")
    parser.add_argument("--family", choices=families, default="logistic", help="of the outcome (default: logistic)")
    parser.add_argument("--time", metavar="COLUMN", help="for cox: the column of times since the start")
    parser.add_argument("--event", metavar="COLUMN[=VALUE]", help="for cox: its events, and their value (default: 1)")
    parser.add_argument("--horizon", type=float, metavar="T", help="for cox: the end of the grid of times")
    parser.add_argument("--step", type=float, metavar="T", help="for cox: the length of a piece (default: a fifth)")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="COLUMN", help="on which it depends (default: all others)"
    )
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out, such as names")
    does(parser, "analyses:regress")
