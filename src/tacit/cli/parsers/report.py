"""Write a page about a run, or one that compares several.

The page is one HTML file that needs no network: what was trained and how well, the privacy guarantee and what it does
not cover, who sees what, bytes and time, settings and how to repeat it. Runs that differ only in their seed become one
line, with the mean and its 95 % interval. A folder stands for all runs in it.

Examples:
  tacit report runs/fedavg-digits-0                     writes runs/fedavg-digits-0/report.html
  tacit report runs --out comparison.html               all runs in a folder, compared
  tacit report runs/fl-std-digits-0 runs/fl-top-dp-digits-0 --out both.html
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_runs, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default: report.html in the run, or in the current folder)"
    )
    does(parser, "report:run")
