"""Train a model with a method, or go on with a run.

The method is named, or described together with its task in an experiment's TOML file. Results lie in the run's
directory: manifest.json, rounds.jsonl, checkpoint.safetensors and model.safetensors.

Examples:
  tacit run fedavg                                      on the embedded digits, 100 clients
  tacit run fl-std --task fashion-mnist --rounds 5 --set lr=0.1 --seed 3 --workers 2
  tacit run fedavg --set cohort=10 epochs=1 --task-set partition=shards --out runs/shards
  tacit run fl-top --task mine.py:hospitals             your own data: a function that returns a tacit.Task
  tacit run experiment.toml
  tacit run --resume runs/fedavg-digits-0               after Ctrl-C, a crash or a kill
  tacit run geyer --set epsilon=8 delta=1e-3            stops when the privacy budget is spent
  tacit run fl-top --set ratio=0.005                    few of the weights are ever trained or sent
  tacit run fl-top-dp --set ratio=0.005 epsilon=1 delta=1e-5 --task fashion-mnist --rounds 200
  tacit run esmfl --set compression=87                  clients train towards few weights, and send only these
  tacit run fl-std fl-top-dp --set ratio=0.1            side by side; an option goes to those that have it
  tacit run nbafl --set epsilon=1 delta=0.01            on its paper's task; --task mnist --task-set says otherwise
  tacit run ifca-dp --set models=2 noise=5 limit=2 --task synthetic    a model per group, d-privacy per client

An experiment's file:
  method = "fl-std"
  task = "fashion-mnist"
  seeds = [0, 1, 2]
  [args]
  rounds = 50
  [task-args]
  clients = 6000
"""

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._options import add_options, to_dict
from tacit.cli._text import aligned, figures
from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.runs.experiment import Experiment
    from tacit.runs.run import Plan, Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", nargs="*", metavar="METHOD|FILE.toml", help="methods, or an experiment's file")
    parser.add_argument("--resume", metavar="RUN", type=Path, help="go on with the run in this directory")
    parser.add_argument(
        "--task", help="what to learn: of tacit data list, or FILE.py:FUNCTION (default: digits, or the method's own)"
    )
    parser.add_argument("--rounds", metavar="N", help="how many rounds; short for --set rounds=N")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--seed", type=int, help="of everything random (default: 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes; the result does not depend on it")
    parser.add_argument("--device", help="where to compute (default: cpu)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's directory (default: one below runs/)")
    parser.add_argument("--evaluate-every", type=int, metavar="N", help="measure every N rounds (default: 1)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several runs charge")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Run what was asked for, and print a table of it."""
    runs = [_resume(args)] if args.resume else _start(args)
    if args.json:
        print(json.dumps({"runs": [_summary(done) for done in runs]}, indent=2, allow_nan=False))
        return 0
    print("\n".join(aligned(_table(runs))))
    print(*(line for done in runs for line in _notes(done, alone=len(runs) == 1)), sep="\n")
    print(*(f"Results: {done.directory}" for done in runs), sep="\n")
    return 0


def _start(args: argparse.Namespace) -> "list[Run]":
    """One run per method and seed, all on the same data."""
    from tacit.runs.directory import check_free
    from tacit.runs.run import Plan

    experiments = _experiments(args)
    task = experiments[0].build_task()
    trials = [(experiment, experiment.build_method(), seed) for experiment in experiments for seed in experiment.seeds]
    places = [_place(args.out, experiment, seed, methods=len(experiments)) for experiment, _, seed in trials]
    for place in places:
        check_free(place)
    runs = []
    for (experiment, method, seed), place in zip(trials, places, strict=True):
        plan = Plan(
            method=method,
            task=task,
            seed=seed,
            device=args.device or "cpu",
            evaluate_every=1 if args.evaluate_every is None else args.evaluate_every,
            args=experiment.typed_args(),
            task_args=experiment.typed_task_args(),
        )
        runs.append(_watch(plan, place, args, resume=False))
    return runs


def _experiments(args: argparse.Namespace) -> "list[Experiment]":
    """What the file or the methods' names say, and over it what the command line says; the first one's task for all."""
    from tacit import methods
    from tacit.errors import UserError
    from tacit.runs.experiment import Experiment, default_task_args, read, shared_out

    if not args.what:
        raise UserError("Expected a method's name, an experiment's file, or --resume RUN. See tacit run --help.")
    files = [what for what in args.what if what.endswith(".toml")]
    if files and len(args.what) > 1:
        raise UserError(f"Expected {files[0]} to stand alone: an experiment's file has its own task.")
    default_task = methods.default_task(args.what[0]) if not files else methods.DefaultTask()
    bases = [read(Path(what)) if files else Experiment(method=what, task=default_task.task) for what in args.what]
    given = {**to_dict(args.set), **({} if args.rounds is None else {"rounds": args.rounds})}
    return [
        replace(
            base,
            task=args.task or base.task,
            args={**base.args, **own},
            task_args={
                **base.task_args,
                **default_task_args(default_task, args.task or base.task),
                **to_dict(args.task_set),
            },
            seeds=base.seeds if args.seed is None else (args.seed,),
        )
        for base, own in zip(bases, shared_out(given, [base.method for base in bases]), strict=True)
    ]


def _resume(args: argparse.Namespace) -> "Run":
    """The run in a directory, made again from its manifest."""
    from tacit.errors import RunError
    from tacit.runs.directory import read_manifest
    from tacit.runs.experiment import Experiment
    from tacit.runs.run import Plan

    _check_alone(args)
    manifest = read_manifest(args.resume)
    manifest.check_versions(args.resume)
    if manifest.method.args is None or manifest.task.args is None:
        raise RunError(f"The run in {args.resume} was started from Python. Go on there, with tacit.train(resume=True).")
    made = Experiment(
        method=manifest.method.name,
        task=manifest.task.name,
        args=manifest.method.args,
        task_args=manifest.task.args,
    )
    plan = Plan(
        method=made.build_method(),
        task=made.build_task(),
        seed=manifest.seed,
        device=manifest.device,
        evaluate_every=manifest.evaluate_every,
        args=made.args,
        task_args=made.task_args,
    )
    return _watch(plan, args.resume, args, resume=True)


def _check_alone(args: argparse.Namespace) -> None:
    """A resumed run is the same run: only what does not change the result may be given."""
    from tacit.errors import UserError

    names = ("what", "task", "rounds", "set", "task_set", "seed", "device", "out", "evaluate_every")
    given = [name for name in names if getattr(args, name) not in (None, [])]
    if given:
        flag = args.what[0] if given[0] == "what" else "--" + given[0].replace("_", "-")
        raise UserError(f"Expected --resume to stand without {flag}: a run goes on as it began.")


def _watch(plan: "Plan", directory: Path, args: argparse.Namespace, *, resume: bool) -> "Run":
    """Show the run while it goes; an interrupt says how to go on."""
    from tacit.cli._progress import shown
    from tacit.runs.training import follow

    steps = follow(plan, workers=args.workers, out=directory, resume=resume, ledger=args.ledger)
    latest: Run | None = None
    try:
        with closing(steps):
            for step in shown(steps, plan.method.name):
                if latest is None:
                    _warn(step)
                latest = step
    except KeyboardInterrupt:
        done = f" after {latest.state.round} of {plan.method.rounds} rounds" if latest else ""
        raise KeyboardInterrupt(f"Interrupted{done}. Go on with: tacit run --resume {directory}") from None
    assert latest is not None  # follow yields the run as it starts
    return latest


def _warn(run: "Run") -> None:
    """Say at the start what would be a pity to learn at the end."""
    if run.plan.method.channel.caveat:
        print(f"Warning: {run.plan.method.channel.caveat}", file=sys.stderr)
    if run.charges is not None:
        from tacit.privacy.accounting import weak_delta

        weak = weak_delta(run.charges.delta, run.charges.population)
        if weak:
            print(f"Warning: {weak}", file=sys.stderr)


def _place(out: Path | None, experiment: "Experiment", seed: int, *, methods: int) -> Path:
    """Where the files go: as told, below it one place per method and seed if there are several, or a free name."""
    if out is not None:
        below = out / experiment.method if methods > 1 else out
        return below / f"seed-{seed}" if len(experiment.seeds) > 1 else below
    task = experiment.task.rpartition(":")[2]  # of FILE.py:FUNCTION
    first = Path("runs") / f"{experiment.method}-{task}-{seed}"
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())


def _summary(run: "Run") -> dict[str, object]:
    return {
        "method": run.plan.method.name,
        "task": run.plan.task.name,
        "seed": run.plan.seed,
        "rounds": run.state.round,
        "metrics": {name: value if abs(value) < float("inf") else None for name, value in run.metrics.items()},
        "bytes": {"up": run.bytes.up, "down": run.bytes.down, "phases": _phases(run)},
        "savings": {"up": run.savings.up, "down": run.savings.down},
        "sparsity": {name: asdict(layer) for name, layer in run.sparsity.items()},
        "privacy": _spent(run),
        "leakage": None if run.leakage is None else run.leakage.to_json(),
        "seconds": run.seconds,
        "parts": run.parts,
        "directory": str(run.directory),
        **({"caveat": run.plan.method.channel.caveat} if run.plan.method.channel.caveat else {}),
    }


def _notes(run: "Run", *, alone: bool) -> list[str]:
    """What a person should know beside the table."""
    return _sparsity(run, alone=alone) + _privacy(run, alone=alone) + _overhead(run) + _parts(run)


def _sparsity(run: "Run", *, alone: bool) -> list[str]:
    """Layer by layer, what a pruning method leaves."""
    whose = "" if alone else f" of {run.plan.method.name}"
    return [
        f"Sparsity{whose}: of {name}'s {layer.weights} weights clients send {layer.sent} "
        f"({1 - layer.sent / layer.weights:.2%} zeros), the model has {layer.held}."
        for name, layer in run.sparsity.items()
    ]


def _spent(run: "Run") -> dict[str, object]:
    """The guarantee, and of a run with a budget how far it is used up."""
    nominal = run.plan.manifest.method.nominal
    told = run.privacy.to_json() | ({"nominal": dict(nominal)} if nominal else {})
    charges = run.charges
    if charges is None:
        return told
    accounted = {"nominal_epsilon": charges.epsilon, "at_delta": charges.delta}
    left = {"delta_at_budget": charges.delta_at_budget, "rounds_left": run.plan.method.rounds - run.state.round}
    return {**told, **accounted, **left}


def _phases(run: "Run") -> dict[str, dict[str, int]]:
    """Bytes of the channel's own protocol."""
    return {name: {"up": taken.up, "down": taken.down} for name, taken in run.bytes.phases.items()}


def _overhead(run: "Run") -> list[str]:
    """What the channel's own protocol took beside rows and views, and in which phases."""
    book, method = run.bytes, run.plan.method
    if not book.phases:
        return []
    whole = book.overhead.up + book.overhead.down
    share = whole / max(book.up + book.down - whole, 1)
    parts = ", ".join(f"{name} {size(taken.up + taken.down)}" for name, taken in book.phases.items())
    channel = type(method.channel).__name__
    return [f"Of these bytes {channel} took {size(whole)}, {share:.2f} of what it carried: {parts}.", *_rounding(run)]


def _parts(run: "Run") -> list[str]:
    """How long each part took, where the channel measured it."""
    told = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in run.parts.items())
    return [f"Time by part: {told}."] if told else []


def _rounding(run: "Run") -> list[str]:
    """What sums of integers cost in accuracy."""
    step, bits = run.history[-1].step if run.history else None, run.plan.method.channel.bits
    if step is None:
        return []
    noise = f", which lengthens bounds, and with them the noise, by {step.inflation:.2%}" if step.inflation else ""
    return [f"Sums are of integers modulo 2^{bits}: numbers were rounded to multiples of {step.size:.2g}{noise}."]


def _privacy(run: "Run", *, alone: bool) -> list[str]:
    """What a person should know about the run's privacy."""
    charges, method = run.charges, run.plan.method
    lines = [f"Guarantee{'' if alone else f' of {method.name}'}: {run.privacy}"]
    lines += figures(run.plan.manifest.method.nominal)
    if charges is not None and method.budget is not None:
        lines.append(
            f"Spent: ε = {charges.epsilon:.4g} at δ = {charges.delta:g}, or δ = {charges.delta_at_budget:.3g} at "
            f"ε = {method.budget.epsilon:g}, in {run.state.round} rounds."
        )
        if run.state.round < method.rounds:
            lines.append(f"The budget allows no further round; {method.rounds - run.state.round} more were planned.")
    return [*lines, *_ended(run)]


def _ended(run: "Run") -> list[str]:
    """Why a run stopped before its last round, if held-out clients or the clients themselves wanted it."""
    method, book = run.plan.method, run.leakage
    lines = []
    if book is not None and book.limit is not None:
        lines.append(f"Clients declined {book.declined} times to leak more than {book.limit:g}.")
    if run.state.round < method.rounds and book is not None and book.exhausted:
        lines.append(f"Every client would decline; {method.rounds - run.state.round} more rounds were planned.")
    elif run.state.round < method.rounds and method.patience is not None:
        lines.append(f"Stopped: no smaller loss on held-out data in {method.patience} measurements; the best is kept.")
    return lines


def _table(runs: "list[Run]") -> list[list[str]]:
    """The finished runs side by side, under a line of names."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    leaking = ["leakage"] * any(run.leakage is not None for run in runs)
    lines = [["method", "task", "seed", "rounds", *names, "ε", *leaking, "up", "down", "seconds"]]
    for run in runs:
        head = [run.plan.method.name, run.plan.task.name, str(run.plan.seed), str(run.state.round)]
        metrics = [f"{run.metrics[name]:.4f}" if name in run.metrics else "" for name in names]
        epsilon = "-" if run.charges is None else f"{run.charges.epsilon:.3g}"
        leaked = ["-" if run.leakage is None else f"{run.leakage.most:.3g}"] * bool(leaking)
        lines.append([*head, *metrics, epsilon, *leaked, *_travelled(run), f"{run.seconds:.1f}"])
    return lines


def _travelled(run: "Run") -> list[str]:
    """Bytes up and down, where they are fewer than FL-STD's with the factor: it sends whole models both ways."""
    pairs = ((run.bytes.up, run.savings.up), (run.bytes.down, run.savings.down))
    return [size(taken) + (f" (FL-STD / {factor:.1f})" if factor > 1.05 else "") for taken, factor in pairs]
