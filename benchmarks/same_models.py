"""Compares the models that two trees of the project train: are they bitwise the same?

Both trees run `tacit run METHOD --rounds 3` for every registered method on its default task, each in processes of its
own, and the tensors of the two files `model.safetensors` are compared bit by bit. The files' metadata may differ. The
exit status is 1 if any model differs.

Examples:
  python benchmarks/same_models.py 8524b83                        against a commit of this repository
  python benchmarks/same_models.py ../other --python ../other/.venv/bin/python --methods fl-top-dp geyer
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from environments import source_of

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3


def main() -> int:
    """Compare the trees, method by method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="a commit, or the folder of another tree")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the other tree (default: this)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these (default: all of this tree)")
    args = parser.parse_args()
    listed = json.loads(_run_tacit(sys.executable, ROOT, "methods", "--json"))
    names = args.methods or [entry["name"] for entry in listed]
    differing = []
    with _tree(args.other) as other, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            ours = _train(sys.executable, ROOT, name, Path(scratch) / "ours" / name)
            theirs = _train(args.python, other, name, Path(scratch) / "theirs" / name)
            found = differences(ours, theirs)
            differing += [name] if found else []
            print(f"{name:16} {'DIFFERENT: ' + '; '.join(found) if found else 'same'}", flush=True)
    print(f"{len(names) - len(differing)} of {len(names)} methods train bitwise the same model.")
    return 1 if differing else 0


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """What differs between two models, one phrase for each tensor."""
    found = [f"{name} is only in one" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = ours[name], theirs[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            found.append(f"{name} has another type or shape")
        elif not torch.equal(_bytes(one), _bytes(other)):
            found.append(f"{name} by up to {float((one.double() - other.double()).abs().max()):.1e}")
    return found


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


def _train(python: str, tree: Path, method: str, out: Path) -> dict[str, Tensor]:
    options = ("--rounds", str(ROUNDS), "--out", str(out), "--evaluate-every", str(ROUNDS))
    _run_tacit(python, tree, "run", method, *options)
    return safetensors.torch.load_file(out / "model.safetensors")


def _run_tacit(python: str, tree: Path, *arguments: str) -> str:
    """The output of a tree's command."""
    environment = {**os.environ, "PYTHONPATH": str(source_of(tree))}
    command = [python, "-m", "tacit.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
