"""What FL-TOP's mask saves in W2's second convolution, and how fast W2's network is evaluated. See README.md."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from script import answer, count
from table import circumstances
from tacit import Everyone, Masked, Method, Select, Sgd, Size, Task, TopK
from tacit.engine import initial_state
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import forward_of
from tacit.engine.learners.kernels.chain import TRAINED, chain_of
from tacit.engine.learners.kernels.conv import Filters
from tacit.engine.learners.kernels.cuts import cuts_of
from tacit.engine.learners.kernels.plans import Plan
from tacit.pieces.codecs.select import MASK
from workloads import WORKLOADS

IMAGES, SIDE, TESTED = 10, 14, 334  # of a client; inputs of the second convolution; evaluated at once
Rectangles = list[tuple[int, int]]  # filters by channels


def top_mask(ratio: float) -> Tensor:
    """The mask that the contestant tacit-fl-top has."""
    workload = replace(WORKLOADS["W2"], clients=1)
    x, y = (part[0] for part in workload.data())
    sgd, top = Sgd(steps=1, lr=workload.lr), TopK(size=Size(ratio=ratio), lr=workload.lr)
    method = Method(name="mask", rounds=1, sampler=Everyone(), trainer=Masked(sgd), codec=Select(top))
    return initial_state(method, Task(model=workload.net, clients=[(x, y)], public=(x, y))).memory[MASK]


def touched(net: nn.Module, mask: Tensor) -> tuple[int, Rectangles]:
    """How many filters of the first convolution the mask touches, and where in the second its weights lie."""
    links, layout = chain_of(net), Layout.of(net)
    assert links is not None
    slots = {
        place: tuple(layout.slot(f"{link.name}.{part}") for part in ("weight", "bias"))
        for place, link in enumerate(links)
        if isinstance(link.module, TRAINED)
    }
    below, here, *_ = Plan.of(mask, links, slots).shares.values()
    total, depth = net.get_parameter("3.weight").shape[:2]
    cuts = [(cut.outputs, cut.channels) for cut in cuts_of(here, depth, groups=1)]
    return len(below.outputs), [(total if f is None else len(f), depth if c is None else len(c)) for f, c in cuts]


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of so many."""
    taken = []
    for _ in range(repeats + 3):  # three to warm up
        begin = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[3:])


def products(conv: nn.Conv2d, inputs: int, rectangles: Rectangles, repeats: int) -> dict[str, float]:
    """One client's step: outputs of all filters, gradients at so many inputs, and of filters by channels."""
    filters = Filters.of(conv, conv.weight.detach(), None, ())

    def given(outputs: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
        g, x = (torch.randn(IMAGES, features, SIDE, SIDE) for features in (outputs, channels))
        return g, x, torch.randn(outputs, channels, *conv.kernel_size)

    _, x, weight = given(conv.out_channels, conv.in_channels)
    lower, pieces = given(conv.out_channels, inputs), [given(*rectangle) for rectangle in rectangles]
    return {
        "outputs": milliseconds(lambda: F.conv2d(x, weight, padding=conv.padding), repeats),
        "gradient at the inputs": milliseconds(lambda: filters.input_gradient(*lower), repeats),
        "gradient at the weights": milliseconds(lambda: [filters.weight_gradient(*piece) for piece in pieces], repeats),
    }


@torch.no_grad()
def evaluation(net: nn.Module, repeats: int) -> dict[str, float]:
    """Some test images through the model as it is written, and as it is evaluated."""
    x, forward = torch.randn(TESTED, *WORKLOADS["W2"].shape), forward_of(net)
    return {name: milliseconds(lambda way=way: way(x), repeats) for name, way in (("module", net), ("chain", forward))}


def main() -> None:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", type=float, default=0.005, help="of the weights (default %(default)s)")
    parser.add_argument("--repeats", type=count, default=50, help="of everything (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    net = WORKLOADS["W2"].net().eval()
    conv = net.get_submodule("3")
    assert isinstance(conv, nn.Conv2d)
    inputs, rectangles = touched(net, top_mask(given.ratio))
    whole = products(conv, conv.in_channels, [(conv.out_channels, conv.in_channels)], given.repeats)
    cut = products(conv, inputs, rectangles, given.repeats)
    ratio, evaluated = sum(whole.values()) / sum(cut.values()), evaluation(net, given.repeats)
    if given.json:
        told = {"inputs": inputs, "rectangles": rectangles, "all": whole, "masked": cut, "ratio": ratio}
        print(json.dumps({**circumstances(), **told, "evaluation": evaluated}))
        return
    wide = " and ".join(f"{filters} x {channels}" for filters, channels in rectangles)
    here = f"{conv.out_channels} x {conv.in_channels}"
    print(f"The mask touches {inputs} of {conv.in_channels} filters below, and {wide} of {here} here.")
    for name in whole:
        print(f"{name:<26}{whole[name]:>7.2f} ms{cut[name]:>9.2f} ms under the mask")
    print(f"together {ratio:.2f} times as long with all weights")
    module, chain = evaluated.values()
    print(f"{TESTED} images are evaluated in {module:.0f} ms by the module, in {chain:.0f} ms as a chain")


if __name__ == "__main__":
    answer(main)
