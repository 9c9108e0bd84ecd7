"""What the benchmarks share in their command lines, and their results as text and as JSON."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import roofline
from runner import Result, Settings
from tacit.errors import TacitError
from workloads import WORKLOADS

COLUMNS = "{:<14}{:>10}{:>12}{:>18}{:>12}{:>10}{:>10}"


def positive_integer(text: str) -> int:
    """A whole number of at least 1, from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def exit_on_error(main: Callable[[], None]) -> None:
    """Run a script; an error of Tacit is printed as its sentence, without a traceback."""
    try:
        main()
    except TacitError as error:
        sys.exit(str(error))


def circumstances() -> dict[str, object]:
    """When and on what a benchmark was run; nothing that identifies the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def record(results: list[Result], settings: Settings) -> dict[str, Any]:
    """The results with their circumstances, for the JSON file."""
    names = dict.fromkeys(result.workload for result in results)
    return {
        **circumstances(),
        "workers": settings.workers,
        "warm_ups": settings.warm_ups,
        "peak_gflops": round(roofline.peak_gflops(settings.workers), 1),
        "gflop": {name: round(roofline.gflop(WORKLOADS[name]), 3) for name in names},
        "results": [asdict(result) for result in results],
    }


def save(record: dict[str, object], path: Path) -> None:
    """Write a record to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def table(results: list[Result], record: Mapping[str, Any] | None = None) -> Iterable[str]:
    """Per workload: seconds per round, ratio to Tacit, peak memory; with a record, the share of the roofline, too."""
    if record is not None:
        yield f"{record['cpu']}, {record['cores']} cores, {record['peak_gflops']:.0f} GFLOP/s in float32 products"
    for workload in dict.fromkeys(result.workload for result in results):
        rows = [result for result in results if result.workload == workload]
        ours = next((result.seconds for result in rows if result.framework == "tacit"), None)
        yield f"\n{workload}  {WORKLOADS[workload].title}"
        yield COLUMNS.format("", "s/round", "to Tacit", "min - max", "peak MiB", "idle CPU", "roofline")
        yield from (_row(result, ours, record) for result in rows)


def _row(result: Result, ours: float | None, record: Mapping[str, Any] | None) -> str:
    if result.seconds is None:
        return COLUMNS.format(result.framework, "failed", "", "", "", "", "")
    ratio = f"{result.seconds / ours:.2f} x" if ours else "-"
    spread = f"{min(result.rounds):.3f} - {max(result.rounds):.3f}"
    memory = f"{result.peak_mib:.0f}" if result.peak_mib else "-"
    known = record["gflop"][result.workload] if record is not None else 0
    reached = f"{roofline.share(known, result.seconds, record['peak_gflops']):.0%}" if record and known else "-"
    seconds, idle = f"{result.seconds:.3f}", f"{result.idle_cpu:.2f}"
    return COLUMNS.format(result.framework, seconds, ratio, spread, memory, idle, reached)
