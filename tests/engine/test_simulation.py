"""The loop over rounds: bitwise reproducible for any number of workers, if workers die, and after interruptions."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import Broadcast, Identity, Method, Round, State
from tacit.data import Population, Task
from tacit.engine import initial_state, module_at, rounds
from tacit.engine.layout import Layout, make_model
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import DataError, ModelError, TrainingError, UserError, WorkerError
from tacit.pieces.aggregators import Mean, WeightedMean
from tacit.pieces.mechanisms import CentralGaussian, FixedClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Sgd

SIZES = [4, 9, 7, 7, 5, 3, 8, 6, 4, 4, 9, 2, 6]


def task() -> Task:
    return Task(model=zoo.cnn, clients=zoo.population(SIZES), test=zoo.population([30], seed=9)[0])


def method(*, number: int = 3) -> Method:
    return Method(
        name="test",
        rounds=number,
        sampler=FixedSize(11),
        trainer=Sgd(lr=0.1, epochs=1, batch_size=4),
        mechanism=CentralGaussian(clip=FixedClip(0.5), noise_multiplier=0.1),
        server=Momentum(0.5),
    )


def final(workers: int = 1, start: State | None = None, number: int = 3) -> State:
    *_, (state, _) = rounds(method(number=number), task(), seed=3, workers=workers, state=start, randomness="seeded")
    return state


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    assert torch.equal(final(1).weights, final(workers).weights)


def test_continuing_from_a_state_gives_the_same_bits() -> None:
    half = final(number=1)
    on = final(start=half)
    assert on.round == 3
    assert torch.equal(on.weights, final().weights)


def test_another_seed_gives_another_run() -> None:
    *_, (other, _) = rounds(method(), task(), seed=4, workers=1, randomness="seeded")
    assert not torch.equal(other.weights, final().weights)


def test_a_dead_worker_is_replaced_and_its_wave_repeated(tmp_path: Path) -> None:
    states = []
    for workers in (1, 2):
        torch.manual_seed(0)
        work = Task(model=zoo.DiesOnce(tmp_path / "died"), clients=zoo.population(SIZES))
        *_, (state, report) = rounds(method(), work, workers=workers, randomness="seeded")
        states.append(state.weights)
    assert (tmp_path / "died").exists()
    assert report.rejected == ()
    assert torch.equal(*states)


class DiesAlways(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.parent = zoo.Residual(), os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.parent:
            os._exit(9)
        outputs: Tensor = self.inner(x)
        return outputs


def test_workers_that_keep_dying_end_the_run() -> None:
    work = Task(model=DiesAlways(), clients=zoo.population(SIZES))
    with pytest.raises(WorkerError, match=r"died 3 times on the same clients.*fewer workers"):
        list(rounds(method(), work, workers=2, randomness="seeded"))


def test_no_process_outlives_the_generator() -> None:
    others = _children()
    generator = rounds(method(), task(), workers=2, randomness="seeded")
    next(generator)
    assert len(_children() - others) == 2
    generator.close()
    assert _children() <= others


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_one_broken_client_costs_only_its_own_work() -> None:
    """A client whose update is not finite is rejected; the mean of the others is as without it."""
    good = zoo.population([5] * 9)
    broken = [(x * (1e30 if i == 4 else 1), y) for i, (x, y) in enumerate(good)]
    plain = Method(name="plain", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=3))
    (with_it, report), *_ = rounds(plain, Task(model=zoo.mlp, clients=broken), workers=1, randomness="seeded")
    rest = [pair for i, pair in enumerate(broken) if i != 4]
    (without, _), *_ = rounds(plain, Task(model=zoo.mlp, clients=rest), workers=1, randomness="seeded")
    assert report.rejected == (4,)
    torch.testing.assert_close(with_it.weights, without.weights)


def test_divergence_is_reported() -> None:
    wild = Method(name="wild", rounds=5, sampler=Everyone(), trainer=Sgd(lr=1e38, steps=5))
    with pytest.raises(TrainingError, match=r"round 1: training diverged\. Lower the learning rate"):
        list(rounds(wild, task(), workers=1, randomness="seeded"))


class CountedIdentity(Identity):
    views: ClassVar[list[int]] = []

    def broadcast(self, state: State, now: Round) -> Broadcast:
        self.views.append(now.index)
        return super().broadcast(state, now)


def test_the_broadcast_is_made_once_per_round() -> None:
    list(rounds(replace(method(number=2), codec=CountedIdentity()), task(), workers=1, randomness="seeded"))
    assert CountedIdentity.views == [0, 1]


def test_an_empty_cohort_leaves_the_model_as_it_is() -> None:
    rare = Method(name="rare", rounds=3, sampler=Poisson(0.0001), trainer=Sgd(lr=0.1, steps=1))
    *_, (state, report) = rounds(rare, task(), workers=1, randomness="seeded")
    assert report.clients == ()
    assert torch.equal(state.weights, initial_state(rare, task()).weights)


def test_noise_is_added_to_an_empty_cohort_too() -> None:
    rare = Method(
        name="rare",
        rounds=1,
        sampler=Poisson(0.0001),
        trainer=Sgd(lr=0.1, steps=1),
        mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0),
    )
    (state, _), *_ = rounds(rare, task(), workers=1, randomness="seeded")
    assert not torch.equal(state.weights, initial_state(rare, task()).weights)


def test_weighted_mean_weighs_by_samples() -> None:
    """One full-batch step of everyone is one step on the pooled data."""
    clients = zoo.population([2, 7, 4])
    pooled = Population.of([(clients.x, clients.y)])
    step = Sgd(lr=0.1, steps=1)
    weighted = Method(name="w", rounds=1, sampler=Everyone(), trainer=step, aggregator=WeightedMean())
    central = Method(name="c", rounds=1, sampler=Everyone(), trainer=step)
    (one, _), *_ = rounds(weighted, Task(model=zoo.mlp, clients=clients), workers=1, randomness="seeded")
    (other, _), *_ = rounds(central, Task(model=zoo.mlp, clients=pooled), workers=1, randomness="seeded")
    torch.testing.assert_close(one.weights, other.weights)


def test_metrics_are_those_of_the_returned_weights() -> None:
    work = task()
    state, report = next(rounds(method(), work, seed=3, workers=2, randomness="seeded"))
    assert work.test is not None
    x, y = work.test
    outputs = module_at(work, 3, state.weights)(x)
    assert report.metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == y).float().mean()))


def test_evaluation_can_be_rare() -> None:
    reports = [
        report for _, report in rounds(method(number=5), task(), workers=1, evaluate_every=3, randomness="seeded")
    ]
    assert [bool(report.metrics) for report in reports] == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("work", "error", "words"),
    [
        (lambda: Task(model=zoo.mlp(), clients=[]), UserError, "at least one client"),
        (lambda: _task([(torch.zeros(0, 64), torch.zeros(0).long())]), DataError, "client 1 has none"),
        (
            lambda: _task([(torch.full((2, 64), torch.nan), torch.zeros(2).long())]),
            DataError,
            r"client 1 \(its sample 0",
        ),
        (lambda: _task([(torch.zeros(2, 64), torch.tensor([0, 10]))]), DataError, r"labels in 0\.\.9.*got 0\.\.10"),
        (lambda: _task([(torch.zeros(2, 64), torch.tensor([0.0, 1.0]))]), DataError, "class labels as one int64"),
        (lambda: _task([(torch.zeros(2, 64), torch.zeros(3).long())]), DataError, "2 samples but 3 targets"),
        (lambda: _task([], model=nn.Flatten()), ModelError, "trainable parameters, got none"),
        (lambda: _task([], model=nn.Linear(63, 10)), ModelError, r"does not accept the task's samples.*shape \(64,\)"),
        (lambda: _task([], model=nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))), ModelError, "with_group_norm"),
        (lambda: _task([], model=nn.Sequential(nn.Linear(64, 9), nn.Linear(9, 10).double())), ModelError, "one type"),
        (lambda: _task([], model=_with_integers()), ModelError, "floating-point parameters, but table is torch.int64"),
    ],
)
def test_bad_tasks(work: Callable[[], Task], error: type[Exception], words: str) -> None:
    plain = Method(name="plain", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1))
    with pytest.raises(error, match=words):
        list(rounds(plain, work(), workers=1, randomness="seeded"))


def _task(more: list[tuple[Tensor, Tensor]], model: nn.Module | None = None) -> Task:
    first = (torch.zeros(2, 64), torch.tensor([1, 2]))
    return Task(model=model or nn.Linear(64, 10), clients=[first, *more])


def _with_integers() -> nn.Module:
    model = nn.Linear(64, 10)
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    return model


def test_impossible_cohorts_are_refused_before_any_work() -> None:
    large = Method(name="large", rounds=2, sampler=FixedSize(50), trainer=Sgd(lr=0.1, steps=1))
    with pytest.raises(UserError, match=r"Expected a cohort of size=50 <= population=13\."):
        rounds(large, task(), randomness="seeded")


MEMORY = """
import resource, sys, torch
from tacit.core import Method
from tacit.data import Population, Task
from tacit.engine import rounds
from tacit.pieces.samplers import Everyone
from tacit.tasks.models import mcmahan_cnn
from tacit.pieces.trainers import Sgd
x, y = torch.rand(50, 1, 28, 28), torch.randint(0, 10, (50,))
method = Method(name="m", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1))
for count in map(int, sys.argv[1:]):
    clients = Population.split(x, y, [torch.tensor([i % 50]) for i in range(count)])
    list(rounds(method, Task(model=mcmahan_cnn, clients=clients), workers=2))
    print(sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


@pytest.mark.law("memory and time")
def test_memory_does_not_grow_with_the_cohort() -> None:
    """Peak memory of 1000 clients of the McMahan CNN is that of 100: their updates would take 6.6 GB."""
    command = [sys.executable, "-c", MEMORY, "100", "1000"]
    peaks = [int(line) for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
    assert len(peaks) == 2
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("aggregator", [Mean(), WeightedMean()])
def test_diagnostics_are_those_of_the_rows(aggregator: Mean | WeightedMean) -> None:
    """V_c and U_s from the folded sums are what the definition gives on the rows themselves."""
    plain = Method(name="plain", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=2), aggregator=aggregator)
    work = task()
    (_, report), *_ = rounds(plain, work, workers=1, randomness="seeded")
    model = make_model(work, 0)
    everyone = torch.arange(len(SIZES))
    wave = StackedClients(everyone, work.population, AutoLearner(model, work.loss))
    updates = wave.descend(Layout.of(model).flatten(model), zoo.descent(lr=0.1, steps=2)).dense().double()
    weight = torch.ones(len(SIZES)) if aggregator.requires == "sum" else work.population.sizes.double()
    share = (weight / weight.sum())[:, None]
    mean = (share * updates).sum(0)
    assert report.variance == pytest.approx(float((share * (updates - mean).square()).sum(0).mean()), rel=1e-4)
    assert report.scale == pytest.approx(float(mean.square().mean()), rel=1e-4)
