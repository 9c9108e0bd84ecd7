"""Noise by importance: the measures, the noise of every coordinate, and that no guarantee is claimed."""

from dataclasses import replace
from math import pi, sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, DenseRows, Key, Messages, Method, SimulatedRound, State, View
from tacit.core.interfaces import Mechanism
from tacit.core.prices import Unproved
from tacit.core.server_half import broadcast, client_view
from tacit.data import Population
from tacit.engine.layout import Layout
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import CompositionError, UserError
from tacit.pieces.channels import IdealSum
from tacit.pieces.mechanisms import (
    AccuracySensitivity,
    ByImportance,
    CentralGaussian,
    DistributedGaussian,
    FixedClip,
    Graded,
    Grid,
    InputFeatures,
    NbaflGaussian,
    SingleWeights,
    TwoLevel,
    WeightVariance,
)
from tacit.pieces.mechanisms.importance import Importance
from tacit.pieces.mechanisms.nbafl import NOISE_STD, NOMINAL
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Add, Replace
from tacit.pieces.trainers import Sgd

BASE = NbaflGaussian(epsilon=10.0, delta=0.01, samples=3, rounds=25, exposures=25)
FIFTH = ByImportance(base=BASE, importance=WeightVariance(), allocation=TwoLevel(20.0, 0.2))
DATA = zoo.wave([5, 8, 3])
MODEL = DATA.learner.layout


def now(cohort: int = 3, seed: int = 0) -> SimulatedRound:
    return SimulatedRound.of(0, cohort, float(cohort), cohort, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def weights(seed: int = 1, scale: float = 0.1) -> Tensor:
    return scale * torch.randn(3, MODEL.dim, generator=torch.Generator().manual_seed(seed))


def view() -> View:
    return View(weights(seed=2)[0], {})


def messages(rows: Tensor | None = None) -> Messages:
    return Messages(DATA.clients, DenseRows(weights() if rows is None else rows))


def method(mechanism: ByImportance, **changes: Any) -> Method:
    pieces = {"trainer": Sgd(lr=1.0, steps=1, sends="weights"), "server": Replace(), **changes}
    return Method(name="x", rounds=1, sampler=Everyone(), mechanism=mechanism, **pieces)


def test_variance_is_equation_6() -> None:
    """Computed by hand for one input."""
    found = FIFTH.importances(messages(), view(), DATA, now())
    assert found.shape == (3, 64)
    own, received = weights()[1][: 30 * 64].view(30, 64), view().weights[: 30 * 64].view(30, 64)
    pair = torch.stack([own[:, 7], received[:, 7]])
    by_hand = (pair.var(0, unbiased=False) * own[:, 7].abs()).sum()
    torch.testing.assert_close(found[1, 7], by_hand)


def test_weights_that_did_not_change_have_no_importance() -> None:
    unchanged = view().weights.repeat(3, 1)
    assert float(FIFTH.importances(messages(unchanged), view(), DATA, now()).abs().max()) == 0


def test_updates_and_weights_have_the_same_importance() -> None:
    updates = replace(FIFTH, expects="updates")
    one = FIFTH.importances(messages(), view(), DATA, now())
    other = updates.importances(messages(weights() - view().weights), view(), DATA, now())
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-9)


def test_sensitivity_is_the_change_of_accuracy_under_the_expected_noise() -> None:
    noisy = replace(BASE, epsilon=0.02)  # so that some accuracies change
    found = replace(FIFTH, base=noisy, importance=AccuracySensitivity()).importances(messages(), view(), DATA, now())
    x, y = DATA.population[1]
    model, amount = zoo.mlp().eval(), noisy.upload * sqrt(2 / pi)
    accuracies = []
    for pixel in (None, 3, 40):
        own = weights()[1].clone()
        if pixel is not None:
            own[: 30 * 64].view(30, 64)[:, pixel] += amount
        Layout.of(model).load(model, own)
        accuracies.append(float((model(x).argmax(1) == y).double().mean()))
    assert found[1, [3, 40]].tolist() == pytest.approx([abs(a - accuracies[0]) for a in accuracies[1:]])
    assert float(found.max()) > 0


@pytest.mark.parametrize("importance", [WeightVariance(), AccuracySensitivity()], ids=repr)
def test_pixels_that_are_always_zero_matter_least(importance: Importance) -> None:
    """They neither change nor matter; all of them get more noise, however ties are broken."""
    torch.manual_seed(0)
    (x, y), dark = zoo.population([60])[0], torch.arange(0, 64, 6)
    x.flatten(1)[:, dark] = 0
    model = zoo.mlp()
    wave = StackedClients(torch.tensor([0]), Population.of([(x, y)]), AutoLearner(model, CrossEntropy()))
    start = Layout.of(model).flatten(model)
    trained = wave.descend(start, zoo.descent(lr=0.5, steps=20)).dense() + start
    mechanism = replace(FIFTH, base=replace(BASE, epsilon=0.05), importance=importance)
    found = mechanism.importances(Messages(wave.clients, DenseRows(trained)), View(start, {}), wave, now(1))
    assert float(found[0, dark].max()) == 0
    assert float(found.max()) > 0
    factors = TwoLevel(2.0, 0.9).factors(found)
    assert bool((factors[0, dark] == 2.0).all())


def test_noise_is_allocated_by_rank() -> None:
    importance = torch.tensor([[3.0, 0.0, 1.0, 2.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    assert TwoLevel(20.0, 0.4).factors(importance).tolist() == [[1, 20, 20, 1, 1], [20, 20, 1, 1, 1]]
    assert TwoLevel(20.0, 0.4, "most").factors(importance).tolist() == [[20, 1, 1, 1, 20], [1, 1, 1, 20, 20]]
    assert TwoLevel(20.0, 0.0).factors(importance).unique().tolist() == [1]
    assert TwoLevel(20.0, 1.0).factors(importance).unique().tolist() == [20]
    assert Graded(16.0).factors(importance)[1].tolist() == [16, 8, 4, 2, 1]
    assert Graded(16.0, "most").factors(importance)[1].tolist() == [1, 2, 4, 8, 16]
    assert Graded(16.0).factors(torch.zeros(2, 1)).tolist() == [[16], [16]]


def test_ties_are_broken_by_one_random_order_for_all_clients() -> None:
    factors = TwoLevel(2.0, 0.5).factors(torch.zeros(3, 100))
    assert torch.equal(factors[0], factors[2])
    assert torch.equal(factors, TwoLevel(2.0, 0.5).factors(torch.zeros(3, 100)))
    first_half = int((factors[0, :50] > 1).sum())
    assert int((factors[0] > 1).sum()) == 50
    assert 15 < first_half < 35


@pytest.mark.parametrize("allocation", [TwoLevel(20.0, 0.3), TwoLevel(20.0, 0.3, "most"), Graded(20.0)], ids=repr)
def test_the_noise_of_every_coordinate_has_the_reported_deviation(allocation: TwoLevel | Graded) -> None:
    """Kolmogorov–Smirnov on the noise of each message; 2/3 and 3/2 of the deviation must not fit."""
    mechanism = replace(FIFTH, base=replace(BASE, clips=False), allocation=allocation)
    deviations = mechanism.deviations(messages(), view(), DATA, now())
    noise = mechanism.at_client(messages(), view(), DATA, now()).rows.dense() - weights()
    assert deviations.shape == noise.shape
    assert float(deviations.min()) == pytest.approx(BASE.upload)
    assert float(deviations.max()) == pytest.approx(20 * BASE.upload)
    assert deviations.unique().numel() > 1
    assert deviations[:, 30 * 64 :].unique().numel() == 1  # everything except the first layer's weights
    for level in (deviations > BASE.upload * 1.001, deviations <= BASE.upload * 1.001):
        standard = (noise / deviations)[level].numpy()
        fits = [stats.kstest(standard / factor, "norm").pvalue > 1e-3 for factor in (1, 2 / 3, 3 / 2)]
        assert fits == [True, False, False]


def test_importance_differs_by_client() -> None:
    deviations = FIFTH.deviations(messages(), view(), DATA, now())
    assert not torch.equal(deviations[0], deviations[1])
    counts = (deviations > BASE.upload * 1.001).sum(1)
    assert counts.tolist() == [30 * round(0.2 * 64)] * 3


def test_importance_per_weight() -> None:
    """The paper's future work; all layers are ranked together."""
    mechanism = replace(FIFTH, groups=SingleWeights(), allocation=Graded(20.0))
    deviations = mechanism.deviations(messages(), view(), DATA, now())
    assert deviations[0].unique().numel() == MODEL.dim
    importance = (weights() - view().weights).square() * weights().abs()
    assert int(deviations[0].argmax()) == int(importance[0].argmin())


def test_importance_in_a_convolution() -> None:
    wave = zoo.wave([6, 7, 4], zoo.cnn)
    rows = DenseRows(0.1 * torch.randn(3, Layout.of(zoo.cnn()).dim))
    start = View(torch.zeros(rows.dim), {})
    for importance in (WeightVariance(), AccuracySensitivity()):
        mechanism = replace(FIFTH, base=replace(BASE, epsilon=0.1), importance=importance)
        assert mechanism.importances(Messages(wave.clients, rows), start, wave, now()).shape == (3, 9)
        sent = mechanism.at_client(Messages(wave.clients, rows), start, wave, now())
        assert bool(torch.isfinite(sent.rows.dense()).all())


def test_a_base_with_distributed_noise() -> None:
    base = DistributedGaussian(clip=FixedClip(1e6), noise_multiplier=1e-6, single_draw=False)
    mechanism = ByImportance(base=base, importance=WeightVariance(), allocation=TwoLevel(3.0), expects="updates")
    distributed = method(mechanism, trainer=Sgd(lr=1.0, steps=1), server=Add(), channel=IdealSum())
    state = State(0, view().weights, shapes=DATA.shapes)
    sent = client_view(distributed, broadcast(distributed, state, now()), state, now())
    deviations = mechanism.deviations(messages(), sent, DATA, now())
    assert float(deviations.min()) == pytest.approx(1 / sqrt(2))  # of three clients, two others
    noise = mechanism.at_client(messages(), sent, DATA, now()).rows.dense() - weights()
    assert stats.kstest((noise / deviations).flatten().numpy(), "norm").pvalue > 1e-3
    assert mechanism.requires == "only the sum"
    price = mechanism.price(0)
    assert price.accounted is None
    assert price.figures == {}


def test_a_base_whose_clients_add_no_noise_is_refused() -> None:
    central = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
    single_draw = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
    bases: list[Mechanism] = [central, single_draw]
    for base in bases:
        with pytest.raises(UserError, match="a base whose clients add their own noise"):
            replace(FIFTH, base=base)
    with pytest.raises(UserError, match="a base with real-valued noise"):
        replace(FIFTH, base=replace(single_draw, single_draw=False, arithmetic=Grid()))
    with pytest.raises(UserError, match="with a given noise multiplier"):
        replace(FIFTH, base=DistributedGaussian(clip=FixedClip(1.0), single_draw=False))


def test_pieces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="Expected WeightVariance for single weights"):
        replace(FIFTH, importance=AccuracySensitivity(), groups=SingleWeights())
    with pytest.raises(
        CompositionError, match=r"Sgd sends updates, but ByImportance expects weights\. Set expects='updates'"
    ):
        method(FIFTH, trainer=Sgd(lr=1.0, steps=1), server=Add())


def test_there_is_no_guarantee_and_every_nominal_figure_has_a_name() -> None:
    mechanism: Mechanism = FIFTH
    price = mechanism.price(0)
    assert isinstance(price, Unproved)
    assert price.nominal is None
    assert BASE.price(0).reason in price.reason
    assert "depends on private data" in price.reason
    assert price.figures[f"{NOMINAL}, 20% least important"] == pytest.approx(0.5)
    assert price.figures[f"{NOMINAL}, all others"] == 10.0
    assert price.figures[f"{NOISE_STD}, 20% least important"] == pytest.approx(20 * BASE.upload)
    assert price.figures[f"{NOISE_STD}, all others"] == BASE.upload


def test_hostile_rows_do_not_affect_others() -> None:
    rows = weights()
    rows[0, 0], rows[2] = torch.nan, 1e30
    sent = FIFTH.at_client(messages(rows), view(), DATA, now()).rows.dense()
    alone = FIFTH.at_client(messages(weights()), view(), DATA, now()).rows.dense()
    torch.testing.assert_close(sent[1], alone[1])
    assert not bool(torch.isfinite(sent[0]).all())
    assert bool(torch.isfinite(sent[2]).all())


def test_the_reference_learner_ranks_groups_alike() -> None:
    model = zoo.mlp()
    rows = 0.3 * torch.randn(1, MODEL.dim, generator=torch.Generator().manual_seed(4))
    mechanism = replace(FIFTH, base=replace(BASE, epsilon=0.05), importance=AccuracySensitivity())
    found = [
        mechanism.deviations(
            Messages(torch.tensor([0]), DenseRows(rows)),
            view(),
            StackedClients(torch.tensor([0]), zoo.population([50]), learner(model, CrossEntropy())),
            now(1),
        )
        for learner in (AutoLearner, ReferenceLearner)
    ]
    assert torch.equal(*found)


def test_a_model_without_a_linear_or_convolutional_layer_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) * self.factors

    wave = StackedClients(torch.tensor([0]), zoo.population([5]), ReferenceLearner(Scale(), CrossEntropy()))
    with pytest.raises(UserError, match="a model with a linear or convolutional layer"):
        FIFTH.importances(Messages(wave.clients, DenseRows(torch.ones(1, 64))), View(torch.ones(64), {}), wave, now(1))
    assert InputFeatures() == FIFTH.groups
