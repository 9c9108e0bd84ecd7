"""Compare runs: means with 95 % intervals over seeds, and each guarantee once.

Runs that differ only in their seed or their noise are one line. The interval is that of the mean, by Student's t; one
run has none. ε is the largest of a line: a bound is not averaged. A folder stands for all runs in it.

Examples:
  tacit compare runs                            all runs in a folder
  tacit compare runs/fl-std-digits-0 runs/fl-top-dp-digits-0
  tacit report runs --out comparison.html       the same as a page, with curves
"""

import argparse
import sys
from pathlib import Path

from tacit.cli._console import aligned, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs, or folders of them")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Print the table and the guarantees."""
    from tacit.report import intervals, run_groups
    from tacit.report.run_data import read_runs

    groups, notes = run_groups.grouped(read_runs(args.runs))
    if args.json:
        print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
        print_json({"confidence": intervals.CONFIDENCE, "groups": [group.to_json() for group in groups]})
        return 0
    print(*aligned([run_groups.header(groups), *run_groups.rows(groups)]), *notes, sep="\n")
    if any(len(group.runs) > 1 for group in groups):
        print("Mean ± half of the 95 % interval (Student's t) over runs; ε is the largest.")
    print(*run_groups.guarantee_lines(groups), sep="\n")
    return 0
