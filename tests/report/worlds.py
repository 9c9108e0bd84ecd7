"""Runs whose pages are checked: methods, units, simulation and federation, and populations that are unusual."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tacit
from federation.consortium import Consortium, server, transport
from tacit import methods
from tacit.pieces.channels import SecureSum
from tacit.runs.run import Run
from tacit.runs.training import follow

SMALL: dict[str, object] = {"rounds": 2, "cohort": 4, "ratio": 0.3, "chunks": 5, "samples": 3, "noise": 2.0}
SMALL |= {"epsilon": "none", "size": 8, "models": 2}


@dataclass(frozen=True)
class World:
    """A run as it ended, and what was done to it.

    Attributes:
        run: the run.
        federated: whether it ran between sites.
        missing: how many sites were never there.
        evaluated: whether metrics were asked for.
        status: as its manifest has it.
    """

    run: Run
    federated: bool = False
    missing: int = 0
    evaluated: bool = True
    status: str = "finished"


def arguments(name: str, **changes: object) -> dict[str, object]:
    """Small ones of a method; few clients take part together where secure aggregation needs some."""
    known = methods.options(name)
    small = {key: value for key, value in SMALL.items() if key in known}
    if name in ("nbafl", "priority"):
        small.pop("epsilon", None)
    if name in ("geyer", "priority-dp"):
        small["epsilon"] = 1e6
    made = methods.make(name)
    if isinstance(made.channel, SecureSum) and not made.terms.protects_records:
        small["sampler"] = "Everyone()"
    return {**small, **changes}


def task_of(clients: int = 6, *, held_out: bool = True, persons: bool = False) -> tacit.Task:
    """A task whose clients have eight records each, of four persons."""
    source = torch.Generator().manual_seed(0)
    xs = [torch.randn(8, 5, generator=source) for _ in range(clients)]
    x = torch.randn(20, 5, generator=source)
    return tacit.Task(
        model=lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)),
        clients=[(each, (each[:, 0] > 0).long()) for each in xs],
        test=(x, (x[:, 0] > 0).long()) if held_out else None,
        public=(x, (x[:, 0] > 0).long()),
        person=[[f"{client}-{row // 2}" for row in range(8)] for client in range(clients)] if persons else None,
    )


def simulate(name: str, path: Path, *, rounds: int = 0, **changes: Any) -> World:
    """A simulation; with `rounds`, one that is stopped after this number."""
    tasks = {key: changes.pop(key) for key in ("clients", "held_out", "persons") if key in changes}
    task = task_of(**tasks)
    method = methods.make(name, arguments(name, **changes))
    stop = (lambda state, _: state.round == rounds) if rounds else None
    run = tacit.train(method, task, workers=1, out=path / "run", on_round=stop)
    return World(run, evaluated=task.test is not None, status="interrupted" if rounds else "finished")


def describe(path: Path) -> World:
    """An analysis of a table."""
    rows = {"site": ["A", "B", "C", "D"] * 10, "age": [float(i % 60 + 20) for i in range(40)]}
    return World(tacit.describe(rows, client="site", epsilon=2.0, out=path / "run").run, evaluated=False)


def federate(name: str, path: Path, *, sites: int = 5, missing: int = 0, **changes: Any) -> World:
    """A federation in one process, whose first sites are absent."""
    plan_keys = ("evaluate_every", "min_cohort", "unit", "records", "public")
    given = {key: changes.pop(key) for key in plan_keys if key in changes}
    made = Consortium.at(path / "federation", sites, held_out=0.4, methods=[name])
    persons = given.get("unit") == "person"
    if persons:
        made.give_tables('person = "person_id"')
        given |= {"encoding": "encoding.json"}
    args = arguments(name, **changes)
    plan = made.plan(name, args=args, **{"min_cohort": 3, "evaluate_every": 1, **given})
    made.accept(plan)
    present = {key: site for key, site in made.sites().items() if key not in made.names[:missing]}
    source = server(plan, transport(present))
    *_, run = follow(source.run_spec, out=path / "run", source=source)
    return World(run, federated=True, missing=missing, evaluated=bool(plan.evaluate_every))


WORLDS: dict[str, Callable[[Path], World]] = {
    **{name: partial(simulate, name) for name in methods.definitions()},
    "persons in steps": partial(simulate, "dp-sgd", persons=True),
    "persons in sums": partial(simulate, "dp-fedsgd", persons=True),
    "four clients": partial(simulate, "dp-fedsgd", clients=4),
    "a strong guarantee": partial(simulate, "geyer", noise=8.0, epsilon=2.0, delta=1e-3),
    "no held-out data": partial(simulate, "fedavg", held_out=False),
    "clients that never took part": partial(simulate, "fl-std", cohort=2, rounds=1),
    "stopped": partial(simulate, "dp-sgd", rounds=1),
    "an analysis": describe,
    "a federation in the clear": partial(federate, "fedavg"),
    "a federation that hides messages": partial(federate, "fl-std", channel="SecureSum()"),
    "a site that is absent": partial(federate, "fl-std", channel="SecureSum()", missing=1),
    "four sites": partial(federate, "dp-fedsgd", sites=4, evaluate_every=0),
    "records between sites": partial(federate, "dp-fedsgd"),
    "persons between sites": partial(federate, "dp-fedsgd", unit="person"),
    "declared records": partial(federate, "dp-sgd", records=3),
    "whole sites": partial(federate, "fl-std-dp", public="acme:public"),
    "secret cohorts between sites": partial(federate, "geyer", cohort=4),
}
