"""Training under a mask: every way through a wave moves the mask's coordinates as the reference does, and no others."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, Descent, MaskedRows, Population, Rows
from tacit.engine.batches import plan_batches
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest, Learner
from tacit.engine.learners.functional import Functional
from tacit.engine.learners.kernels import kernels_for
from tacit.engine.learners.kernels.plans import Plan
from tacit.engine.learners.reference import Reference

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
SIZES = {"equal": (6, 6, 6), "ragged": (3, 9, 1, 6)}
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "one step": zoo.descent(steps=1),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=11, batch_size=2),
    "few of many": zoo.descent(steps=1, batch_size=2),
}


def scattered(share: float) -> Callable[[nn.Module], Tensor]:
    """Coordinates drawn at random."""

    def mask(model: nn.Module) -> Tensor:
        dim = Layout.of(model).dim
        g = torch.Generator().manual_seed(5)
        return torch.randperm(dim, generator=g)[: max(1, int(share * dim))].sort().values

    return mask


def heavy(model: nn.Module) -> Tensor:
    """Some outputs times some inputs of every layer, like the largest of public gradients."""
    g, parts = torch.Generator().manual_seed(6), []
    for parameter in model.parameters():
        scores = torch.rand(parameter.shape[0], generator=g)
        if parameter.dim() > 1:
            scores = torch.outer(scores, torch.rand(parameter[0].numel(), generator=g)).flatten()
        parts.append(scores)
    return torch.cat(parts).topk(Layout.of(model).dim // 20).indices.sort().values


def only(keep: Callable[[str, int], bool]) -> Callable[[nn.Module], Tensor]:
    """Every second coordinate of the parameters that `keep(name, place from the end)` is true for."""

    def mask(model: nn.Module) -> Tensor:
        layout = Layout.of(model)
        last = len(layout.names) - 1
        kept = [keep(name, last - i) for i, name in enumerate(layout.names)]
        which = torch.cat([torch.full((size,), k) for size, k in zip(layout.sizes, kept, strict=True)])
        return which.nonzero().flatten()[::2].contiguous()

    return mask


MASKS: dict[str, Callable[[nn.Module], Tensor]] = {
    "0.1 %": scattered(0.001),
    "1 %": scattered(0.01),
    "10 %": scattered(0.1),
    "50 %": scattered(0.5),
    "all": scattered(1.0),
    "heavy": heavy,
    "biases": only(lambda name, _: name.endswith("bias")),
    "weights": only(lambda name, _: name.endswith("weight")),
    "last parameter": only(lambda _, above: above == 0),
    "all but the last": only(lambda _, above: above > 1),
    "all but the first": only(lambda name, _: name.split(".")[0] not in ("0", "1", "conv")),
    "nothing": lambda _: torch.zeros(0, dtype=torch.int64),
}


def trained(learner: Learner, model: nn.Module, clients: Population, how: Descent) -> Rows:
    everyone = torch.arange(len(clients))
    weights = Layout.of(model).flatten(model)
    before = weights.clone()
    rows = learner.descend(weights, plan_batches(clients, everyone, how, weights.dtype), how, everyone)
    assert torch.equal(weights, before)
    return rows


def assert_same(ours: Rows, theirs: Rows, how: Descent, tolerance: float) -> None:
    assert isinstance(ours, MaskedRows)
    assert isinstance(theirs, MaskedRows)
    assert ours.mask is how.mask
    assert ours.values.shape == (theirs.count, len(ours.mask))
    assert ours.dim == theirs.dim
    assert ours.dtype == theirs.dtype
    assert float((ours.values - theirs.values).norm()) <= tolerance * float(theirs.values.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_fastest(
    make: Callable[[], nn.Module], mask: Callable[[nn.Module], Tensor], sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model, clients = make().to(dtype), zoo.population(sizes, dtype=dtype)
    fastest, reference = Fastest(model, CrossEntropy()), Reference(model, CrossEntropy())
    chosen = mask(model)
    for how in DESCENTS.values():
        how = replace(how, mask=chosen)
        ours, theirs = (trained(learner, model, clients, how) for learner in (fastest, reference))
        assert_same(ours, theirs, how, TOLERANCE[dtype])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_functional(make: Callable[[], nn.Module], momentum: float, mask: Callable[[nn.Module], Tensor]) -> None:
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(SIZES["ragged"], dtype=torch.float64)
    how = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    how = replace(how, mask=mask(model))
    ours, theirs = (trained(way(model, CrossEntropy()), model, clients, how) for way in (Functional, Reference))
    assert_same(ours, theirs, how, 1e-10)


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn])
def test_a_full_mask_is_no_mask(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(SIZES["ragged"], dtype=torch.float64)
    how = DESCENTS["minibatch epochs"]
    full = replace(how, mask=torch.arange(Layout.of(model).dim))
    for learner in (Reference(model, CrossEntropy()), Fastest(model, CrossEntropy())):
        masked, free = (trained(learner, model, clients, each).dense() for each in (full, how))
        torch.testing.assert_close(masked, free, rtol=1e-10, atol=1e-12)


def test_reference_is_plain_torch_sgd_of_the_mask() -> None:
    """The reference itself against `torch.optim`, with gradients that are zeroed outside the mask, for one client."""
    model, clients = zoo.mlp(), zoo.population([7])
    layout, mask = Layout.of(model), scattered(0.1)(model)
    how = replace(zoo.descent(steps=5, momentum=0.8, lr=0.05), mask=mask)
    ours = trained(Reference(model, CrossEntropy()), model, clients, how).dense()[0]
    before = layout.flatten(model)
    moves = layout.views(torch.zeros(layout.dim).index_fill_(0, mask, 1.0))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(moves[name])
        optimiser.step()
    torch.testing.assert_close(ours, layout.flatten(model) - before)


def test_every_form_is_taken() -> None:
    """The masks above lead through every form of a masked layer, so that the agreement is that of all of them."""
    taken = set()
    for make in zoo.CHAINS.values():
        torch.manual_seed(0)
        model = make()
        for mask in MASKS.values():
            plan = plan_of(model, mask(model))
            for share in plan.shares.values():
                if not share.empty:
                    taken.add("own" if share.dense else "block" if share.blockwise else "scattered")
                    taken.add("gathered" if share.gathers else "whole")
                taken.update(name for name in ("above", "below") if getattr(share, name) is not None)
            taken.update({"wanted"} if plan.wanted else ())
    assert taken == {"own", "block", "scattered", "gathered", "whole", "above", "below", "wanted"}


def plan_of(model: nn.Module, mask: Tensor) -> Plan:
    kernels = kernels_for(model, CrossEntropy())
    assert kernels is not None
    trained(kernels, model, zoo.population((2, 2)), replace(DESCENTS["one step"], mask=mask))
    assert kernels.plan is not None
    return kernels.plan


def test_a_first_convolution_without_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).double()
    clients, how = zoo.population(SIZES["ragged"], dtype=torch.float64), DESCENTS["full batch"]
    ours, theirs = (trained(way(model, CrossEntropy()), model, clients, how).dense() for way in (Fastest, Reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
