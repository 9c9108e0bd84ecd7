"""The clipping of the authors' code, which lengthens short updates and leaves long ones as they are.

    python experiments/geyer/released.py        run what is missing, and print it

In every version of the released code, each of the three weight matrices is scaled by max(1, median / norm), where the
paper says min(1, median / norm). Nothing bounds a client's influence then, so there is no guarantee, whatever the
noise. The settings are those of the row `K=100 released code` of `geyer/table-1`, whose clipping is the paper's.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

import tacit
from tacit.core import BoundedMessages, ClientRound, Messages, ServerRound, State, Sum, Turnout, View, Wave
from tacit.core.interfaces import Mechanism
from tacit.core.prices import Price, Unit, Unproved
from tacit.pieces.mechanisms import CentralGaussian, MedianClip

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
from trials import Progress, Result, TrialFile, interval, train

FILE = Path(__file__).parent / "released.json"
SEEDS = (0, 1, 2)
ROUNDS, COHORT, NOISE = 11, 50, 1.0392


@dataclass(frozen=True, kw_only=True)
class Lengthened(Mechanism):
    """Every layer of every update is at least as long as the cohort's median; central noise in proportion to it.

    Formal guarantees: none.
    """

    base: CentralGaussian
    bounded_for: ClassVar[tuple[Unit, ...]] = ()
    per_layer: ClassVar[bool] = True

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Unproved("updates that are longer than the median are not clipped")

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        rows = messages.rows
        bound = self.base.clip.bound(rows, state)
        factors = (torch.tensor(bound.values) / rows.layer_norms(bound.layers)).clamp(min=1.0).to(rows.dtype)
        return BoundedMessages(replace(messages, rows=rows.layer_scaled(factors, bound.layers)), bound, 0.0)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return self.base.after_sum(total, now)


@dataclass(frozen=True)
class Trial:
    """One run."""

    seed: int


TRIALS = tuple(map(Trial, SEEDS))


def method() -> tacit.Method:
    """The authors' settings and clipping."""
    base = CentralGaussian(clip=MedianClip(per_layer=True), noise_multiplier=NOISE, exact=False)
    descent = tacit.pieces.Sgd(lr=0.1, decay=0.9966, epochs=4, batch_size=50)
    made = tacit.methods.geyer(rounds=ROUNDS, cohort=COHORT, noise=NOISE, descent=descent)
    return replace(made, budget=None, mechanism=Lengthened(base=base))


def run(trial: Trial, place: Path | None) -> Result:
    """Accuracy after the last round."""
    task = tacit.tasks.make_task("mnist", clients=100, partition="shards", samples=500, model="geyer-mlp")
    made = train(method(), task, trial.seed, place, randomness="seeded")
    return {"accuracy": made.metrics["accuracy"], "cpu_seconds": sum(report.seconds for report in made.history)}


def asked(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="folder in which an interrupted run can go on")
    return parser.parse_args(argv)


def progress(argv: Sequence[str]) -> Progress:
    """What is done of a command line, for the backlog."""
    asked(argv)
    return TrialFile.open(FILE).progress(TRIALS)


def main() -> None:
    """Run what is missing; print the accuracy."""
    file = TrialFile.open(FILE, asked().runs)
    results = [file.measure(trial, partial(run, trial, file.place(trial))) for trial in TRIALS]
    print(interval([result["accuracy"] for result in results]))


if __name__ == "__main__":
    main()
