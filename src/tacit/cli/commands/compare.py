"""`tacit compare`: print a table of runs, and their guarantees."""

import argparse
import sys

from tacit.cli._console import align, answer, note
from tacit.report import intervals, run_groups
from tacit.report.run_data import read_runs
from tacit.report.table_formats import FORMATS


def run(args: argparse.Namespace) -> int:
    """Print the table and the guarantees."""
    groups, notes = run_groups.group_runs(read_runs(args.runs))
    if args.to:
        note(*notes)
        sys.stdout.write(FORMATS[args.to](run_groups.header(groups), run_groups.rows(groups)))
        return 0
    if args.json:
        note(*notes)
    several = any(len(group.runs) > 1 for group in groups)
    lines = [
        *align([run_groups.header(groups), *run_groups.rows(groups)]),
        *notes,
        *["Mean ± half of the 95 % interval (Student's t) over runs; ε is the largest."] * several,
        *run_groups.guarantee_lines(groups),
    ]
    document = {"confidence": intervals.INTERVAL_CONFIDENCE, "groups": [group.to_json() for group in groups]}
    return answer(args, document, lines)
