"""Compare runs: means with 95 % intervals over seeds, and each guarantee once.

Runs that differ only in their seed or their noise are one line. The interval is that of the mean, by Student's t; one
run has none. ε is the largest of a line: a bound is not averaged. A folder stands for all runs in it.

Examples:
  tacit compare runs                            all runs in a folder
  tacit compare runs/fl-std-digits-0 runs/fl-top-dp-digits-0
  tacit compare runs --to latex > table.tex     the table for a paper; also csv and markdown
  tacit report runs --out comparison.html       the same as a page, with curves
"""

import argparse

from tacit.cli.parsers._options import add_runs, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument("--to", choices=("csv", "latex", "markdown"), help="print the table alone, in this format")
    does(parser, "compare:run")
