"""What FL-TOP's mask saves in W2's second convolution, in PyTorch's own kernels. See README.md beside this file."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from table import circumstances
from tacit import Everyone, Masked, Method, Select, Sgd, Size, Task, TopK
from tacit.codecs.select import MASK
from tacit.core import TacitError
from tacit.engine import initial_state
from tacit.engine.kernels.cuts import cuts_of
from tacit.engine.kernels.shares import Share
from workloads import WORKLOADS

FIRST, SECOND = (32, 25), (64, 800)  # filters of both convolutions, and what one of them has; a bias each
IMAGES, SIDE = 10, 14


def touched(ratio: float) -> tuple[int, list[tuple[int, int]]]:
    """How many filters of W2's first convolution the mask touches, and where in the second its weights lie.

    In rectangles, each a number of filters by one of channels. Below, biases count too.
    """
    workload = replace(WORKLOADS["W2"], clients=1)
    x, y = (part[0] for part in workload.data())
    sgd, top = Sgd(steps=1, lr=workload.lr), TopK(size=Size(ratio=ratio), lr=workload.lr)
    method = Method(name="mask", rounds=1, sampler=Everyone(), trainer=Masked(sgd), codec=Select(top))
    mask = initial_state(method, Task(model=workload.net, clients=[(x, y)], public=(x, y))).memory[MASK]
    weights, begin = FIRST[0] * FIRST[1], FIRST[0] * (FIRST[1] + 1)
    first = Share.of(mask, ((0, weights), (weights, begin)), FIRST[0])
    second = Share.of(mask, ((begin, begin + SECOND[0] * SECOND[1]),), SECOND[0])
    cuts = [(cut.outputs, cut.channels) for cut in cuts_of(second, FIRST[0], groups=1)]
    sizes = [(SECOND[0] if f is None else len(f), FIRST[0] if c is None else len(c)) for f, c in cuts]
    return len(first.outputs), sizes


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of so many."""
    taken = []
    for _ in range(repeats + 3):  # three to warm up
        begin = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[3:])


def products(inputs: int, rectangles: list[tuple[int, int]], repeats: int) -> dict[str, float]:
    """One client's step: outputs of all filters, gradients at so many inputs, and of filters by channels."""

    def gradient(channels: int, outputs: int, wanted: list[bool]) -> Callable[[], Tensor]:
        x, weight = torch.randn(IMAGES, channels, SIDE, SIDE), torch.randn(outputs, channels, 5, 5)
        g, geometry = torch.randn(IMAGES, outputs, SIDE, SIDE), ([1, 1], [2, 2], [1, 1], False, [0, 0], 1)
        return lambda: torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [*wanted, False])

    x, weight = torch.randn(IMAGES, FIRST[0], SIDE, SIDE), torch.randn(SECOND[0], FIRST[0], 5, 5)
    pieces = [gradient(channels, filters, [False, True]) for filters, channels in rectangles]
    return {
        "outputs": milliseconds(lambda: F.conv2d(x, weight, padding=2), repeats),
        "gradient at the inputs": milliseconds(gradient(inputs, SECOND[0], [True, False]), repeats),
        "gradient at the weights": milliseconds(lambda: [piece() for piece in pieces], repeats),
    }


def main() -> None:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", type=float, default=0.005, help="of the weights (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=50, help="of every product (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error(f"expected --repeats of at least 1, got {given.repeats}")
    torch.set_num_threads(1)
    inputs, rectangles = touched(given.ratio)
    whole = products(FIRST[0], [(SECOND[0], FIRST[0])], given.repeats)
    cut = products(inputs, rectangles, given.repeats)
    ratio = sum(whole.values()) / sum(cut.values())
    if given.json:
        told = {"inputs": inputs, "rectangles": rectangles, "all": whole, "masked": cut, "ratio": ratio}
        print(json.dumps({**circumstances(), **told}))
        return
    wide = " and ".join(f"{filters} x {channels}" for filters, channels in rectangles)
    print(f"The mask touches {inputs} of {FIRST[0]} filters below, and {wide} of {SECOND[0]} x {FIRST[0]} here.")
    for name in whole:
        print(f"{name:<26}{whole[name]:>7.2f} ms{cut[name]:>9.2f} ms under the mask")
    print(f"together {ratio:.2f} times as long with all weights")


if __name__ == "__main__":
    try:
        main()
    except TacitError as error:
        sys.exit(str(error))
