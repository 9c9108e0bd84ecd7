"""`tacit federation explain` and `plan`: explain a plan, and write one from a run."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import answer
from tacit.federation.plan.directory import read_directory
from tacit.federation.plan.explain import PlanExplanation, explain_plan
from tacit.federation.plan.from_run import plan_from_run
from tacit.federation.plan.plan import read_plan
from tacit.report.labels import size


def run(args: argparse.Namespace) -> int:
    """Print an explanation of a plan; raises an error with a sentence if it cannot run.

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


def _lines(found: PlanExplanation) -> Iterator[str]:
    yield f"plan {found.plan}"
    yield f"  {found.method}, {found.rounds} rounds, {len(found.sites)} sites: {', '.join(found.sites)}"
    count = "not run" if found.parameters is None else f"{found.parameters} parameters"
    yield f"  {found.model}, {count}"
    yield from ("", "Privacy", f"  {_privacy(found)}")
    if found.reads:
        yield from ("", "Columns that it reads", *(f"  {line}" for line in found.reads))
    yield from ("", "Who learns what", *(f"  {sentence}" for sentence in found.reveals))
    yield from ("", "Each round", f"  {_traffic(found)}", f"  {_losses(found)}")
    if found.notes:
        yield from ("", "Consider", *(f"  {sentence}" for sentence in found.notes))


def _privacy(found: PlanExplanation) -> str:
    if found.reason:
        return f"none against the server: {found.reason}."
    against = "anyone who receives the models; the server is trusted" if found.trusts_server else "the server"
    return (
        f"ε = {found.epsilon:.4g} at δ = {found.delta:g} for every {found.unit} of a site that takes part in all "
        f"rounds, against {against}. Each site charges this to its own ledger."
    )


def _traffic(found: PlanExplanation) -> str:
    plural = "message" if found.messages == 1 else "messages"
    if found.up is None or found.down is None:
        return f"{found.messages} {plural} to a site; their bytes depend on the model, which was not run."
    return f"{found.messages} {plural} to a site; it sends {size(found.up)} and receives {size(found.down)}."


def _losses(found: PlanExplanation) -> str:
    survives = f"A round survives the loss of {found.losses} of {len(found.sites)} sites."
    if found.colluding is None:
        return survives
    return f"{survives} Messages stay hidden if no more than {found.colluding} of them collude with the server."
