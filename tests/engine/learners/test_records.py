"""Clipping per record: every way agrees with one record at a time, and no record counts for more than the bound."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from record_models import (
    ALL,
    RULES,
    Convolutions,
    Lstm,
    Make,
    Normalised,
    Repeated,
    every_model,
    every_third,
    model_of,
    records,
    weights_of,
)
from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, RootBrier, RootMeanSquared
from tacit.core.rows import DEPTH
from tacit.engine.layout import has_dropout
from tacit.engine.learners.records import record_learners
from tacit.engine.learners.records.gradients import (
    FormedGradients,
    GramGradients,
    LookupGradients,
    OuterGradients,
    RecordGradients,
    product_gradients,
)
from tacit.engine.learners.records.record_learners import AutoRecords, BatchedRecords, ReferenceRecords, check_records
from tacit.engine.learners.records.ways import LayerRules, MappedGradient
from tacit.errors import ModelError

Way = AutoRecords | ReferenceRecords


@every_model
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_and_norms_are_those_of_single_records(make: Make, masked: bool) -> None:
    model, (x, y) = model_of(make), records(make)
    fast, slow = AutoRecords(model, CrossEntropy()), ReferenceRecords(model, CrossEntropy())
    weights, mask = weights_of(model), every_third(model) if masked else None
    found, expected = (way.clipped_sum(weights, x, y, 1e9, mask) for way in (fast, slow))
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-6, atol=0)
    for i in range(len(x)):
        one, other = (way.clipped_sum(weights, x[i : i + 1], y[i : i + 1], 1e9, mask).total for way in (fast, slow))
        assert float((one - other).norm()) <= 1e-6 * float(other.norm())


@every_model
@pytest.mark.parametrize("masked", [False, True])
def test_clipped_sums_are_those_of_single_records(make: Make, masked: bool) -> None:
    model, (x, y) = model_of(make), records(make)
    weights, mask = weights_of(model), every_third(model) if masked else None
    slow = ReferenceRecords(model, CrossEntropy())
    clip = float(slow.clipped_sum(weights, x, y, 1.0, mask).norms.median())  # about half are clipped
    found, expected = (w.clipped_sum(weights, x, y, clip, mask) for w in (AutoRecords(model, CrossEntropy()), slow))
    assert found.total.dtype == torch.float64
    assert float((found.total - expected.total).norm()) <= 1e-6 * float(expected.total.norm())


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_the_way_follows_from_the_model(make: Make) -> None:
    chosen = AutoRecords(model_of(make), CrossEntropy()).choose(*(side[:1] for side in records(make)))
    if make is Lstm:  # `torch.func` cannot map recurrent layers
        assert isinstance(chosen, ReferenceRecords)
    else:
        assert isinstance(chosen, BatchedRecords)
        assert isinstance(chosen.way, LayerRules if make in RULES.values() else MappedGradient)


@pytest.mark.parametrize("make", [zoo.cnn, Normalised], ids=["cnn", "normalised"])
def test_torch_func_agrees_with_the_rules(make: Make) -> None:
    model, (x, y) = model_of(make), records(make)
    ways = (BatchedRecords(way(model, CrossEntropy())) for way in (LayerRules, MappedGradient))
    one, other = (way.clipped_sum(weights_of(model), x, y, 0.5, None) for way in ways)
    torch.testing.assert_close(one.total, other.total, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one.norms, other.norms, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", [MeanSquared(), BinaryCrossEntropy()], ids=["squared", "binary"])
def test_other_losses(loss: Loss) -> None:
    model = model_of(lambda: nn.Linear(64, 3))
    x, y = torch.randn(5, 64), torch.rand(5, 3)
    ways: tuple[Way, ...] = (AutoRecords(model, loss), ReferenceRecords(model, loss))
    one, other = (way.clipped_sum(weights_of(model), x, y, 0.1, None).total for way in ways)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_the_sum_does_not_depend_on_how_many_records_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = model_of(zoo.cnn), records(zoo.cnn, 50)
    together = AutoRecords(model, CrossEntropy()).clipped_sum(weights_of(model), x, y, 0.2, None)
    monkeypatch.setattr(record_learners, "WORKING_MEMORY", 1)
    one_by_one = AutoRecords(model, CrossEntropy()).clipped_sum(weights_of(model), x, y, 0.2, None)
    torch.testing.assert_close(together.total, one_by_one.total, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together.norms, one_by_one.norms, rtol=1e-6, atol=0)


def test_float64_models_are_summed_in_float64() -> None:
    model, (x, y) = model_of(Convolutions).double(), records(Convolutions)
    ways: tuple[Way, ...] = (
        AutoRecords(model, CrossEntropy()),
        ReferenceRecords(model, CrossEntropy()),
    )
    one, other = (way.clipped_sum(weights_of(model), x.double(), y, 0.3, None).total for way in ways)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn, Normalised, Repeated], ids=["mlp", "cnn", "normalised", "mapped"])
@pytest.mark.parametrize("scale", [1e6, 1e19, float("nan"), float("inf"), -3e38])
def test_a_hostile_record_moves_the_sum_by_no_more_than_the_bound(make: Make, scale: float) -> None:
    """Large records are clipped, and those whose gradient is not finite are left out; the others count as before."""
    model, (x, y) = model_of(make), records(make)
    way, weights, clip = AutoRecords(model, CrossEntropy()), weights_of(model), 0.5
    others = way.clipped_sum(weights, x[1:], y[1:], clip, None).total
    x[0] *= scale
    found = way.clipped_sum(weights, x, y, clip, None)
    assert float((found.total - others).norm()) <= clip * (1 + 1e-5)
    if scale == 1e6:
        assert float((found.total - others).norm()) >= 0.99 * min(clip, float(found.norms[0]))


@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_the_way_does_not_depend_on_a_first_record_of_extreme_numbers(value: float) -> None:
    x, y = records(zoo.cnn)
    assert isinstance(AutoRecords(model_of(zoo.cnn), CrossEntropy()).choose(x[:1] * value, y[:1]), BatchedRecords)


def test_no_records_sum_to_zero() -> None:
    model, (x, y) = model_of(zoo.mlp), records(zoo.mlp, 0)
    found = AutoRecords(model, CrossEntropy()).clipped_sum(weights_of(model), x, y, 1.0, None)
    assert not found.total.any()
    assert found.norms.shape == (0,)


def test_a_gradient_of_zero_stays_zero() -> None:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    way = AutoRecords(model, MeanSquared())
    found = way.clipped_sum(weights_of(model), torch.ones(3, 4), torch.zeros(3, 2), 1.0, None)
    assert not found.total.any()
    assert not found.norms.any()


def test_sums_in_float32_are_no_deeper_than_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise provides for `DEPTH` additions in a row: within a block, and of blocks before they are added in float64."""
    blocks: list[int] = []
    original = OuterGradients.add_sum

    def counted(self: OuterGradients, factors: Tensor, out: Tensor) -> None:
        assert out.dtype == torch.float32
        blocks.append(-(-len(factors) // 64))
        original(self, factors, out)

    monkeypatch.setattr(OuterGradients, "add_sum", counted)
    monkeypatch.setattr(BatchedRecords, "_at_once", lambda *_: 100)
    model, x = nn.Linear(3, 2), torch.randn(2000, 3)
    zeros: list[int] = []
    made = Tensor.new_zeros

    def noticed(self: Tensor, *size: Any, **how: Any) -> Tensor:
        zeros.append(len(blocks))
        return made(self, *size, **how)

    monkeypatch.setattr(Tensor, "new_zeros", noticed)
    BatchedRecords(LayerRules(model, CrossEntropy())).clipped_sum(
        weights_of(model), x, torch.zeros(2000, dtype=torch.int64), 1.0, None
    )
    between = [sum(blocks[start:stop]) for start, stop in pairwise([*zeros, len(blocks)])]
    assert len(blocks) == 20
    assert max(between) + 64 <= DEPTH


def test_forms_of_products_agree() -> None:
    g, x = torch.randn(4, 3, 5, dtype=torch.float64), torch.randn(4, 3, 7, dtype=torch.float64)
    formed = FormedGradients(torch.bmm(g.mT, x).flatten(1))
    gram, factors, wanted = GramGradients(g, x), torch.rand(4, dtype=torch.float64), torch.tensor([0, 3, 34])
    sums = [torch.zeros(35, dtype=torch.float64) for _ in range(2)]
    forms: tuple[RecordGradients, ...] = (formed, gram)
    for form, out in zip(forms, sums, strict=True):
        form.add_sum(factors, out)
    torch.testing.assert_close(*sums)
    torch.testing.assert_close(gram.norms(wide=True), formed.norms(wide=False))
    torch.testing.assert_close(gram.at(wanted).values, formed.at(wanted).values)


def test_terms_that_cancel_are_not_thought_shorter_than_they_are() -> None:
    """Σ gₜ·xₜᵀ with terms of 10⁴ whose sum is 1: Gram matrices in float32 would be wrong by more than the norm."""
    g = torch.randn(1, 1, 40) / 40**0.5
    x = torch.randn(1, 1, 50) / 50**0.5
    pair = GramGradients(torch.cat([1e4 * g, g], 1), torch.cat([x, -1e4 * x * (1 - 1e-4)], 1))
    expected = float(torch.bmm(pair.g.double().mT, pair.x.double()).norm())
    found = float(pair.norms(wide=False)[0])
    assert expected <= found <= expected * 1.05


def test_the_form_is_chosen_by_counting() -> None:
    def form(positions: int, outputs: int, inputs: int) -> type:
        return type(product_gradients(torch.zeros(2, positions, outputs), torch.zeros(2, positions, inputs)))

    assert form(1, 300, 300) is OuterGradients
    assert form(5, 300, 300) is GramGradients
    assert form(200, 300, 300) is FormedGradients
    assert form(5, 6, 300) is FormedGradients


def test_a_record_that_reads_a_line_twice_has_one_gradient_there() -> None:
    read, g = torch.tensor([[1, 1, 2], [3, 0, 3]]), torch.ones(2, 3, 2)
    found = LookupGradients.of(read, g, lines=4)
    torch.testing.assert_close(found.norms(wide=True).square(), torch.tensor([10.0, 10.0], dtype=torch.float64))
    out = torch.zeros(8)
    found.add_sum(torch.tensor([1.0, 10.0]), out)
    assert out.view(4, 2)[:, 0].tolist() == [10.0, 2.0, 1.0, 20.0]
    assert found.at(torch.tensor([2, 6])).values.tolist() == [[2.0, 0.0], [0.0, 2.0]]


class Centred(nn.Module):
    """Subtracts the mean over the batch, which no type of module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        return self.layer(x - x.mean(0))


class Balanced(CrossEntropy):
    """Weights over the batch."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().per_sample(outputs, y) * torch.softmax(outputs.amax(1), 0)


REFUSED: dict[str, tuple[Make, Loss, str]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(64, track_running_stats=False)),
        CrossEntropy(),
        "with_group_norm",
    ),
    "dropout": (lambda: nn.Sequential(zoo.mlp(), nn.Dropout(0.1)), CrossEntropy(), "Use p=0"),
    "LSTM's dropout": (lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.1), CrossEntropy(), "Use p=0"),
    "frequency": (lambda: nn.Embedding(3, 2, scale_grad_by_freq=True), CrossEntropy(), "scale_grad_by_freq=False"),
    "root": (zoo.mlp, RootMeanSquared(), "Use MeanSquared"),
    "Brier": (zoo.mlp, RootBrier(), "CrossEntropy"),
}


@pytest.mark.parametrize(("make", "loss", "advice"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_sum_over_records_is_refused(make: Make, loss: Loss, advice: str) -> None:
    with pytest.raises(ModelError, match=advice):
        check_records(make(), loss)


@pytest.mark.parametrize(("make", "loss"), [(Centred, CrossEntropy()), (zoo.mlp, Balanced())], ids=["model", "loss"])
def test_records_that_depend_on_their_batch_are_refused(make: Make, loss: Loss) -> None:
    model, (x, y) = model_of(make), records(make)
    with pytest.raises(ModelError, match="depends on the other records"):
        AutoRecords(model, loss).clipped_sum(weights_of(model), x, y, 1.0, None)


class Running(nn.Module):
    """Subtracts a mean over all earlier batches, which it keeps."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        out = self.layer(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return out


class Hidden(nn.Module):
    """Dropout that no type of module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.layer(nn.functional.dropout(x.flatten(1), 0.5, training=True))


@pytest.mark.parametrize("make", [Running, Hidden], ids=["state", "random numbers"])
def test_state_and_random_numbers_of_a_model_are_refused(make: Make) -> None:
    model, (x, y) = model_of(make), records(make)
    with pytest.raises(ModelError, match="changes when it is computed again"):
        AutoRecords(model, CrossEntropy()).clipped_sum(weights_of(model), x, y, 1.0, None)


def test_errors_of_a_model_are_not_taken_for_a_way_that_does_not_apply() -> None:
    class Broken(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Broken.calls += 1
            if torch._C._functorch.maybe_get_level(x) >= 0 or Broken.calls > 4:
                raise KeyError("a column that is not there")
            return super().forward(x.flatten(1))

    model, (x, y) = model_of(lambda: Broken(64, 10)), records(zoo.mlp)
    with pytest.raises(KeyError):
        AutoRecords(model, CrossEntropy()).clipped_sum(weights_of(model), x, y, 1.0, None)


def test_dropout_inside_recurrent_and_attention_layers_is_found() -> None:
    assert has_dropout(nn.LSTM(3, 3, num_layers=2, dropout=0.5))
    assert has_dropout(nn.MultiheadAttention(4, 2, dropout=0.5))
    assert not has_dropout(nn.MultiheadAttention(4, 2))
