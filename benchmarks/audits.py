"""How often audits alarm: on correct mechanisms, where they should not, and on planted bugs, where they should.

Examples:
  python benchmarks/audits.py correct 100      audits of random correct mechanisms, and the number of false alarms
  python benchmarks/audits.py bugs             audits of all planted bugs, as rows of a table
  python benchmarks/audits.py catalogue 100    audits of all methods with a claim, in turn, for each of their units
  python benchmarks/audits.py engine           audits of the bugs that are planted in the product's own code

Everything derives from fixed seeds, so the figures repeat on one type of CPU. `--runs` is that of `tacit audit`.
"""

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attacks.bugs import (
    CORRECT,
    IN_SHARES,
    SHARED,
    Bug,
    bugs,
    dropout_case,
    further,
    sampled_dropout_case,
    seven,
)
from attacks.engine_bugs import engine_bugs
from attacks.engine_bugs import task as engine_task
from attacks.other_bugs import not_found, other_bugs
from laws.compositions import all_methods
from tacit.attacks.auditing import AuditAdjacency
from tacit.attacks.claims import AuditResult, claim_of
from tacit.attacks.scenario import prepare_audit
from tacit.attacks.search import search
from tacit.core import Key, Method
from tacit.core.prices import Unit, Unproved
from tacit.data import Task
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, Grid, QuantileClip, Reals
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd

RUNS = 1000
CLIENTS, MOST = 20, 16  # of the catalogue's tasks, and expected in a cohort


def random_task(draw: random.Random) -> Task:
    """Random data for a linear or a deeper model, and 5 to 20 clients."""
    inputs, hidden, clients = draw.choice((3, 6, 20, 60)), draw.choice((0, 0, 8)), draw.randint(5, 20)

    def model() -> nn.Module:
        if not hidden:
            return nn.Linear(inputs, 3)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    g = torch.Generator().manual_seed(draw.randrange(1 << 30))
    parts = [(torch.randn(4, inputs, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(clients)]
    return Task(model=model, clients=parts)


def correct_mechanism(number: int) -> tuple[Method, Task, AuditAdjacency, int]:
    """A correct method, a task, an adjacency and a number of rounds."""
    draw = random.Random(number)
    task, noise, clip = random_task(draw), draw.choice((0.6, 1.0, 2.0, 4.0)), draw.choice((0.1, 1.0, 5.0))
    clients = len(task.population)
    adjacency: AuditAdjacency = draw.choice(("add-or-remove", "add-or-remove", "add-or-remove", "replace-one"))
    kind, rounds = draw.choice(("central", "central", "shares", "grid", "quantile", "few weights")), draw.randint(1, 5)
    sampler = draw.choice((Everyone(), Everyone(), Poisson(0.5 * clients), FixedSize(clients // 2)))
    if isinstance(sampler, FixedSize) and adjacency == "replace-one":  # for which there is no claim
        sampler = Everyone()
    central = CentralGaussian(clip=FixedClip(clip, per_layer=draw.random() < 0.3), noise_multiplier=noise)
    server = draw.choice((CORRECT.server, Momentum(0.9)))
    method = replace(CORRECT, mechanism=central, sampler=sampler, server=server)
    shares = replace(SHARED, clip=FixedClip(clip), noise_multiplier=noise)
    if kind in ("shares", "grid", "few weights"):
        shares = replace(shares, arithmetic=Grid() if kind == "grid" else Reals())
        method = replace(IN_SHARES, mechanism=shares, sampler=sampler, server=server)
    if kind == "few weights":
        method = replace(method, trainer=Masked(Sgd(lr=0.1, steps=1)), codec=Select(FixedRandom(size=Size(number=9))))
    if kind == "quantile":
        quantile = CentralGaussian(clip=QuantileClip(start=clip, count_noise=3 * noise), noise_multiplier=noise)
        method = replace(method, mechanism=quantile)
    return replace(method, name=f"{kind}, noise {noise:g}, {type(sampler).__name__}"), task, adjacency, rounds


def small_task(clients: int = 6, inputs: int = 6) -> Task:
    """The task on which bugs are planted."""
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, inputs, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(clients)]
    return Task(model=lambda: nn.Linear(inputs, 3), clients=parts)


def audit_correct(count: int, runs: int, first: int = 0) -> int:
    """Audit this many correct mechanisms; the number of false alarms."""
    alarms = 0
    for number in range(first, first + count):
        method, task, adjacency, rounds = correct_mechanism(number)
        result, seconds, how = audited(method, task, runs, number, adjacency=adjacency, rounds=rounds)
        alarms += result.violated
        print(f"{number:4} {method.name:36} {adjacency:14} {_figures(result)} {seconds:6.1f} s{how}", flush=True)
    print(f"{alarms} of {count} correct mechanisms are above their claim")
    return alarms


def claiming_methods() -> list[tuple[Method, Unit]]:
    """The methods of the catalogue that claim (ε, δ), for clients, records and persons, with cohorts of most clients.

    Of fewer clients the noise in shares has no finite ε: too many cohorts would be too small for their secure sum.
    """
    methods = [method.with_noise_multiplier(1.0) for method in all_methods().values() if method.aggregator.models == 1]
    cases = [(_of_most(method), unit) for method in methods for unit in method.terms.accounted]
    cases = [(method, unit) for method, unit in cases if not isinstance(method.terms.prices[unit], Unproved)]
    return cases + [(method, Unit.PERSON) for method, unit in cases if unit is Unit.RECORD]


def _of_most(method: Method) -> Method:
    """Skellam noise has proofs for Poisson cohorts only; for records, cohorts do not matter."""
    if method.terms.protects_records:
        return method
    fixed = isinstance(method.sampler, FixedSize) and method.name != "skellam shares"
    return replace(method, sampler=FixedSize(MOST) if fixed else Poisson(MOST))


def audit_catalogue(count: int, runs: int, first: int = 0) -> int:
    """Audit these methods in turn; the number of false alarms."""
    cases = claiming_methods()
    alarms = 0
    for number in range(first, first + count):
        method, unit = cases[number % len(cases)]
        there = engine_task(CLIENTS, persons=unit is Unit.PERSON)
        result, seconds, how = audited(method, there, runs, number, adjacency=None, rounds=2, unit=unit)
        alarms += result.violated
        print(f"{number:4} {method.name:26} {unit:7} {_figures(result)} {seconds:6.1f} s{how}", flush=True)
    print(f"{alarms} of {count} audits of correct methods are above their claim")
    return alarms


def audit_engine_bugs(only: str) -> None:
    """Audit every bug in the product's own code whose name contains `only`."""
    for bug in engine_bugs():
        if only not in bug.name:
            continue
        with bug.needs(), bug.plant():
            there = engine_task(persons=bug.persons)
            result, seconds, how = audited(bug.method(), there, bug.runs, 0, adjacency=None, rounds=bug.rounds)
        word = "found" if result.violated else "MISSED"
        print(f"| {bug.name} | {word} | {_figures(result)} | {bug.runs} | {seconds:.1f} |{how}", flush=True)


def audit_bugs(runs: int, only: str) -> None:
    """Audit every planted bug whose name contains `only`, and print a row of a table for each."""
    dropouts = dropout_case(), sampled_dropout_case()
    for bug in (*bugs(6), *seven(), *further(), *other_bugs(), *dropouts, *not_found()):
        if only not in bug.name:
            continue
        result, seconds, how = audited_bug(bug, runs)
        word = "found" if result.violated else "MISSED"
        print(f"| {bug.name} | {word} | {_figures(result)} | {runs} | {seconds:.1f} |{how}", flush=True)


def audited_bug(bug: Bug, runs: int) -> tuple[AuditResult, float, str]:
    """The result of an audit, its seconds, and what it found."""
    task = small_task(bug.clients, bug.inputs)
    return audited(bug.method, task, runs, 0, adjacency=bug.adjacency, rounds=bug.rounds, dropouts=bug.dropouts)


def audited(
    method: Method,
    task: Task,
    runs: int,
    seed: int,
    *,
    adjacency: AuditAdjacency | None = "add-or-remove",
    rounds: int = 4,
    dropouts: float = 0.0,
    unit: Unit | None = None,
) -> tuple[AuditResult, float, str]:
    """The result of an audit, its seconds of processor time, and what it found."""
    began = time.process_time()
    audit = prepare_audit(method, task, rounds=rounds, adjacency=adjacency, dropouts=dropouts, unit=unit)
    claim = claim_of(audit)
    evidence = search(audit, claim, runs, Key.from_seed(seed, "campaign"))
    result = AuditResult.of(claim, evidence)
    how = f" {evidence.released}, {evidence.statistic}; canary {evidence.canary}"
    return result, time.process_time() - began, "".join((how, *(f"; {premise}" for premise in evidence.premises)))


def _figures(result: AuditResult) -> str:
    claimed = "none" if result.claim.epsilon is None else f"{result.claim.epsilon:6.2f}"
    return f"claimed {claimed} found {result.best:6.2f}{' REFUTED' if result.violated else ''}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("correct", "bugs", "catalogue", "engine"))
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--first", type=int, default=0, help="number of the first correct mechanism")
    parser.add_argument("--only", default="", help="part of the names of the bugs to audit")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "correct":
        sys.exit(audit_correct(args.count, args.runs, args.first) > args.count // 20)
    if args.what == "catalogue":
        sys.exit(audit_catalogue(args.count, args.runs, args.first) > args.count // 20)
    if args.what == "engine":
        audit_engine_bugs(args.only)
        sys.exit()
    audit_bugs(args.runs, args.only)
