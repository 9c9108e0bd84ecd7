"""Writes the measured figures into the project's README, from the newest records.

Each of the README's tables stands between two comments; a test compares it with its record, so it cannot go stale
unseen.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, README = HERE / "results", HERE.parent / "README.md"
NAMES = {
    "tacit": "Tacit",
    "flower": "Flower 1.41 (Ray)",
    "pfl-research": "pfl-research 0.6",
    "plain-loop": "plain PyTorch loop",
}
SHOWN = ("W1", "W2", "W3")
LEVELS = {"active_server": "active server", "semi_honest": "semi-honest server"}
SUM_HEADS = ("Tacit, seconds", "Flower 1.41, seconds", "processor time", "a client's pads, ms", "the server's pads, ms")
Medians = dict[str, float]


def rounds_table(record: dict[str, Any]) -> Iterator[str]:
    """Federated rounds: seconds and memory."""
    scores = {(s["workload"], s["contestant"]): s for s in record["scores"]}
    yield "| " + _row(*(f"{workload}, seconds | MiB" for workload in SHOWN))
    yield "|---" * (1 + 2 * len(SHOWN)) + "|"
    for contestant, name in NAMES.items():
        yield _row(name, *(_cells(scores[w, contestant], scores[w, "tacit"]) for w in SHOWN))


def _cells(score: Medians, ours: Medians) -> str:
    times = "" if score is ours else f" ({score['seconds'] / ours['seconds']:.1f}×)"
    return f"{score['seconds']:.3g}{times} | {score['peak_mib']:.0f}"


def sums_table(record: dict[str, Any]) -> Iterator[str]:
    """Secure sums beside Flower's, then noise beside OpenDP's."""
    medians = {(r["case"], r["contestant"]): r["medians"] for r in record["results"]}
    yield _row("100 clients, 10 lost", *SUM_HEADS)
    yield "|---" * (1 + len(SUM_HEADS)) + "|"
    for name, case in record["cases"].items():
        cells = _sum_cells(medians[name, "tacit"], medians[name, "flower"])
        yield _row(f"{case['dim']:,} numbers, {LEVELS[case['level']]}", *cells)
    noises = [case for case, contestant in medians if contestant == "opendp"]
    yield ""
    yield _row("discrete Gaussian, ns a sample", *(case.replace("sigma-", "σ = ") for case in noises))
    yield "|---" * (1 + len(noises)) + "|"
    yield _row("Tacit", *(f"{medians[case, 'tacit']['nanoseconds']:.0f}" for case in noises))
    yield _row("OpenDP 0.16", *(_noise_cell(medians[case, "tacit"], medians[case, "opendp"]) for case in noises))


def _sum_cells(ours: Medians, theirs: Medians) -> Iterator[str]:
    yield f"{ours['seconds']:.3g}"
    yield f"{theirs['seconds']:.3g} ({theirs['seconds'] / ours['seconds']:.1f}×)"
    yield f"{theirs['processor'] / ours['processor']:.1f}×"
    for figure in ("pads_of_a_client", "pads_of_the_server"):
        yield f"{_digits(1e3 * ours[figure])}, {_digits(1e3 * theirs[figure])} ({theirs[figure] / ours[figure]:.1f}×)"


def _digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _noise_cell(ours: Medians, theirs: Medians) -> str:
    return f"{theirs['nanoseconds']:,.0f} ({theirs['nanoseconds'] / ours['nanoseconds']:.0f}×)"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "bench": ("latest.json", rounds_table),
    "secure-sum": ("secure-sum.json", sums_table),
}


def table(name: str) -> str:
    """A table as Markdown."""
    file, lines = TABLES[name]
    return "\n".join(lines(json.loads((RESULTS / file).read_text()))) + "\n"


def around(name: str, text: str) -> tuple[str, str, str]:
    """What stands before, between and after a table's comments."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    shown, _, after = rest.partition(end)
    return before + begin, shown, end + after


def main() -> None:
    """Replace the tables in the README."""
    text = README.read_text()
    for name in TABLES:
        before, _, after = around(name, text)
        text = before + table(name) + after
    README.write_text(text)


if __name__ == "__main__":
    main()
