"""Measures rounds of large populations on disk: seconds and memory by the number of clients and by the cohort.

Each pair is measured in a process of its own. Memory is what the process and its workers own, without files that are
mapped into memory and that the system can drop. See README.md in this folder.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from processes import tree
from reporting import circumstances, exit_on_error, positive_integer
from tacit import Method, Task
from tacit.data import Population
from tacit.data.population_files import PopulationWriter
from tacit.pieces import CentralGaussian, FixedClip, Poisson, Sgd
from tacit.report.style import to_png
from tacit.runs.rounds import rounds

LATEST = Path(__file__).resolve().parent / "results" / "scale.json"
FEATURES, SAMPLES, BLOCK = 8, 2, 100_000


def write(folder: Path, clients: int) -> None:
    """Clients with random samples of two classes."""
    generator = np.random.default_rng(0)
    with PopulationWriter(folder) as writer:
        for begin in range(0, clients, BLOCK):
            count = min(BLOCK, clients - begin)
            x = generator.random((count * SAMPLES, FEATURES), dtype=np.float32)
            writer.add(x, (x[:, 0] > 0.5).astype(np.int64), np.full(count, SAMPLES))


def own_mib(root: int) -> float:
    """The anonymous memory of a process and its descendants, in MiB."""
    total = 0
    for pid in tree(root):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total / 1024


def measure_here(folder: Path, cohort: int, workers: int, count: int) -> dict[str, float]:
    """The seconds before the first round, of a round (the median), and the memory after the last."""
    began = time.perf_counter()
    clients = Population.open(folder)
    method = Method(
        name="scale",
        rounds=count + 1,
        sampler=Poisson(cohort),
        trainer=Sgd(lr=0.1, steps=2),
        mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0),
    )
    task = Task(model=lambda: torch.nn.Linear(FEATURES, 2), clients=clients)
    steps = rounds(method, task, workers=workers)
    next(steps)
    first = time.perf_counter() - began
    seconds = [_timed(steps) for _ in range(count - 1)]
    memory = own_mib(os.getpid())
    steps.close()
    return {"start": round(first, 3), "seconds": round(statistics.median(seconds), 4), "mib": round(memory, 1)}


def _timed(steps: Iterator[object]) -> float:
    began = time.perf_counter()
    next(steps)
    return time.perf_counter() - began


def draw(results: list[dict[str, float]]) -> bytes:
    """Seconds and memory over the number of clients, a line for every cohort, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2), (("seconds", "s a round"), ("mib", "MiB")), strict=True):
        for cohort in sorted({each["cohort"] for each in results}):
            points = [(each["clients"], each[name]) for each in results if each["cohort"] == cohort]
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=f"cohorts of {cohort:,}")
        axes.set(xscale="log", xlabel="clients", title=title)
        if name == "seconds":  # by a factor of ten from cohort to cohort
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.2 * max(each[name] for each in results))
    axes.legend(frameon=False, fontsize=8)
    return to_png(figure)


def main() -> None:
    """Measure every pair in a process of its own, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="1e3,1e4,1e5,1e6,1e7", help="default %(default)s")
    parser.add_argument("--cohorts", default="1e2,1e3,1e4,1e5", help="default %(default)s")
    parser.add_argument("--rounds", type=positive_integer, default=5, help="measured rounds (default %(default)s)")
    parser.add_argument("--workers", type=positive_integer, default=2, help="default %(default)s")
    parser.add_argument(
        "--folder", type=Path, help="where to write the populations, up to 1 GB (default: a temporary one)"
    )
    parser.add_argument("--out", type=Path, default=LATEST, help="file for the results, as JSON; the picture beside it")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_here(Path(args.one[0]), int(args.one[1]), args.workers, args.rounds + 1)))
        return
    counts, cohorts = ([int(float(text)) for text in names.split(",")] for names in (args.clients, args.cohorts))
    results = []
    for clients in counts:
        folder = Path(tempfile.mkdtemp(dir=args.folder)) / "population"
        try:
            write(folder, clients)
            for cohort in (size for size in cohorts if size <= clients):
                options = [
                    "--one",
                    str(folder),
                    str(cohort),
                    "--workers",
                    str(args.workers),
                    "--rounds",
                    str(args.rounds),
                ]
                done = subprocess.run([sys.executable, __file__, *options], check=True, capture_output=True, text=True)
                results.append({"clients": clients, "cohort": cohort, **json.loads(done.stdout)})
                last = results[-1]
                print(
                    f"{clients:>10} clients, cohorts of {cohort:>6}: {last['seconds']:8.3f} s, {last['mib']:7.0f} MiB"
                )
        finally:
            shutil.rmtree(folder.parent)
    found = {**circumstances(), "workers": args.workers, "results": results}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    args.out.with_suffix(".png").write_bytes(draw(results))


if __name__ == "__main__":
    exit_on_error(main)
