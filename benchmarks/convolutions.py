"""Measures what FL-TOP's mask saves in W2's second convolution, and the evaluation of W2's model. See README.md."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reporting import circumstances, exit_on_error, positive_integer
from tacit import Method, Task
from tacit.engine import initial_state
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import evaluation_module
from tacit.engine.learners.kernels.conv import ConvWeights, gradient_tiles
from tacit.engine.learners.kernels.layer_masks import ChainMask
from tacit.engine.learners.kernels.tracing import trace_chain
from tacit.pieces import Everyone, Masked, Select, Sgd, Size, TopK
from tacit.pieces.codecs.select import MASK
from workloads import WORKLOADS, Workload

IMAGES, SIDE, TESTED = 10, 14, 334  # of a client; inputs of the second convolution; evaluated at once
WARM_UPS = 3
Tiles = list[tuple[int, int]]  # filters by channels


def top_mask(workload: Workload, ratio: float) -> Tensor:
    """The mask of the benchmark tacit-fl-top on a workload."""
    x, y = (part[0] for part in replace(workload, clients=1).data())
    sgd, top = Sgd(steps=1, lr=workload.lr), TopK(size=Size(ratio=ratio), lr=workload.lr)
    method = Method(name="mask", rounds=1, sampler=Everyone(), trainer=Masked(sgd), codec=Select(top))
    return initial_state(method, Task(model=workload.net, clients=[(x, y)], public=(x, y))).memory[MASK]


def touched(net: nn.Module, mask: Tensor) -> tuple[int, Tiles]:
    """The number of filters of the first convolution that the mask touches, and the tiles of the second."""
    chain, layout = trace_chain(net), Layout.of(net)
    assert chain is not None
    first, second, *_ = ChainMask.of(mask, chain, layout).layers.values()
    total, depth = net.get_parameter("3.weight").shape[:2]
    tiles = [(tile.outputs, tile.channels) for tile in gradient_tiles(second, depth, groups=1)]
    sizes = [(total if f is None else len(f), depth if c is None else len(c)) for f, c in tiles]
    return len(first.touched_outputs), sizes


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of some work."""
    times = []
    for _ in range(repeats + WARM_UPS):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[WARM_UPS:])


def products(conv: nn.Conv2d, inputs: int, tiles: Tiles, repeats: int) -> dict[str, float]:
    """One client's step: outputs of all filters, the gradient at some input channels, and at the weights in tiles."""
    weights = ConvWeights.of(conv, conv.weight.detach(), None, ())

    def operands(outputs: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
        g, x = (torch.randn(IMAGES, features, SIDE, SIDE) for features in (outputs, channels))
        return g, x, torch.randn(outputs, channels, *conv.kernel_size)

    _, x, weight = operands(conv.out_channels, conv.in_channels)
    of_inputs, of_tiles = operands(conv.out_channels, inputs), [operands(*tile) for tile in tiles]
    return {
        "outputs": milliseconds(lambda: F.conv2d(x, weight, padding=conv.padding), repeats),
        "gradient at the inputs": milliseconds(lambda: weights.input_gradient(*of_inputs), repeats),
        "gradient at the weights": milliseconds(lambda: [weights.weight_gradient(*tile) for tile in of_tiles], repeats),
    }


@torch.no_grad()
def evaluation(net: nn.Module, repeats: int) -> dict[str, float]:
    """Test images through the model as written, and in the engine's evaluation form."""
    x, forward = torch.randn(TESTED, *WORKLOADS["W2"].shape), evaluation_module(net)
    return {
        name: milliseconds(lambda module=module: module(x), repeats)
        for name, module in (("module", net), ("evaluation form", forward))
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table or the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", type=float, default=0.005, help="of weights in the mask (default %(default)s)")
    parser.add_argument("--repeats", type=positive_integer, default=50, help="of each product (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    net = WORKLOADS["W2"].net().eval()
    conv = net.get_submodule("3")
    assert isinstance(conv, nn.Conv2d)
    inputs, tiles = touched(net, top_mask(WORKLOADS["W2"], args.ratio))
    whole = products(conv, conv.in_channels, [(conv.out_channels, conv.in_channels)], args.repeats)
    masked = products(conv, inputs, tiles, args.repeats)
    ratio, evaluated = sum(whole.values()) / sum(masked.values()), evaluation(net, args.repeats)
    if args.json:
        results = {"inputs": inputs, "tiles": tiles, "all": whole, "masked": masked, "ratio": ratio}
        print(json.dumps({**circumstances(), **results, "evaluation": evaluated}))
        return
    sizes = " and ".join(f"{filters} x {channels}" for filters, channels in tiles)
    print(f"The mask touches {inputs} of {conv.in_channels} filters of the first convolution.")
    print(f"Its tiles in the second are {sizes} of {conv.out_channels} x {conv.in_channels} (filters x channels).")
    for name in whole:
        print(f"{name:<26}{whole[name]:>7.2f} ms{masked[name]:>9.2f} ms under the mask")
    print(f"All weights take {ratio:.2f} times as long as the mask.")
    module, form = evaluated.values()
    print(f"Evaluating {TESTED} images takes {module:.0f} ms in the module and {form:.0f} ms in the evaluation form.")


if __name__ == "__main__":
    exit_on_error(main)
