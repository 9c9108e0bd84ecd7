"""What the scripts of the training benchmark share: their arguments, and the timing of rounds."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from messages import commands, send
from torch import Tensor

from workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Job:
    """What a framework is to run.

    Attributes:
        workload: model, data and local training.
        noise_multiplier: of the Gaussian noise; 0 in check mode.
        workers: the number of training processes.
        dump: the file for the update of every round, in check mode.
    """

    workload: Workload
    noise_multiplier: float
    workers: int
    dump: str | None


def parse_job(arguments: list[str] | None = None) -> Job:
    """The job on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check", metavar="FILE", help="full batches, no noise; save the round's update to this file")
    args = parser.parse_args(arguments)
    workload = WORKLOADS[args.workload]
    if args.check:
        return Job(workload.full_batch(), 0.0, args.workers, args.check)
    return Job(workload, workload.noise_multiplier, args.workers, None)


@dataclass
class RoundTimer:
    """Times rounds and sends the measurements; comparing weights is not part of a round's time."""

    job: Job
    weights: Callable[[], Tensor]
    before: Tensor | None = None
    started: float = 0.0

    def start(self) -> None:
        """A round begins."""
        self.before = self.weights()
        self.started = time.perf_counter()

    def stop(self) -> None:
        """A round is complete: the server has the new model."""
        seconds = time.perf_counter() - self.started
        assert self.before is not None
        update = self.weights() - self.before
        if self.job.dump:
            torch.save(update, self.job.dump)
        send(seconds=seconds, norm=float(update.norm()))


def serve_rounds(job: Job, weights: Callable[[], Tensor], run_round: Callable[[], None]) -> None:
    """Run a round for every command, for frameworks in which a round is a function call."""
    timer = RoundTimer(job, weights)
    for _ in commands():
        timer.start()
        run_round()
        timer.stop()
