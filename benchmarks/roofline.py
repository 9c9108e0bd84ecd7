"""How fast a round could be at most: its matrix products and convolutions alone, at the fastest that products run here.

The share of the roofline is that time divided by the measured one. Everything else that a round does (activations,
clipping, sums, noise, messages) counts as lost, so that no framework reaches 100 %.
"""

import time

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from workloads import Workload, train

SIDE, REPEATS = 1024, 7


def peak_gflops(workers: int) -> float:
    """10⁹ operations per second of float32 products of matrices, in this many processes with one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
        taken = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            left @ right
            taken.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return workers * 2 * SIDE**3 / min(taken) / 1e9


def gflop(workload: Workload) -> float:
    """10⁹ operations of all clients' local training in one round, in products and convolutions; 0 if not known."""
    if any(isinstance(layer, nn.RNNBase) for layer in workload.net().modules()):
        return 0.0  # PyTorch does not count its products
    x = torch.randn(workload.samples, *workload.shape)
    y = torch.zeros(workload.samples, dtype=torch.int64)
    net: nn.Module = workload.net()
    with FlopCounterMode(display=False) as counter:
        train(net, workload.batches(x, y), workload.lr)
    return workload.clients * counter.get_total_flops() / 1e9


def share(gflop: float, seconds: float, peak: float) -> float:
    """The share of the roofline that a round of this many seconds reaches."""
    return gflop / peak / seconds
