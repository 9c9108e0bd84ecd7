"""`tacit calibrate`: compute the noise for a privacy budget, the ε of a noise level, or the number of rounds."""

import argparse
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tacit.cli._console import align, answer, warn
from tacit.runs.noise_question import NoiseQuestion


def run(args: argparse.Namespace) -> int:
    """Compute the missing quantity and print it."""
    question = NoiseQuestion(**{field.name: getattr(args, field.name) for field in fields(NoiseQuestion)})
    solution = question.answer()
    warn(question.warning)
    return answer(args, solution, _lines(solution))


def _lines(answers: dict[str, Any]) -> Iterator[str]:
    """The result as text: ε after each round, if computed, then all quantities."""
    if epsilons := answers.get("epsilons"):
        rows = [("round", "", "ε"), *((str(i), "", f"{e:.4f}") for i, e in enumerate(epsilons, start=1))]
        yield from (*align(rows), "")
    steps = "steps" if "steps" in answers else "rounds"
    rounds = f"{answers[steps]}{' or more' * ('or_more' in answers)}"
    unit = answers.get("unit", "")
    record_rows = [("unit", unit), (f"rate of a {unit}", f"{answers['rate']:.4g}")] if unit else []
    quantities = [
        *record_rows,
        ("noise multiplier", _round_up(answers["noise"])),
        (steps, f"{rounds} ({answers['epochs']:.4g} epochs)" if record_rows else rounds),
        ("ε", f"{answers['epsilon']:.4f}"),
        ("δ", f"{answers['delta']:g}"),
        ("sampling", f"{answers['sampling']}{'' if answers['amplified'] else ', without amplification'}"),
        *((key, str(answers[key])) for key in ("adjacency", "accountant")),
    ]
    yield from align(quantities)


def _round_up(noise: float) -> str:
    """A noise multiplier with four decimals, rounded up: less would exceed the budget."""
    text = f"{noise:.4f}"
    return text if float(text) >= noise else f"{noise + 0.5e-4:.4f}"
