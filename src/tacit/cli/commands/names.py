"""Validation before PyTorch is imported: names of methods and tasks, their arguments, and installed extras."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tacit import methods
from tacit.cli.parsers._options import TABLE_OPTIONS
from tacit.errors import UserError, expect
from tacit.runs.experiment import Experiment, default_task_args, read, split_args

_CHANGING = ("set", "task_set", "seed", "randomness", "device", "out", "evaluate_every")
_KEPT = ("what", "task", *TABLE_OPTIONS, *_CHANGING)  # by a resumed run: options that could change its result


def method(args: argparse.Namespace) -> None:
    """Raise `UserError` if a method or one of its arguments does not exist."""
    methods.validate(args.method, dict(args.set))


def enclave_method(args: argparse.Namespace) -> None:
    """The same for the method of an enclave, unless a plan names it."""
    if args.plan is None:
        expect(args.method is not None and args.population is not None, "a method and --population, or --plan")
        method(args)


def experiment(args: argparse.Namespace) -> None:
    """Set `args.experiment` to a method on a task, with validated names."""
    args.experiment = Experiment(method=args.method, task=args.task, args=dict(args.set), task_args=dict(args.task_set))
    args.experiment.check_names()


def experiments(args: argparse.Namespace) -> None:
    """Set `args.experiments` to those of a file or of methods; a resumed run keeps its own."""
    if args.resume is not None:
        _check_resume_alone(args)
        return
    args.experiments = _experiments(args)
    for each in args.experiments:
        each.check_names()


def grpc(_: argparse.Namespace) -> None:
    """Raise `UserError` unless gRPC is installed."""
    if find_spec("grpc") is None:
        raise UserError("Expected gRPC, which a federation needs. Install it with: pip install 'tacit-fl[federation]'.")


def optuna(_: argparse.Namespace) -> None:
    """Raise `UserError` unless Optuna is installed."""
    if find_spec("optuna") is None:
        raise UserError("Expected Optuna, which a sweep needs. Install it with: pip install 'tacit-fl[sweep]'.")


def _check_resume_alone(args: argparse.Namespace) -> None:
    """Raise `UserError` for options that would change the result of a resumed run."""
    conflicts = [name for name in _KEPT if getattr(args, name) not in (None, [])]
    if conflicts:
        flag = args.what[0] if conflicts[0] == "what" else "--" + conflicts[0].replace("_", "-")
        flag = "--rounds" if conflicts[0] == "set" and dict(args.set).keys() == {"rounds"} else flag
        raise UserError(f"Expected --resume without {flag}: a resumed run keeps its method, task and options.")


def _experiments(args: argparse.Namespace) -> list[Experiment]:
    """The experiments of the file or of the methods, as the command line changes them; all on the first one's task."""
    table = _table_args(args)
    task = "table" if table else args.task
    bases, default_task = _bases(args.what)
    bases = [base.with_trust(args.trust) for base in bases]
    for base in bases:
        base.check_trust()
    variants = []
    for base, own in zip(bases, split_args(dict(args.set), [base.method for base in bases]), strict=True):
        default_args = default_task_args(default_task, task or base.task)
        changed = replace(
            base,
            task=task or base.task,
            args={**base.args, **own},
            task_args={**base.task_args, **default_args, **table, **dict(args.task_set)},
            seeds=base.seeds if args.seed is None else (args.seed,),
            randomness=args.randomness or base.randomness,
            named_in="" if task else base.named_in,
        )
        variants.append(changed)
    return variants


def _bases(given: Sequence[str]) -> tuple[list[Experiment], methods.DefaultTask]:
    """The named experiments, and the default task of the first method."""
    if not given:
        raise UserError("Expected a method's name, an experiment file, or --resume RUN. See tacit run --help.")
    files = [what for what in given if what.endswith(".toml")]
    if files and len(given) > 1:
        raise UserError(f"Expected {files[0]} to be the only argument: an experiment file has its own task.")
    if files:
        return [read(Path(files[0]))], methods.DefaultTask()
    default_task = methods.default_task(given[0])
    return [Experiment(method=name, task=default_task.task) for name in given], default_task


def _table_args(args: argparse.Namespace) -> dict[str, str]:
    """The arguments of the task `table` from the options; empty: there is no table."""
    options = {name: getattr(args, name) for name in TABLE_OPTIONS if getattr(args, name)}
    if options and args.data is None:
        raise UserError(f"Expected --data FILE with --{next(iter(options))}: it is a column of your own table.")
    if options and args.task is not None:
        raise UserError("Expected either --data or --task: a table is a task of its own.")
    return {**options, **({"drop": ",".join(args.drop)} if args.drop else {})}
