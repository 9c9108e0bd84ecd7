"""Are the models of this tree bitwise those of another one? Every registered method, three rounds, its default task.

Examples:
  python benchmarks/same_models.py 8524b83                        against a commit of this repository
  python benchmarks/same_models.py ../other --python ../other/.venv/bin/python --methods fl-top-dp geyer

Both trees run `tacit run METHOD --rounds 3` in processes of their own, and the files `model.safetensors` that come of
it are compared byte by byte. The exit code is 1 if any differ.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3


def main() -> int:
    """Compare the trees, method by method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="a commit, or the folder of another tree")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the other tree (default: this)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these (default: all of this tree)")
    args = parser.parse_args()
    listed = json.loads(_tacit(sys.executable, ROOT, "methods", "--json"))
    names = args.methods or [entry["name"] for entry in listed]
    differing = []
    with _tree(args.other) as other, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            ours = _digest(sys.executable, ROOT, name, Path(scratch) / "ours" / name)
            theirs = _digest(args.python, other, name, Path(scratch) / "theirs" / name)
            same = ours == theirs
            differing += [] if same else [name]
            print(f"{name:16} {'same' if same else 'DIFFERENT'}  {ours[:16]}  {theirs[:16]}", flush=True)
    print(f"{len(names) - len(differing)} of {len(names)} methods give bitwise the same model.")
    return 1 if differing else 0


@contextmanager
def _tree(other: str) -> Iterator[Path]:
    """A folder as it is, or a commit checked out beside this tree for as long as it is needed."""
    if Path(other).is_dir():
        yield Path(other).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(place), other], cwd=ROOT, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def _digest(python: str, tree: Path, method: str, out: Path) -> str:
    _tacit(python, tree, "run", method, "--rounds", str(ROUNDS), "--out", str(out), "--evaluate-every", str(ROUNDS))
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def _tacit(python: str, tree: Path, *arguments: str) -> str:
    """What the command of a tree prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [python, "-m", "tacit.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
