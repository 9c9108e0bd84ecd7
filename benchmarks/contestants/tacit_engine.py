"""Tacit: rounds are a generator, so a round is one `next`. With `--ratio`, few weights are trained (FL-TOP)."""

import argparse
from dataclasses import replace

from player import Assignment, assignment, race
from talk import ready
from torch import Tensor

import tacit
from tacit import CentralGaussian, Everyone, FixedClip, Masked, Method, Select, Sgd, Size, Task, TopK
from workloads import flat


def benchmark(job: Assignment, ratio: float | None) -> Method:
    """Whole updates, or only the weights with the largest gradients on public data."""
    workload = job.workload
    sgd = Sgd(epochs=workload.epochs, batch_size=workload.batch_size, lr=workload.lr)
    method = Method(
        name="benchmark",
        rounds=10_000,  # more than anybody will ask for
        sampler=Everyone(),
        trainer=sgd,
        mechanism=CentralGaussian(clip=FixedClip(workload.clip), noise_multiplier=job.noise_multiplier),
    )
    if ratio is None:
        return method
    top = TopK(size=Size(ratio=ratio), lr=workload.lr)
    return replace(method, trainer=Masked(sgd), codec=Select(top))


def main() -> None:
    """Race as told on the command line and standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratio", type=float)
    given, rest = parser.parse_known_args()
    job = assignment(rest)
    workload = job.workload
    method = benchmark(job, given.ratio)
    public = replace(workload, clients=1, samples=10).data()
    task = Task(
        model=workload.net, clients=list(zip(*workload.data(), strict=True)), public=(public[0][0], public[1][0])
    )
    rounds = tacit.rounds(method, task, seed=0, workers=job.workers)
    newest = flat(workload.net())

    def weights() -> Tensor:
        return newest

    def play() -> None:
        nonlocal newest
        state, _ = next(rounds)
        newest = state.weights

    ready("torch", "tacit")
    race(job, weights, play)
    rounds.close()


if __name__ == "__main__":
    main()
