"""Training with files: the charged rounds of a run, each written to its directory, and a `Run` after every round.

`train` returns the last one; the command shows each of them as it comes.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import torch
from torch import nn

from tacit.core import Method, Randomness, Report, State, files
from tacit.core.prices import NO_LIMIT
from tacit.core.worker_choice import Waves, Workers
from tacit.data import Task
from tacit.errors import RunError, StorageError, UserError, expect
from tacit.runs.directory import TABLE, RunDirectory
from tacit.runs.presentation import in_notebook, show_progress
from tacit.runs.round_logs import RoundLog, log_rounds, rounds_csv
from tacit.runs.rounds import (
    RoundSource,
    Simulated,
    make_manifest,
    new_ratchet,
    open_charges,
    play_rounds,
    run_without_files,
)
from tacit.runs.run import Run, RunSpec


def train(
    method: Method,
    task: Task,
    *,
    seed: int = 0,
    workers: Workers = None,
    device: str = "cpu",
    evaluate_every: int = 1,
    out: Path | str | None = None,
    resume: bool = False,
    ledger: Path | str | None = None,
    randomness: Randomness = "secret",
    waves: Waves = "fitting",
    on_round: Callable[[State, Report], object] | None = None,
    logs: Sequence[RoundLog] = (),
    progress: bool | None = None,
) -> Run:
    """Train a task's model with a method, for the method's number of rounds.

    Args:
        method: what clients and server do, and for how many rounds; noise that is not given follows from its budget.
        task: the model and the data.
        seed: decides what may be public: initial weights, masks, what is learnt from public data.
        workers: worker processes; None: one per processor; `ray`, `ray:4`, `ray://host:port`: actors of a Ray cluster.
        device: where to compute: `cpu`, or an accelerator's name, which is passed to PyTorch and has not been tested.
        evaluate_every: evaluate on held-out data every `n` rounds; the last round is always evaluated.
        out: the run's directory, for its manifest, rounds, checkpoint and model; None: no files.
        resume: continue the run that an interrupted call left in `out`.
        ledger: a privacy ledger that several runs on the same data charge; None: a ledger of the run's own in `out`.
        randomness: `secret`: cohorts, batches and noise come from a fresh key of the operating system; `seeded`: they
            derive from the seed, and equal seeds give bitwise equal results, for any number of workers. Whoever knows
            the seed can then subtract the noise, and the guarantee says so.
        waves: `fitting`: clients are trained together, in waves that fit the cache; `single`: one at a time, as at
            sites, which is slower and ends bitwise where a federation with the same secrets ends.
        on_round: called with the state and the report after every round; if it returns True, training stops there, and
            can be resumed. No guarantee covers what it decides by the clients' data.
        logs: where every round is written, too: `TensorBoardLog()`, `MlflowLog()`, or your own. A log that fails gives
            a warning, and training goes on.
        progress: whether to write the progress to standard error; None: in a notebook.

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
    expect(on_round is None or callable(on_round), f"on_round to be a function of state and report, got {on_round!r}")
    spec = RunSpec(
        method=method,
        task=task,
        seed=seed,
        device=device,
        evaluate_every=evaluate_every,
        randomness=randomness,
        waves=waves,
    )
    directory, shared = (None if path is None else Path(path) for path in (out, ledger))
    follower = follow(spec, workers=workers, out=directory, resume=resume, ledger=shared)
    shown = show_progress(follower) if (in_notebook() if progress is None else progress) else follower
    with closing(log_rounds(shown, logs, directory)) as steps:
        if on_round is None:
            (run,) = deque(steps, maxlen=1)
            return run
        return _until(steps, on_round)


def _until(steps: Generator[Run], on_round: Callable[[State, Report], object]) -> Run:
    """The run after its last round, or after that for which the function returned True."""
    run = next(steps)
    for run in steps:
        if not run.diverged and on_round(run.state, run.history[-1]) is True:
            break
    return run


def follow(
    spec: RunSpec,
    *,
    workers: Workers = None,
    out: Path | None = None,
    resume: bool = False,
    ledger: Path | None = None,
    source: RoundSource | None = None,
) -> Generator[Run]:
    """Run a spec; yields the run as it starts and after every round.

    Stopping early (an interrupt, or closing this generator) leaves a checkpoint in the directory.

    Args:
        spec: what is run.
        workers: those of a simulation, as in `train`.
        out: the run's directory; None: no files.
        resume: continue the run in that directory.
        ledger: a privacy ledger that several runs charge; None: a ledger of the run's own.
        source: plays the rounds; None: the spec's simulation.
    """
    source = source or Simulated(spec, workers)
    if out is None:
        if resume:
            raise UserError("Expected the directory of the run to resume. Give it as out.")
        yield from run_without_files(spec, source, ledger)
        return
    if resume:
        directory = RunDirectory.open(out)
    else:
        ratchet = new_ratchet(spec)
        directory = RunDirectory.create(out, make_manifest(spec, ratchet), ratchet, spec.task.encoding)
    with closing(directory):
        directory.manifest.check_same(spec.manifest, out)
        yield from _write_rounds(spec, directory, source, ledger)


def _write_rounds(spec: RunSpec, directory: RunDirectory, source: RoundSource, ledger: Path | None) -> Generator[Run]:
    """The same, with every round written to the directory."""
    run = Run.begin(spec, _start(spec, directory), directory.history, directory.path)
    try:
        own = directory.ledger_for(spec.method, repeats=source.checkpoints_every_round)
        name, limit = directory.manifest.run, NO_LIMIT if ledger is None else None
        with open_charges(run, ledger or own, name, directory.ledger_heads(), limit) as begun:
            run = begun
            directory.note(run.charged_ledger)
            directory.every_round = source.checkpoints_every_round
            for step in play_rounds(run, source, source.keys(directory.ratchet)):
                if step.state is not run.state:
                    directory.record(step.state, step.history[-1])
                run = step  # only now: a state is written only after the round that led to it
                yield run
            files.write(directory.path / TABLE, rounds_csv(run.history, directory.manifest.caveat), private=True)
            models = run.models[0] if len(run.models) == 1 else nn.ModuleList(run.models)  # names with its number
            directory.finish(run.state, models.state_dict(), run.leakage, run.guarantees)
    except (KeyboardInterrupt, GeneratorExit):
        directory.stop(run.state, "interrupted", run.leakage)
        raise
    except Exception:
        if run.state.round == 0:  # a run that failed in its first round leaves no files
            directory.discard()
        else:
            with suppress(StorageError):
                directory.stop(run.state, "failed", run.leakage)
        raise


def _start(spec: RunSpec, directory: RunDirectory) -> State:
    """The state to start from; a run that cannot start leaves no files."""
    if directory.state is not None:
        _check_fits(spec, directory)
        return directory.state
    try:
        return spec.simulation.initial_state
    except BaseException:
        directory.discard()
        raise


def _check_fits(spec: RunSpec, directory: RunDirectory) -> None:
    """Raise `RunError` if the checkpoint is that of another model, whatever the manifest says."""
    assert directory.state is not None, "the run is resumed"
    dim, models, weights = spec.simulation.layout.dim, spec.method.aggregator.models, directory.state.weights
    expected = (dim,) if models == 1 else (models, dim)
    if tuple(weights.shape) != expected or not weights.is_floating_point() or not bool(torch.isfinite(weights).all()):
        raise RunError(
            f"Expected finite weights of shape {expected} in the checkpoint of {directory.path}, got {weights.dtype} "
            f"of shape {tuple(weights.shape)}. It is that of another run. Start a new run."
        )
