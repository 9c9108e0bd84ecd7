"""Test a privacy claim: measure a lower bound on ε and compare it with the claim.

Canary clients take part or not, an adversary that receives the models guesses which, and correct guesses prove a lower
bound on ε with 95 % confidence. If the bound exceeds the claim, the method is broken and the exit code is 1. A bound
below the claim proves nothing: another adversary may do better. Claim and bound are about the audited rounds only.

Examples:
  tacit audit geyer                                      1000 runs of two rounds on the embedded digits
  tacit audit fl-std-dp --runs 300 --task-set clients=20 --set cohort=10 noise=1 epsilon=none
  tacit audit geyer --canaries 1000                      one run with 1000 canaries: faster, but a weaker test
  tacit audit fl-std-dp --dropouts 0.1                   a tenth of every cohort drops out
  tacit audit geyer --adjacency replace-one --json
"""

import argparse
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, aligned, print_json, to_dict, track

if TYPE_CHECKING:
    from tacit.attacks.auditing import Audit
    from tacit.attacks.bounds import ErrorCounts, OneRunGuesses
    from tacit.attacks.scenario import AuditResult

VIOLATED = 1  # the exit code


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("method", help="name of a method; tacit methods lists them")
    parser.add_argument("--task", default="digits", help="the task whose clients take part too (default: digits)")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds per run (default: 2)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--runs", type=int, default=1000, metavar="N", help="runs with one canary (default: 1000)")
    how.add_argument("--canaries", type=int, metavar="N", help="one run with N canaries, instead of many runs")
    parser.add_argument(
        "--adjacency",
        choices=("add-or-remove", "zero-out", "replace-one"),
        help="an excluded canary is absent, or sends zeros or its negated update (default: as the method claims)",
    )
    parser.add_argument(
        "--dropouts", type=float, default=0.0, metavar="P", help="fraction of a cohort that drops out (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Audit, and print the lower bound with the claim."""
    from tacit.runs.experiment import Experiment

    experiment = Experiment(
        method=args.method, task=args.task, args=to_dict(args.set), task_args=to_dict(args.task_set)
    )
    experiment.check_names()  # before PyTorch is imported

    from tacit.attacks.scenario import AuditResult, claim_of, prepare_audit

    audit = prepare_audit(
        experiment.build_method(),
        experiment.build_task(),
        rounds=args.rounds,
        dropouts=args.dropouts,
        adjacency=args.adjacency,
        seed=args.seed,
    )
    claim = claim_of(audit, args.canaries or 1)
    guesses = _guess(audit, args)
    result = AuditResult.of(claim, guesses)
    if args.json:
        print_json(_document(args, audit.adjacency, result, guesses))
    else:
        print("\n".join(_lines(args, audit.adjacency, result, guesses)))
    return VIOLATED if result.violated else 0


def _guess(audit: "Audit", args: argparse.Namespace) -> "ErrorCounts | OneRunGuesses":
    from tacit.attacks.auditing import many_runs, one_run
    from tacit.core import Key

    key = Key.from_seed(args.seed, "audit")
    if args.canaries:
        return one_run(audit, args.canaries, key)
    (runs,) = deque(track(many_runs(audit, args.runs, key), args.runs, f"audit {args.method}: run"), maxlen=1)
    return runs.count_errors()


def _document(
    args: argparse.Namespace, adjacency: str, result: "AuditResult", guesses: "ErrorCounts | OneRunGuesses"
) -> dict[str, object]:
    claim = result.claim
    return {
        "method": args.method,
        "task": args.task,
        "rounds": args.rounds,
        "adjacency": adjacency,
        "dropouts": args.dropouts,
        "delta": claim.delta,
        "claimed_epsilon": claim.epsilon,
        "reason": claim.reason,
        "epsilon_lower_bounds": dict(result.lower_bounds),
        "guesses": asdict(guesses),
        "profile_refuted": result.profile_refuted,
        "violated": result.violated,
    }


def _lines(
    args: argparse.Namespace, adjacency: str, result: "AuditResult", guesses: "ErrorCounts | OneRunGuesses"
) -> list[str]:
    claim = result.claim
    rows = [
        ["claimed ε", f"none: {claim.reason}" if claim.epsilon is None else f"{claim.epsilon:.4g}"],
        *(
            [f"lower bound on ε ({name})", f"{bound:.4g}" if bound else "none found"]
            for name, bound in result.lower_bounds.items()
        ),
        ["δ", f"{claim.delta:g}"],
        ["rounds", str(args.rounds)],
        ["adjacency", f"{adjacency}, one client"],
        ["confidence", f"{100 * guesses.confidence:.0f} %"],
        ["guesses", str(guesses)],
    ]
    return [*aligned(rows), _conclusion(result)]


def _conclusion(result: "AuditResult") -> str:
    claimed = result.claim.epsilon
    if result.violated and (claimed is None or result.best <= claimed):
        return "The claim is violated: at another δ, this method leaks more than it claims."
    if result.violated:
        return f"The claim is violated: ε is at least {result.best:.4g}, more than claimed."
    if result.best == 0:
        unclaimed = "No privacy is claimed. " * (claimed is None)
        return f"{unclaimed}The audit found no evidence of leakage (a weak test, not a proof)."
    if claimed is None:
        return f"No privacy is claimed, and the audit found leakage: ε is at least {result.best:.4g}."
    return "The leakage found is within the claim. This is no proof: a stronger attack may find more."
