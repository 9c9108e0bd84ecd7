"""A race's result as text and as JSON."""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from referee import Rules, Score
from workloads import WORKLOADS

COLUMNS = "{:<14}{:>10}{:>12}{:>18}{:>12}{:>10}"


def _cpu_model() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def circumstances() -> dict[str, object]:
    """When and on what it was run; nothing that names the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def record(scores: list[Score], rules: Rules) -> dict[str, object]:
    """All that is worth keeping of a run."""
    return {
        **circumstances(),
        "workers": rules.workers,
        "warm_ups": rules.warm_ups,
        "scores": [asdict(score) for score in scores],
    }


def save(scores: list[Score], rules: Rules, path: Path) -> None:
    """Write the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record(scores, rules), indent=2) + "\n")


def _row(score: Score, ours: float | None) -> str:
    """One contestant's line."""
    if score.seconds is None:
        return COLUMNS.format(score.contestant, "failed", "", "", "", "")
    ratio = f"{score.seconds / ours:.2f} x" if ours else "-"
    spread = f"{min(score.rounds):.3f} - {max(score.rounds):.3f}"
    memory = f"{score.peak_mib:.0f}" if score.peak_mib else "-"
    return COLUMNS.format(score.contestant, f"{score.seconds:.3f}", ratio, spread, memory, f"{score.idle_cpu:.2f}")


def lines(scores: list[Score]) -> Iterable[str]:
    """The table: per workload, seconds per round, ratio to Tacit, peak memory."""
    for workload in dict.fromkeys(score.workload for score in scores):
        mine = [score for score in scores if score.workload == workload]
        ours = next((score.seconds for score in mine if score.contestant == "tacit"), None)
        yield f"\n{workload}  {WORKLOADS[workload].title}"
        yield COLUMNS.format("", "s/round", "to Tacit", "min - max", "peak MiB", "idle CPU")
        yield from (_row(score, ours) for score in mine)
