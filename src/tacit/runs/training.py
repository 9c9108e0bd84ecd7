"""The one loop that trains: rounds from the engine, notes in the run's directory, a `Run` after every round.

`train` waits for the last one; the command shows each of them on its way.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from tacit.core import Method, Metric, Report, State, Task
from tacit.engine import initial_state, rounds
from tacit.errors import BudgetError, StorageError, UserError
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Plan, Run

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges


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
        with spending_of(plan, (), ledger) as charges:
            yield from _steps(replace(start, charges=charges), workers)
        return
    directory = _open(plan, out) if resume else RunDirectory.create(out, plan.manifest)
    with closing(directory):
        yield from _kept(plan, directory, workers, ledger)


@contextmanager
def spending_of(plan: Plan, done: Sequence[Report], ledger: Path | None) -> "Iterator[Charges | None]":
    """What a run spends, with its ledger held open; None for a method without noise."""
    method, population = plan.method, len(plan.task.population)
    if not method.priced:
        if ledger is not None and isinstance(method.mechanism, Metric):
            raise UserError(f"Expected no ledger for {method.name}: d-privacy is kept in each client's own book.")
        if ledger is not None:
            raise UserError(f"Expected no ledger for {method.name}: it adds no noise, so there is nothing to charge.")
        yield None
        return
    from tacit.privacy.charging import Charges, accountant_of
    from tacit.privacy.ledger import Ledger

    turnouts = [report.turnout for report in done]
    if ledger is None:
        yield Charges.begin(method, population, turnouts)
        return
    terms = () if ledger.exists() else (method.budget, accountant_of(method, population))
    with Ledger.open(ledger, *terms) as held:
        yield Charges.begin(method, population, turnouts, held, plan.manifest.run)


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
    plan, charges = run.plan, run.charges
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
                charges = None if charges is None else charges.reserve()
            except BudgetError:  # a shared ledger may be spent before this run's own budget is
                if run.state.round == 0:
                    raise
                return
            state, report = next(steps)
            if charges is not None:
                try:
                    charges = charges.settle(report.turnout)
                except BudgetError:  # fewer delivered than the noise was sized for, and nothing is released
                    if run.state.round == 0:
                        raise
                    return
                charges.release(state)
            run = run.after(state, report, charges)
            yield run


def _kept(plan: Plan, directory: RunDirectory, workers: int | None, ledger: Path | None) -> Generator[Run]:
    """The same, with every round noted in the directory."""
    run = Run.begin(plan, _start(plan, directory), directory.history, directory.path)
    try:
        with spending_of(plan, run.history, ledger or directory.ledger_for(plan.method)) as charges:
            run = replace(run, charges=charges)
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
