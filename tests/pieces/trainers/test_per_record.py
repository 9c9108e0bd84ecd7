"""Trainers that clip per record: their batches, noise and steps are the declared ones."""

from dataclasses import replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, DenseRows, Identity, Key, MaskedRows, Method, SimulatedRound, View
from tacit.core.prices import Gaussian, RecordSum, Repeated, Sampling, Uncalibrated
from tacit.core.rows import ClippedSum
from tacit.core.wave import EmptyWave
from tacit.data import Population, Task
from tacit.engine import rounds
from tacit.engine.layout import Layout
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.simulation import Simulation
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import ModelError, UserError
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import DpSgd, RecordGradient
from tacit.pieces.trainers.per_record import OVERFULL, _NoisyQuantile, largest_batch
from tacit.privacy.noise.sum_grid import DISTANCE, SumGrid

DP = DpSgd(lr=0.5, steps=3, batch_size=4, clip=0.2, noise_multiplier=0.7)
MASK = torch.arange(0, 2000, 40)


def now(index: int = 0, secret: int = 1) -> SimulatedRound:
    return SimulatedRound.of(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(secret))


def wave_of(clients: Population, learner: Any = AutoLearner, model: nn.Module | None = None) -> tuple[Any, Tensor]:
    """The clients with a model, and its initial weights."""
    torch.manual_seed(0)
    model = zoo.mlp() if model is None else model
    wave = StackedClients(torch.arange(len(clients)), clients, learner(model, CrossEntropy()))
    return wave, Layout.of(model).flatten(model)


def test_a_row_is_that_of_the_client_alone() -> None:
    wave, weights = wave_of(zoo.population([6, 3, 9]))
    for trainer in (DP, RecordGradient(rate=0.5, clip=0.1)):
        stack = trainer.train(View(weights), wave, now()).dense()
        for client in range(3):
            alone = trainer.train(View(weights), wave.keep(torch.arange(3) == client), now()).dense()
            torch.testing.assert_close(stack[client], alone[0], rtol=1e-5, atol=1e-6)
        assert trainer.train(View(weights), EmptyWave(wave.shapes), now()).dense().shape == (0, len(weights))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("trainer", [DP, RecordGradient(rate=0.5, clip=0.1)], ids=["dp-sgd", "gradient"])
def test_the_engine_agrees_with_the_reference(trainer: Any, masked: bool) -> None:
    clients = zoo.population([6, 3])
    found = []
    for learner in (AutoLearner, ReferenceLearner):
        wave, weights = wave_of(clients, learner)
        rows = replace(trainer, masked=masked).train(View(weights, {}, MASK), wave, now())
        assert isinstance(rows, MaskedRows if masked else DenseRows)
        found.append(rows.dense())
    step = 0.5 * 0.2 / 2048 / 3  # of the grid, times the learning rate: rounding may go the other way
    assert float((found[0] - found[1]).abs().max()) <= 4 * step
    assert bool(found[0].any())


def test_under_a_mask_all_other_weights_stay() -> None:
    wave, weights = wave_of(zoo.population([6]))
    rows = replace(DP, masked=True).train(View(weights, {}, MASK), wave, now()).dense()
    changed = rows[0].nonzero().flatten().tolist()
    assert set(changed) <= set(MASK.tolist())
    assert len(changed) >= 0.9 * len(MASK)
    everywhere = replace(DP, masked=True).train(View(weights), wave, now()).dense()  # there is no mask yet
    assert int((everywhere != 0).sum()) > 0.9 * len(weights)


def by_hand(trainer: DpSgd, model: nn.Module, data: tuple[Tensor, Tensor], batches: list[Tensor], noise: list[Tensor]):
    """DP-SGD as in the paper, with autograd; returns the update."""
    (x, y), layout = data, Layout.of(model)
    start = layout.flatten(model)
    weights, velocity, expected = start.clone(), torch.zeros_like(start), min(trainer.batch_size, len(x))
    for batch, drawn in zip(batches, noise, strict=True):
        layout.load(model, weights)
        total = drawn.clone()
        for i in batch.tolist():
            loss = CrossEntropy().per_sample(model(x[i : i + 1]), y[i : i + 1]).sum()
            g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()))])
            total += g * min(1.0, trainer.clip / float(g.norm()))
        velocity = trainer.momentum * velocity + total / expected + trainer.weight_decay * weights
        weights = weights - trainer.lr * velocity
    return weights - start


def test_the_steps_are_those_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Tensor] = []
    noise: list[Tensor] = []
    original, sums = SumGrid.release, StackedClients.clipped_sums

    def released(self: SumGrid, total: Tensor, radius: Tensor, source: Any) -> Tensor:
        found = original(self, total, radius, source)
        noise.append(found - total.float())
        return found

    def observed(self: StackedClients, weights: Tensor, chosen: Any, clip: float, mask: Tensor | None) -> Any:
        batches.extend(chosen)
        return sums(self, weights, chosen, clip, mask)

    monkeypatch.setattr(SumGrid, "release", released)
    monkeypatch.setattr(StackedClients, "clipped_sums", observed)
    clients, trainer = zoo.population([12]), replace(DP, steps=4, momentum=0.5, weight_decay=0.1)
    wave, weights = wave_of(clients)
    (row,) = trainer.train(View(weights), wave, now()).dense()
    torch.manual_seed(0)
    expected = by_hand(trainer, zoo.mlp(), clients[0], batches, noise)
    torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)
    assert len({tuple(batch.tolist()) for batch in batches}) > 1  # every step has its own


def test_the_noise_is_the_declared_one() -> None:
    """Measured on steps whose batch is empty but for chance; 2/3 and 3/2 of it are rejected."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    clients = Population.of([(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))])
    trainer = DpSgd(lr=1.0, steps=1, batch_size=1, clip=1e-3, noise_multiplier=50.0)
    wave, weights = wave_of(clients, model=model)
    drawn = [trainer.train(View(weights), wave, now(secret=i)).dense().flatten() for i in range(20)]
    values = torch.cat(drawn).double().numpy() / (1e-3 * 50.0)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(values * wrong, "norm").pvalue < 1e-6
    assert len(np.unique(values)) > 1000


def test_batches_are_poisson_samples() -> None:
    class Counting:
        """A wave that keeps the batches it is asked about."""

        clients, samples, shapes = torch.zeros(1, dtype=torch.int64), torch.tensor([200]), ()
        units = samples
        seen: ClassVar[list[Tensor]] = []

        def keep(self, which: Tensor) -> "Counting":
            return self

        def clipped_sums(self, weights: Tensor, batches: Any, clip: float, mask: Any) -> Any:
            self.seen.extend(batches)
            return [ClippedSum(torch.zeros(2, dtype=torch.float64), torch.zeros(0))]

    trainer = replace(DP, steps=400, batch_size=50)
    trainer.train(View(torch.zeros(2)), Counting(), now())  # type: ignore[arg-type]
    sizes = np.array([len(batch) for batch in Counting.seen])
    assert (
        stats.kstest(sizes + np.random.default_rng(0).uniform(-0.5, 0.5, len(sizes)), "norm", (50, sqrt(37.5))).pvalue
        > 1e-3
    )
    each = torch.bincount(torch.cat(Counting.seen), minlength=200)
    assert float(((each - 100) ** 2 / 75).sum()) < stats.chi2(200).ppf(0.9999)
    assert all(bool((batch.diff() > 0).all()) for batch in Counting.seen)


def test_another_client_or_key_draws_other_batches_and_noise() -> None:
    data = zoo.population([8])[0]
    wave, weights = wave_of(Population.of([data, data]))
    first, second = DP.train(View(weights), wave, now()).dense()
    other = DP.train(View(weights), wave, now(secret=2)).dense()[0]
    again = DP.train(View(weights), wave, now()).dense()[0]
    assert torch.equal(first, again)
    for row in (second, other):
        assert float((first - row).abs().median()) > 0


def test_an_empty_batch_is_a_step_of_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.pieces.trainers.per_record._batch", lambda *_: torch.zeros(0, dtype=torch.int64))
    wave, weights = wave_of(zoo.population([8]))
    row = DP.train(View(weights), wave, now()).dense()[0]
    assert row.numel() == int((row != 0).sum())
    assert float(row.std()) == pytest.approx(0.5 * sqrt(3) * 0.2 * 0.7 / 4, rel=0.1)


def test_a_row_of_gradients_is_minus_their_clipped_sum() -> None:
    wave, weights = wave_of(zoo.population([6, 3]))
    rows = RecordGradient(rate=1.0, clip=0.1).train(View(weights), wave, now()).dense()
    everything = [torch.arange(6), torch.arange(3)]
    for row, found in zip(rows, wave.clipped_sums(weights, everything, 0.1, None), strict=True):
        torch.testing.assert_close(row.double(), -found.total, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("trainer", [RecordGradient(rate=1.0, clip=0.1)], ids=["gradient"])
@pytest.mark.parametrize("scale", [1.0, 1e6, float("nan")])
def test_one_record_changes_a_row_by_no_more_than_the_bound(trainer: RecordGradient, scale: float) -> None:
    x, y = zoo.population([9])[0]
    rows = []
    for count in (8, 9):
        given = x[:count].clone()
        given[8:] *= scale
        wave, weights = wave_of(Population.of([(given, y[:count])]))
        rows.append(trainer.train(View(weights), wave, now()).dense()[0])
    assert float((rows[0] - rows[1]).norm()) <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize("quantile", [0.2, 0.8])
@pytest.mark.parametrize("start", [0.01, 30.0])
def test_an_adaptive_bound_reaches_the_quantile(quantile: float, start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below it and not above it, from wherever it starts; what it costs is part of the declared noise."""
    bounds: list[float] = []
    norms = torch.linspace(0.5, 1.5, 1001, dtype=torch.float64)

    def observed(self: StackedClients, weights: Tensor, batches: Any, clip: float, mask: Tensor | None) -> Any:
        bounds.append(clip)
        return [ClippedSum(torch.zeros(len(weights), dtype=torch.float64), norms)]

    monkeypatch.setattr(StackedClients, "clipped_sums", observed)
    wave, weights = wave_of(Population.of([(torch.zeros(1001, 1, 8, 8), torch.zeros(1001, dtype=torch.int64))]))
    trainer = replace(DP, steps=120, batch_size=1001, quantile=quantile, clip=start)
    trainer.train(View(weights), wave, now())
    assert bounds[0] == start
    assert 0.5 + quantile - 0.1 < np.mean(bounds[-30:]) < 0.5 + quantile + 0.1
    price = trainer.record_price(1001)
    assert isinstance(price, Repeated)
    assert price.release.loss == Gaussian(0.7)


@pytest.mark.parametrize("expected", [4.0, 1000.0])
def test_count_and_sum_together_have_the_declared_noise(expected: float) -> None:
    counts = _NoisyQuantile(0.5, expected, 0.7)
    assert counts.sum_multiplier**-2 + (2 * counts.count_noise) ** -2 == pytest.approx(0.7**-2)
    assert counts.sum_multiplier < 1.04 * 0.7
    norms = torch.tensor([float("nan"), 0.5, float("inf")])
    drawn = [counts.next_bound(1.0, norms, Key.from_seed(i)) for i in range(400)]
    noise = -(np.log(drawn) / 0.2 + 0.5 - 0.5) * expected + 0.5  # without the count of −½
    assert stats.kstest(noise / counts.count_noise, "norm").pvalue > 1e-3
    assert stats.kstest(noise / counts.count_noise * 1.5, "norm").pvalue < 1e-3


def test_the_price_of_a_round() -> None:
    trainer = replace(DP, steps=None, epochs=2)
    expected = Gaussian(0.7), DISTANCE + OVERFULL
    for samples, rate, times in ((40, 0.1, 20), (10, 0.4, 4), (4, 1.0, 2), (2, 1.0, 2)):
        price = trainer.record_price(samples)
        assert isinstance(price, Repeated)
        assert (price.release.loss, price.release.distance) == expected
        assert price.release.sampling == Sampling.at(rate, "poisson")
        assert price.times == times
    assert replace(DP, steps=7).record_price(100) == replace(DP, steps=7).record_price(100)
    assert replace(DP, noise_multiplier=None).record_price(10) == Uncalibrated()
    assert replace(DP, noise_multiplier=None).with_noise_multiplier(2.0).noise_multiplier == 2.0
    assert DP.with_noise_multiplier(2.0) == DP
    assert RecordGradient(rate=0.1, clip=2.0).record_sum == RecordSum(2.0, 0.1)
    assert RecordGradient(rate=0.1, clip=2.0).record_price(10) is None


@pytest.mark.parametrize(("samples", "rate"), [(60_000, 512 / 60_000), (1000, 0.5), (200, 0.01), (100_000, 0.02)])
def test_a_batch_is_not_larger_than_the_noise_provides_for(samples: int, rate: float) -> None:
    largest = largest_batch(samples, rate)
    assert stats.binom(samples, rate).logsf(largest) <= np.log(OVERFULL)
    assert largest < min(samples, samples * rate + 14 * sqrt(samples * rate) + 80)
    assert largest_batch(7, 1.0) == 7


def test_wrong_settings_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"lr": 0.0}, {"steps": None}, {"epochs": 1}, {"batch_size": 0}, {"clip": 0.0}, {"noise_multiplier": 0.0},
        {"decay": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"quantile": 1.0},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(UserError, match="Expected"):
            replace(DP, **options)
    for rate, clip in ((0.0, 1.0), (1.1, 1.0), (0.5, 0.0)):
        with pytest.raises(UserError, match="Expected"):
            RecordGradient(rate=rate, clip=clip)
    wave, weights = wave_of(zoo.population([3]))
    with pytest.raises(UserError, match="noise multiplier"):
        replace(DP, noise_multiplier=None).train(View(weights), wave, now())


def method_of(trainer: Any) -> Method:
    return Method(name="records", rounds=2, sampler=Everyone(), trainer=trainer)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("trainer", [DP, RecordGradient(rate=0.5, clip=0.1)], ids=["dp-sgd", "gradient"])
def test_rounds_are_bitwise_the_same_for_any_number_of_workers(trainer: Any, masked: bool) -> None:
    task = Task(model=zoo.mlp, clients=zoo.population([5, 3, 8, 4, 6]))
    codec = Select(FixedRandom(size=Size(ratio=0.03))) if masked else Identity()
    method = replace(method_of(trainer), trainer=replace(trainer, masked=masked), codec=codec)
    finals = []
    for workers in (1, 2):
        *_, (state, _) = rounds(method, task, seed=3, workers=workers, randomness="seeded")
        finals.append(state.weights)
    assert torch.equal(*finals)


def test_a_model_with_batch_statistics_is_refused_with_a_sentence() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False))

    task = Task(model=model, clients=zoo.population([5, 3]))
    with pytest.raises(ModelError, match="with_group_norm"):
        Simulation(method_of(DP), task)
