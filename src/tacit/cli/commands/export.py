"""Write a run for other programs: its rounds as CSV, for TensorBoard or MLflow; its model in several formats.

The rounds are in the run's directory as JSON lines, too (rounds.jsonl). What is written here contains how many clients
took part in each round, not who. TensorBoard and MLflow get the rounds that they do not have yet.

Models in onnx and torch-export take any number of samples, and are compared with the run's own before the file is
written. They are built again for this, so that the run's task must be found where it was.

Examples:
  tacit export runs/fedavg-digits-0 --to csv                    writes rounds.csv in the run's directory
  tacit export runs/fedavg-digits-0 --to tensorboard            then: tensorboard --logdir runs
  tacit export runs/fedavg-digits-0 --to safetensors --out model.safetensors
  tacit export runs/fedavg-digits-0 --to state-dict             model.pt, for torch.load
  tacit export runs/fedavg-digits-0 --to onnx                   model.onnx; needs pip install 'tacit[onnx]'
  tacit export runs/fedavg-digits-0 --to torch-export           model.pt2, for torch.export.load
  tacit export runs/mine --to onnx --trust                      of a task in your own Python file
  tacit export runs/ifca-synthetic-0 --to onnx --model 1        of a run that trained several models
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_trust, print_json
from tacit.cli._logs import LOGS, find_logs

if TYPE_CHECKING:
    from tacit.report.run_data import RunData

FILES = {
    "csv": "rounds.csv",
    "safetensors": "model.safetensors",
    "state-dict": "model.pt",
    "onnx": "model.onnx",
    "torch-export": "model.pt2",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--to", choices=(*FILES, *LOGS), required=True, help="what to write")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: in the run's directory)")
    parser.add_argument("--model", type=int, metavar="N", help="which model, from 0, if the run trained several")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Write the file or the log, and print its name."""
    if args.to in LOGS:
        return _log(args)
    from tacit.core import files
    from tacit.report.run_data import RunData

    out = args.out or args.run_directory / FILES[args.to]
    content = _content(args, RunData.read(args.run_directory))
    files.write(out, content, parents=True, private=True)
    if args.json:
        print_json({"file": str(out), "bytes": len(content)})
    else:
        print(f"Written: {out}")
    return 0


def _log(args: argparse.Namespace) -> int:
    from tacit.errors import UserError

    if args.out is not None:
        raise UserError(f"Expected --to {args.to} without --out: it has its own place.")
    (log,) = find_logs([args.to])
    log.check(args.run_directory)  # before PyTorch is imported

    from tacit.report.exports import write_log
    from tacit.report.run_data import RunData

    found = RunData.read(args.run_directory)
    write_log(found, log)
    if args.json:
        print_json({"log": args.to, "rounds": len(found.reports)})
    else:
        print(f"Written: {len(found.reports)} rounds for {log.label}")
    return 0


def _content(args: argparse.Namespace, found: "RunData") -> bytes:
    if args.to == "csv":
        from tacit.runs.round_logs import rounds_csv

        return rounds_csv(found.reports, found.manifest.caveat)
    from tacit.report.exports import model_content

    return model_content(found, args.to, args.model, trusted=args.trust)
