"""Try many values of an experiment's arguments, and choose the best on a validation part of the held-out data.

The experiment file has a table [sweep]: lists of values (all combinations), or lists and ranges with a number of
trials, which are random, or chosen by the results of earlier ones (sampler = "tpe"). With pruner = "median", one that
does worse than half of the others is stopped early. Every combination is run with every seed, in a directory of its
own, and entered in an Optuna database beside them (optuna.db). Finished runs are not repeated: after Ctrl-C, a crash or
a kill the same command resumes the sweep, with the same table. Runs are evaluated on one part of the held-out data;
only the chosen combination is evaluated on the other part. Noise is seeded: a sweep is a simulation. Needs pip install
'tacit-fl[sweep]'.

Examples:
  tacit sweep experiment.toml                           all combinations, one run after another
  tacit sweep experiment.toml --processes 4             four runs at a time
  tacit sweep experiment.toml --out runs/rates --json

An experiment file:
  method = "fl-std"
  seeds = [0, 1, 2]
  [args]
  rounds = 20
  [sweep]
  validation = 0.5
  [sweep.args]
  "descent.lr" = [0.05, 0.1, 0.2]
  cohort = [10, 20]
  # with trials = 8 in [sweep], also ranges: ratio = { low = 0.001, high = 0.1, log = true }
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_trust, add_workers, does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="an experiment file with a table [sweep]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/sweep/NAME)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    add_workers(parser, "worker processes of a run, if there is one at a time")
    add_trust(parser)
    does(parser, "names:optuna", "sweep:run")
