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

from tacit.cli._console import print_json

NAME = "report.html"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs, or folders of them")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default: report.html in the run, or in the current folder)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Write the page and print its name."""
    from tacit.core import files
    from tacit.report.page import comparison_page, run_page
    from tacit.report.run_data import read_runs

    runs = read_runs(args.runs)
    alone = len(runs) == 1
    out = args.out or (runs[0].path / NAME if alone else Path(NAME))
    page = run_page(runs[0]) if alone else comparison_page(runs)
    files.write(out, page.encode(), parents=True, private=True)
    if args.json:
        print_json({"page": str(out), "runs": [str(each.path) for each in runs], "bytes": len(page.encode())})
    else:
        print(f"Report: {out}")
    return 0
