"""A method on a task, simulated on one machine: the loop over rounds is a generator.

Charging a privacy budget, showing progress and writing files are ordinary code in the caller's loop. The engine calls
pieces through their interfaces only; it depends on no particular mechanism.
"""

import copy
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import chain
from math import inf

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core import (
    Broadcast,
    DenseRows,
    KeySource,
    Messages,
    Method,
    Randomness,
    Report,
    Round,
    RunKeys,
    SimulatedRound,
    State,
    Sum,
    Traffic,
    View,
    Wave,
)
from tacit.core.interfaces import Conversation
from tacit.core.keys import key_source
from tacit.core.lengths import OUTLIER, usual_length
from tacit.core.losses import best_outputs
from tacit.core.prices import Unproved
from tacit.core.rows import add_surplus
from tacit.core.server_half import (
    aggregate_messages,
    download_size,
    finish_round,
    no_messages,
    prepare,
    with_overhead,
)
from tacit.core.state import SERVER, count_dropped, out_of_patience, track_best
from tacit.core.worker_choice import WAVES, Waves, Workers
from tacit.data import Population, Task
from tacit.data.population_files import read_ahead, release_pages
from tacit.engine.layout import Layout, initial_weights, make_model
from tacit.engine.learners.records.record_learners import check_records
from tacit.engine.pool import Pool, choose_workers, open_pool
from tacit.engine.tallies import counts_of, empty_tally, with_one_more
from tacit.engine.waves import (
    EVALUATED_AT_ONCE,
    MIN_MASKED,
    AutoLearner,
    StackedClients,
    divide,
    single_thread,
)
from tacit.engine.worker import EvaluateJob, Trained, TrainJob, Worker
from tacit.errors import TrainingError, expect, one_of, whole

_SMALL = 1 << 18  # numbers in them
RECEIVED = SERVER + "received"  # a tally of clients that received the one-time part of the broadcast
PARTICIPATIONS = SERVER + "participations"  # a tally of participations, where they are limited


def rounds(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: Workers = None,
    device: str = "cpu",
    state: State | None = None,
    evaluate_every: int = 1,
    randomness: Randomness = "secret",
) -> Generator[tuple[State, Report]]:
    """Run a method on a task, round by round, without charges: no budget stops it, and reports have no ε.

    It is internal, for tests, attacks and benchmarks; `tacit.rounds` charges every round.

    Args:
        method: what clients and server do in a round, and for how many rounds.
        task: data and model.
        seed: decides what may be public: initial weights, masks, what is learnt from public data.
        workers: worker processes; None: one per core. With 1, or on an accelerator, everything runs in this process.
            `ray`, `ray:4`, `ray://host:port`: actors of a Ray cluster.
        device: where tensors live.
        state: the state to continue from; None: start anew.
        evaluate_every: evaluate on held-out data every `n` rounds, and after the last.
        randomness: `secret`: cohorts, batches and noise come from a fresh key of the operating system; `seeded`: they
            derive from the seed, so that equal seeds give equal states, bit for bit, for any number of workers. Whoever
            knows the seed can then subtract the noise.

    Yields:
        The state after each round, and the round's report. Close the generator to stop early; a method with patience
        stops by itself.
    """
    simulation = Simulation(method, task, seed=seed, device=device)
    keys = key_source(randomness, seed)
    return simulation.rounds(state, workers=workers, evaluate_every=evaluate_every, keys=keys)


def initial_state(method: Method, task: Task, seed: int = 0) -> State:
    """The state before the first round, with what the method's pieces learn from public data."""
    return Simulation(method, task, seed=seed).initial_state


def waves(task: Task, seed: int = 0) -> Callable[[Tensor], Wave]:
    """A function that stacks any of the task's clients into a wave."""
    learner = AutoLearner(make_model(task, seed), task.loss, like=task.population[0])
    return partial(StackedClients, population=task.population, learner=learner)


def module_at(task: Task, seed: int, weights: Tensor) -> nn.Module:
    """A new module of the task with these weights, in evaluation mode."""
    return _at(make_model(task, seed), weights)


def draw(method: Method, population: int, keys: RunKeys, index: int) -> tuple[Tensor, SimulatedRound]:
    """The cohort of round `index`, and the round itself; `keys` are the round's."""
    cohort = method.sampler.cohort(population, index, keys.server.child("cohort"))
    return cohort, _round(method, population, keys, index, len(cohort))


def _round(method: Method, population: int, keys: RunKeys, index: int, cohort: int) -> SimulatedRound:
    expected = method.sampler.sampling(population, index).mean_cohort(population)
    return SimulatedRound(index, population, expected, cohort, keys.shared, keys.server, keys.clients)


class Simulation:
    """A method, a task and a seed on one machine. The task's model is built once.

    Args:
        method: what clients and server do.
        task: data and model.
        seed: decides what may be public.
        device: where tensors live.
        waves: `fitting`: clients are stacked in waves that fit the cache; `single`: one client a wave, whose row is
            dense, as at a site. It is slower, and ends bitwise where a federation with the same secrets ends.

    Raises:
        UserError: the population is too small for one of the method's cohorts, or the model cannot be trained.
    """

    def __init__(
        self, method: Method, task: Task, *, seed: int = 0, device: str = "cpu", waves: Waves = "fitting"
    ) -> None:
        one_of(WAVES, waves=waves)
        self.waves: Waves = waves
        for index in range(method.rounds):
            _check_cohort(method, len(task.population), index)
        self.method, self.seed, self.device = method, seed, device
        self.task = _on_device(task, device)
        self._untrained = make_model(task, seed)
        self.model = copy.deepcopy(self._untrained).to(device)
        self.layout = Layout.of(self.model)
        release_pages(self.task.population)  # which was checked as a whole
        if method.terms.record_sum is not None or method.terms.protects_records:
            check_records(self.model, task.loss)

    @cached_property
    def learner(self) -> AutoLearner:
        """The learner for this model."""
        return AutoLearner.of(self.model, self.task)

    @cached_property
    def initial_state(self) -> State:
        """The state before the first round, with what the method's pieces learn from public data."""
        weights = initial_weights(self._untrained, self.task, self.seed, self.method.aggregator.models)
        state = self._with_layers(State(0, weights.to(self.device)))
        now = _round(self.method, len(self.task.population), RunKeys.before(self.seed), 0, 1)
        public = None  # or the public data, as those of one client
        if self.task.public is not None:
            public = StackedClients(torch.zeros(1).long(), Population.of([self.task.public]), self.learner)
        with single_thread():
            return prepare(self.method, state, public, now)

    def module(self, weights: Tensor) -> nn.Module:
        """A new module with these weights, in evaluation mode."""
        return _at(copy.deepcopy(self._untrained), weights)

    def rounds(
        self,
        state: State | None = None,
        *,
        workers: Workers = None,
        evaluate_every: int = 1,
        last: int | None = None,
        keys: KeySource,
    ) -> Generator[tuple[State, Report]]:
        """The rounds from this state on, up to number `last` (by default all of the method's), with these keys."""
        whole(1, evaluate_every=evaluate_every)
        chosen = choose_workers(workers, self.device)
        state = self._with_layers(self.initial_state if state is None else state)
        before = RunKeys.before(self.seed).shared
        make_worker = partial(Worker, self.method, self.task, self.model, self.learner, state, before)
        last = self.method.rounds if last is None else last
        return self._play(partial(open_pool, chosen, make_worker), state, evaluate_every, last, keys)

    def _play(
        self, open_workers: Callable[[], Pool], state: State, evaluate_every: int, last: int, keys: KeySource
    ) -> Generator[tuple[State, Report]]:
        population, patience = len(self.task.population), self.method.patience
        with (
            closing(open_workers()) as pool,
            self.method.channel.open(self.method, population, self.seed) as conversation,
        ):
            runner = RoundRunner(pool, conversation, keys, self.waves)
            while state.round < last and not out_of_patience(patience, state):
                began = time.perf_counter()
                state, report = runner.round(state)
                if state.round % evaluate_every == 0 or state.round == last:
                    report = replace(report, metrics=runner.evaluate(state))
                    state = track_best(patience, state, report.metrics)
                yield state, replace(report, seconds=time.perf_counter() - began)

    def _with_layers(self, state: State) -> State:
        return replace(state, layers=self.layout.sizes, shapes=self.layout.shapes)


Draw = Callable[[Method, int, RunKeys, int], tuple[Tensor, SimulatedRound]]


class RoundRunner:
    """Plays the rounds of one run: hands waves to the workers, folds their sums, and closes the round.

    Args:
        pool: where waves are trained.
        conversation: of the channel.
        keys: of every round.
        waves: how a cohort is divided.
        draws: the cohort of a round; by default the sampler's.
        delivering: which clients of a cohort are not lost; None: all of them.
    """

    def __init__(
        self,
        pool: Pool,
        conversation: Conversation,
        keys: KeySource,
        waves: Waves = "fitting",
        draws: Draw = draw,
        delivering: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.waves: Waves = waves
        self.draws, self.delivering = draws, delivering
        self.pool, self.worker, self.conversation, self.keys = pool, pool.worker, conversation, keys
        self.method, self.task = self.worker.method, self.worker.task
        self.slots = len(self.worker.slots)
        self.evaluations = 0  # workers recognise loaded weights by this number

    def round(self, state: State) -> tuple[State, Report]:
        """The next state, and the report without metrics."""
        sampled, now = self.draws(self.method, len(self.task.population), self.keys.keys(state.round), state.round)
        most = self.method.terms.max_participations(state.dim)
        before = state.memory.get(PARTICIPATIONS, empty_tally())
        willing = counts_of(before, sampled) < (inf if most is None else most)
        cohort, declined = sampled[willing], sampled[~willing]
        if len(cohort) < self.method.channel.min_cohort:  # ends like a round without clients, which reveals no size
            cohort = cohort[:0]
        now = replace(now, cohort=len(cohort))
        sent, view = self.worker.start(state, now)
        waves = self._waves(cohort if self.delivering is None else self.delivering(cohort), view)
        began = time.perf_counter()
        total, results = self._sum(state, waves, now)
        folded = time.perf_counter() - began
        if total is None:
            empty = no_messages(self.method, sent, state, now)
            total = aggregate_messages(self.method, self.conversation, state, empty, now)
        with single_thread():
            after = finish_round(self.method, self.conversation, state, total, now)
        clients = tuple(chain.from_iterable(wave.tolist() for wave in waves))
        down, received = self._download(state, clients, sent)
        norm, variance, scale = self._diagnostics(total, results)
        phases, measured = self.method.channel.overhead(now, total.tolerated), self.conversation.timings()
        overhead = sum(phases.values(), Traffic())
        report = Report(
            round=after.round,
            clients=clients,
            rejected=tuple(chain.from_iterable(result.wave_report.rejected for result in results)),
            up=with_overhead(tuple(chain.from_iterable(result.up for result in results)), overhead.up),
            down=with_overhead(down, overhead.down),
            norm=norm,
            variance=variance,
            scale=scale,
            metrics={},
            seconds=0.0,
            overhead=phases,
            grid_step=total.grid_step,
            declined=tuple(declined.tolist()),
            timings={"train": folded - sum(measured.values()), **measured} if measured else {},
            dropped=count_dropped(after) > 0,
        )
        tallies = {RECEIVED: received, PARTICIPATIONS: None if most is None else with_one_more(before, cohort)}
        memory = {name: value for name, value in tallies.items() if value is not None}
        return replace(after, memory={**after.memory, **memory}), report

    def evaluate(self, state: State) -> dict[str, float]:
        """Metrics of the model, and of the trainer's variants of it, on the test data; its density if clients prune."""
        if self.task.test is None:
            return {}
        trainer, metrics = self.method.trainer, self._metrics(state.weights)
        kept = trainer.weight_counts(state.shapes)
        if kept:
            metrics["density"] = _density(state.weights, state.layers, kept)
        for variant, weights in trainer.variants(state).items():
            metrics |= {f"{variant}_{name}": value for name, value in self._metrics(weights).items()}
        return metrics

    def _metrics(self, weights: Tensor) -> dict[str, float]:
        """Metrics of these weights, computed by all workers; with several hypotheses, each client uses its own."""
        assert self.task.test is not None
        y, count = self.task.test[1].cpu(), self.method.aggregator.models
        self.worker.weights.copy_(weights)
        self.evaluations += 1
        size = max(EVALUATED_AT_ONCE, _SMALL // self.task.test[0][0].numel())
        pieces = [(begin, min(begin + size, len(y))) for begin in range(0, len(y), size)]
        jobs = [EvaluateJob(self.evaluations, number, *piece) for number in range(count) for piece in pieces]
        flat = torch.from_numpy(np.concatenate(list(self.pool.run(jobs, ahead=len(jobs)))))
        outputs = best_outputs(self.task.loss, flat.view(count, len(y), *flat.shape[1:]), y, self.task.owners)
        metrics: dict[str, float] = self.task.loss.metrics(outputs, y)
        return metrics

    def _waves(self, cohort: Tensor, view: View) -> list[Tensor]:
        """The cohort in waves; under a mask, a client owns few weights and shares the others with its wave."""
        if self.waves == "single":
            return list(cohort[:, None])  # as sites train
        population, least = self.task.population, self.worker.learner.min_wave_size
        mask = view.mask if self.method.trainer.masked else None
        if mask is None or self.worker.learner.kernels is None:
            return divide(cohort, population, view.weights.shape[-1], least)
        return divide(cohort, population, mask.numel(), least, MIN_MASKED)

    def _diagnostics(self, total: Sum, results: list[Trained]) -> tuple[float | None, float | None, float | None]:
        """Norm of the messages, variance between clients and scale of their mean, if the server sees messages."""
        if self.method.channel.messages_seen_by != "server":
            return None, None, None
        norms = [norm for result in results for norm in result.wave_report.norms]
        return float(np.mean(norms)) if norms else 0.0, *variance_and_scale(total)

    def _download(
        self, state: State, clients: tuple[int, ...], sent: Broadcast
    ) -> tuple[tuple[int, ...], Tensor | None]:
        """The bytes of each client's broadcast, and who has received the one-time part by now."""
        download = partial(download_size, self.method.channel, sent)
        if not sent.first_parts or not clients:
            return tuple(download(first=False) for _ in clients[:1]) * len(clients), None
        received, numbers = state.memory.get(RECEIVED, empty_tally()), torch.tensor(clients, dtype=torch.int64)
        sizes = {first: download(first=first) for first in (True, False)}
        down = tuple(sizes[not before] for before in counts_of(received, numbers).tolist())
        return down, with_one_more(received, numbers)

    def _sum(self, state: State, waves: list[Tensor], now: SimulatedRound) -> tuple[Sum | None, list[Trained]]:
        """The round's sum and the waves' results; if rows are much longer than others, waves are trained again."""
        total, results = self._fold(self._jobs(state, waves, now, None), state, now)
        lengths = [length for result in results for length in result.wave_report.lengths]
        usual = usual_length(lengths)
        if usual is None or max(lengths) <= OUTLIER * usual:
            return total, results
        return self._fold(self._jobs(state, waves, now, usual), state, now)

    def _jobs(self, state: State, waves: list[Tensor], now: SimulatedRound, usual: float | None) -> list[TrainJob]:
        initial = self.worker.initial_memory
        changed = {name: value for name, value in state.memory.items() if initial.get(name) is not value}
        memory = {name: value.cpu().numpy() for name, value in changed.items() if not name.startswith(SERVER)}
        here, dense = now.of_clients(), self.waves == "single"
        return [TrainJob(here, memory, wave.numpy(), i % self.slots, dense, usual) for i, wave in enumerate(waves)]

    def _fold(self, jobs: list[TrainJob], state: State, now: Round) -> tuple[Sum | None, list[Trained]]:
        """The round's sum, folded wave by wave in their order, and the waves' results; None: the cohort is empty."""
        total, results = None, []
        rows, count = torch.empty(0), 0  # for a method that needs all messages at once
        soon = 2 * self.slots
        for job in jobs[:soon]:
            self._read_ahead(job)
        for job, result in zip(jobs, self.pool.run(jobs, self.slots), strict=True):
            results.append(result)
            if soon < len(jobs):
                self._read_ahead(jobs[soon])
                soon += 1
            part = self.worker.slot_content(job.slot, result)
            if not self.method.streams:
                rows = part.total.new_empty(now.cohort, part.total.shape[1]) if count == 0 else rows
                rows[count : count + len(part.total)] = part.total
                count += len(part.total)
                continue
            total = replace(part, total=part.total.clone()) if total is None else total + part
        if isinstance(self.method.mechanism.price(state.round), Unproved):  # else a round must not end by private data
            _check_delivered(state, results, self.task.population.x)
        if not self.method.streams:
            total = self._sum_of_all(rows[:count], results, state, now)
        return total, results

    def _read_ahead(self, job: TrainJob) -> None:
        """For a population on disk, prefetch the data of a wave before a worker needs them."""
        read_ahead(self.task.population, torch.from_numpy(job.clients))

    def _sum_of_all(self, rows: Tensor, results: list[Trained], state: State, now: Round) -> Sum | None:
        """The sum of a method that needs all messages of a round at once."""
        clients = torch.tensor([client for result in results for client in result.wave_report.delivered])
        if len(clients) == 0:
            return None
        samples = self.task.population.sizes_of(clients) if self.method.weighted else None
        surplus = reduce(add_surplus, (result.part.surplus for result in results))
        messages = Messages(clients, DenseRows(rows), samples, results[0].part.grid_step, surplus)
        with single_thread():
            return aggregate_messages(self.method, self.conversation, state, messages, now)


def variance_and_scale(total: Sum) -> tuple[float, float]:
    """Variance between clients and scale of their mean, from the folded squares alone: no row is kept.

    (1/d)·Σ_j (1/m)·Σ_k (Δ_kj − μ_j)² = (Σ_k ‖Δ_k‖²/m − ‖μ‖²)/d.
    """
    if total.weight == 0:
        return 0.0, 0.0
    square = float(torch.linalg.vector_norm(total.total, dtype=torch.float64) / total.weight) ** 2
    dim = total.total.numel()
    return max(total.squared_norms / total.weight - square, 0.0) / dim, square / dim


def _density(weights: Tensor, sizes: tuple[int, ...], kept: tuple[int | None, ...]) -> float:
    """The share of non-zero weights in the parameters of which clients send a part."""
    parts = zip(torch.split(weights, list(sizes)), kept, strict=True)
    layers = [part for part, count in parts if count is not None]
    return sum(int(part.count_nonzero()) for part in layers) / max(sum(map(torch.numel, layers)), 1)


def _check_cohort(method: Method, population: int, index: int) -> None:
    """Raise `UserError` if the population is too small for a cohort, or a cohort of public size for the channel."""
    sampling, least = method.sampler.sampling(population, index), method.channel.min_cohort
    size = sampling.mean_cohort(population)
    expect(
        sampling.kind == "poisson" or size >= least,
        f"cohorts of at least {least} clients for {type(method.channel).__name__}, got {size:g}",
        "Use larger cohorts.",
    )


def _check_delivered(state: State, results: list[Trained], x: Tensor) -> None:
    if results and not any(result.wave_report.delivered for result in results):
        largest = float(x[:1000].abs().max()) if len(x) else 0.0
        scale = f"The inputs reach {largest:g}: scale them, for example x / {largest:g}. " if largest > _LARGE else ""
        raise TrainingError(
            f"No client sent a finite update that the method accepts in round {state.round + 1}: training diverged. "
            f"{scale}Lower the learning rate, take fewer local steps, clip, or set a larger max_row_norm."
        )


_LARGE = 20.0  # inputs with which gradient descent tends to diverge


def _at(model: nn.Module, weights: Tensor) -> nn.Module:
    Layout.of(model).load(model, weights)
    return model.eval()


def _on_device(task: Task, device: str) -> Task:
    if device == "cpu":
        return task
    population = task.population
    clients = replace(population, x=population.x.to(device), y=population.y.to(device))
    test = None if task.test is None else (task.test[0].to(device), task.test[1].to(device))
    return replace(task, clients=clients, test=test)
