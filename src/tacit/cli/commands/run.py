"""`tacit run`: start or resume runs, and print a table of the results."""

import argparse
from itertools import count
from pathlib import Path

from tacit.cli._progress import follow_to_end
from tacit.cli._results import show
from tacit.cli.commands._logs import find_logs
from tacit.core.discovery import file_reference
from tacit.errors import RunError
from tacit.runs.directory import MANIFEST, check_free, read_manifest
from tacit.runs.experiment import Experiment
from tacit.runs.round_logs import log_rounds
from tacit.runs.run import Run, RunSpec
from tacit.runs.training import follow


def run(args: argparse.Namespace) -> int:
    """Start the experiments, or resume a run."""
    for log in find_logs(args.log):
        log.validate(Path())  # before data are read
    return show([_resume(args)] if args.resume else _start(args), args)


def _start(args: argparse.Namespace) -> list[Run]:
    """One run per method and seed, all on the same data."""
    experiments: list[Experiment] = args.experiments
    task = experiments[0].build_task()
    trials = [(experiment, experiment.build_method(), seed) for experiment in experiments for seed in experiment.seeds]
    directories = [_directory(args.out, experiment, seed, methods=len(experiments)) for experiment, _, seed in trials]
    for directory in directories:
        check_free(directory)
    runs = []
    for (experiment, method, seed), directory in zip(trials, directories, strict=True):
        spec = RunSpec(
            method=method,
            task=task,
            seed=seed,
            device=args.device or "cpu",
            evaluate_every=1 if args.evaluate_every is None else args.evaluate_every,
            randomness=experiment.randomness,
            waves=args.waves or "fitting",
            args=experiment.convert_args(),
            task_args=experiment.convert_task_args(),
        )
        runs.append(_execute(spec, directory, args, resume=False))
    return runs


def _resume(args: argparse.Namespace) -> Run:
    """Resume the run in a directory, from its manifest."""
    manifest = read_manifest(args.resume)
    manifest.check_versions(args.resume)
    if manifest.method.args is None or manifest.task.args is None:
        raise RunError(
            f"The run in {args.resume} was started from Python. Resume it there, with tacit.train(resume=True)."
        )
    experiment = Experiment(
        method=manifest.method.name,
        task=manifest.task.name,
        args=manifest.method.args,
        task_args=manifest.task.args,
        named_in=str(args.resume / MANIFEST),
        method_named_in=str(args.resume / MANIFEST),
    ).with_trust(args.trust)
    spec = RunSpec(
        method=experiment.build_method(),
        task=experiment.build_task(),
        seed=manifest.seed,
        device=manifest.device,
        evaluate_every=manifest.evaluate_every,
        randomness=manifest.randomness,
        waves=manifest.waves,
        args=experiment.args,
        task_args=experiment.task_args,
    )
    return _execute(spec, args.resume, args, resume=True)


def _execute(spec: RunSpec, directory: Path, args: argparse.Namespace, *, resume: bool) -> Run:
    steps = follow(spec, workers=args.workers, out=directory, resume=resume, ledger=args.ledger)
    steps = log_rounds(steps, find_logs(args.log), directory)
    code = file_reference(spec.task.name, "task") or file_reference(spec.method.name, "method")
    options = " --trust" * bool(code) + "".join(f" --log {name}" for name in args.log)
    return follow_to_end(steps, spec, directory, f"tacit run --resume {directory}{options}")


def _directory(out: Path | None, experiment: Experiment, seed: int, *, methods: int) -> Path:
    """The run's directory: `--out`, with one below it per method and seed if there are several, or an unused name."""
    if out is not None:
        below = out / experiment.method.rpartition(":")[2] if methods > 1 else out
        return below / f"seed-{seed}" if len(experiment.seeds) > 1 else below
    method, task = (name.rpartition(":")[2] for name in (experiment.method, experiment.task))  # of FILE.py:FUNCTION
    first = Path("runs") / f"{method}-{task}-{seed}"
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())
