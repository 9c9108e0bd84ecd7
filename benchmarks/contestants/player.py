"""How a contestant talks to the referee: one line in, one line of JSON out.

A contestant says `{"ready": ...}` with its versions, then plays one round for every line `round` on its
standard input and says how many seconds it took and how far the model moved. Between rounds it blocks on its
standard input, so that it costs no processor time while the others play.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from talk import commands, say
from torch import Tensor

from workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Assignment:
    """What a contestant was asked to play."""

    workload: Workload
    noise_multiplier: float
    workers: int
    dump: str | None  # where to save the update of every round (check mode)


def assignment(arguments: list[str] | None = None) -> Assignment:
    """The assignment on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check", metavar="FILE", help="full batches, no noise; save the round's update here")
    given = parser.parse_args(arguments)
    workload = WORKLOADS[given.workload]
    if given.check:
        return Assignment(workload.full_batch(), 0.0, given.workers, given.check)
    return Assignment(workload, workload.noise_multiplier, given.workers, None)


@dataclass
class Clock:
    """Times rounds and reports them; comparing weights is not part of a round's time."""

    job: Assignment
    weights: Callable[[], Tensor]
    before: Tensor | None = None
    started: float = 0.0

    def start(self) -> None:
        """The round begins now."""
        self.before = self.weights()
        self.started = time.perf_counter()

    def stop(self) -> None:
        """The round is over: the server holds the new model."""
        seconds = time.perf_counter() - self.started
        assert self.before is not None
        update = self.weights() - self.before
        if self.job.dump:
            torch.save(update, self.job.dump)
        say(seconds=seconds, norm=float(update.norm()))


def race(job: Assignment, weights: Callable[[], Tensor], play: Callable[[], None]) -> None:
    """Play a round for every command, for contestants whose rounds are a function call."""
    clock = Clock(job, weights)
    for _ in commands():
        clock.start()
        play()
        clock.stop()
