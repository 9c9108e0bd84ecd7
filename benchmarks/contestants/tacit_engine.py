"""Tacit: rounds are a generator, so a round is one `next`."""

from player import assignment, race, ready
from torch import Tensor

import tacit
from tacit import CentralGaussian, Everyone, FixedClip, Method, Sgd, Task
from workloads import flat


def main() -> None:
    """Race as told on the command line and standard input."""
    job = assignment()
    workload = job.workload
    method = Method(
        name="benchmark",
        rounds=10_000,  # more than anybody will ask for
        sampler=Everyone(),
        trainer=Sgd(epochs=workload.epochs, batch_size=workload.batch_size, lr=workload.lr),
        mechanism=CentralGaussian(clip=FixedClip(workload.clip), noise_multiplier=job.noise_multiplier),
    )
    task = Task(model=workload.net, clients=list(zip(*workload.data(), strict=True)))
    rounds = tacit.rounds(method, task, seed=0, workers=job.workers)
    newest = flat(workload.net())

    def weights() -> Tensor:
        return newest

    def play() -> None:
        nonlocal newest
        state, _ = next(rounds)
        newest = state.weights

    ready("tacit")
    race(job, weights, play)
    rounds.close()


if __name__ == "__main__":
    main()
