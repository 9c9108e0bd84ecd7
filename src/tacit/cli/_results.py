"""The output for finished runs: a table, guarantees, bytes and reasons for an early end, or JSON."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tacit.cli._console import align, answer, figures
from tacit.core.prices import Unit
from tacit.core.state import MAX_DROPPED
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.report.labels import size, size_against
from tacit.runs.run import Run

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges  # which imports dp_accounting

NOTABLE = 0.05  # the part by which rounding may add to the noise without advice


def show(runs: Sequence[Run], args: argparse.Namespace) -> int:
    """Print a table of finished runs with their guarantees, or one JSON document."""
    return answer(args, {"runs": [_summary(done) for done in runs]}, _lines(runs))


def _lines(runs: Sequence[Run]) -> Iterator[str]:
    yield from align(_table(runs))
    for done in runs:
        yield from _notes(done, alone=len(runs) == 1)
    yield from (f"Results: {done.directory}" for done in runs)
    yield f"Next: tacit report {shlex.join(str(done.directory) for done in runs)}"


def _summary(run: Run) -> dict[str, object]:
    phases = {name: {"up": traffic.up, "down": traffic.down} for name, traffic in run.bytes.phases.items()}
    return {
        "method": run.spec.method.name,
        "task": run.spec.task.name,
        "seed": run.spec.seed,
        "randomness": run.spec.randomness,
        "rounds": run.state.round,
        "metrics": run.metrics,
        "bytes": {"up": run.bytes.up, "down": run.bytes.down, "phases": phases},
        "savings": {"up": run.savings.up, "down": run.savings.down},
        "sparsity": {name: asdict(layer) for name, layer in run.sparsity.items()},
        "privacy": _privacy_summary(run),
        "leakage": None if run.leakage is None else run.leakage.to_json(),
        "seconds": run.seconds,
        "parts": run.timings,
        "directory": str(run.directory),
        **({"caveat": run.spec.method.channel.caveat} if run.spec.method.channel.caveat else {}),
    }


def _privacy_summary(run: Run) -> dict[str, object]:
    """The guarantee of each unit and, for a run with a budget, its use."""
    nominal = run.spec.manifest.method.nominal
    accounted = {unit: _charges_fields(charges) for unit, charges in run.charges.items()}
    guarantees = {unit: {**each.to_json(), **accounted.get(unit, {})} for unit, each in run.guarantees.items()}
    return {
        "guarantees": guarantees,  # each by itself, never added
        **({"nominal": dict(nominal)} if nominal else {}),
        **({"rounds_left": run.spec.method.rounds - run.state.round} if accounted else {}),
        **({} if run.ledger is None else {"ledger": run.ledger.to_json()}),
    }


def _charges_fields(charges: "Charges") -> dict[str, object]:
    """The charges to a unit, proved or not."""
    document: dict[str, object] = {"nominal_epsilon": charges.epsilon, "at_delta": charges.delta}
    return document if charges.unit.within_client else {**document, "delta_at_budget": charges.delta_at_budget}


def _notes(run: Run, *, alone: bool) -> list[str]:
    """Sentences below the table: pruning, privacy, an early end, overhead, seconds by part of a round."""
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in run.timings.items())
    times = [f"Time: {parts}."] * bool(parts)
    return [*_sparsity(run, alone=alone), *_privacy(run, alone=alone), *_end_reasons(run), *_overhead(run), *times]


def _sparsity(run: Run, *, alone: bool) -> list[str]:
    """Each pruned layer of a pruning method."""
    whose = "" if alone else f" of {run.spec.method.name}"
    return [
        f"Layer {name}{whose}: clients send {layer.sent} of {layer.weights} weights "
        f"({100 * (1 - layer.sent / layer.weights):.2f} % zeros); the trained model has {layer.held} non-zero weights."
        for name, layer in run.sparsity.items()
    ]


def _privacy(run: Run, *, alone: bool) -> list[str]:
    """The guarantee, nominal figures, and the use of the budget."""
    method = run.spec.method
    lines = [line for each in run.guarantees.values() for line in _guarantee(each, run, alone=alone).split("\n")]
    if len(run.guarantees) > 1:
        named = " and ".join(f"for {unit}s" for unit in run.guarantees)
        lines.append(f"The guarantees {named} hold side by side. Their ε are never added.")
    if run.spec.manifest.method.nominal:
        lines.append("Nominal figures (not a guarantee):")
        lines += [f"  {line}" for line in figures(run.spec.manifest.method.nominal)]
    if method.budget is not None:
        units = run.epsilons
        for unit, epsilon in units.items():
            whose = f" for every {unit}" * (unit != "client" or len(units) > 1)
            limit = f"{method.budget.epsilon:g} at δ = {method.delta:g}"
            lines.append(f"Budget used{whose}: ε = {epsilon:.2f} of {limit}.")
    if run.ledger is not None:
        lines.append(str(run.ledger))
    return lines


def _guarantee(guarantee: Guarantee | LeakageGuarantee, run: Run, *, alone: bool) -> str:
    """A guarantee with a heading, which names the unit if there are several."""
    method = "" if alone else run.spec.method.name
    unit = f" for {guarantee.unit}s" if len(run.guarantees) > 1 else ""
    if guarantee.proved:
        return f"Guarantee{unit}{f' of {method}' if method else ''}: {guarantee}"
    return f"No privacy guarantee{unit}{f' for {method}' if method else ''}: {str(guarantee).removeprefix('none: ')}"


def _end_reasons(run: Run) -> list[str]:
    """Reasons for which a run ended before its last round."""
    method, leakage, lines = run.spec.method, run.leakage, []
    if leakage is not None and leakage.limit is not None:
        lines.append(f"Clients declined to take part {leakage.declined} times: the leakage limit is {leakage.limit:g}.")
    dropped = sum(report.dropped for report in run.history)
    if dropped:
        lines.append(
            f"The sums of {dropped} of {len(run.history)} rounds were not used, because they were longer than honest "
            "clients can make them: a client has sent a row that it did not clip. These rounds stay charged."
        )
    lines += _absent(run)
    if run.state.round >= method.rounds:
        return lines
    if run.diverged:
        why = "the next round's model was not finite; the last finite one is kept. Lower the learning rate, or clip"
    elif run.disrupted:
        why = f"the sums of {MAX_DROPPED} rounds in a row were not used; nobody can see which client disrupts them"
    elif leakage is not None and leakage.exhausted:
        why = "every client has reached its leakage limit"
    elif method.patience is not None and run.state.round < run.rounds:
        why = f"the loss on held-out data did not improve in {method.patience} evaluations; the best model is kept"
    else:
        why = "another round would exceed the privacy budget"
    return [*lines, f"Stopped after {run.state.round} of {method.rounds} rounds: {why}."]


def _absent(run: Run) -> list[str]:
    """The sites that delivered in no round, by name, unless cohorts are secret."""
    federation, of_clients = run.spec.federation, run.guarantees.get(Unit.CLIENT)
    secret = isinstance(of_clients, Guarantee) and of_clients.amplified
    if federation is None or secret or not run.history:
        return []
    present = {client for report in run.history for client in report.clients if client not in report.rejected}
    absent = [name for number, name in enumerate(federation.sites) if number not in present]
    if not absent:
        return []
    return [f"Took part in 0 of {len(run.history)} rounds: {', '.join(absent)}. The model knows nothing of their data."]


def _overhead(run: Run) -> list[str]:
    """Bytes of the channel's protocol beyond updates and broadcasts, and the cost of rounding."""
    traffic, method = run.bytes, run.spec.method
    if not traffic.phases:
        return []
    overhead = traffic.overhead.up + traffic.overhead.down
    share = overhead / max(traffic.up + traffic.down - overhead, 1)
    channel = {"SecureSum": "Secure aggregation"}.get(type(method.channel).__name__, type(method.channel).__name__)
    phases = ", ".join(f"{name} {size(phase.up + phase.down)}" for name, phase in traffic.phases.items())
    return [
        f"{channel} overhead: {size(overhead)} ({_percent(share)} of the payload).",
        f"Overhead by phase: {phases}.",
        *_rounding(run),
    ]


def _rounding(run: Run) -> list[str]:
    """The loss of accuracy from integer sums."""
    step = run.history[-1].grid_step if run.history else None
    if step is None:
        return []
    bits = step.bits or run.spec.method.channel.message_format.bits
    lines = [f"Values are rounded to multiples of {step.size:.2g} and summed modulo 2^{bits}."]
    if not step.inflation:
        return lines
    remedy = ""
    if step.inflation >= NOTABLE:
        more = "steps, Grid(steps=...), if the sum has room for them" if bits == 32 else "bits: channel.bits=32"
        remedy = f" With a finer grid it is less: give more {more}."
    return [*lines, f"Rounding to integers costs {_percent(step.inflation)} more noise.{remedy}"]


def _table(runs: Sequence[Run]) -> list[list[str]]:
    """The finished runs, a row each, below a header."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    leakage = ["leakage"] * any(run.leakage is not None for run in runs)
    rows = [["method", "task", "seed", "rounds", *names, "ε", *leakage, "up", "down", "seconds"]]
    for run in runs:
        head = [run.spec.method.name, run.spec.task.name, str(run.spec.seed), str(run.state.round)]
        metrics = [f"{run.metrics[name]:.4f}" if name in run.metrics else "" for name in names]
        leaked = ["-" if run.leakage is None else f"{run.leakage.maximum:.3g}"] * bool(leakage)
        rows.append([*head, *metrics, _epsilons(run), *leaked, *_bytes(run), f"{run.seconds:.1f}"])
    return rows


def _epsilons(run: Run) -> str:
    """The ε of the run, with its unit if that is the record; both if there are two."""
    units = run.epsilons
    return " ".join(f"{units[unit]:.3g}{'' if unit == 'client' else f' ({unit})'}" for unit in units) or "-"


def _bytes(run: Run) -> list[str]:
    """Bytes up and down; where they are fewer, compared with fl-std, which sends whole models both ways."""
    pairs = ((run.bytes.up, run.savings.up), (run.bytes.down, run.savings.down))
    return [size_against(count, count * factor, "fl-std") if factor > 1.05 else size(count) for count, factor in pairs]


def _percent(share: float) -> str:
    """A share in percent, with at least two significant digits."""
    return f"{100 * share:.{0 if share >= 0.1 else 2}f} %"
