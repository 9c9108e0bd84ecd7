"""Train a model with one or more methods, or resume a run.

A method is given by name, or in an experiment file (TOML) together with its task and seeds. Each run writes a directory
with manifest.json, rounds.jsonl, rounds.csv, checkpoint.safetensors and model.safetensors.

Examples:
  tacit run fedavg                                      the embedded digits, 100 clients
  tacit run fl-std --task fashion-mnist --rounds 5 --set descent.lr=0.1 cohort=20 --seed 3 --workers 2
  tacit run fedavg --set cohort=10 epochs=1 --task-set partition=shards --out runs/shards
  tacit run fl-std-dp --data patients.csv --client hospital --target died    your own table, one row per patient
  tacit run fedavg --data hospitals/ --target died --drop name               a folder with one CSV or Parquet file each
  tacit run mine.py:fedprox                             your own method: a function that returns a tacit.Method
  tacit run fl-top --task mine.py:hospitals             your own data: a function that returns a tacit.Task
  tacit run experiment.toml                             an experiment described in a file
  tacit run --resume runs/fedavg-digits-0               continue after Ctrl-C, a crash or a kill
  tacit run --resume runs/fl-top-hospitals-0 --trust    the same, for a task of your own Python file
  tacit run geyer --set epsilon=8 delta=1e-3            stops when the privacy budget is used up
  tacit run geyer --noise seeded --seed 1               a simulation that can be repeated: noise from the seed
  tacit run fl-top --set ratio=0.005                    train and send only 0.5 % of the weights
  tacit run fl-top-dp --set ratio=0.005 epsilon=1 delta=1e-5 --task fashion-mnist --rounds 200
  tacit run esmfl --set compression=87                  clients prune the model and send only the remaining weights
  tacit run fl-std fl-top-dp --set ratio=0.1            compare methods; an option applies to the methods that have it
  tacit run nbafl --set epsilon=1 delta=0.01            on the task of its paper, unless --task names another
  tacit run ifca-dp --set models=2 noise=5 limit=2 --task synthetic    one model per group, d-privacy per client
  tacit run fedavg --log tensorboard --log mlflow       needs pip install 'tacit[tensorboard,mlflow]'

An experiment file:
  method = "fl-std"
  task = "fashion-mnist"
  seeds = [0, 1, 2]
  [args]
  rounds = 50
  [task-args]
  clients = 6000
"""

import argparse
import sys
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, add_table, add_trust, add_workers, table_args, to_dict
from tacit.cli._logs import add_logs, find_logs
from tacit.cli._results import show

if TYPE_CHECKING:
    from collections.abc import Generator

    from tacit.runs.experiment import Experiment
    from tacit.runs.records import Plan, Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "what", nargs="*", metavar="METHOD|FILE.toml", help="methods by name or as FILE.py:FUNCTION, or a file"
    )
    parser.add_argument("--resume", metavar="RUN", type=Path, help="continue the run in this directory")
    parser.add_argument(
        "--task",
        help="a task of `tacit data list`, or FILE.py:FUNCTION (default: the method's default task, usually digits)",
    )
    parser.add_argument("--rounds", metavar="N", help="number of rounds; short for --set rounds=N")
    add_options(parser, "--set", "method; tacit card METHOD lists them")
    add_options(parser, "--task-set", "task")
    add_table(parser)
    parser.add_argument("--seed", type=int, help="seed of what may be public: initial weights, masks (default: 0)")
    parser.add_argument(
        "--noise",
        choices=("secret", "seeded"),
        help="secret: a fresh key for every run (default); seeded: cohorts and noise follow from the seed",
    )
    add_workers(parser, "worker processes; they do not change the result")
    parser.add_argument("--device", help="the PyTorch device (default: cpu; no other has been tested)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (default: a new one in runs/)")
    parser.add_argument("--evaluate-every", type=int, metavar="N", help="evaluate every N rounds (default: 1)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several runs may share")
    add_logs(parser)
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Start or resume runs, and print a table of the results."""
    return show([_resume(args)] if args.resume else _start(args), as_json=args.json)


def _start(args: argparse.Namespace) -> "list[Run]":
    """One run per method and seed, all on the same data."""
    experiments = _experiments(args)
    for experiment in experiments:
        experiment.check_names()  # before PyTorch is imported
    _check_logs(args)

    from tacit.runs.directory import check_free
    from tacit.runs.records import Plan

    task = experiments[0].build_task()
    trials = [(experiment, experiment.build_method(), seed) for experiment in experiments for seed in experiment.seeds]
    directories = [_directory(args.out, experiment, seed, methods=len(experiments)) for experiment, _, seed in trials]
    for directory in directories:
        check_free(directory)
    runs = []
    for (experiment, method, seed), directory in zip(trials, directories, strict=True):
        plan = Plan(
            method=method,
            task=task,
            seed=seed,
            device=args.device or "cpu",
            evaluate_every=1 if args.evaluate_every is None else args.evaluate_every,
            noise=experiment.noise,
            args=experiment.typed_args(),
            task_args=experiment.typed_task_args(),
        )
        runs.append(_execute(plan, directory, args, resume=False))
    return runs


def _experiments(args: argparse.Namespace) -> "list[Experiment]":
    """The experiments of the file or the methods' names, changed by the command line; all have the first one's task."""
    from tacit import methods
    from tacit.errors import UserError
    from tacit.runs.experiment import Experiment, default_task_args, read, split_args

    if not args.what:
        raise UserError("Expected a method's name, an experiment file, or --resume RUN. See tacit run --help.")
    files = [what for what in args.what if what.endswith(".toml")]
    if files and len(args.what) > 1:
        raise UserError(f"Expected {files[0]} to be the only argument: an experiment file has its own task.")
    given_table = table_args(args)
    task = "table" if given_table else args.task
    default_task = methods.default_task(args.what[0]) if not files else methods.DefaultTask()
    bases = [read(Path(what)) if files else Experiment(method=what, task=default_task.task) for what in args.what]
    for base in bases:
        replace(base, method_named_in="" if args.trust else base.method_named_in).check_trust()
    given = {**to_dict(args.set), **({} if args.rounds is None else {"rounds": args.rounds})}
    return [
        replace(
            base,
            task=task or base.task,
            args={**base.args, **own},
            task_args={
                **base.task_args,
                **default_task_args(default_task, task or base.task),
                **given_table,
                **to_dict(args.task_set),
            },
            seeds=base.seeds if args.seed is None else (args.seed,),
            noise=args.noise or base.noise,
            named_in="" if task or args.trust else base.named_in,
            method_named_in="" if args.trust else base.method_named_in,
        )
        for base, own in zip(bases, split_args(given, [base.method for base in bases]), strict=True)
    ]


def _resume(args: argparse.Namespace) -> "Run":
    """Continue the run in a directory, rebuilt from its manifest."""
    _check_resume_alone(args)
    _check_logs(args)

    from tacit.errors import RunError
    from tacit.runs.directory import MANIFEST, read_manifest
    from tacit.runs.experiment import Experiment
    from tacit.runs.records import Plan

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
        named_in="" if args.trust else str(args.resume / MANIFEST),
        method_named_in="" if args.trust else str(args.resume / MANIFEST),
    )
    plan = Plan(
        method=experiment.build_method(),
        task=experiment.build_task(),
        seed=manifest.seed,
        device=manifest.device,
        evaluate_every=manifest.evaluate_every,
        noise=manifest.noise,
        args=experiment.args,
        task_args=experiment.task_args,
    )
    return _execute(plan, args.resume, args, resume=True)


def _check_resume_alone(args: argparse.Namespace) -> None:
    """A resumed run is the same run: only options that do not change the result are allowed."""
    from tacit.errors import UserError

    names = (
        "what",
        "task",
        "data",
        "client",
        "target",
        "drop",
        "public",
        "rounds",
        "set",
        "task_set",
        "seed",
        "noise",
        "device",
        "out",
        "evaluate_every",
    )
    given = [name for name in names if getattr(args, name) not in (None, [])]
    if given:
        flag = args.what[0] if given[0] == "what" else "--" + given[0].replace("_", "-")
        raise UserError(f"Expected --resume without {flag}: a resumed run keeps its method, task and options.")


def _check_logs(args: argparse.Namespace) -> None:
    """Raise `UserError` if a log cannot be written, before data are read."""
    for log in find_logs(args.log):
        log.check(Path())


def _execute(plan: "Plan", directory: Path, args: argparse.Namespace, *, resume: bool) -> "Run":
    from tacit.core.discovery import file_reference
    from tacit.runs.round_logs import logged
    from tacit.runs.training import follow

    steps = follow(plan, workers=args.workers, out=directory, resume=resume, ledger=args.ledger)
    steps = logged(steps, find_logs(args.log), directory)
    code = file_reference(plan.task.name, "task") or file_reference(plan.method.name, "method")
    options = " --trust" * bool(code) + "".join(f" --log {name}" for name in args.log)
    return follow_to_end(steps, plan, directory, f"tacit run --resume {directory}{options}")


def follow_to_end(steps: "Generator[Run]", plan: "Plan", directory: Path, command: str) -> "Run":
    """Run to the end with a progress display; an interrupt prints the command that resumes."""
    from tacit.cli._console import track_run

    latest: Run | None = None
    try:
        with closing(steps):
            for step in track_run(steps, plan.method.name):
                if latest is None:
                    _warn(step)
                latest = step
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(plan, directory, command)) from None
    assert latest is not None  # a run is yielded as it starts
    return latest


def _interrupted(plan: "Plan", directory: Path, command: str) -> str:
    """How far an interrupted run came, and how to resume it; a run that has not started yet leaves no files."""
    from tacit.runs import checkpoint
    from tacit.runs.directory import CHECKPOINT, MANIFEST

    if not (directory / MANIFEST).exists():
        return "Interrupted before the first round. Nothing was written."
    state = checkpoint.read(directory / CHECKPOINT)  # the interrupt may have come after the last step was shown
    done = f" after {state.round} of {plan.method.rounds} rounds" if state else ""
    return f"Interrupted{done}. Resume with: {command}"


def _warn(run: "Run") -> None:
    """Print notes and warnings before the first round, while stopping still costs nothing."""
    if run.state.round == 0:
        print(*run.plan.task.notes, sep="\n", end="\n" if run.plan.task.notes else "", file=sys.stderr)
    if run.plan.method.channel.caveat:
        print(f"Warning: {run.plan.method.channel.caveat}", file=sys.stderr)
    if run.charges is not None:
        from tacit.privacy.guarantee import delta_warning

        weak = delta_warning(run.charges.delta, run.charges.population)
        if weak:
            print(f"Warning: {weak}", file=sys.stderr)
    if run.record_charges is not None:
        from tacit.privacy.guarantee import delta_warning

        weak = delta_warning(run.record_charges.delta, sum(run.record_charges.units.sizes), run.record_charges.unit)
        if weak:
            print(f"Warning: {weak}", file=sys.stderr)


def _directory(out: Path | None, experiment: "Experiment", seed: int, *, methods: int) -> Path:
    """The run's directory: `--out`, with one below it per method and seed if there are several, or an unused name."""
    if out is not None:
        below = out / experiment.method.rpartition(":")[2] if methods > 1 else out
        return below / f"seed-{seed}" if len(experiment.seeds) > 1 else below
    method, task = (name.rpartition(":")[2] for name in (experiment.method, experiment.task))  # of FILE.py:FUNCTION
    first = Path("runs") / f"{method}-{task}-{seed}"
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())
