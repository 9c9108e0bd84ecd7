"""`tacit export`: write a run's rounds or its model for other programs."""

import argparse

from tacit.cli._console import answer
from tacit.cli.commands._logs import find_logs
from tacit.cli.parsers.export import FILES
from tacit.core import files
from tacit.errors import UserError
from tacit.report.exports import model_content, write_log
from tacit.report.run_data import RunData
from tacit.runs.directory import read_encoding
from tacit.runs.model_export import encoding_beside
from tacit.runs.round_logs import rounds_csv


def run(args: argparse.Namespace) -> int:
    """Write the file or the log, and print its name."""
    if args.to not in FILES:
        return _log(args)
    out = args.out or args.run_directory / FILES[args.to]
    run_data = RunData.read(args.run_directory)
    if args.to == "csv":
        content = rounds_csv(run_data.reports, run_data.manifest.caveat)
    else:
        content = model_content(run_data, args.to, args.model, trusted=args.trust)
    files.write(out, content, parents=True, private=True)
    if args.to != "csv" and run_data.manifest.task.encoding and out.parent != args.run_directory:
        encoding = read_encoding(args.run_directory, run_data.manifest)  # from the run's directory
        files.write(encoding_beside(out), encoding.to_bytes(), private=True)
    return answer(args, {"file": str(out), "bytes": len(content)}, [f"Written: {out}"])


def _log(args: argparse.Namespace) -> int:
    if args.out is not None:
        raise UserError(f"Expected --to {args.to} without --out: its place is fixed.")
    (log,) = find_logs([args.to])
    log.validate(args.run_directory)
    run_data = RunData.read(args.run_directory)
    write_log(run_data, log)
    rounds = len(run_data.reports)
    return answer(args, {"log": args.to, "rounds": rounds}, [f"Written: {rounds} rounds for {log.label}"])
