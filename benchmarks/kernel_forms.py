"""Measures every form of a layer in the kernels against a simpler one, on a workload that uses it.

Examples:
  python benchmarks/kernel_forms.py                                  every form, as in docs/benchmarks.md
  python benchmarks/kernel_forms.py --forms WindowLinear --repeats 40

A wave is trained as in a round: steps, norms, and the sum of the clipped updates. It is trained with and without the
form in turns, in one thread; what is compared is the thread's CPU time, of which the median over all turns is shown.
`DenseLinear`, `PerClientLinear`, `LoopConv` and `MaskedConv` are the simplest forms; others are compared with them.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from reporting import circumstances, exit_on_error, positive_integer
from tacit import Method, Task
from tacit.core import ClientKeys, CrossEntropy, Descent, Key, Rows
from tacit.data import Population
from tacit.engine import initial_state
from tacit.engine.batches import make_batches
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import kernel_learner, layer_masks
from tacit.engine.learners.kernels.conv import LoopConv, MaskedConv
from tacit.engine.learners.kernels.layer_masks import ChainMask, LayerMask
from tacit.engine.learners.kernels.learner import LayerBuilder
from tacit.engine.learners.kernels.linear import DenseLinear
from tacit.pieces import Everyone, Masked, Select, Sgd, Size, TopK
from tacit.pieces.codecs.select import MASK
from tacit.tasks.models import sigmoid_lenet
from workloads import IMAGE, WORKLOADS, Workload

WARM_UPS = 3
CLIP = 0.1
RATIO = 0.005  # of the weights, under a mask
Simpler = Mapping[tuple[object, str], Any]  # the attributes of the kernels that are replaced to leave a form out
ON = {
    **WORKLOADS,
    "LeNet": Workload(
        name="LeNet", title="sigmoid LeNet, 10 samples, 5 full-batch steps", model=sigmoid_lenet, shape=IMAGE,
        clients=10, samples=10, epochs=5, batch_size=10, lr=0.1,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A form of a layer and a workload that uses it.

    Attributes:
        form: its name.
        instead: what the layer is without it.
        workload: the name of the workload.
        clients: the number of clients in a wave.
        mask: the name of its mask, in `MASKS`.
        simpler: what is replaced to leave the form out.
    """

    form: str
    instead: str
    workload: str
    clients: int
    mask: str
    simpler: Simpler

    def measure(self, repeats: int) -> tuple[float, float]:
        """Milliseconds for a wave with the form, and how many times as long it takes without."""
        workload = replace(ON[self.workload], clients=self.clients)
        ours, theirs = (wave_of(workload, MASKS[self.mask](workload)) for _ in range(2))
        turns = [(seconds(ours, {}), seconds(theirs, self.simpler)) for _ in range(repeats + WARM_UPS)]
        taken, without = map(statistics.median, zip(*turns[WARM_UPS:], strict=True))
        return 1e3 * taken, without / taken


def seconds(wave: Callable[[], Rows], simpler: Simpler) -> float:
    """CPU time of one wave, with these attributes of the kernels replaced."""
    with ExitStack() as stack:
        for (owner, name), value in simpler.items():
            stack.enter_context(patch.object(owner, name, value))
        begin = time.thread_time()
        rows = wave()
        rows.scaled(CLIP / rows.norms()).sum()
        return time.thread_time() - begin


def wave_of(workload: Workload, mask: Tensor | None) -> Callable[[], Rows]:
    """The training of all clients of a workload in one wave."""
    net, (x, y) = workload.net(), workload.data()
    kernels = kernel_learner(net, CrossEntropy())
    assert kernels is not None
    population, everyone = Population.of(list(zip(x, y, strict=True))), torch.arange(workload.clients)
    keys, weights = ClientKeys(Key.from_seed(0)), Layout.of(net).flatten(net)
    descent = Descent(workload.lr, None, workload.epochs, workload.batch_size, 0.0, 0.0, keys, mask=mask)
    batches = make_batches(population, everyone, descent, weights.dtype)
    return lambda: kernels.descend(weights, batches, descent, everyone)


def top_mask(workload: Workload) -> Tensor:
    """The weights with the largest gradients on the samples of one client, as FL-TOP takes them."""
    x, y = (part[0] for part in workload.data())
    sgd, top = Sgd(steps=1, lr=workload.lr), TopK(size=Size(ratio=RATIO), lr=workload.lr)
    method = Method(name="mask", rounds=1, sampler=Everyone(), trainer=Masked(sgd), codec=Select(top))
    return initial_state(method, Task(model=workload.net, clients=[(x, y)], public=(x, y))).memory[MASK]


def random_mask(workload: Workload) -> Tensor:
    """Weights at random."""
    dim = Layout.of(workload.net()).dim
    return torch.randperm(dim, generator=torch.Generator().manual_seed(0))[: round(RATIO * dim)].sort().values


MASKS: dict[str, Callable[[Workload], Tensor | None]] = {
    "all weights": lambda _: None,
    "largest 0.5 %": top_mask,
    "random 0.5 %": random_mask,
}


def _dense(builder: LayerBuilder, weights: Any, lowest: bool, _: int) -> DenseLinear:
    return DenseLinear(weights, builder.descent.lr, builder.batches.clients, lowest=lowest)


def _loop(builder: LayerBuilder, weights: Any, lowest: bool) -> LoopConv:
    return LoopConv(weights, builder.descent.lr, builder.batches.clients, lowest=lowest)


def _masked(builder: LayerBuilder, weights: Any, index: int, masks: ChainMask) -> MaskedConv:
    clients, lowest = builder.batches.clients, index <= masks.first_trained
    return MaskedConv(weights, masks.layers[index], builder.descent.lr, clients, lowest=lowest)


DENSE: Simpler = {(LayerBuilder, "_linear"): _dense}
PER_CLIENT: Simpler = {(LayerMask, "is_dense"): True, (LayerMask, "is_blockwise"): False}
SCATTERED: Simpler = {(LayerMask, "is_blockwise"): False}
UNORDERED: Simpler = {(layer_masks, "_with_feature_orders"): lambda _, layers: layers}
LOOP: Simpler = {(LayerBuilder, "_conv"): _loop}
MASKED: Simpler = {(LayerBuilder, "_conv_layer"): _masked}
CASES = (
    Case("GramLinear", "DenseLinear", "W3", 128, "all weights", DENSE),
    Case("FactoredLinear", "DenseLinear", "W2", 10, "all weights", DENSE),
    Case("WindowLinear", "DenseLinear", "W1", 10, "all weights", DENSE),
    Case("BlockLinear", "PerClientLinear", "W1", 25, "largest 0.5 %", PER_CLIENT),
    Case("BlockLinear", "ScatteredLinear", "W1", 25, "largest 0.5 %", SCATTERED),
    Case("FeatureOrder", "gathered features", "W1", 25, "largest 0.5 %", UNORDERED),
    Case("ScatteredLinear", "PerClientLinear", "W1", 25, "random 0.5 %", PER_CLIENT),
    Case("PatchConv", "LoopConv", "W2", 10, "all weights", LOOP),
    Case("PatchConv", "LoopConv", "LeNet", 10, "all weights", LOOP),
    Case("MaskedPatchConv", "MaskedConv", "W2", 10, "largest 0.5 %", MASKED),
    Case("MaskedPatchConv", "MaskedConv", "LeNet", 10, "largest 0.5 %", MASKED),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", metavar="NAME", choices=sorted({case.form for case in CASES}))
    parser.add_argument("--repeats", type=positive_integer, default=20, help="of each wave (default %(default)s)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"CPU: {circumstances()['cpu']}, one thread, medians of {args.repeats} waves.\n")
    print("| form | instead | workload | clients | weights | ms per wave | without it |\n|---|---|---|---|---|---|---|")
    for case in CASES:
        if args.forms is None or case.form in args.forms:
            taken, ratio = case.measure(args.repeats)
            named = (case.form, case.instead, case.workload, str(case.clients), case.mask)
            print(f"| {' | '.join(named)} | {taken:.1f} | {ratio:.2f}× |", flush=True)


if __name__ == "__main__":
    exit_on_error(main)
