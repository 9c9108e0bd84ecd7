"""`tacit calibrate`: compute the noise for a privacy budget, the ε of a noise level, or the number of rounds."""

import argparse
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tacit.cli._console import aligned, answer, warn
from tacit.runs.noise_question import NoiseQuestion


def run(args: argparse.Namespace) -> int:
    """Compute the missing quantity and print it."""
    question = NoiseQuestion(**{field.name: getattr(args, field.name) for field in fields(NoiseQuestion)})
    solution = question.answer()
    warn(question.warning)
    return answer(args, solution, _lines(solution))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """The result as text: ε after each round, if computed, then all quantities."""
    if epsilons := found.get("epsilons"):
        rows = [("round", "", "ε"), *((str(i), "", f"{e:.4f}") for i, e in enumerate(epsilons, start=1))]
        yield from (*aligned(rows), "")
    steps = "steps" if "steps" in found else "rounds"
    rounds = f"{found[steps]}{' or more' * ('or_more' in found)}"
    unit = found.get("unit", "")
    record_rows = [("unit", unit), (f"rate of a {unit}", f"{found['rate']:.4g}")] if unit else []
    quantities = [
        *record_rows,
        ("noise multiplier", _rounded_up(found["noise"])),
        (steps, f"{rounds} ({found['epochs']:.4g} epochs)" if record_rows else rounds),
        ("ε", f"{found['epsilon']:.4f}"),
        ("δ", f"{found['delta']:g}"),
        ("sampling", f"{found['sampling']}{'' if found['amplified'] else ', without amplification'}"),
        *((key, str(found[key])) for key in ("adjacency", "accountant")),
    ]
    yield from aligned(quantities)


def _rounded_up(noise: float) -> str:
    """A noise multiplier with four decimals, rounded up: less would not suffice."""
    text = f"{noise:.4f}"
    return text if float(text) >= noise else f"{noise + 0.5e-4:.4f}"
