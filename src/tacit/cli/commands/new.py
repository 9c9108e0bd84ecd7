"""`tacit new`: write a commented file for a method of your own, with a test that passes."""

import argparse
import re
from keyword import iskeyword

from tacit.errors import UserError

METHOD = '''"""The method {name}: say here what it changes, and which paper it is from.

    tacit run {name}.py:{name}
    tacit run {name}.py:{name} --set rounds=5 momentum=0.5
    tacit card {name}.py:{name}
    tacit check {name}.py:{name}
"""

from dataclasses import dataclass, replace

import torch
from tacit import Method, State
from tacit.core.interfaces import ServerUpdate
from tacit.pieces import FixedSize, Sgd


@dataclass(frozen=True)
class HeavyBall(ServerUpdate):
    """A server update of one's own: momentum on the mean update. A piece is a frozen subclass of its interface.

    Args:
        momentum: the part of the last step that is repeated.
    """

    momentum: float

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Expected momentum={{self.momentum}} in [0, 1).")

    def apply(self, state: State, aggregate: torch.Tensor) -> State:
        """The next state. What a piece carries from round to round is in `State.memory`, under a name of its own."""
        before = state.memory.get("{name} step", torch.zeros_like(aggregate))
        step = self.momentum * before + aggregate
        return replace(state, weights=state.weights + step, memory=state.memory_with("{name} step", step))


def {name}(rounds: int = 20, cohort: int = 10, momentum: float = 0.9) -> Method:
    """Federated averaging with momentum at the server.

    Args:
        rounds: number of rounds.
        cohort: clients per round.
        momentum: the part of the last step that is repeated.
    """
    return Method(
        name="{name}",
        rounds=rounds,
        sampler=FixedSize(cohort),  # who takes part
        trainer=Sgd(lr=0.1, epochs=1, batch_size=10),  # what a client computes
        # codec=, mechanism=, channel= and aggregator= have defaults that make federated averaging
        server=HeavyBall(momentum),  # what becomes of the mean update
    )
'''

TEST = '''"""The method {name} keeps the laws, and learns."""

import tacit
from {name} import {name}
from tacit.runs.checking import check_method


def test_every_piece_keeps_the_laws():
    assert [found for found in check_method({name}()) if not found.passed] == []


def test_it_learns():
    task = tacit.tasks.make_task("digits", clients=20)
    run = tacit.train({name}(rounds=10), task, workers=1)
    assert run.metrics["accuracy"] > 0.5
'''


def run(args: argparse.Namespace) -> int:
    """Write the file and its test, and print what to do next."""
    name = args.name.replace("-", "_").removesuffix(".py")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        raise UserError(f"Expected a name of lower-case letters, digits and underscores, got {args.name!r}.")
    files = {args.out / f"{name}.py": METHOD, args.out / f"test_{name}.py": TEST}
    for path in files:
        if path.exists():
            raise UserError(f"Expected a new file, but there is {path}. Choose another name, or --out.")
    args.out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text.format(name=name), encoding="utf-8")
    method, test = files
    print(f"Wrote {method} and {test}. Next:")
    print("\n".join(f"  tacit {verb} {method}:{name}" for verb in ("run", "card", "check")))
    print(f"  python -m pytest {test}")
    return 0
