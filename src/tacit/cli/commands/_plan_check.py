"""`tacit federation check`: what a plan means."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import TRUST_PLAN, add_trust, print_json
from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.federation.plan.check import PlanCheck


def configure_check(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is trained")
    add_trust(parser, f"{TRUST_PLAN}; without it, bytes and parameters are not counted")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(do=check)


def check(args: argparse.Namespace) -> int:
    """Print what a plan means; one that cannot run is an error with a sentence.

    A plan may come from anybody: its functions are imported only with `--trust`.
    """
    from tacit.federation.plan.plan import read_plan

    plan = read_plan(args.plan, trusted=args.trust)  # names are checked before anything is loaded

    from tacit.federation.plan.check import check_plan

    if not plan.has_readable_method:
        plan.check_trusted(args.plan)

    found = check_plan(plan)
    if args.json:
        print_json(asdict(found))
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(found: "PlanCheck") -> Iterator[str]:
    yield f"plan {found.plan}"
    yield f"  {found.method}, {found.rounds} rounds, {len(found.sites)} sites: {', '.join(found.sites)}"
    known = "not run" if found.parameters is None else f"{found.parameters} parameters"
    yield f"  {found.model}, {known}"
    yield from ("", "Privacy", f"  {_privacy(found)}")
    yield from ("", "Who learns what", *(f"  {sentence}" for sentence in found.reveals))
    yield from ("", "Each round", f"  {_traffic(found)}", f"  {_losses(found)}")
    if found.notes:
        yield from ("", "Consider", *(f"  {sentence}" for sentence in found.notes))


def _privacy(found: "PlanCheck") -> str:
    if found.reason:
        return f"none against the server: {found.reason}."
    against = "anyone who receives the models; the server is trusted" if found.trusts_server else "the server"
    return (
        f"ε = {found.epsilon:.4g} at δ = {found.delta:g} for every {found.unit} of a site that takes part in all "
        f"rounds, against {against}. Each site charges this to its own ledger."
    )


def _traffic(found: "PlanCheck") -> str:
    plural = "message" if found.messages == 1 else "messages"
    if found.up is None or found.down is None:
        return f"{found.messages} {plural} to a site; their bytes depend on the model, which was not run."
    return f"{found.messages} {plural} to a site; it sends {size(found.up)} and receives {size(found.down)}."


def _losses(found: "PlanCheck") -> str:
    survives = f"A round survives the loss of {found.losses} of {len(found.sites)} sites."
    if found.colluding is None:
        return survives
    return f"{survives} Messages stay hidden if no more than {found.colluding} of them collude with the server."
