"""Writes the newest results into the tables of docs/benchmarks.md.

Each table is between two comments. A test compares it with the results, so it cannot become outdated unnoticed.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
NAMES = {
    "tacit": "Tacit",
    "flower": "Flower 1.41 (Ray)",
    "pfl-research": "pfl-research 0.6",
    "plain-loop": "plain PyTorch loop",
}
SHOWN = ("W1", "W2", "W3")
ALL = (*SHOWN, "G1", "G2")
THREAT_MODELS = {"active_server": "active server", "semi_honest": "semi-honest server"}
SUM_COLUMNS = ("Tacit, seconds", "Flower 1.41, seconds", "CPU time", "client's pads, ms", "server's pads, ms")
Medians = dict[str, float]


def rounds_table(record: dict[str, Any]) -> Iterator[str]:
    """Federated rounds: on which CPU, seconds and memory; the share of the roofline, in results that know it."""
    results = {(r["workload"], r["framework"]): r for r in record["results"]}
    peak, gflop = record.get("peak_gflops"), record.get("gflop", {})
    known = f", {peak:.0f} GFLOP/s in products of matrices, of which the percentages are the share" if peak else ""
    yield _machine(record, known)
    yield ""
    yield "| " + _row(*(f"{workload}, seconds | MiB" for workload in SHOWN))
    yield "|---" * (1 + 2 * len(SHOWN)) + "|"
    for framework, name in NAMES.items():
        yield _row(
            name, *(_cells(results[w, framework], results[w, "tacit"], gflop.get(w, 0) / (peak or 1)) for w in SHOWN)
        )


def _machine(record: dict[str, Any], known: str = "") -> str:
    return f"CPU: {record['cpu']}, {record['cores']} cores{known}. Measured on {record['date'][:10]}."


def few_weights_table(record: dict[str, Any]) -> Iterator[str]:
    """All workloads: Tacit, the same with FL-TOP, and the plain loop."""
    seconds = {(r["workload"], r["framework"]): r["seconds"] for r in record["results"]}
    yield _machine(record)
    yield ""
    yield _row("workload", "Tacit, seconds", "FL-TOP at 0.5 % of the weights", "plain PyTorch loop")
    yield "|---|---|---|---|"
    for workload in ALL:
        ours, *others = (seconds[workload, name] for name in ("tacit", "tacit-fl-top", "plain-loop"))
        yield _row(workload, f"{ours:.3g}", *(f"{other:.3g} ({other / ours:.2f}×)" for other in others))


def _cells(result: Medians, ours: Medians, fastest: float) -> str:
    """Seconds, ratio and memory; `fastest`: the seconds of the products alone, 0 if they are not known."""
    ratio = [] if result is ours else [f"{result['seconds'] / ours['seconds']:.1f}×"]
    notes = [*ratio, *[f"{fastest / result['seconds']:.0%}"] * (fastest > 0)]
    shown = f" ({', '.join(notes)})" if notes else ""
    return f"{result['seconds']:.3g}{shown} | {result['peak_mib']:.0f}"


def sums_table(record: dict[str, Any]) -> Iterator[str]:
    """Secure sums compared with Flower, then noise compared with OpenDP."""
    medians = {(r["case"], r["framework"]): r["medians"] for r in record["results"]}
    yield _machine(record)
    yield ""
    yield _row("100 clients, 10 drop out", *SUM_COLUMNS)
    yield "|---" * (1 + len(SUM_COLUMNS)) + "|"
    for name, case in record["cases"].items():
        cells = _sum_cells(medians[name, "tacit"], medians[name, "flower"])
        yield _row(f"{case['dim']:,} numbers, {THREAT_MODELS[case['threat_model']]}", *cells)
    noises = [case for case, framework in medians if framework == "opendp"]
    yield ""
    yield _row("discrete Gaussian, ns per sample", *(case.replace("sigma-", "σ = ") for case in noises))
    yield "|---" * (1 + len(noises)) + "|"
    yield _row("Tacit", *(f"{medians[case, 'tacit']['nanoseconds']:.0f}" for case in noises))
    yield _row("OpenDP 0.16", *(_noise_cell(medians[case, "tacit"], medians[case, "opendp"]) for case in noises))


def _sum_cells(ours: Medians, theirs: Medians) -> Iterator[str]:
    yield f"{ours['seconds']:.3g}"
    yield f"{theirs['seconds']:.3g} ({theirs['seconds'] / ours['seconds']:.1f}×)"
    yield f"{theirs['cpu_seconds'] / ours['cpu_seconds']:.1f}×"
    for figure in ("client_pads", "server_pads"):
        yield f"{_digits(1e3 * ours[figure])}, {_digits(1e3 * theirs[figure])} ({theirs[figure] / ours[figure]:.1f}×)"


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _noise_cell(ours: Medians, theirs: Medians) -> str:
    return f"{theirs['nanoseconds']:,.0f} ({theirs['nanoseconds'] / ours['nanoseconds']:.0f}×)"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "bench": ("latest.json", rounds_table),
    "few-weights": ("latest.json", few_weights_table),
    "secure-sum": ("secure-sum.json", sums_table),
}


def table(name: str) -> str:
    """A table as Markdown."""
    file, rows = TABLES[name]
    return "\n".join(rows(json.loads((RESULTS / file).read_text()))) + "\n"


def split(name: str, text: str) -> tuple[str, str, str]:
    """The text before, between and after a table's comments."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    shown, _, after = rest.partition(end)
    return before + begin, shown, end + after


def main() -> None:
    """Replace the tables of the page."""
    text = PAGE.read_text()
    for name in TABLES:
        before, _, after = split(name, text)
        text = before + table(name) + after
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
