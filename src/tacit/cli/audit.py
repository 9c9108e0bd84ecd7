"""Measure how much a method gives away at the least, beside what it claims.

Canary clients take part or not, an adversary that gets the models guesses which, and right guesses prove a lower bound
on ε. It holds with 95 % confidence; a method whose bound exceeds its claim is broken, and the exit code is 1. A bound
below the claim proves nothing: another adversary may do better. Claim and bound are about the rounds that are played.

Examples:
  tacit audit geyer                                      a thousand runs of two rounds on the embedded digits
  tacit audit fl-std-dp --runs 300 --task-set clients=20 --set cohort=10 noise=1 epsilon=none
  tacit audit geyer --canaries 1000                      one run with a thousand canaries, quicker and weaker
  tacit audit fl-std-dp --dropouts 0.1                   if one in ten of every cohort fails to deliver
  tacit audit geyer --adjacency replace-one --json
"""

import argparse
import json
import math
from collections import deque
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, aligned, to_dict, track

if TYPE_CHECKING:
    from tacit.attacks.auditing import Trial
    from tacit.attacks.bounds import Errors, Guesses
    from tacit.attacks.scenario import Claim, Verdict

EXCEEDED = 1  # the exit code


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("method", help="a method's name; tacit methods lists them")
    parser.add_argument("--task", default="digits", help="whose clients stand by (default: digits)")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="how many are played (default: 2)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--runs", type=int, default=1000, metavar="N", help="how many, with a canary each (default: 1000)")
    how.add_argument("--canaries", type=int, metavar="N", help="so many in one run, instead of many runs")
    parser.add_argument("--adjacency", choices=("add-or-remove", "replace-one"), default="add-or-remove")
    parser.add_argument("--dropouts", type=float, default=0.0, metavar="P", help="the part of a cohort that is lost")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Audit, and print the bound beside the claim."""
    from tacit.runs.experiment import Experiment

    made = Experiment(method=args.method, task=args.task, args=to_dict(args.set), task_args=to_dict(args.task_set))
    made.check_names()  # before PyTorch is imported

    from tacit.attacks.scenario import claim_of, judge, trial_of

    trial = trial_of(
        made.build_method(),
        made.build_task(),
        rounds=args.rounds,
        dropouts=args.dropouts,
        adjacency=args.adjacency,
        seed=args.seed,
    )
    claim = claim_of(trial, args.canaries or 1)
    found = _guess(trial, args)
    verdict = judge(claim, found)
    print(
        json.dumps(_summary(args, verdict, found), indent=2) if args.json else "\n".join(_lines(args, verdict, found))
    )
    return EXCEEDED if verdict.exceeded else 0


def _guess(trial: "Trial", args: argparse.Namespace) -> "Errors | Guesses":
    from tacit.attacks.auditing import many_runs, one_run
    from tacit.core import Key

    key = Key.from_seed(args.seed, "audit")
    if args.canaries:
        return one_run(trial, args.canaries, key)
    (found,) = deque(track(many_runs(trial, args.runs, key), args.runs, f"audit {args.method}: run"), maxlen=1)
    return found.errors()


def _summary(args: argparse.Namespace, verdict: "Verdict", found: "Errors | Guesses") -> dict[str, object]:
    from dataclasses import asdict

    claim = verdict.claim
    return {
        "method": args.method,
        "task": args.task,
        "rounds": args.rounds,
        "adjacency": args.adjacency,
        "dropouts": args.dropouts,
        "delta": claim.delta,
        "claimed": None if claim.epsilon is None or math.isinf(claim.epsilon) else claim.epsilon,
        "reason": claim.reason,
        "bounds": verdict.bounds,
        "guesses": asdict(found),
        "curve_refuted": verdict.refuted,
        "exceeded": verdict.exceeded,
    }


def _lines(args: argparse.Namespace, verdict: "Verdict", found: "Errors | Guesses") -> list[str]:
    claim = verdict.claim
    claimed = f"none: {claim.reason}" if claim.epsilon is None else f"{claim.epsilon:.4g}"
    rows = [
        ["claimed ε", claimed],
        *([f"ε is at least ({name})", f"{bound:.4g}"] for name, bound in verdict.bounds.items()),
        ["δ", f"{claim.delta:g}"],
        ["rounds", str(args.rounds)],
        ["adjacency", f"{args.adjacency}, client"],
        ["confidence", f"{found.confidence:.0%}"],
        ["guesses", _guesses(found)],
    ]
    return [*(line.rstrip() for line in aligned(rows)), _judgement(claim, verdict)]


def _guesses(found: "Errors | Guesses") -> str:
    from tacit.attacks.bounds import Guesses

    if isinstance(found, Guesses):
        return f"{found.right} of {found.made} right, about {found.canaries} canaries"
    return f"{found.missed} of {found.inside} canaries missed, {found.false} of {found.outside} seen where none was"


def _judgement(claim: "Claim", verdict: "Verdict") -> str:
    if verdict.exceeded:
        where = " somewhere on its curve of ε and δ" * (max(verdict.bounds.values()) <= (claim.epsilon or 0))
        return f"The claim is exceeded{where}: this method gives away more than it says."
    if claim.epsilon is None:
        return "Nothing is claimed, so nothing is exceeded."
    return "The claim is not exceeded. That proves nothing about other adversaries."
