"""Compares the models that two trees of the project train: are they bitwise the same?

In both trees one process calls `tacit run` for three rounds with every registered method, and with variants of them
(`VARIANTS`): another model, a table with mixed columns, persons, real conversations. Randomness is seeded. The tensors
of the two files `model.safetensors` of a case are compared bit by bit; the files' metadata may differ. The exit status
is 1 if any model differs. Only the command line of a tree is used, so that its modules may have moved.

Examples:
  python benchmarks/same_models.py 8524b83                        against a commit of this repository
  python benchmarks/same_models.py ../other --python ../other/.venv/bin/python --cases fl-top-dp 'dp-sgd: persons'
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from environments import source_of

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
DIGITS = ("--task", "digits")
NEEDED = {  # what a method needs to train without downloads
    "ifca": ("--task", "synthetic"),
    "ifca-dp": ("--task", "synthetic"),
    "nbafl": (*DIGITS, "--set", "samples=10"),
    "priority": (*DIGITS, "--set", "samples=10"),
}
TABLE = ("--data", "patients.csv", "--client", "hospital", "--drop", "person", "--target", "died")
PERSONS = ("--data", "patients.csv", "--client", "hospital", "--patient", "person", "--target", "died")
BUDGET = ("--set", "epsilon=8", "delta=1e-3")
VARIANTS = {
    "fedavg: convolutions": ("fedavg", "--task-set", "model=digits-sigmoid-lenet", "--set", "cohort=10"),
    "fedavg: wide layers": ("fedavg", "--task-set", "model=digits-mlp", "--set", "cohort=10"),
    "fedavg: momentum": ("fedavg", "--set", "trainer.momentum=0.9", "trainer.weight_decay=0.01"),
    "fedavg: two workers": ("fedavg", "--workers", "2"),
    "fedavg: shards": ("fedavg", "--task-set", "partition=shards"),
    "fedavg: table": ("fedavg", *TABLE),
    "fedavg: linear table": ("fedavg", *TABLE, "--task-set", "model=logistic", "split=clients"),
    "fedavg: number": ("fedavg", *PERSONS[:-1], "stay"),
    "fl-std-dp: table": ("fl-std-dp", *TABLE, *BUDGET),
    "fl-top: convolutions": ("fl-top", "--task-set", "model=digits-sigmoid-lenet", "--set", "ratio=0.1", "cohort=10"),
    "fl-top-dp: secure sum": ("fl-top-dp", *BUDGET, "cohort=20", "ratio=0.02", "channel.conversation=true"),
    "dp-sgd: table": ("dp-sgd", *TABLE),
    "dp-sgd: persons": ("dp-sgd", *PERSONS),
    "dp-sgd: convolutions": ("dp-sgd", "--task-set", "model=digits-sigmoid-lenet", "--set", "cohort=5"),
    "dp-fedsgd: persons": ("dp-fedsgd", *PERSONS, "--set", "size=30"),
    "dp-fedsgd: wide layers": ("dp-fedsgd", "--task-set", "model=digits-mlp"),
    "geyer: median clip": ("geyer", "--set", "clipping=median", "budget=none"),
    "esmfl: convolutions": ("esmfl", "--task-set", "model=digits-sigmoid-lenet", "--set", "epochs=1"),
    "esmfl: no conversation": ("esmfl", "--set", "channel.conversation=false"),
    "ifca: digits": ("ifca", "--set", "models=3"),
}
# Calls the command once for each case, in one process; -P, because the command removes the folder of a script.
RUN_ALL = """
import contextlib, io, json, runpy, sys, traceback
failures = {}
for name, arguments in json.load(sys.stdin).items():
    sys.argv = ["tacit", *arguments]
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            runpy.run_module("tacit.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            failures[name] = messages.getvalue().strip().splitlines()[-1]
    except BaseException:
        failures[name] = traceback.format_exc()
json.dump(failures, open("failures.json", "w"))
"""


def main() -> int:
    """Compare the trees, case by case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="a commit, or the folder of another tree")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the other tree (default: this)")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these methods and variants (default: all)")
    args = parser.parse_args()
    listed = json.loads(_tacit(sys.executable, ROOT, "methods", "--json"))
    every = cases([entry["name"] for entry in listed])
    if unknown := sorted({*(args.cases or ())} - {*every}):
        sys.exit(f"Expected cases of {', '.join(every)}, got {', '.join(unknown)}.")
    chosen = {name: every[name] for name in args.cases or every}
    with _tree(args.other) as other, tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("ours", "theirs")]
        running = [
            _start(python, tree, chosen, folder)
            for python, tree, folder in zip((sys.executable, args.python), (ROOT, other), folders, strict=True)
        ]
        for process in running:
            process.wait()
        found = {name: compared(name, *folders) for name in chosen}
    for name, result in found.items():
        print(f"{name:24} {'; '.join(result) or 'same'}")
    same = [name for name, result in found.items() if not result]
    print(f"{len(same)} of {len(found)} cases train bitwise the same model.")
    return 0 if len(same) == len(found) else 1


def cases(methods: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The arguments of `tacit run` for every method and every variant of one of them, by name."""
    plain = {name: (name, *NEEDED.get(name, DIGITS)) for name in methods}
    return {**plain, **{name: arguments for name, arguments in VARIANTS.items() if arguments[0] in methods}}


def compared(name: str, ours: Path, theirs: Path) -> list[str]:
    """What differs between the models of a case in the two trees, or who did not train one."""
    failures = {folder.name: _failures(folder) for folder in (ours, theirs)}
    if failed := [f"FAILED in {tree}: {reasons[name]}" for tree, reasons in failures.items() if name in reasons]:
        return failed
    models = [safetensors.torch.load_file(_run_of(folder, name) / "model.safetensors") for folder in (ours, theirs)]
    return [f"DIFFERENT: {difference}" for difference in differences(*models)]


def differences(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """What differs between two models, one phrase for each tensor."""
    found = [f"{name} is only in one" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = ours[name], theirs[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            found.append(f"{name} has another type or shape")
        elif not torch.equal(_bytes(one), _bytes(other)):
            found.append(f"{name} by up to {float((one.double() - other.double()).abs().max()):.1e}")
    return found


def write_table(path: Path) -> None:
    """A CSV file with whole and decimal numbers, texts, dates, missing values, and several rows per person."""
    draw = random.Random(1)
    rows = ["hospital,person,age,bmi,smoker,ward,admitted,stay,died"]
    for hospital in range(6):
        for row in range(draw.randint(60, 120)):
            age, bmi = draw.randint(18, 95), draw.choice(["", f"{draw.gauss(27, 5):.1f}"])
            smoker, ward = draw.choice(["yes", "no", ""]), draw.choice(["surgery", "medicine", "geriatrics"])
            admitted = f"2024-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
            died = int(draw.random() < age / 120)
            rows.append(
                f"h{hospital},p{hospital}-{row // 2},{age},{bmi},{smoker},{ward},{admitted},{draw.random() * 9},{died}"
            )
    path.write_text("\n".join(rows) + "\n")


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


@contextmanager
def _tree(other: str) -> Iterator[Path]:
    """An existing folder, or a temporary worktree of a commit."""
    if Path(other).is_dir():
        yield Path(other).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        added = subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), other], cwd=ROOT, check=False)
        if added.returncode:
            sys.exit(f"Expected a folder or a commit of this repository, got {other}.")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def _start(python: str, tree: Path, chosen: Mapping[str, Sequence[str]], folder: Path) -> "subprocess.Popen[str]":
    """A process that trains all cases with a tree's command, each into a run directory in the folder."""
    folder.mkdir()
    write_table(folder / "patients.csv")
    randomness = "--randomness" if "--randomness" in _tacit(python, tree, "run", "--help") else "--noise"
    options = ("--rounds", str(ROUNDS), "--evaluate-every", str(ROUNDS), randomness, "seeded")
    commands = {name: ["run", *case, *options, "--out", str(_run_of(folder, name))] for name, case in chosen.items()}
    process = subprocess.Popen(
        [python, "-P", "-c", RUN_ALL],
        cwd=folder,
        env=_environment(tree),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    with process.stdin as stream:
        json.dump(commands, stream)
    return process


def _run_of(folder: Path, name: str) -> Path:
    return folder / name.replace(": ", "-").replace(" ", "-")


def _failures(folder: Path) -> dict[str, str]:
    path = folder / "failures.json"
    if not path.exists():
        sys.exit(f"The process of the tree '{folder.name}' ended early; see its messages above.")
    failures: dict[str, str] = json.loads(path.read_text())
    return failures


def _tacit(python: str, tree: Path, *arguments: str) -> str:
    """The output of a tree's command."""
    command = [python, "-P", "-m", "tacit.cli", *arguments]
    done = subprocess.run(command, env=_environment(tree), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source_of(tree))}


if __name__ == "__main__":
    raise SystemExit(main())
