"""The one loop that trains: rounds from the engine, notes in the run's directory, a `Run` after every round.

`train` waits for the last one; the command shows each of them on its way.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from tacit.books.bandwidth import Bandwidth, Savings
from tacit.books.metric import MetricBook
from tacit.core import BudgetError, Method, Metric, Report, Samples, State, StorageError, Task, UserError
from tacit.core.errors import expect
from tacit.core.patience import kept, stopped
from tacit.core.pieces import Prunes, nominal
from tacit.engine import first_weights, initial_state, module_at, rounds
from tacit.manifest import Manifest, MethodEntry, Options, TaskEntry, versions
from tacit.results import RunDirectory

if TYPE_CHECKING:
    from tacit.books.guarantee import Guarantee
    from tacit.books.metric import MetricGuarantee
    from tacit.spending import Spending


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Everything that decides about a run's result. Noise that is to be sized for a budget is sized here.

    `args` and `task_args` are those of the factories, where method and task were made by name.
    """

    method: Method
    task: Task
    seed: int = 0
    device: str = "cpu"
    evaluate_every: int = 1
    args: Options | None = None
    task_args: Options | None = None

    def __post_init__(self) -> None:
        expect(self.evaluate_every >= 1, f"evaluate_every={self.evaluate_every} >= 1")
        _check_device(self.device)
        if self.method.patience is not None and self.task.test is None:
            raise UserError(
                f"Expected held-out data for {self.method.name}, whose patience={self.method.patience} is with the "
                "loss on them. Give the task test data, or leave patience out."
            )
        object.__setattr__(self, "method", fitted(self.method, len(self.task.population)))

    @cached_property
    def manifest(self) -> Manifest:
        """The plan in print; made once, because it has a digest of all data."""
        return Manifest(
            method=MethodEntry(
                name=self.method.name,
                args=self.args,
                repr=repr(self.method),
                nominal=dict(nominal(self.method.mechanism)),
            ),
            task=TaskEntry.of(self.task, self.task_args, first_weights(self.task, self.seed).numel()),
            seed=self.seed,
            device=self.device,
            evaluate_every=self.evaluate_every,
            versions=versions(),
            caveat=self.method.channel.caveat,
        )


@dataclass(frozen=True)
class Sparsity:
    """How many weights a layer has, how many of them a client sends, and how many the model has that are not zero."""

    weights: int
    sent: int
    held: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run so far.

    Attributes:
        plan: what is run.
        state: where the server stands.
        history: one report per round.
        directory: where the run's files lie, if it has any.
        spending: what it has spent on privacy; None if its method is not priced in (ε, δ).
        leakage: what each client has leaked in the sense of d-privacy; None if its method is not priced that way.
    """

    plan: Plan
    state: State
    history: tuple[Report, ...] = ()
    directory: Path | None = None
    spending: "Spending | None" = None
    leakage: MetricBook | None = None

    @classmethod
    def begin(cls, plan: Plan, state: State, history: tuple[Report, ...] = (), directory: Path | None = None) -> Self:
        """The run after these rounds, before anything is charged."""
        leakage = MetricBook.of(plan.method, state.dim, len(plan.task.population), history)
        return cls(plan=plan, state=state, history=history, directory=directory, leakage=leakage)

    @property
    def model(self) -> nn.Module:
        """The model that the run leaves, ready to be used; of several hypotheses, `models` has all."""
        if len(self.models) > 1:
            raise UserError(
                f"Expected one model, but {self.plan.method.name} leaves {len(self.models)}. Use run.models, or "
                "run.model_for((x, y)) for the one that fits these samples best."
            )
        return self.models[0]

    @cached_property
    def models(self) -> tuple[nn.Module, ...]:
        """All hypotheses that the run leaves; with patience the best on held-out data, otherwise the last."""
        task, seed, dim = self.plan.task, self.plan.seed, self.state.dim
        return tuple(module_at(task, seed, weights) for weights in kept(self.state).view(-1, dim))

    @torch.no_grad()
    def model_for(self, samples: Samples) -> nn.Module:
        """The hypothesis that loses least on these samples: the model of a client that has them."""
        (x, y), loss = samples, self.plan.task.loss
        return min(self.models, key=lambda model: float(loss.of_mean(loss.per_sample(model(x), y).double().mean())))

    @cached_property
    def bytes(self) -> Bandwidth:
        """The bandwidth book of all rounds."""
        return Bandwidth.of(self.history)

    @cached_property
    def savings(self) -> Savings:
        """How many times fewer bytes travelled than if whole models had been sent both ways, as in FL-STD."""
        asked = sum(len(report.clients) for report in self.history)
        return Savings.of(self.bytes, messages=asked, weights=self.state.weights.view(-1, self.state.dim)[0])

    @cached_property
    def privacy(self) -> "Guarantee | MetricGuarantee":
        """What is proved about privacy: (ε, δ) or d-privacy with all it rests on, against whom; or none, and why."""
        from tacit.books.guarantee import Guarantee

        method = self.plan.method
        if self.leakage is not None:
            return self.leakage.guarantee(stops=method.patience is not None)
        if self.spending is None:
            return Guarantee.none(method.mechanism.unproved, rounds=self.state.round).but(method.channel.caveat)
        return self.spending.guarantee(self.history).but(method.channel.caveat)

    @property
    def rounds(self) -> int:
        """How many rounds there will be, as far as the method and its budget say."""
        return self.plan.method.rounds if self.spending is None else self.spending.allowed

    @cached_property
    def sparsity(self) -> Mapping[str, "Sparsity"]:
        """Of every layer that is pruned, by name: what clients send of it, and what the model has."""
        trainer = self.plan.method.trainer
        if not isinstance(trainer, Prunes):
            return {}
        parameters = dict(self.model.named_parameters())
        kept = trainer.kept(tuple(tuple(parameter.shape) for parameter in parameters.values()))
        return {
            name: Sparsity(parameter.numel(), count, int(parameter.count_nonzero()))
            for (name, parameter), count in zip(parameters.items(), kept, strict=True)
            if count is not None
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The held-out figures of the model that the run leaves: measured last or, with patience, the best."""
        measured = [report.metrics for report in self.history if report.metrics]
        if measured and self.plan.method.patience is not None:
            return dict(min(measured, key=lambda metrics: metrics["loss"]))
        return dict(measured[-1]) if measured else {}

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to play: all rounds are, patience is at its end, or everybody declines."""
        done = self.state.round >= self.rounds or stopped(self.plan.method, self.state)
        return done or (self.leakage is not None and self.leakage.exhausted)

    @property
    def seconds(self) -> float:
        """The wall-clock time of all rounds."""
        return sum(report.seconds for report in self.history)

    @property
    def parts(self) -> dict[str, float]:
        """Of these, what each part took, where the channel measured it."""
        names = dict.fromkeys(name for report in self.history for name in report.parts)
        return {name: sum(report.parts.get(name, 0.0) for report in self.history) for name in names}

    def after(self, state: State, report: Report, spending: "Spending | None") -> "Run":
        """The run one round later."""
        if spending is not None:
            report = replace(report, epsilon=spending.epsilon)
        leakage = None if self.leakage is None else self.leakage.after(report)
        if leakage is not None:
            report = replace(report, leakage=leakage.most)
        return replace(self, state=state, history=(*self.history, report), spending=spending, leakage=leakage)


def train(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    evaluate_every: int = 1,
    out: Path | str | None = None,
    resume: bool = False,
    ledger: Path | str | None = None,
) -> Run:
    """Train a task's model with a method, for as many rounds as the method says.

    Args:
        method: what clients and server do.
        task: the model and the data.
        seed: of everything random; equal seeds give bitwise equal results, for any number of workers.
        workers: worker processes; None: as many as there are processors.
        device: where to compute, `cpu` or an accelerator's name.
        evaluate_every: measure held-out figures every so many rounds; the last one is always measured.
        out: the run's directory, for its manifest, rounds, checkpoint and model; None: no files.
        resume: go on with the run that an interrupted call left in `out`.
        ledger: a privacy ledger that several runs on the same data charge; None: one in `out`, of the run's own.

    Returns:
        The finished run, with `model`, `history`, `bytes`, `privacy`, `state` and `directory`. A method with a budget
        stops before the round that would pass it.

    Example:
        >>> import torch, tacit
        >>> parts = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (8, 5, 9)]
        >>> task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts)
        >>> run = tacit.train(tacit.methods.fedavg(rounds=2, cohort=3), task, workers=1)
        >>> run.model, len(run.history), run.bytes.down
        (Linear(in_features=3, out_features=2, bias=True), 2, 408)
    """
    plan = Plan(method=method, task=task, seed=seed, device=device, evaluate_every=evaluate_every)
    where, book = (None if path is None else Path(path) for path in (out, ledger))
    (run,) = deque(follow(plan, workers=workers, out=where, resume=resume, ledger=book), maxlen=1)
    return run


def follow(
    plan: Plan,
    *,
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    ledger: Path | None = None,
) -> Generator[Run]:
    """Run a plan; yields the run as it starts and after every round.

    Stopping early (an interrupt, or closing this generator) leaves a checkpoint in the directory.
    """
    if out is None:
        if resume:
            raise UserError("Expected the directory of the run to resume. Give it as out.")
        start = Run.begin(plan, initial_state(plan.method, plan.task, plan.seed))
        with spending_of(plan, (), ledger) as spending:
            yield from _steps(replace(start, spending=spending), workers)
        return
    directory = _open(plan, out) if resume else RunDirectory.create(out, plan.manifest)
    with closing(directory):
        yield from _kept(plan, directory, workers, ledger)


@contextmanager
def spending_of(plan: Plan, done: Sequence[Report], ledger: Path | None) -> "Iterator[Spending | None]":
    """What a run spends, with its ledger held open; None for a method without noise."""
    method, population = plan.method, len(plan.task.population)
    if not method.priced:
        if ledger is not None and isinstance(method.mechanism, Metric):
            raise UserError(f"Expected no ledger for {method.name}: d-privacy is kept in each client's own book.")
        if ledger is not None:
            raise UserError(f"Expected no ledger for {method.name}: it adds no noise, so there is nothing to charge.")
        yield None
        return
    from tacit.books.ledger import Ledger
    from tacit.spending import Spending, accountant_of

    turnouts = [report.turnout for report in done]
    if ledger is None:
        yield Spending.begin(method, population, turnouts)
        return
    terms = () if ledger.exists() else (method.budget, accountant_of(method, population))
    with Ledger.open(ledger, *terms) as held:
        yield Spending.begin(method, population, turnouts, held, plan.manifest.run)


def fitted(method: Method, population: int) -> Method:
    """The method for so many clients: if its noise is to be sized for its budget, it is."""
    if not method.mechanism.unsized:
        return method
    from tacit.spending import sized

    return sized(method, population)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch built without it, or none in this machine
        raise UserError(
            f"Expected a device that PyTorch can use here, got {device!r}. Leave it out for cpu."
        ) from error


def _open(plan: Plan, path: Path) -> RunDirectory:
    directory = RunDirectory.open(path)
    try:
        directory.manifest.check_same(plan.manifest, path)
    except BaseException:
        directory.close()
        raise
    return directory


def _steps(run: Run, workers: int | None) -> Generator[Run]:
    """The run as it starts, and after every round that is left; each is charged before it is played."""
    yield run
    plan, spending = run.plan, run.spending
    if run.ended:
        return
    steps = rounds(
        replace(plan.method, rounds=run.rounds),
        plan.task,
        seed=plan.seed,
        workers=workers,
        device=plan.device,
        state=run.state,
        evaluate_every=plan.evaluate_every,
    )
    with closing(steps):
        while not run.ended:
            try:
                spending = None if spending is None else spending.reserve()
            except BudgetError:  # a shared ledger may be spent before this run's own budget is
                if run.state.round == 0:
                    raise
                return
            state, report = next(steps)
            if spending is not None:
                try:
                    spending = spending.settle(report.turnout)
                except BudgetError:  # fewer delivered than the noise was sized for, and nothing is released
                    if run.state.round == 0:
                        raise
                    return
                spending.release(state)
            run = run.after(state, report, spending)
            yield run


def _kept(plan: Plan, directory: RunDirectory, workers: int | None, ledger: Path | None) -> Generator[Run]:
    """The same, with every round noted in the directory."""
    run = Run.begin(plan, _start(plan, directory), directory.history, directory.path)
    try:
        with spending_of(plan, run.history, ledger or directory.ledger_for(plan.method)) as spending:
            run = replace(run, spending=spending)
            for step in _steps(run, workers):
                if step is not run:
                    directory.record(step.state, step.history[-1])
                run = step  # only now: a state is written only behind the round that led to it
                yield run
            directory.finish(run.state, _tensors(run.models), run.leakage)
    except (KeyboardInterrupt, GeneratorExit):
        directory.stop(run.state, "interrupted", run.leakage)
        raise
    except Exception:
        _give_up(directory, run)
        raise


def _start(plan: Plan, directory: RunDirectory) -> State:
    """Where the run stands; one that cannot even begin leaves nothing."""
    if directory.state is not None:
        return directory.state
    try:
        return initial_state(plan.method, plan.task, plan.seed)
    except BaseException:
        directory.discard()
        raise


def _give_up(directory: RunDirectory, run: Run) -> None:
    """A run that never did a round leaves nothing; any other can go on from its last round."""
    if run.state.round == 0:
        directory.discard()
        return
    with suppress(StorageError):
        directory.stop(run.state, "failed", run.leakage)


def _tensors(models: tuple[nn.Module, ...]) -> dict[str, Tensor]:
    """The named tensors of a model; of several, each name behind the model's number."""
    return models[0].state_dict() if len(models) == 1 else nn.ModuleList(models).state_dict()
