"""`tacit reproduce` without running anything: list all studies, validate names, and print saved results."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from tacit.cli._console import align, answer
from tacit.cli.parsers.reproduce import DEFAULT
from tacit.core import files
from tacit.errors import UserError
from tacit.papers.comparison import Comparison
from tacit.papers.comparison_figures import render
from tacit.papers.comparison_tables import footnotes, table
from tacit.papers.study_files import find_study, results_file, study_files, summaries


def run(args: argparse.Namespace) -> int | None:
    """List all studies or print saved results; None: there is a study to run."""
    if args.saved is not None:
        _check_alone(args)
        path = _results_path(args.saved)
        return report(_load(path), args, path.with_suffix(".png"))
    if args.study is None:
        return _list(args)
    find_study(args.study, args.rows)
    if args.save == DEFAULT:
        args.save = results_file(args.study)
    return None


def _list(args: argparse.Namespace) -> int:
    if args.save is not None:
        raise UserError("Expected a study before --save, for example geyer/table-1.")
    studies = summaries()
    rows = [["name", "title", "rows"], *([study.name, study.title, str(len(study.rows))] for study in studies)]
    return answer(args, [asdict(study) for study in studies], align(rows))


def report(comparison: Comparison, args: argparse.Namespace, picture: Path) -> int:
    """Print the comparison, and draw it if it is a figure."""
    messages = sys.stderr if args.json else sys.stdout
    if args.json:
        print(comparison.to_bytes().decode(), end="")
    else:
        print(comparison.title, *align(table(comparison)), "", *footnotes(comparison), sep="\n")
    if args.save:
        print(f"Saved: {args.save}", file=messages)
    if comparison.plot is not None:
        files.write(picture, render(comparison), parents=True)
        print(f"Figure: {picture}", file=messages)
    return 0


def earlier_results(path: Path, name: str, *, fast: bool) -> Comparison | None:
    """Load the results saved so far; raises `UserError` for any other file."""
    if not path.exists():
        return None
    saved = _load(path)
    if (saved.name, saved.fast) != (name, fast):
        wanted, got = (f"{study}{', short' * short}" for study, short in ((name, fast), (saved.name, saved.fast)))
        raise UserError(f"Expected {path} to have results of {wanted}, got {got}. Save to another file.")
    return saved


def _results_path(given: str) -> Path:
    """The file itself, or that of a study's results."""
    if Path(given).exists() or given not in study_files():
        return Path(given)
    path = results_file(given)
    if not path.exists():
        raise UserError(f"Expected results of {given} in {path}, got none. Run tacit reproduce {given} --save.")
    return path


def _load(path: Path) -> Comparison:
    return Comparison.from_bytes(files.read(path), str(path))


def _check_alone(args: argparse.Namespace) -> None:
    """Raise `UserError` if --from is combined with options that run or save."""
    names = ("study", "rows", "fast", "seeds", "workers", "out", "save", "trust")
    conflicts = [name for name in names if getattr(args, name)]
    if conflicts:
        flag = args.study if conflicts[0] == "study" else f"--{conflicts[0]}"
        raise UserError(f"Expected --from without {flag}: saved results are printed as they are.")
