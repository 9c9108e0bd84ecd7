"""`tacit describe`, `tacit survival` and `tacit regress`: analyses of a table as private sums."""

import argparse
from itertools import count
from pathlib import Path

from tacit.analyses.questions import (
    DescribeQuestion,
    MetricsQuestion,
    Question,
    SurvivalQuestion,
    question_of,
)
from tacit.cli._console import answer, note
from tacit.core import files
from tacit.report.analyses import lines_of, run_analysis
from tacit.report.page import run_page
from tacit.report.run_data import RunData
from tacit.runs.analyses import Setting

PAGE = "report.html"


def describe(args: argparse.Namespace) -> int:
    """Describe columns."""
    columns, drop = tuple(args.columns), tuple(args.drop)
    return _answer(args, DescribeQuestion(columns=columns, drop=drop, bins=args.bins, sampling=args.sampling))


def survival(args: argparse.Namespace) -> int:
    """Estimate survival."""
    return _answer(
        args,
        SurvivalQuestion(
            time=args.time, event=args.event, by=args.by, horizon=args.horizon, step=args.step, sampling=args.sampling
        ),
    )


def regress(args: argparse.Namespace) -> int:
    """Fit a regression."""
    names = ("target", "family", "time", "event", "horizon", "step", "columns", "drop")
    return _answer(args, question_of("regress", {name: getattr(args, name) for name in names}))


def metrics(args: argparse.Namespace) -> int:
    """Measure discrimination and calibration."""
    return _answer(args, MetricsQuestion(score=args.score, event=args.event, intervals=args.intervals))


def _answer(args: argparse.Namespace, question: Question) -> int:
    """Run the analysis, write its page, and print its result with the guarantee."""
    setting = Setting(
        client=args.client,
        person=args.person or "",
        epsilon=args.epsilon,
        delta=args.delta,
        encoding=args.encoding,
        seed=args.seed,
        randomness=args.randomness,
    )
    out = args.out or _free_directory(Path("runs") / f"{question.name}-{Path(args.table).name.partition('.')[0]}")
    analysis = run_analysis(args.table, question, setting, out=out, ledger=args.ledger)
    for sentence in analysis.run.spec.task.notes:
        note(f"tacit: {sentence}")
    if getattr(args, "ranges", None) is not None:
        files.write(args.ranges, analysis.encoding.to_bytes(), parents=True)
    page = out / PAGE
    files.write(page, run_page(RunData.read(out)).encode(), private=True)
    result, run = analysis.result, analysis.run
    document = {
        "analysis": question.name,
        "tables": {each.title: {name: list(values) for name, values in each.columns.items()} for each in result.tables},
        "sentences": list(result.sentences),
        "privacy": {str(unit): each.to_json() for unit, each in run.guarantees.items()},
        "bytes": {"up": run.bytes.up, "down": run.bytes.down},
        "directory": str(out),
        "page": str(page),
    }
    return answer(args, document, [*lines_of(result), "", *str(analysis.guarantee).split("\n"), f"Report: {page}"])


def _free_directory(first: Path) -> Path:
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())
