"""The plain PyTorch loop: one client after the other with `optim.SGD`, in single-threaded processes.

What a careful user writes without a framework: persistent workers, data, weights and partial sums in shared
memory.
"""

from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from player import Assignment, assignment, race
from talk import ready
from torch import Tensor, multiprocessing, nn

from workloads import Workload, flat, load, train


@dataclass(frozen=True)
class Share:
    """What one worker owns: its clients, where the weights come from and where its sum goes."""

    workload: Workload
    x: Tensor
    y: Tensor
    weights: Tensor  # shared, read
    total: Tensor  # shared, written


def clipped_update(share: Share, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One client: receive the weights, train, clip the update to the bound."""
    load(net, share.weights)
    train(net, share.workload.batches(x, y), share.workload.lr)
    update = flat(net).sub_(share.weights)
    return update.mul_(min(1.0, share.workload.clip / float(update.norm())))


def work(share: Share, orders: Connection) -> None:
    """A worker: for every order, the sum of its clients' clipped updates."""
    torch.set_num_threads(1)
    net = share.workload.net()
    orders.send(True)  # start-up is over
    while orders.recv():
        share.total.zero_()
        for x, y in zip(share.x, share.y, strict=True):
            share.total.add_(clipped_update(share, net, x, y))
        orders.send(True)


class Server:
    """Holds the model, orders the workers to train, adds the noise."""

    def __init__(self, job: Assignment) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.weights = flat(job.workload.net()).share_memory_()
        self.totals = [torch.zeros_like(self.weights).share_memory_() for _ in range(job.workers)]
        self.lines = [self._hire(number) for number in range(job.workers)]
        for line in self.lines:
            line.recv()

    def _hire(self, number: int) -> Connection:
        """Start a worker with every n-th client."""
        x, y = (column[number :: self.job.workers].clone().share_memory_() for column in self.job.workload.data())
        share = Share(self.job.workload, x, y, self.weights, self.totals[number])
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(share, theirs), daemon=True).start()
        return ours

    def play(self) -> None:
        """One round."""
        for line in self.lines:
            line.send(True)
        for line in self.lines:
            line.recv()
        total = torch.stack(self.totals).sum(dim=0)
        std = self.job.noise_multiplier * self.job.workload.clip
        noise = torch.randn_like(total).mul_(std)
        self.weights.add_(total.add_(noise), alpha=1 / self.job.workload.clients)

    def dismiss(self) -> None:
        """Let the workers go home."""
        for line in self.lines:
            line.send(False)


def main() -> None:
    """Race as told on the command line and standard input."""
    job = assignment()
    server = Server(job)
    ready("torch")
    race(job, server.weights.clone, server.play)
    server.dismiss()


if __name__ == "__main__":
    main()
