"""Writes the measured figures into the project's README, from the newest record.

The README's table stands between two comments; a test compares it with the record, so it cannot go stale unseen.
"""

import json
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORD, README = HERE / "results" / "latest.json", HERE.parent / "README.md"
BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->"
NAMES = {
    "tacit": "Tacit",
    "flower": "Flower 1.41 (Ray)",
    "pfl-research": "pfl-research 0.6",
    "plain-loop": "plain PyTorch loop",
}
SHOWN = ("W1", "W2", "W3")


def table(record: Path = RECORD) -> str:
    """The table as Markdown."""
    scores = {(s["workload"], s["contestant"]): s for s in json.loads(record.read_text())["scores"]}
    return "\n".join(_lines(scores)) + "\n"


def _lines(scores: dict[tuple[str, str], dict[str, float]]) -> Iterator[str]:
    yield "| | " + " | ".join(f"{workload}, seconds | MiB" for workload in SHOWN) + " |"
    yield "|---" * (1 + 2 * len(SHOWN)) + "|"
    for contestant, name in NAMES.items():
        cells = (_cells(scores[w, contestant], scores[w, "tacit"]) for w in SHOWN)
        yield f"| {name} | " + " | ".join(cells) + " |"


def _cells(score: dict[str, float], ours: dict[str, float]) -> str:
    times = "" if score is ours else f" ({score['seconds'] / ours['seconds']:.1f}×)"
    return f"{score['seconds']:.3g}{times} | {score['peak_mib']:.0f}"


def main() -> None:
    """Replace the table in the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()
