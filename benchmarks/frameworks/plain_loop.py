"""The plain PyTorch loop: one client after the other with `optim.SGD`, in single-threaded processes.

What a careful user writes without a framework: persistent workers, with data, weights and partial sums in shared
memory.
"""

from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from messages import send_ready
from torch import Tensor, multiprocessing, nn
from training import Job, parse_job, serve_rounds

from workloads import Workload, flat, load, train


@dataclass(frozen=True)
class WorkerData:
    """One worker's clients, the weights that it reads and the sum that it writes."""

    workload: Workload
    x: Tensor
    y: Tensor
    weights: Tensor  # shared, read
    total: Tensor  # shared, written


def clipped_update(data: WorkerData, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One client: load the weights, train, clip the update."""
    load(net, data.weights)
    train(net, data.workload.batches(x, y), data.workload.lr)
    update = flat(net).sub_(data.weights)
    return update.mul_(min(1.0, data.workload.clip / float(update.norm())))


def work(data: WorkerData, connection: Connection) -> None:
    """A worker: for every request, the sum of its clients' clipped updates."""
    torch.set_num_threads(1)
    net = data.workload.net()
    connection.send(True)  # start-up is complete
    while connection.recv():
        data.total.zero_()
        for x, y in zip(data.x, data.y, strict=True):
            data.total.add_(clipped_update(data, net, x, y))
        connection.send(True)


class Server:
    """Has the model, requests training from the workers, adds the noise."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.weights = flat(job.workload.net()).share_memory_()
        self.totals = [torch.zeros_like(self.weights).share_memory_() for _ in range(job.workers)]
        self.workers = [self._start_worker(number) for number in range(job.workers)]
        for worker in self.workers:
            worker.recv()

    def _start_worker(self, number: int) -> Connection:
        """Start a worker with every n-th client."""
        x, y = (column[number :: self.job.workers].clone().share_memory_() for column in self.job.workload.data())
        data = WorkerData(self.job.workload, x, y, self.weights, self.totals[number])
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(data, theirs), daemon=True).start()
        return ours

    def run_round(self) -> None:
        """One round."""
        for worker in self.workers:
            worker.send(True)
        for worker in self.workers:
            worker.recv()
        total = torch.stack(self.totals).sum(dim=0)
        std = self.job.noise_multiplier * self.job.workload.clip
        noise = torch.randn_like(total).mul_(std)
        self.weights.add_(total.add_(noise), alpha=1 / self.job.workload.clients)

    def stop(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.send(False)


def main() -> None:
    """Run the job on the command line."""
    job = parse_job()
    server = Server(job)
    send_ready("torch")
    serve_rounds(job, server.weights.clone, server.run_round)
    server.stop()


if __name__ == "__main__":
    main()
