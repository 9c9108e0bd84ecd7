"""Tacit's engine: rounds are a generator, so a round is one `next`. With `--ratio`, few weights are trained (FL-TOP).

Like the other frameworks here, it does no privacy accounting.
"""

import argparse
from dataclasses import replace

from messages import send_ready
from torch import Tensor
from training import Job, parse_job, serve_rounds

from tacit import Method, Task
from tacit.engine import rounds
from tacit.pieces import CentralGaussian, Everyone, FixedClip, Masked, Select, Sgd, Size, TopK
from workloads import flat


def method_for(job: Job, ratio: float | None) -> Method:
    """Whole updates, or only the weights with the largest gradients on public data."""
    workload = job.workload
    sgd = Sgd(epochs=workload.epochs, batch_size=workload.batch_size, lr=workload.lr)
    method = Method(
        name="benchmark",
        rounds=10_000,  # more than are ever requested
        sampler=Everyone(),
        trainer=sgd,
        mechanism=CentralGaussian(clip=FixedClip(workload.clip), noise_multiplier=job.noise_multiplier),
    )
    if ratio is None:
        return method
    top = TopK(size=Size(ratio=ratio), lr=workload.lr)
    return replace(method, trainer=Masked(sgd), codec=Select(top))


def main() -> None:
    """Run the job on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratio", type=float)
    args, rest = parser.parse_known_args()
    job = parse_job(rest)
    workload = job.workload
    method = method_for(job, args.ratio)
    public = replace(workload, clients=1, samples=10).data()
    task = Task(
        model=workload.net, clients=list(zip(*workload.data(), strict=True)), public=(public[0][0], public[1][0])
    )
    steps = rounds(method, task, seed=0, workers=job.workers, randomness="seeded")
    newest = flat(workload.net())

    def weights() -> Tensor:
        return newest

    def run_round() -> None:
        nonlocal newest
        state, _ = next(steps)
        newest = state.weights

    send_ready("torch", "tacit-fl")
    serve_rounds(job, weights, run_round)
    steps.close()


if __name__ == "__main__":
    main()
