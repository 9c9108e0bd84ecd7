"""Write a run for other programs: its rounds as CSV, its model as a PyTorch state_dict.

The model itself is in the run's directory in safetensors format (model.safetensors), its rounds in JSON (rounds.jsonl).
The CSV file contains how many clients took part in each round, not who.

Examples:
  tacit export runs/fedavg-digits-0 --to csv                    writes rounds.csv in the run's directory
  tacit export runs/fedavg-digits-0 --to state-dict --out model.pt
"""

import argparse
from pathlib import Path

from tacit.cli._console import print_json

FILES = {"csv": "rounds.csv", "state-dict": "model.pt"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--to", choices=tuple(FILES), required=True, help="what to write")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: in the run's directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Write the file and print its name."""
    from tacit.core import files
    from tacit.report.exports import rounds_csv, state_dict
    from tacit.report.run_data import RunData

    found = RunData.read(args.run_directory)
    out = args.out or args.run_directory / FILES[args.to]
    content = rounds_csv(found) if args.to == "csv" else state_dict(found)
    files.write(out, content, parents=True, private=True)
    if args.json:
        print_json({"file": str(out), "bytes": len(content)})
    else:
        print(f"Written: {out}")
    return 0
