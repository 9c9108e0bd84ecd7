"""`tacit site init`, `pin`, `review`, `ledger` and `log`: a site's commands except `serve`."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import aligned, answer
from tacit.core.files import ChainedFile
from tacit.federation.journal import JOURNAL, Entry, content_of
from tacit.federation.plan.entry_points import check_defined, pin
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.site.files import SiteFiles, init_site, read_site
from tacit.federation.site.policy import Cost, Review
from tacit.privacy.ledger import Ledger, LedgerEntry
from tacit.privacy.ledger_head import NO_CLIENTS, LedgerUse


def print_pin(args: argparse.Namespace) -> int:
    """Print the pin of installed code."""
    check_defined(args.function, "the model")  # a pin of missing code would be useless
    print(f'"{args.function}" = "{pin(args.function, "the model")}"')
    return 0


def init(args: argparse.Namespace) -> int:
    """Write the site's file and key, or check the data in the file."""
    new = not args.config.exists()
    identity = init_site(args.config)
    document: dict[str, object] = {"config": str(args.config), "public_key": identity.hex(), "new": new}
    lines = [f"file        {args.config}{' (new)' if new else ''}", f"public key  {identity.hex()}"]
    if new:
        lines.append(f"Next: edit {args.config}, and give the public key to who keeps the directory, in person.")
    else:
        document["data"] = read_site(args.config).source.summary
        lines.append(f"data        {document['data']}")
    return answer(args, document, lines)


def review(args: argparse.Namespace) -> int:
    """Exit code 0 if the plan is within the site's policy, 1 if it is not."""
    site, plan = read_site(args.config), read_plan(args.plan)
    result = site.review(plan)
    recorded = ""
    if args.accept or args.refuse:
        recorded = "accepted" if args.accept else "refused"
        site.record(plan, accepted=args.accept, found=result)
    document = {**asdict(result), **asdict(result.cost), "plan": result.plan.hex(), "accepted": result.accepted}
    document["recorded"] = recorded
    del document["cost"], document["mixed"]
    answer(args, document, _review_lines(site, plan, result, recorded))
    return 0 if result.accepted or args.refuse else 1


def _review_lines(site: SiteFiles, plan: FederationPlan, found: Review, recorded: str) -> Iterator[str]:
    yield f"plan {found.plan.hex()}"
    rounds = f" {found.rounds} rounds," if found.rounds else ""
    yield f"  {plan.method_name},{rounds} {plan.population} sites; this site is {site.name}"
    yield from ("", "What it would cost here", f"  {_cost(site, found.cost)}", "")
    if found.reveals:
        yield from ("Who would learn what", *(f"  {sentence}" for sentence in found.reveals), "")
    if found.reads:
        yield from ("Columns that it would read", *(f"  {line}" for line in found.reads), "")
    if found.remarks:
        yield from ("In this site's data", *(f"  {sentence}" for sentence in found.remarks), "")
    if found.objections:
        yield from ("This site's policy refuses the plan:", *(f"  {sentence}" for sentence in found.objections))
    else:
        yield "The plan is within this site's policy."
    if found.problems:
        yield from ("This site's data do not fit the plan:", *(f"  {sentence}" for sentence in found.problems))
    if recorded:
        yield f"Recorded as {recorded}, and signed with this site's key."
    elif found.accepted:
        yield "Nothing was recorded. Add --accept or --refuse."


def _cost(site: SiteFiles, found: Cost) -> str:
    if found.reason:
        return f"ε against the server is not bounded: {found.reason}."
    earlier = f"; with ε = {found.used:.4g} of earlier plans, {found.total:.4g}" if found.used else ""
    whose = "this site as a whole" if found.within else f"every {found.unit}"
    single = f" For a single record of it, ε = {found.within:.4g}: without it, the site would send another update."
    return (
        f"ε = {found.epsilon:.4g} at δ = {site.allow.delta:g} for {whose}, against the server{earlier}, "
        f"of {site.allow.epsilon:g} that this site allows.{single * bool(found.within)}"
    )


def show_ledger(args: argparse.Namespace) -> int:
    """Print the charges, by run."""
    site = read_site(args.config)
    if not site.has_ledger:
        return answer(args, {"rounds": 0}, ["Nothing has been charged at this site."])
    with Ledger.open(site.ledger) as ledger:
        runs, use, head = _by_run(ledger), ledger.use, asdict(ledger.head)
    used = {"epsilons": {**use.epsilons}, "budget": asdict(use.budget), "rounds": use.rounds}
    document = {**used, "runs": runs, "head": head}
    rows = [["method", "plan and run of the server", "rounds", "charges"]]
    rows += [[str(run["method"]), _short(str(run["run"])), str(run["rounds"]), str(run["charges"])] for run in runs]
    return answer(args, document, [*_used(use), *aligned(rows)])


def _short(run: str) -> str:
    """The first digits of the plan and of the server's run: enough to distinguish them."""
    return " ".join(part[:16] for part in run.split())


def _used(use: LedgerUse) -> Iterator[str]:
    """The use of the budget, by unit."""
    for unit, epsilon in use.epsilons.items():
        whose = "the client as a whole" if unit == "client" else f"every {unit}"
        yield NO_CLIENTS if epsilon is None else f"ε = {epsilon:.4g} for {whose}, of {use.budget}, was used."


def _by_run(ledger: Ledger) -> list[dict[str, object]]:
    """The charges of each run of a server; each attempt at a round is a charge of its own."""
    runs: dict[str, list[LedgerEntry]] = {}
    for entry in ledger.entries:
        runs.setdefault(entry.run, []).append(entry)
    return [
        {"method": own[0].label, "run": run, "rounds": len({entry.round for entry in own}), "charges": len(own)}
        for run, own in runs.items()
    ]


def show_log(args: argparse.Namespace) -> int:
    """Verify the log's hash chain, and print the log."""
    site = read_site(args.config)
    journal = ChainedFile(site.log, JOURNAL) if site.log.exists() else None
    entries = journal.entries if journal else []
    lines = [*map(_log_line, entries)]
    if journal:
        lines.append(f"{len(entries)} entries, none changed; the last one is {journal.head.hex()}.")
    return answer(args, entries, lines or ["Nothing has happened at this site."])


def _log_line(entry: Entry) -> str:
    details = ", ".join(f"{name} {_shortened(value)}" for name, value in content_of(entry).items())
    return f"{entry['time']}  {entry['event']}{f': {details}' if details else ''}"


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if len(text) in (32, 64) and all(letter in "0123456789abcdef" for letter in text) else text
