"""How much the figures that README, tutorial and guides print differ from one secret key to the next.

    python experiments/keys.py            run what is missing, then print the figures (about ten minutes of a core)
    python experiments/keys.py --show     print what there is; runs nothing

The results are in keys.json beside this file; a test compares the pages with them.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trials import Result, TrialFile

from tacit.papers.comparison import Spread

HERE = Path(__file__).resolve().parent
RESULTS, TUTORIAL = HERE / "keys.json", HERE.parent / "docs" / "tutorial.md"
FILES = re.compile(r"^```\w+ (make_table\.py|ranges\.toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DIGITS = "epsilon=8 delta=1e-3 --task-set model=digits-mlp --evaluate-every 100"
TABLE = "--data patients.csv --client hospital --target readmitted"
DECLARED = f"{TABLE} --task-set encoding=ranges.toml classes=0,1"


@dataclass(frozen=True)
class Trial:
    """One run of a command, with a key of its own."""

    command: str
    key: int


@dataclass(frozen=True)
class Figure:
    """A figure of a page: the page, what is run for it, and with how many keys."""

    page: str
    command: str
    keys: int = 8

    def trials(self) -> list[Trial]:
        """One for every key."""
        return [Trial(self.command, key) for key in range(self.keys)]


FIGURES = (
    Figure("docs/tutorial.md", f"fedavg {TABLE} --rounds 20"),
    Figure("docs/tutorial.md", f"dp-fedsgd {DECLARED} --rounds 60 --set epsilon=2 delta=1e-5"),
    Figure("docs/tutorial.md", f"fl-std-dp {DECLARED} --rounds 20 --set epsilon=2 delta=1e-5"),
    Figure("README.md", f"fl-top-dp --rounds 100 --set ratio=0.02 {DIGITS}"),
    Figure("docs/guides/usage.md", f"fl-std-dp --rounds 30 --set {DIGITS}", keys=5),
)


def run(command: str) -> Result:
    """The metrics of `tacit run`, in an empty folder with the tutorial's table."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.findall(TUTORIAL.read_text()):
            Path(folder, name).write_text(content)
        subprocess.run([sys.executable, "make_table.py"], cwd=folder, check=True)
        line = [sys.executable, "-m", "tacit", "run", *shlex.split(command), "--workers", "1", "--json"]
        done = subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True)
    metrics: Result = json.loads(done.stdout)["runs"][0]["metrics"]
    return metrics


def text(figure: Figure, trials: TrialFile) -> str:
    """What the page says: the mean accuracy (on the tutorial's table: AUROC), and where one more run lies."""
    found = [trials.get(trial) for trial in figure.trials()]
    spread = Spread.of([each.get("auroc", each.get("accuracy", 0.0)) for each in found if each])
    assert spread.further is not None
    return f"{spread.mean:.3f} ± {spread.further:.3f}"


def main() -> None:
    """Run what is missing, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print what there is; runs nothing")
    show, trials = parser.parse_args().show, TrialFile.open(RESULTS)
    for figure in FIGURES:
        for trial in () if show else figure.trials():
            trials.measure(trial, partial(run, figure.command))
        print(f"{text(figure, trials)}  {figure.page}  tacit run {figure.command}", flush=True)


if __name__ == "__main__":
    main()
