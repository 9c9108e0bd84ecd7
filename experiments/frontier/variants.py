"""Three questions at equal ε, answered as the frontier is: which mask, where noise, and noise on a pruned model.

    python experiments/frontier/variants.py covid-mx masks         which weights FL-TOP should train
    python experiments/frontier/variants.py covid-mx importance    noise by importance
    python experiments/frontier/variants.py covid-mx settled       noise under the mask that pruning settled on
    python experiments/frontier/variants.py covid-mx masks --show  print what there is

With `--seeds 10`, the chosen settings have ten seeds instead of three.
Contenders are tuned and tested like those of `frontier.py`, of which some are shown beside them.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from frontier import CONTENDERS, method_of
from torch import Tensor
from tuning import (
    COHORT,
    DELTA,
    NAMES,
    Contender,
    Problem,
    Progress,
    Results,
    Trial,
    add_options,
    differences,
    table,
    train,
)

import tacit
from tacit.core import Round, State, Wave
from tacit.core.state import MASK
from tacit.data import Population
from tacit.engine.simulation import initial_state
from tacit.pieces.codecs import Select, Size
from tacit.pieces.codecs.select import Selection, Vote
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.pieces.trainers import Keep

EPSILONS = (0.25, 1.0, 4.0)
VOTE_BOUND = 0.5  # of a ballot and of an update, before it is tuned: without public data, a number that one chooses
WARM_UP = 1 / 3  # of the rounds, in which all weights are trained before they are pruned


def top_with_other_public(trial: Trial, problem: Problem, task: tacit.Task) -> tacit.Method:
    """FL-TOP; the task has other public data."""
    return method_of(replace(trial, method="fl-top-dp"), problem, task)


def top_by_vote(trial: Trial, problem: Problem, task: tacit.Task) -> tacit.Method:
    """FL-TOP whose mask clients vote for in the first round, which is accounted as every other; no public data."""
    made, given = top_with_other_public(trial, problem, task), dict(trial.settings)
    assert isinstance(made.mechanism, tacit.pieces.DistributedGaussian)
    mechanism = replace(made.mechanism, clip=tacit.pieces.FixedClip(given["bound"] * VOTE_BOUND))
    return replace(made, mechanism=mechanism, codec=Select(Vote(size=Size(ratio=given["ratio"]))))


@cache
def stroke_patients() -> tuple[Tensor, Tensor]:
    """Public patients of another table: those of the International Stroke Trial, as many of both outcomes."""
    public: tuple[Tensor, Tensor] | None = tacit.tasks.make_task("ist", clients=100, public=356, balanced=True).public
    assert public is not None
    return public


def with_stroke_patients(task: tacit.Task) -> tacit.Task:
    """The task with public patients whose columns mean something else: the first ones of the other table."""
    x, y = stroke_patients()
    return replace(task, public=(x[:, : task.population.x.shape[1]].contiguous(), y))


def with_public_client(task: tacit.Task) -> tacit.Task:
    """The task with the samples of its last client as public data."""
    population = task.population
    kept = Population.of([population[client] for client in range(len(population) - 1)])
    return replace(task, clients=kept, public=population[len(population) - 1])


def by_importance(power: float, ball: bool, trial: Trial, problem: Problem, task: tacit.Task) -> tacit.Method:
    """All weights, with noise proportional to a power of how much they change on public data; a trusted server."""
    given = dict(trial.settings)
    ellipsoid = tacit.pieces.EllipsoidClip(
        value=given["bound"] * public_norm(problem, task, trial.seed),
        importance=tacit.pieces.PublicMovement(),
        power=power,
        ball=ball,
    )
    made = tacit.methods.priority_dp(
        ellipsoid=ellipsoid,
        epsilon=trial.epsilon,
        delta=DELTA,
        rounds=int(given["rounds"]),
        cohort=int(COHORT),
        descent=problem.descent,
    )
    return replace(made, server=tacit.pieces.Add(rate=given["length"] / given["bound"]))


def public_norm(problem: Problem, task: tacit.Task, seed: int) -> float:
    """The norm of an update of all weights on the public data, which is FL-STD's bound before it is tuned."""
    method = tacit.methods.fl_std_dp(rounds=1, descent=problem.descent, epsilon=None, noise=1.0)
    return float(initial_state(method, task, seed).memory[BOUND])


@dataclass(frozen=True, kw_only=True)
class Settled(Selection):
    """The weights that pruning left: those of the initial model that are not zero, and all biases.

    `sensitivity`: selecting coordinates lengthens no row.
    """

    size: Size
    keep: Keep
    fixed: ClassVar[bool] = True
    sends_mask: ClassVar[bool] = True
    sensitivity: ClassVar[float] = 1.0

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        return replace(state, memory=state.memory_with(MASK, self.keep.mask(state.weights, state.shapes)))

    def mask(self, known: Tensor | None, dim: int, now: Round) -> Tensor | None:
        return known


def in_enclave(trial: Trial, problem: Problem, _: tacit.Task) -> tacit.Method:
    """All weights, aggregated in an enclave that clips updates and adds noise to their sum."""
    given = dict(trial.settings)
    made = tacit.methods.fl_std_dp(
        rounds=int(given["rounds"]), descent=problem.descent, epsilon=trial.epsilon, delta=DELTA
    )
    return replace(
        made,
        name="pruned-dp",
        mechanism=tacit.pieces.CentralGaussian(clip=tacit.pieces.PublicClip(factor=given["bound"])),
        channel=tacit.pieces.Enclave(),
        server=tacit.pieces.Add(rate=given["length"] / given["bound"]),
    )


def pruned(method: tacit.Method, task: tacit.Task, trial: Trial, place: Path | None) -> list[tacit.Run]:
    """All weights for a third of the rounds; then the released model is pruned, and its remaining weights trained.

    Pruning a released model costs no privacy. All rounds have the noise that ε requires for all of them.
    """
    assert isinstance(method.trainer, tacit.pieces.Sgd)
    first = max(round(WARM_UP * method.rounds), 1)
    before, after = (None if place is None else place / name for name in ("dense", "pruned"))
    dense = train(replace(method, rounds=first, budget=None, report_delta=DELTA), task, trial.seed, before)
    keep, shapes = Keep(compression=1 / dict(trial.settings)["ratio"]), dense.state.shapes
    weights = keep.project(dense.state.weights, shapes)
    codec = Select(Settled(size=Size(number=len(keep.mask(weights, shapes))), keep=keep))
    second = replace(
        method,
        rounds=method.rounds - first,
        budget=None,
        report_delta=DELTA,
        codec=codec,
        trainer=tacit.pieces.Masked(method.trainer),
    )
    start = partial(dense.spec.simulation.module, weights)
    return [dense, train(second, replace(task, model=start), trial.seed + 1000, after)]  # other cohorts, other noise


ALL_WEIGHTS = tuple(name for name in NAMES if name != "ratio")
MASKS = {
    "covid-mx": [Contender("top, other domain", top_with_other_public, task=with_stroke_patients)],
    "fashion-mnist": [Contender("top, in-domain", top_with_other_public, task=with_public_client)],
}
QUESTIONS: dict[str, Callable[[str], list[Contender]]] = {
    "masks": lambda problem: [*MASKS[problem], Contender("top, vote", top_by_vote)],
    "importance": lambda _: [
        Contender("more noise on what changes", partial(by_importance, 0.5, False), ALL_WEIGHTS),
        Contender("less noise on what changes", partial(by_importance, -0.5, False), ALL_WEIGHTS),
        Contender("less noise on what changes, ball", partial(by_importance, -0.5, True), ALL_WEIGHTS),
    ],
    "settled": lambda _: [Contender("pruned in the enclave", in_enclave, train=pruned)],
}
BESIDE = {
    "masks": ("fl-top-dp", "fl-bas-3-dp"),
    "importance": ("fl-std-dp", "fl-top-dp"),
    "settled": ("fl-std-dp", "fl-top-dp"),
}


def asked(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=MASKS)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS, help="run only these")
    add_options(parser)
    return parser.parse_args(argv)


def progress(argv: Sequence[str]) -> Progress:
    """What is done of a command line, for the backlog."""
    args = asked(argv)
    contenders = QUESTIONS[args.question](args.problem)
    return Results.open(args, "-variants").progress([*itertools.product(contenders, args.epsilons)])


def main() -> None:
    """Run what is missing, unless only `--show` is asked for, and print the tables."""
    args = asked()
    results, frontier = (Results.open(args, kind) for kind in ("-variants", ""))
    contenders = QUESTIONS[args.question](args.problem)
    if not args.show:
        results.complete([*itertools.product(contenders, args.epsilons)])
    beside = [CONTENDERS[name] for name in BESIDE[args.question]]
    made = results.cells(contenders, args.epsilons) + frontier.cells(beside, args.epsilons)
    print(table(made, results.problem.metric), differences(made, "fl-top-dp"), sep="\n\n")


if __name__ == "__main__":
    main()
