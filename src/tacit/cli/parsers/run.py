"""Train a model with one or more methods, or resume a run.

A method is given by name, or in an experiment file (TOML) together with its task and seeds. Each run writes a directory
with manifest.json, rounds.jsonl, rounds.csv, checkpoint.safetensors and model.safetensors.

Examples:
  tacit run fedavg                                      the embedded digits, 100 clients
  tacit run fl-std --task fashion-mnist --rounds 5 --set descent.lr=0.1 cohort=20 --seed 3 --workers 2
  tacit run fedavg --set cohort=10 epochs=1 --task-set partition=shards --out runs/shards
  tacit run fl-std-dp --data patients.csv --client hospital --target died    your own table, one row per patient
  tacit run fedavg --data hospitals/ --target died --drop name               a folder with one CSV or Parquet file each
  tacit run mine.py:fedprox                             your own method: a function that returns a tacit.Method
  tacit run fl-top --task mine.py:hospitals             your own data: a function that returns a tacit.Task
  tacit run experiment.toml                             an experiment described in a file
  tacit run --resume runs/fedavg-digits-0               continue after Ctrl-C, a crash or a kill
  tacit run --resume runs/fl-top-hospitals-0 --trust    the same, for a task of your own Python file
  tacit run geyer --set epsilon=8 delta=1e-3            stop when the privacy budget is spent
  tacit run geyer --randomness seeded --seed 1          a repeatable simulation: the noise follows from the seed
  tacit run fl-top --set ratio=0.005                    train and send only 0.5 % of the weights
  tacit run fl-top-dp --set ratio=0.005 epsilon=1 delta=1e-5 --task fashion-mnist --rounds 200
  tacit run esmfl --set compression=87                  clients prune the model and send only the remaining weights
  tacit run fl-std fl-top-dp --set ratio=0.1            compare methods; an option applies to the methods that have it
  tacit run nbafl --set epsilon=1 delta=0.01            on the task of its paper, unless --task names another
  tacit run ifca-dp --set models=2 noise=5 limit=2 --task synthetic    one model per group, d-privacy per client
  tacit run fedavg --log tensorboard --log mlflow       needs pip install 'tacit-fl[tensorboard,mlflow]'

An experiment file:
  method = "fl-std"
  task = "fashion-mnist"
  seeds = [0, 1, 2]
  [args]
  rounds = 50
  [task-args]
  clients = 6000
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_logs, add_options, add_rounds, add_table, add_trust, add_workers, does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="METHOD|FILE.toml", help="methods by name or as FILE.py:FUNCTION, or a file"
    )
    parser.add_argument("--resume", metavar="RUN", type=Path, help="continue the run in this directory")
    parser.add_argument(
        "--task",
        help="a task's name (tacit tasks lists them) or FILE.py:FUNCTION (default: the method's own, usually digits)",
    )
    add_options(parser, "--set", "method; tacit card METHOD lists them")
    add_rounds(parser, "number of rounds")
    add_options(parser, "--task-set", "task")
    add_table(parser)
    parser.add_argument("--seed", type=int, help="seed of public randomness: initial weights, masks (default: 0)")
    parser.add_argument(
        "--randomness",
        choices=("secret", "seeded"),
        help="secret: a fresh key for every run (default); seeded: cohorts and noise follow from the seed",
    )
    add_workers(parser, "worker processes; they do not change the result")
    parser.add_argument(
        "--waves",
        choices=("fitting", "single"),
        help="single: one client at a time, bitwise equal to a federation (default: fitting, which is faster)",
    )
    parser.add_argument("--device", help="the PyTorch device (default: cpu, the only one tested)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (default: a new one in runs/)")
    parser.add_argument("--evaluate-every", type=int, metavar="N", help="evaluate every N rounds (default: 1)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several runs may share")
    add_logs(parser)
    add_trust(parser)
    does(parser, "names:experiments", "run:run")
