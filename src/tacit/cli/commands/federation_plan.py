"""`tacit federation explain` and `plan`: explain a plan, and write one from a run."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import answer
from tacit.core.prices import Unit
from tacit.federation.plan.directory import read_directory
from tacit.federation.plan.explain import PlanExplanation, explain_plan
from tacit.federation.plan.from_run import plan_from_run
from tacit.federation.plan.plan import read_plan
from tacit.federation.site.policy import TAKES_PART
from tacit.report.labels import size


def run(args: argparse.Namespace) -> int:
    """Print an explanation of a plan; raises an error if the plan cannot run.

    A plan is untrusted: its functions are imported only with `--trust`.
    """
    plan = read_plan(args.plan, trusted=args.trust)
    if not plan.has_readable_method:
        plan.check_trusted(args.plan)
    explanation = explain_plan(plan)
    return answer(args, asdict(explanation), _lines(explanation))


def make_plan(args: argparse.Namespace) -> int:
    """Write a plan from a run, and its encoding beside it."""
    result = plan_from_run(args.simulation, read_directory(args.sites))
    encoding, digest = result.write(args.out, args.simulation, args.sites), result.plan.digest.hex()
    lines = [f"plan      {args.out}", f"encoding  {encoding}", f"digest    {digest}"]
    for title, sentences in (("Changed for these sites", result.changes), ("Consider", result.warnings)):
        lines += [title, *(f"  {sentence}" for sentence in sentences)] if sentences else []
    lines.append(f"Next: tacit federation explain {args.out}, and send both files to all sites.")
    document = {"plan": digest, "file": str(args.out), "encoding": str(encoding)}
    return answer(args, {**document, "changes": result.changes, "warnings": result.warnings}, lines)


def _lines(explanation: PlanExplanation) -> Iterator[str]:
    yield f"plan {explanation.plan}"
    sites = explanation.sites
    yield f"  {explanation.method}, {explanation.rounds} rounds, {len(sites)} sites: {', '.join(sites)}"
    count = "not run" if explanation.parameters is None else f"{explanation.parameters} parameters"
    yield f"  {explanation.model}, {count}"
    yield from ("", "Privacy", f"  {_privacy(explanation)}")
    if explanation.reads:
        yield from ("", "Columns that it reads", *(f"  {line}" for line in explanation.reads))
    yield from ("", "Who learns what", *(f"  {sentence}" for sentence in explanation.reveals))
    yield from ("", "Each round", f"  {_traffic(explanation)}", f"  {_losses(explanation)}")
    if explanation.notes:
        yield from ("", "Consider", *(f"  {sentence}" for sentence in explanation.notes))


def _privacy(explanation: PlanExplanation) -> str:
    if explanation.reason:
        return f"none against the server: {explanation.reason}."
    against = "anyone who receives the models; the server is trusted" if explanation.trusts_server else "the server"
    return (
        f"ε = {explanation.epsilon:.4g} at δ = {explanation.delta:g} for every {explanation.unit} of a site that takes "
        f"part in all rounds, against {against}. Each site charges this to its own ledger."
        + f" {TAKES_PART}"
        * (explanation.unit is Unit.CLIENT)
    )


def _traffic(explanation: PlanExplanation) -> str:
    plural = "message" if explanation.messages == 1 else "messages"
    if explanation.up is None or explanation.down is None:
        return f"{explanation.messages} {plural} to a site; their bytes depend on the model, which was not run."
    up, down = size(explanation.up), size(explanation.down)
    return f"{explanation.messages} {plural} to a site; it sends {up} and receives {down}."


def _losses(explanation: PlanExplanation) -> str:
    survives = f"A round survives the loss of {explanation.losses} of {len(explanation.sites)} sites."
    if explanation.colluding is None:
        return survives
    return f"{survives} Messages stay hidden if no more than {explanation.colluding} of them collude with the server."
