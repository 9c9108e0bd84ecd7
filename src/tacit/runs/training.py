"""The loop that trains: rounds of the simulation, charges before each of them, files after, a `Run` after every round.

`train` returns the last one; the command shows each of them as it comes.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tacit.core import KeySource, Method, Noise, Report, SecretKeys, SeededKeys, State, Task
from tacit.core.keys import Ratchet
from tacit.errors import BudgetError, RunError, StorageError, TrainingError, UserError
from tacit.runs.directory import RunDirectory
from tacit.runs.manifest import Manifest
from tacit.runs.records import Plan, Run

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
    noise: Noise = "secret",
) -> Run:
    """Train a task's model with a method, for the method's number of rounds.

    Args:
        method: what clients and server do.
        task: the model and the data.
        seed: decides what may be public: initial weights, masks, what is learnt from public data.
        workers: worker processes; None: one per processor.
        device: where to compute, `cpu` or an accelerator's name.
        evaluate_every: evaluate on held-out data every `n` rounds; the last round is always evaluated.
        out: the run's directory, for its manifest, rounds, checkpoint and model; None: no files.
        resume: continue the run that an interrupted call left in `out`.
        ledger: a privacy ledger that several runs on the same data charge; None: a ledger of the run's own in `out`.
        noise: `secret`: cohorts, batches and noise come from a fresh key of the operating system; `seeded`: they derive
            from the seed, and equal seeds give bitwise equal results, for any number of workers. Whoever knows the seed
            can then subtract the noise, and the guarantee says so.

    Returns:
        The finished run, with `model`, `history`, `bytes`, `privacy`, `state` and `directory`. A method with a budget
        stops before the round that would exceed it. A run whose model becomes non-finite ends with the last finite one.

    Example:
        >>> import torch, tacit
        >>> parts = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (8, 5, 9)]
        >>> task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts)
        >>> run = tacit.train(tacit.methods.fedavg(rounds=2, cohort=3), task, workers=1)
        >>> run.model, len(run.history), run.bytes.down
        (Linear(in_features=3, out_features=2, bias=True), 2, 408)
    """
    plan = Plan(method=method, task=task, seed=seed, device=device, evaluate_every=evaluate_every, noise=noise)
    directory, shared = (None if path is None else Path(path) for path in (out, ledger))
    (run,) = deque(follow(plan, workers=workers, out=directory, resume=resume, ledger=shared), maxlen=1)
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
        run, ratchet = Run.begin(plan, plan.simulation.initial_state), _new_ratchet(plan)
        with open_charges(plan, (), ledger, _keyed(plan, ratchet).run) as charges:
            yield from _steps(replace(run, charges=charges), workers, _key_source(plan, ratchet))
        return
    directory = _open(plan, out) if resume else _create(plan, out)
    with closing(directory):
        yield from _recorded(plan, directory, workers, ledger)


@contextmanager
def open_charges(plan: Plan, done: Sequence[Report], ledger: Path | None, name: str) -> "Iterator[Charges | None]":
    """A run's privacy charges, with its ledger held open; None for a method without (ε, δ) accounting.

    Args:
        plan: what is run.
        done: its rounds so far.
        ledger: the file of the ledger; None: nothing outlives the run.
        name: the run's name in the ledger.
    """
    method, population = plan.method, len(plan.task.population)
    if not method.accounted:
        if ledger is not None:
            raise UserError(f"Expected no ledger for {method.name}: {_why_no_ledger(method)}.")
        yield None
        return
    from tacit.privacy.charging import Charges, accountant_for
    from tacit.privacy.ledger import Ledger

    turnouts = [report.turnout for report in done]
    if ledger is None:
        yield Charges.begin(method, population, turnouts)
        return
    terms = () if ledger.exists() else (method.budget, accountant_for(method, population))
    with Ledger.open(ledger, *terms) as opened:
        yield Charges.begin(method, population, turnouts, opened, name)


def _why_no_ledger(method: Method) -> str:
    if method.metric:
        return "d-privacy is accounted for each client separately"
    return "it adds no noise, so there is nothing to charge"


def _new_ratchet(plan: Plan) -> Ratchet | None:
    return Ratchet.fresh() if plan.noise == "secret" else None


def _keyed(plan: Plan, ratchet: Ratchet | None) -> Manifest:
    """The manifest of a new run, which names the run's secret key."""
    return plan.manifest if ratchet is None else replace(plan.manifest, key=ratchet.key.digest)


def _key_source(plan: Plan, ratchet: Ratchet | None) -> KeySource:
    return SeededKeys(plan.seed) if plan.noise == "seeded" else SecretKeys(plan.seed, ratchet)


def _create(plan: Plan, path: Path) -> RunDirectory:
    ratchet = _new_ratchet(plan)
    return RunDirectory.create(path, _keyed(plan, ratchet), ratchet)


def _open(plan: Plan, path: Path) -> RunDirectory:
    directory = RunDirectory.open(path)
    try:
        directory.manifest.check_same(plan.manifest, path)
    except BaseException:
        directory.close()
        raise
    return directory


def _steps(run: Run, workers: int | None, keys: KeySource) -> Generator[Run]:
    """The run as it starts, and after every remaining round; each round is charged before it is played."""
    yield run
    if run.ended:
        return
    plan = run.plan
    steps = plan.simulation.rounds(
        run.state, workers=workers, evaluate_every=plan.evaluate_every, last=run.rounds, keys=keys
    )
    with closing(steps):
        while not run.ended:
            try:
                run = _step(run, steps, keys)
            except _NonFiniteModelError as problem:  # the round was charged, and its model is not released
                if run.state.round == 0:
                    raise TrainingError(_NOT_FINITE) from None
                yield replace(run, charges=problem.charges, diverged=True)
                return
            except BudgetError:  # a shared ledger is used up, or too few clients added their share of the noise
                if run.state.round == 0:
                    raise
                return
            yield run


def _step(run: Run, steps: Generator[tuple[State, Report]], keys: KeySource) -> Run:
    """Reserve the round's charge, play the round, settle the charge by who took part, and release the model."""
    if run.charges is None:
        state, report = next(steps)
        _check_finite(state, None)
        return _after(run, state, report, None)
    reserved = run.charges.reserve(keys.keys(run.state.round).server.digest)
    state, report = next(steps)
    charges = reserved.settle(report.turnout)
    _check_finite(state, charges)
    charges.release(state)
    return _after(run, state, report, charges)


class _NonFiniteModelError(Exception):
    """A round led to a model with infinite weights or NaN; `charges` include that round."""

    def __init__(self, charges: "Charges | None") -> None:
        Exception.__init__(self)
        self.charges = charges


_NOT_FINITE = (
    "The model is not finite after the first round: training diverged. "
    "Lower the learning rate, take fewer local steps, or clip."
)


def _check_finite(state: State, charges: "Charges | None") -> None:
    if not bool(torch.isfinite(state.weights).all()):
        raise _NonFiniteModelError(charges)


def _after(run: Run, state: State, report: Report, charges: "Charges | None") -> Run:
    """The run one round later."""
    if charges is not None:
        report = replace(report, epsilon=charges.epsilon)
    leakage = None if run.leakage is None else run.leakage.after(report)
    if leakage is not None:
        report = replace(report, leakage=leakage.maximum)
    return replace(run, state=state, history=(*run.history, report), charges=charges, leakage=leakage)


def _recorded(plan: Plan, directory: RunDirectory, workers: int | None, ledger: Path | None) -> Generator[Run]:
    """The same, with every round recorded in the directory."""
    run = Run.begin(plan, _start(plan, directory), directory.history, directory.path)
    try:
        where, name = ledger or directory.ledger_for(plan.method), directory.manifest.run
        with open_charges(plan, run.history, where, name) as charges:
            run = replace(run, charges=charges)
            for step in _steps(run, workers, _key_source(plan, directory.ratchet)):
                if step.state is not run.state:
                    directory.record(step.state, step.history[-1])
                run = step  # only now: a state is written only after the round that led to it
                yield run
            directory.finish(run.state, _tensors(run.models), run.leakage)
    except (KeyboardInterrupt, GeneratorExit):
        directory.stop(run.state, "interrupted", run.leakage)
        raise
    except Exception:
        _give_up(directory, run)
        raise


def _start(plan: Plan, directory: RunDirectory) -> State:
    """The state to start from; a run that cannot start leaves no files."""
    if directory.state is not None:
        _check_fits(plan, directory)
        return directory.state
    try:
        return plan.simulation.initial_state
    except BaseException:
        directory.discard()
        raise


def _check_fits(plan: Plan, directory: RunDirectory) -> None:
    """Raise `RunError` if the checkpoint is that of another model, whatever the manifest says."""
    assert directory.state is not None, "the run is resumed"
    dim, models, found = plan.simulation.layout.dim, plan.method.aggregator.models, directory.state.weights
    expected = (dim,) if models == 1 else (models, dim)
    if tuple(found.shape) != expected or not found.is_floating_point() or not bool(torch.isfinite(found).all()):
        raise RunError(
            f"Expected finite weights of shape {expected} in the checkpoint of {directory.path}, got {found.dtype} of "
            f"shape {tuple(found.shape)}. It is that of another run. Start a new run."
        )


def _give_up(directory: RunDirectory, run: Run) -> None:
    """A run that failed in its first round leaves no files; any other can be resumed from its last round."""
    if run.state.round == 0:
        directory.discard()
        return
    with suppress(StorageError):
        directory.stop(run.state, "failed", run.leakage)


def _tensors(models: tuple[nn.Module, ...]) -> dict[str, Tensor]:
    """The named tensors of a model; of several models, each name is prefixed by the model's number."""
    return models[0].state_dict() if len(models) == 1 else nn.ModuleList(models).state_dict()
