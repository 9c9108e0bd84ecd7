"""`tacit report`: write a page about a run, or one that compares several."""

import argparse
from pathlib import Path

from tacit.cli._console import answer
from tacit.core import files
from tacit.report.page import comparison_page, run_page
from tacit.report.run_data import read_runs

_NAME = "report.html"


def run(args: argparse.Namespace) -> int:
    """Write the page and print its name."""
    runs = read_runs(args.runs)
    alone = len(runs) == 1
    out = args.out or (runs[0].path / _NAME if alone else Path(_NAME))
    page = (run_page(runs[0]) if alone else comparison_page(runs)).encode()
    files.write(out, page, parents=True, private=True)
    document = {"page": str(out), "runs": [str(each.path) for each in runs], "bytes": len(page)}
    return answer(args, document, [f"Report: {out}"])
