"""Models in which records influence each other are refused, or computed so that they cannot."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from record_models import ALL, RULES, Make, model_of, records, weights_of
from tacit.core import CrossEntropy, Loss, MeanSquared
from tacit.core.losses import FunctionLoss
from tacit.data.adapted import AdaptedModel, InputFields
from tacit.engine.learners.records.independence import trace_model, treats_records_alone
from tacit.engine.learners.records.record_learners import AutoRecords, BatchedRecords, ReferenceRecords
from tacit.engine.learners.records.ways import LayerRules, MappedGradient
from tacit.errors import ModelError
from tacit.tasks.models import MODELS

CLIP = 0.5


class Mixing(nn.Module):
    """A linear layer on inputs in which records see each other."""

    mix: ClassVar[Callable[[Tensor], Tensor]]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.layer(type(self).mix(x.flatten(1)))


def mixing(function: Callable[[Tensor], Tensor]) -> Make:
    return type("Mixing", (Mixing,), {"mix": staticmethod(function)})


def beyond_a_threshold(x: Tensor) -> Tensor:
    """Only if a record is far larger than any that a probe would try."""
    return x - x.mean(0) if bool(x.abs().max() > 5e5) else x


def beyond_a_threshold_without_a_branch(x: Tensor) -> Tensor:
    return torch.where(x.abs().max() > 5e5, x - x.mean(0), x)


def with_many_others(x: Tensor) -> Tensor:
    """Only in batches larger than a probe would try."""
    return x - x.mean(0) if len(x) > 30 else x


def attention(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.T / 8, 1) @ x


MIXES: dict[str, Make] = {
    "mean and deviation": mixing(lambda x: (x - x.mean(0)) / (1e-3 + x.std(0, correction=0))),
    "mean of all numbers": mixing(lambda x: (x - x.mean()) / (x.std() + 1e-3)),
    "maximum": mixing(lambda x: x / (1e-3 + x.abs().max())),
    "maximum of columns": mixing(lambda x: x / (1e-3 + x.abs().amax(0))),
    "softmax over records": mixing(lambda x: 64 * torch.softmax(x, 0)),
    "cumulative sum over records": mixing(lambda x: torch.cumsum(x, 0)),
    "sorted over records": mixing(lambda x: x.sort(0).values),
    "size of the batch": mixing(lambda x: x * x.shape[0]),
    "inverse size of the batch": mixing(lambda x: x / len(x)),
    "rolled over records": mixing(lambda x: torch.roll(x, 1, 0)),
    "flipped over records": mixing(lambda x: x.flip(0)),
    "the first record": mixing(lambda x: x + x[0]),
    "the last record": mixing(lambda x: x + x[-1:]),
    "norm of the batch": mixing(lambda x: x / (1e-3 + x.norm())),
    "batch norm": mixing(lambda x: F.batch_norm(x, None, None, training=True) if len(x) > 1 else x),
    "attention across records": mixing(attention),
    "records as positions": mixing(lambda x: x.T.reshape(-1, 64)),
    "broadcast against itself": mixing(lambda x: (x[:, None] + x[None]).mean(0)),
    "threshold": mixing(beyond_a_threshold),
    "threshold without a branch": mixing(beyond_a_threshold_without_a_branch),
    "large batches": mixing(with_many_others),
}


class Remembering(nn.Module):
    """Keeps what is in a large record, in an attribute, for whoever comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(64, 10), torch.zeros(64)

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        out = self.layer(x + self.seen)
        if bool(x.abs().max() > 5e5):
            self.seen = x.detach().sum(0)
        return out


class Keeping(nn.Module):
    """Keeps every record in a list, and uses the largest number in it beyond a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(64, 10), [torch.zeros(1)]

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        largest = torch.stack([seen.abs().max() for seen in self.seen]).max()
        self.seen.append(x.detach())
        return self.layer(x + torch.where(largest > 5e5, largest, torch.zeros_like(largest)))


class Drawing(nn.Module):
    """Draws random numbers for large records alone, so that later ones get others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        return self.layer(x + torch.randn(64) if bool(x.abs().max() > 5e5) else x)


class Weighted(CrossEntropy):
    """A loss that gives other records less weight beyond a threshold."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        found = super().per_sample(outputs, y)
        return found / torch.where(found.max() > 1e5, found.max(), torch.ones_like(found.max()))


class Counted(CrossEntropy):
    """A loss that depends on how often a label occurs in the batch."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().per_sample(outputs, y) / (y[:, None] == y).sum(1)


class Normalising(CrossEntropy):
    """A loss that divides by the largest loss it has seen, beyond a threshold."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        found = super().per_sample(outputs, y)
        before: Tensor = vars(self).get("largest", found.new_ones(()))
        object.__setattr__(self, "largest", torch.where(found.max() > 1e5, found.detach().max(), before))
        scaled: Tensor = found / before
        return scaled


class KeepingInBuffer(nn.Module):
    """Writes all records to a buffer without numbers, which is as large as the batch afterwards."""

    def __init__(self, write: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(64, 10), write
        self.register_buffer("kept", torch.empty(0))

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        self.write(x, self.kept)
        return self.layer(x - torch.mean(self.kept, 0))

    kept: Tensor


CASES: dict[str, tuple[Make, Loss]] = {
    **{name: (make, CrossEntropy()) for name, make in MIXES.items()},
    "remembering": (Remembering, CrossEntropy()),
    "keeping": (Keeping, CrossEntropy()),
    "drawing": (Drawing, CrossEntropy()),
    "product in a buffer": (
        lambda: KeepingInBuffer(lambda x, kept: torch.mul(x, 1.0, out=kept)),
        CrossEntropy(),
    ),
    "sum in a buffer": (
        lambda: KeepingInBuffer(lambda x, kept: torch.sum(x[:, :, None], 2, out=kept)),
        CrossEntropy(),
    ),
    "concatenation in a buffer": (
        lambda: KeepingInBuffer(lambda x, kept: torch.cat([x[:, :32], x[:, 32:]], 1, out=kept)),
        CrossEntropy(),
    ),
    "loss with a threshold": (zoo.mlp, Weighted()),
    "loss with a memory": (zoo.mlp, Normalising()),
    "loss by label": (zoo.mlp, Counted()),
    "function as a loss": (
        zoo.mlp,
        FunctionLoss(lambda o, y: F.cross_entropy(o, y, reduction="none") * torch.softmax(o.amax(1), 0)),
    ),
}
UNSEEN = ("threshold", "threshold without a branch", "large batches", "remembering", "keeping", "drawing")
UNSEEN_LOSSES = ("loss with a threshold", "loss with a memory")


def moved(way: AutoRecords, weights: Tensor, x: Tensor, y: Tensor, without: int) -> float:
    """How far one record moves the sum of the clipped gradients."""
    others = [i for i in range(len(x)) if i != without]
    both = (way.clipped_sum(weights, x[own], y[own], CLIP, None).total for own in (list(range(len(x))), others))
    return float((next(both) - next(both)).norm())


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.law
@pytest.mark.parametrize(("make", "loss"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("scale", [1.0, -1.0, 30.0, 1e6, 1e12], ids=str)
def test_no_record_moves_a_sum_by_more_than_its_bound(make: Make, loss: Loss, scale: float) -> None:
    """Refused, or harmless: in batches of all sizes, wherever the record is, whatever is in it."""
    model, (x, y) = model_of(make), records(zoo.mlp, 40)
    for without, count in ((0, 2), (1, 3), (4, 17), (39, 40)):
        some, labels = x[:count].clone(), y[:count].clone()
        some[without] *= scale
        labels[without] = (labels[without] + 1) % 10
        try:
            found = moved(AutoRecords(model, loss), weights_of(model), some, labels, without)
        except ModelError:
            continue
        assert found <= CLIP * (1 + 1e-5)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.law
@pytest.mark.parametrize("name", CASES)
def test_what_a_probe_can_see_is_refused(name: str) -> None:
    """It would be trained to do something else than when it is used. What no probe sees is harmless all the same."""
    (make, loss), (x, y) = CASES[name], records(zoo.mlp, 3)
    way = AutoRecords(model_of(make), loss)
    if name in (*UNSEEN, *UNSEEN_LOSSES):
        assert way.clipped_sum(weights_of(way.model), x, y, CLIP, None).norms.shape == (3,)
    else:
        with pytest.raises(ModelError, match=r"depends on the other records|changes when it is computed again"):
            way.clipped_sum(weights_of(way.model), x, y, CLIP, None)


@pytest.mark.parametrize("make", MIXES.values(), ids=MIXES)
def test_none_of_them_is_taken_for_proved(make: Make) -> None:
    graph = trace_model(model_of(make).train())
    assert graph is None or not treats_records_alone(graph, records(zoo.mlp)[0])


SHAPES: dict[str, tuple[int, ...]] = {
    "mlp": (784,),
    "softmax-regression": (784,),
    "geyer-mlp": (784,),
    "mobilenet-v2": (3, 32, 32),
    "mobilenet-v2-quarter": (3, 32, 32),
    "digits-sigmoid-lenet": (1, 8, 8),
    "hospital-net": (3,),
    "medical-net": (7280,),
    "digits-net": (1, 8, 8),
    "digits-mlp": (1, 8, 8),
    "linear": (2,),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_papers_are_proved_and_computed_together(name: str) -> None:
    model, x = MODELS[name]().train(), torch.randn(1, *SHAPES.get(name, (1, 28, 28)))
    assert LayerRules.follows_rules(model)
    assert LayerRules(model, CrossEntropy()).is_proved(x)


@pytest.mark.parametrize("make", RULES.values(), ids=RULES)
def test_the_graph_computes_bitwise_what_the_model_does(make: Make) -> None:
    model, (x, _) = model_of(make).train(), records(make)
    graph = trace_model(model)
    assert graph is not None
    assert treats_records_alone(graph, x)
    assert torch.equal(graph(x.clone()), model(x.clone()))


class Calling(nn.Module):
    """A layer, and a function of its outputs."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.scale, self.function = nn.Linear(64, 10), nn.Parameter(torch.ones(10)), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x.view(x.size(0), -1)))


KNOWN: list[Callable[[Any], Any]] = [
    lambda x: x.view(x.shape[0], 5, 2).mean(-1),
    lambda x: x.view(-1, 10),
    lambda x: x.reshape(x.size(0), *(2, 5)).transpose(1, 2).flatten(1),
    lambda x: torch.cat([x, x[:, :3]], 1),
    lambda x: x[..., 1:],
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: F.softmax(x, dim=-1),
    lambda x: x.unsqueeze(1).permute(0, 2, 1).squeeze(-1),
    lambda x: (x[:, :, None] @ x[:, None]).sum((1, 2))[:, None],
    lambda x: x + torch.ones(10),
]
UNKNOWN: list[Callable[[Any], Any]] = [
    lambda x: x.view(-1, 30).view(-1, 10),  # three records in a row
    lambda x: x.mean(-2, keepdim=True) + x,  # dimension -2 is that of the records
    lambda x: x - x.mean(0),
    lambda x: x - x.mean(),
    lambda x: F.softmax(x, dim=0),
    lambda x: x.t().t(),
    lambda x: x.squeeze(),  # of the records, if there is one
    lambda x: x.flatten(0).view(-1, 10),
    lambda x: x[1:] + x[:-1],
    lambda x: x[:, 0] + x,  # broadcast over records, if there are ten
    lambda x: x + torch.ones(3, 10),  # by the place in a batch of three
    lambda x: x + torch.ones(1, 3, 10),
    lambda x: x * x.shape[0],
    lambda x: x[:, : x.shape[0]],
    lambda x: x[:, :9].reshape(x.shape[0], -1, x.shape[0]),
    lambda x: x @ x.transpose(0, 1),
    lambda x: torch.cat([x, x], 0)[:3],
    lambda x: x + torch.rand_like(x),
    lambda x: F.dropout(x),
    lambda x: F.normalize(x, dim=0),
    lambda x: x.sort(0).values,
    lambda x: (x, x),
]


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_operations_within_a_record_are_proved(number: int) -> None:
    model = model_of(lambda: Calling(KNOWN[number]))
    graph = trace_model(model)
    assert graph is not None
    assert treats_records_alone(graph, torch.randn(1, 1, 8, 8))


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
def test_operations_across_records_are_not(number: int) -> None:
    graph = trace_model(model_of(lambda: Calling(UNKNOWN[number])))
    assert graph is None or not treats_records_alone(graph, torch.randn(1, 1, 8, 8))


def hooked() -> nn.Module:
    model = zoo.mlp()
    model[1].register_forward_hook(lambda *call: call[2] - call[2].mean(0))
    return model


def replaced() -> nn.Module:
    model = zoo.mlp()
    model[2].forward = lambda x: torch.relu(x - x.mean(0))
    return model


def patched() -> nn.Module:
    """A layer whose own method that its forward function calls is another."""
    layer = nn.Conv2d(1, 2, 3)
    convolve = layer._conv_forward
    vars(layer)["_conv_forward"] = lambda x, *weights: convolve(x - x.mean(0), *weights)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(72, 10))


def derived() -> nn.Module:
    class Centred(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0))

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), Centred(), nn.Linear(20, 10))


def renormalised() -> nn.Module:
    return nn.Sequential(nn.Embedding(12, 6, max_norm=1.0), nn.Flatten(), nn.Linear(30, 10))


LYING = [hooked, replaced, patched, derived]


@pytest.mark.parametrize("make", LYING, ids=lambda make: make.__name__)
def test_layers_that_do_more_than_their_type_says_are_not_proved(make: Make) -> None:
    graph = trace_model(make().train())
    assert graph is None or not treats_records_alone(graph, torch.randn(1, 1, 8, 8))
    with pytest.raises(ModelError, match="depends on the other records"):
        AutoRecords(make(), CrossEntropy()).clipped_sum(weights_of(make()), *records(zoo.mlp), CLIP, None)


def test_hooks_of_all_modules_are_not_proved() -> None:
    """They would run with the proved graph, too."""
    hook = nn.modules.module.register_module_forward_hook(lambda _, __, output: output - output.mean(0))
    try:
        assert trace_model(zoo.mlp()) is None
    finally:
        hook.remove()
    assert trace_model(zoo.mlp()) is not None


def test_an_embedding_that_changes_its_weights_is_not_proved() -> None:
    graph = trace_model(renormalised())
    assert graph is not None
    assert not treats_records_alone(graph, torch.ones(1, 5, dtype=torch.int64))


def test_a_model_of_several_inputs_is_proved() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(5, 3), nn.Linear(7, 10)

        def forward(self, x: Tensor, word: Tensor) -> Any:
            return self.layer(torch.cat([x.flatten(1), self.words(word)], 1))

    fields = InputFields(("x", "word"), ((2, 2), ()), (torch.float32, torch.int64))
    model = AdaptedModel(Two(), fields)
    assert LayerRules(model, CrossEntropy()).is_proved(torch.ones(1, 5))
    assert model(torch.ones(3, 5)).shape == (3, 10)


def test_targets_that_would_broadcast_are_compared_record_by_record() -> None:
    """Outputs (n, 1) minus targets (n,) would be a table of all pairs."""
    model, x, y = nn.Linear(4, 1), torch.randn(6, 4), torch.randn(6)
    way = BatchedRecords(LayerRules(model, MeanSquared()))
    found = way.clipped_sum(weights_of(model), x, y, 1e9, None)
    alone = ReferenceRecords(model, MeanSquared()).clipped_sum(weights_of(model), x, y, 1e9, None)
    torch.testing.assert_close(found.norms, alone.norms)


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_ordinary_models_still_pass(make: Make) -> None:
    chosen = AutoRecords(model_of(make), FunctionLoss(nn.CrossEntropyLoss(reduction="none"))).choose(
        *(side[:1] for side in records(make))
    )
    assert isinstance(getattr(chosen, "way", None), LayerRules | MappedGradient) or isinstance(chosen, ReferenceRecords)
