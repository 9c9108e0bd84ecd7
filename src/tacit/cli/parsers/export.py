"""Write a run for other programs: its rounds as CSV, for TensorBoard or MLflow; its model in several formats.

The run's directory has the rounds as JSON lines, too (rounds.jsonl). Exported rounds contain the number of clients that
took part, not their names. TensorBoard and MLflow receive only rounds that they do not have yet.

Models in onnx and torch-export take any number of samples. The model is built again and compared with the run's own
before the file is written, so the run's task must still be available. The encoding of a table's rows as inputs is
written beside the model, as model.encoding.json.

Examples:
  tacit export runs/fedavg-digits-0 --to csv                    writes rounds.csv in the run's directory
  tacit export runs/fedavg-digits-0 --to tensorboard            then: tensorboard --logdir runs
  tacit export runs/fedavg-digits-0 --to safetensors --out model.safetensors
  tacit export runs/fedavg-digits-0 --to state-dict             model.pt, for torch.load
  tacit export runs/fedavg-digits-0 --to onnx                   model.onnx; needs pip install 'tacit-fl[onnx]'
  tacit export runs/fedavg-digits-0 --to torch-export           model.pt2, for torch.export.load
  tacit export runs/mine --to onnx --trust                      of a task in your own Python file
  tacit export runs/ifca-synthetic-0 --to onnx --model 1        of a run that trained several models
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import LOGS, add_trust, does

FILES = {
    "csv": "rounds.csv",
    "safetensors": "model.safetensors",
    "state-dict": "model.pt",
    "onnx": "model.onnx",
    "torch-export": "model.pt2",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--to", choices=(*FILES, *LOGS), required=True, help="what to write")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: in the run's directory)")
    parser.add_argument("--model", type=int, metavar="N", help="which model, from 0, if the run trained several")
    add_trust(parser)
    does(parser, "export:run")
