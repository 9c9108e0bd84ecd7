"""The loop over rounds, as a generator: books, budgets and progress are ordinary code in the caller's loop.

The engine knows of pieces and waves; it has never heard of Gaussian noise.
"""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core import DenseRows, Key, Messages, Method, Metric, Population, Report, Round, State, Sum, Task, View, Wave
from tacit.core.pieces import Channel, Prunes
from tacit.core.round import broadcast, close, prepare, receive, willing
from tacit.core.state import SERVER
from tacit.core.stopping import out_of_patience, track_best
from tacit.engine.layout import Layout, make_hypotheses, make_model
from tacit.engine.learners import Fastest
from tacit.engine.pool import Pool, count_workers, make_pool
from tacit.engine.scoring import fitting
from tacit.engine.waves import FEWEST_MASKED, StackedClients, divide
from tacit.engine.worker import EvaluateJob, Trained, TrainJob, Worker, single_thread
from tacit.errors import TrainingError, expect

EVALUATED_AT_ONCE = 256  # test samples, or more if they are small
SMALL = 1 << 18  # numbers in them
TOLD = SERVER + "told"  # which clients have heard what is said only once
TAKEN = SERVER + "taken"  # in how many rounds each client has taken part, where that decides whether it does again


def rounds(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    state: State | None = None,
    evaluate_every: int = 1,
) -> Generator[tuple[State, Report]]:
    """Run a method on a task, round by round.

    Args:
        method: what is done in a round, and for how many rounds.
        task: data and model.
        seed: root of all randomness. Equal seeds give equal states, bit for bit, for any number of workers.
        workers: worker processes; as many as cores if None. With 1, or on an accelerator, all happens in this process.
        device: where tensors live.
        state: where to go on from; the start if None.
        evaluate_every: measure held-out metrics every so many rounds, and after the last.

    Yields:
        The state after a round, and the round's report. Close the generator to stop early; a method with patience
        stops by itself.
    """
    expect(evaluate_every >= 1, f"evaluate_every={evaluate_every} >= 1")
    for index in range(method.rounds):
        method.sampler.expected(len(task.population), index)  # refuses cohorts that cannot be before any work is done
    task = _moved(task, device)
    model = make_model(task, seed).to(device)
    learner = Fastest(model, task.loss, like=task.population[0])
    if state is None:
        state = _prepared(method, task, seed, model, learner)
    layout = Layout.of(model)
    state = replace(state, layers=layout.sizes, shapes=layout.shapes)
    worker = Worker(method, task, model, learner, 2 * count_workers(workers, device), state)
    return _play(worker, seed, count_workers(workers, device), state, evaluate_every)


def initial_state(method: Method, task: Task, seed: int = 0) -> State:
    """The state before the first round, with what the method's pieces learn from public data."""
    model = make_model(task, seed)
    return _prepared(method, task, seed, model, Fastest(model, task.loss, like=task.population[0]))


def first_weights(task: Task, seed: int = 0) -> Tensor:
    """The weights that everybody starts from."""
    model = make_model(task, seed)
    return Layout.of(model).flatten(model)


def waves(task: Task, seed: int = 0) -> Callable[[Tensor], Wave]:
    """Waves of any of the task's clients, for whoever wants to know what single clients say."""
    learner = Fastest(make_model(task, seed), task.loss, like=task.population[0])
    return partial(StackedClients, population=task.population, learner=learner)


def module_at(task: Task, seed: int, weights: Tensor) -> nn.Module:
    """A fresh module of the task that holds these weights, in evaluation mode."""
    model = make_model(task, seed)
    Layout.of(model).load(model, weights)
    return model.eval()


def draw(method: Method, population: int, seed: int, index: int) -> tuple[Tensor, Round]:
    """Who takes part in round `index`, and the round itself."""
    shared, secret = Key.from_seed(seed, "shared"), Key.from_seed(seed, "secret")
    cohort = method.sampler.cohort(population, index, secret.child("cohort", index))
    expected = method.sampler.expected(population, index)
    keys = (key.child("round", index) for key in (shared, secret))
    return cohort, Round(index, population, expected, len(cohort), *keys)


def _prepared(method: Method, task: Task, seed: int, model: nn.Module, learner: Fastest) -> State:
    layout = Layout.of(model)
    weights = make_hypotheses(task, seed, method.aggregator.models).to(next(model.parameters()).device)
    state = State(0, weights, layers=layout.sizes, shapes=layout.shapes)
    everyone = len(task.population)
    keys = (Key.from_seed(seed, name).child("before") for name in ("shared", "secret"))
    now = Round(0, everyone, method.sampler.expected(everyone, 0), 1, *keys)
    with single_thread():
        return prepare(method, state, _public_wave(task, learner), now)


def _public_wave(task: Task, learner: Fastest) -> StackedClients | None:
    """The public data as those of one client."""
    return None if task.public is None else StackedClients(torch.zeros(1).long(), Population.of([task.public]), learner)


def _play(
    worker: Worker, seed: int, workers: int, state: State, evaluate_every: int
) -> Generator[tuple[State, Report]]:
    pool, last, everyone = make_pool(worker, workers), worker.method.rounds, len(worker.task.population)
    with closing(pool), worker.method.channel.open(worker.method, everyone, seed) as channel:
        engine = Engine(worker, seed, pool, channel)
        while state.round < last and not out_of_patience(worker.method.patience, state):
            began = time.perf_counter()
            state, report = engine.round(state)
            if state.round % evaluate_every == 0 or state.round == last:
                report = replace(report, metrics=engine.evaluate(state))
                state = track_best(worker.method.patience, state, report.metrics)
            yield state, replace(report, seconds=time.perf_counter() - began)


class Engine:
    """One run's method, task, randomness and workers."""

    def __init__(self, worker: Worker, seed: int, pool: Pool, channel: Channel) -> None:
        self.worker, self.task, self.pool = worker, worker.task, pool
        self.method = replace(worker.method, channel=channel)
        self.seed = seed
        self.ahead = len(worker.slots)
        self.measured = 0  # how often weights were, by which workers know them

    def round(self, state: State) -> tuple[State, Report]:
        """The next state, and the report without metrics."""
        asked, now = draw(self.method, len(self.task.population), self.seed, state.round)
        cohort, declined = self._willing(asked, state)
        now = replace(now, cohort=len(cohort))
        self.worker.weights.copy_(state.weights)
        view = broadcast(self.method, state, now)
        waves = self._waves(cohort, view)
        began = time.perf_counter()
        total, results = self._fold(self._jobs(state, waves, now), state, now)
        folded = time.perf_counter() - began
        total = total or self._nobody(view, state, now)
        with single_thread():
            variance, scale = _diagnostics(total)
            after = close(self.method, state, total, now)
        clients = tuple(chain.from_iterable(wave.tolist() for wave in waves))
        down, told = self._told(state, clients, view, now)
        news = {TOLD: told, TAKEN: self._taken(state, cohort)}
        known = {name: value for name, value in news.items() if value is not None}
        norms = [norm for result in results for norm in result.receipt.norms]
        report = Report(
            round=after.round,
            clients=clients,
            refused=tuple(chain.from_iterable(result.receipt.refused for result in results)),
            up=tuple(chain.from_iterable(result.up for result in results)),
            down=down,
            norm=float(np.mean(norms)) if norms else 0.0,
            variance=variance,
            scale=scale,
            metrics={},
            seconds=0.0,
            phases={name: each * now.cohort for name, each in self.method.channel.phases(now).items()},
            step=total.step,
            declined=tuple(declined.tolist()),
            parts=self._parts(folded),
        )
        return replace(after, memory={**after.memory, **known}), report

    def evaluate(self, state: State) -> dict[str, float]:
        """Metrics on the test data; of a pruning trainer's model also after it is pruned, and how dense it is."""
        if self.task.test is None:
            return {}
        trainer, layout, metrics = self.method.trainer, self.worker.layout, self._metrics(state.weights)
        if isinstance(trainer, Prunes):
            metrics["density"] = _density(state.weights, layout.sizes, trainer.kept(layout.shapes))
            pruned = trainer.pruned(state, layout.shapes)
            if pruned is not None:
                metrics |= {f"pruned_{name}": value for name, value in self._metrics(pruned).items()}
        return metrics

    def _metrics(self, weights: Tensor) -> dict[str, float]:
        """Metrics of these weights, measured by all workers; of several hypotheses each client's own."""
        assert self.task.test is not None
        y, count = self.task.test[1].cpu(), self.method.aggregator.models
        self.worker.weights.copy_(weights)
        self.measured += 1
        size = max(EVALUATED_AT_ONCE, SMALL // self.task.test[0][0].numel())
        pieces = [(begin, min(begin + size, len(y))) for begin in range(0, len(y), size)]
        jobs = [EvaluateJob(self.measured, number, *piece) for number in range(count) for piece in pieces]
        found = torch.from_numpy(np.concatenate(list(self.pool.run(jobs, ahead=len(jobs)))))
        outputs = fitting(self.task.loss, found.view(count, len(y), *found.shape[1:]), y, self.task.owners)
        return self.task.loss.metrics(outputs, y)

    def _waves(self, cohort: Tensor, view: View) -> list[Tensor]:
        """The cohort in waves; under a mask a client owns few weights, and shares the others with its wave."""
        population, least = self.task.population, self.worker.learner.least
        mask = view.mask if self.method.trainer.masked else None
        if mask is None or self.worker.learner.kernels is None:
            return divide(cohort, population, view.weights.shape[-1], least)
        return divide(cohort, population, mask.numel(), least, FEWEST_MASKED)

    def _parts(self, folded: float) -> dict[str, float]:
        """The seconds of a round's parts, of which messages went through the channel while waves were folded."""
        measured = self.method.channel.seconds()
        return {"train": folded - sum(measured.values()), **measured} if measured else {}

    def _told(
        self, state: State, clients: tuple[int, ...], view: View, now: Round
    ) -> tuple[tuple[int, ...], Tensor | None]:
        """How many bytes each client received, and who has heard by now what is said only once."""
        download = partial(self.method.channel.download, view, now)
        if not view.once or not clients:
            return tuple(download(first=False) for _ in clients[:1]) * len(clients), None
        told = state.memory.get(TOLD, torch.zeros(len(self.task.population), dtype=torch.bool)).clone()
        sizes = {first: download(first=first) for first in (True, False)}
        mine = torch.tensor(clients, dtype=torch.int64)
        down = tuple(sizes[not heard] for heard in told[mine].tolist())
        told[mine] = True
        return down, told

    def _willing(self, asked: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Of those who are asked, who takes part and who declines."""
        taken = state.memory.get(TAKEN, torch.zeros(len(self.task.population), dtype=torch.int64))
        fine = willing(self.method, taken[asked], state.dim)
        return asked[fine], asked[~fine]

    def _taken(self, state: State, cohort: Tensor) -> Tensor | None:
        """In how many rounds each client has taken part by now, if there is a limit to it."""
        mechanism = self.method.mechanism
        if not isinstance(mechanism, Metric) or mechanism.limit is None:
            return None
        taken = state.memory.get(TAKEN, torch.zeros(len(self.task.population), dtype=torch.int64))
        return taken.index_add(0, cohort, torch.ones_like(cohort))

    def _jobs(self, state: State, waves: list[Tensor], now: Round) -> list[TrainJob]:
        known = self.worker.memory
        news = {name: value for name, value in state.memory.items() if known.get(name) is not value}
        memory = {name: value.cpu().numpy() for name, value in news.items() if not name.startswith(SERVER)}
        return [TrainJob(now, memory, wave.numpy(), i % self.ahead) for i, wave in enumerate(waves)]

    def _fold(self, jobs: list[TrainJob], state: State, now: Round) -> tuple[Sum | None, list[Trained]]:
        """The round's sum, folded wave by wave in their order, and what the waves sent back; None: nobody was asked."""
        total, results, rows = None, [], _Rows(now.cohort)
        for job, result in zip(jobs, self.pool.run(jobs, self.ahead), strict=True):
            results.append(result)
            part = self.worker.left(job.slot, result)
            if not self.method.streams:
                rows.add(part.total)
                continue
            total = replace(part, total=part.total.clone()) if total is None else total + part
        _check_delivered(state, results)
        if not self.method.streams:
            total = self._together(rows, results, state, now)
        return total, results

    def _nobody(self, view: View, state: State, now: Round) -> Sum:
        """The sum of an empty cohort."""
        rows = self.method.codec.encode(DenseRows(state.weights.new_zeros(0, state.dim)), view, now)
        nobody = torch.zeros(0, dtype=torch.int64)
        samples = None if self.method.aggregator.uniform else nobody
        return receive(self.method, state, Messages(nobody, rows, samples), now)

    def _together(self, rows: "_Rows", results: list[Trained], state: State, now: Round) -> Sum | None:
        """The sum of a method that must see all messages of a round at once."""
        clients = torch.tensor([client for result in results for client in result.receipt.delivered])
        if len(clients) == 0:
            return None
        samples = None if self.method.aggregator.uniform else self.task.population.sizes[clients]
        messages = Messages(clients, DenseRows(rows.all()), samples, results[0].part.step)
        with single_thread():
            return receive(self.method, state, messages, now)


class _Rows:
    """The rows of a whole cohort, in one tensor that is allocated once."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.values: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Put some behind the others."""
        if self.values is None:
            self.values = rows.new_empty(self.most, rows.shape[1])
        self.values[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def all(self) -> Tensor:
        """Those that were added."""
        assert self.values is not None
        return self.values[: self.count]


def _diagnostics(total: Sum) -> tuple[float, float]:
    """Variance between clients and scale of their mean, from the folded squares alone: no row is kept.

    (1/d)·Σ_j (1/m)·Σ_k (Δ_kj − μ_j)² = (Σ_k ‖Δ_k‖²/m − ‖μ‖²)/d.
    """
    if total.weight == 0:
        return 0.0, 0.0
    square = float(torch.linalg.vector_norm(total.total, dtype=torch.float64) / total.weight) ** 2
    dim = total.total.numel()
    return max(total.squares / total.weight - square, 0.0) / dim, square / dim


def _density(weights: Tensor, sizes: tuple[int, ...], kept: tuple[int | None, ...]) -> float:
    """The share of the weights in pruned parameters that are not zero."""
    parts = zip(torch.split(weights, list(sizes)), kept, strict=True)
    layers = [part for part, count in parts if count is not None]
    return sum(int(part.count_nonzero()) for part in layers) / max(sum(map(torch.numel, layers)), 1)


def _check_delivered(state: State, results: list[Trained]) -> None:
    if results and not any(result.receipt.delivered for result in results):
        raise TrainingError(
            f"No client delivered a finite message in round {state.round + 1}: training has diverged. "
            "Lower the learning rate, take fewer local steps, or clip."
        )


def _moved(task: Task, device: str) -> Task:
    if device == "cpu":
        return task
    population = task.population
    moved = replace(population, x=population.x.to(device), y=population.y.to(device))
    test = None if task.test is None else (task.test[0].to(device), task.test[1].to(device))
    return replace(task, clients=moved, test=test)
