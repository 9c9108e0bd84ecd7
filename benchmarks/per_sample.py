"""Measures sums of gradients that are clipped record by record, in Tacit and in every mode of Opacus.

Every contender of a case has a process of its own with one thread. All run in turns, each time starting with another
one. Time is that of one batch: forward, backward, norms, clipped sum; no noise. Memory is the largest resident set
during the batches, above the one after a batch of two records, with model and data in memory. Opacus must be installed
in the environment that runs this (`pip install opacus`). See README.md in this folder.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reporting import circumstances, positive_integer, save
from workloads import WORKLOADS, flat

LATEST = Path(__file__).resolve().parent / "results" / "per-sample.json"
MODES = ("hooks", "functorch", "ew", "ghost")
CLIP = 1.0
TOLERANCE = 1e-4  # relative, between the sums of two contenders
CASES = {  # the size of a batch, and the model
    "W1": (1024, "MLP of 199,210 weights"),
    "W2": (128, "CNN of 1,663,370 weights"),
    "G1": (1024, "residual net with group norm"),
}
Step = Callable[[Tensor, Tensor], Tensor]
TITLE = "{:<6}{:<12}" + 3 * "{:>10}{:>9}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one contender took for a batch of a case."""

    case: str
    contender: str
    seconds: list[float]
    cpu_seconds: list[float]
    mebibytes: float

    @property
    def medians(self) -> dict[str, float]:
        """Elapsed time and processor time of a batch."""
        return {"seconds": statistics.median(self.seconds), "cpu_seconds": statistics.median(self.cpu_seconds)}


def batch_of(case: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model and a batch of random records."""
    workload, (size, _) = WORKLOADS[case], CASES[case]
    source = torch.Generator().manual_seed(3)
    x = torch.randn(size, *workload.shape, generator=source)
    return workload.net(), x, torch.randint(10, (size,), generator=source)


def tacit_step(model: nn.Module) -> Step:
    """The clipped sum by Tacit's engine."""
    from tacit.core import CrossEntropy
    from tacit.engine.learners.records.record_learners import AutoRecords

    records, weights = AutoRecords(model, CrossEntropy()), flat(model)
    return lambda x, y: records.clipped_sum(weights, x, y, CLIP, None).total


def opacus_step(mode: str, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The clipped sum by Opacus: what its optimizer has accumulated before it adds noise."""
    from opacus import PrivacyEngine

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(x))
    made: tuple[Any, ...] = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=optimizer, data_loader=loader, criterion=nn.CrossEntropyLoss(), noise_multiplier=0.0,
        max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    private, optimizer, criterion = made[0], made[1], made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        criterion(private(x), y).backward()
        optimizer.accumulate() if mode == "ghost" else optimizer.clip_and_accumulate()
        return torch.cat([p.summed_grad.detach().reshape(-1) for p in private.parameters()])

    return step


def resident(field: str) -> int:
    """A figure of this process's memory, in bytes: `VmRSS` now, `VmHWM` at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def serve(case: str, contender: str) -> None:
    """Compute a batch for every line on standard input, and answer with its time and the peak of memory so far."""
    torch.set_num_threads(1)
    model, x, y = batch_of(case)
    step = tacit_step(model) if contender == "tacit" else opacus_step(contender, model, x, y)
    step(x[:2], y[:2])  # libraries are loaded, and a way is chosen
    baseline = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    print(json.dumps({"sum": step(x, y)[:1000].double().tolist()}), flush=True)
    for _ in sys.stdin:
        began, worked = time.perf_counter(), time.process_time()
        step(x, y)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
        measured = {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": resident("VmHWM") - baseline}
        print(json.dumps(measured), flush=True)


class Contender:
    """The process of one contender."""

    def __init__(self, case: str, name: str) -> None:
        self.case, self.name = case, name
        command = [sys.executable, __file__, "--serve", case, name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.peak = 0.0
        self.first = self._read()

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def turn(self) -> None:
        """One batch."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self._read()
        assert found is not None
        self.seconds.append(found["seconds"])
        self.cpu_seconds.append(found["cpu_seconds"])
        self.peak = found["bytes"]

    def _read(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None  # None: the mode does not support the model


def measure(case: str, contenders: Sequence[str], turns: int) -> Iterator[Measured]:
    """All contenders of a case, in turns."""
    with ExitStack() as stack:
        started = [stack.enter_context(Contender(case, name)) for name in contenders]
        running = [contender for contender in started if contender.first is not None]
        for failed in (contender for contender in started if contender.first is None):
            print(f"{case}: {failed.name} does not run.", file=sys.stderr)
        _check_agreement(running)
        for turn in range(turns):
            for offset in range(len(running)):
                running[(turn + offset) % len(running)].turn()
        for each in running:
            peak = each.peak / 2**20
            yield Measured(
                case=case, contender=each.name, seconds=each.seconds, cpu_seconds=each.cpu_seconds, mebibytes=peak
            )


def _check_agreement(running: Sequence[Contender]) -> None:
    """All contenders compute the same sum."""
    sums = [torch.tensor(each.first["sum"], dtype=torch.float64) for each in running if each.first]
    for each, found in zip(running, sums, strict=True):
        difference = float((found - sums[0]).norm() / sums[0].norm())
        if difference > TOLERANCE:
            sys.exit(f"{each.case}: the sum of {each.name} differs from that of {running[0].name} by {difference:.1g}.")


def table(results: Sequence[Measured]) -> Iterator[str]:
    """Time and memory of every contender, and their ratio to Tacit's."""
    ours = {result.case: result for result in results if result.contender == "tacit"}
    yield TITLE.format("case", "contender", "seconds", "", "of CPU", "", "MiB", "")
    for result in results:
        cells = []
        for figure in ("seconds", "cpu_seconds"):
            mine, own = result.medians[figure], ours[result.case].medians[figure]
            cells += [f"{mine:.4f}", f"{mine / own:.2f} x"]
        ratio = result.mebibytes / ours[result.case].mebibytes
        yield TITLE.format(result.case, result.contender, *cells, f"{result.mebibytes:.0f}", f"{ratio:.2f} x")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--contenders", default=",".join(("tacit", *MODES)), help="default: %(default)s")
    parser.add_argument("--turns", type=positive_integer, default=9, help="batches of each (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="file for the results, as JSON")
    parser.add_argument("--serve", nargs=2, metavar=("CASE", "CONTENDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve(*args.serve)
        return 0
    results = [each for case in args.cases.split(",") for each in measure(case, args.contenders.split(","), args.turns)]
    records = [{**vars(result), "medians": result.medians} for result in results]
    settings = {case: {"batch": size, "model": title} for case, (size, title) in CASES.items()}
    versions = {name: version(name) for name in ("torch", "opacus")}
    save({**circumstances(), "versions": versions, "cases": settings, "results": records}, args.out)
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
