"""Attack a method: reconstruct images (dlg), infer who took part (membership), or subtract sums (differencing).

Rounds are executed as in training, and the attack receives exactly what the adversary observes. A failed attack is
evidence about that attack alone; `tacit card METHOD` shows what is proved about a method.

Examples:
  tacit attack dlg fl-std --set descent.steps=1 --task digits --task-set model=digits-sigmoid-lenet --images 4
  tacit attack dlg fl-std --set descent.steps=1 --task mnist --task-set model=sigmoid-lenet
  tacit attack dlg fl-std --set descent.steps=1 --task mnist --task-set model=sigmoid-lenet --batch 8 --images 8
  tacit attack dlg fl-std-dp --set noise=1 epsilon=none clip=1   nothing to attack: the server learns only a sum
  tacit attack membership fedavg --rounds 20 --level record
  tacit attack differencing patients.csv --client hospital --target died --epsilon 1
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_commands, add_experiment, add_rounds, does, reader

TASK = "a task's name (tacit tasks lists them)"


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _dlg, _membership, _differencing, kind="attack")


def _dlg(parser: argparse.ArgumentParser) -> None:
    """Reconstruct images from updates.

    Deep leakage from gradients: reconstruct the images that caused the observed updates.
    """
    add = parser.add_argument
    add_experiment(parser, TASK)
    add("--images", type=int, default=20, metavar="N", help="images to attack (default: 20)")
    add("--batch", type=int, default=1, metavar="B", help="images per client, 1 to 8 (default: 1)")
    add(
        "--adversary",
        choices=("server", "network", "client", "recipient"),
        default="server",
        help="who attacks (default: server)",
    )
    add("--cohort", type=int, metavar="N", help="victims per round (default: all in one round)")
    add("--after", type=int, default=0, metavar="N", help="attack after N rounds of training (default: 0)")
    add("--published", action="store_true", help="the attack as first published: labels unknown, squared distance")
    add("--steps", type=int, metavar="N", help="L-BFGS steps per start (default: 300 per image of a batch)")
    add("--picture", type=Path, metavar="FILE", help="where to save the picture (default: in runs/attacks)")
    does(parser, "names:experiment", "attack:dlg")


def _membership(parser: argparse.ArgumentParser) -> None:
    """Infer who took part.

    Membership inference: train models on random halves of the clients or records, and infer who was in which.
    """
    add_experiment(parser, TASK)
    add_rounds(parser, "training rounds")
    parser.add_argument(
        "--level", choices=("client", "record"), default="client", help="infer clients or records (default: client)"
    )
    parser.add_argument("--models", type=int, default=16, metavar="N", help="models to train (default: 16)")
    does(parser, "names:experiment", "attack:membership")


def _differencing(parser: argparse.ArgumentParser) -> None:
    """Subtract two sums of a table.

    Differencing: subtract a hospital's first messages of a logistic regression with and without each patient, exact
    ones as other platforms send them, and private ones.
    """
    add = parser.add_argument
    add("table", metavar="TABLE", help="a CSV or Parquet file, or a folder of them")
    add("--client", metavar="COLUMN", help="the column of client names; not for a folder")
    add("--target", required=True, metavar="COLUMN", help="the column of the outcome, of two values")
    add("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    add("--epsilon", type=reader(float, "a number"), default=1.0, help="of each private sum (default: 1)")
    add("--delta", type=float, default=1e-5, help="the δ of ε (default: 1e-5)")
    add("--seed", type=int, default=0, help="seed of the noise in the demonstration (default: 0)")
    add("--picture", type=Path, metavar="FILE", help="where to save the picture, SVG (default: in runs/attacks)")
    does(parser, "differencing:attack")
