"""`tacit site init`, `renew`, `pin`, `review`, `ledger` and `log`: a site's commands except `serve`."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import align, answer
from tacit.core.files import ChainedFile
from tacit.federation.journal import JOURNAL, Entry, content_of
from tacit.federation.plan.entry_points import check_defined, pin
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.site.files import SiteFiles, init_site, read_site
from tacit.federation.site.policy import TAKES_PART, Cost, Review
from tacit.federation.transport.kits import SiteKit
from tacit.privacy.ledger import Ledger, LedgerEntry
from tacit.privacy.ledger_head import LedgerUse


def print_pin(args: argparse.Namespace) -> int:
    """Print the pin of installed code."""
    check_defined(args.function, "the model")  # a pin of missing code would be useless
    print(f'"{args.function}" = "{pin(args.function, "the model")}"')
    return 0


def init(args: argparse.Namespace) -> int:
    """Write the site's file, key and kit, or check the data in the file."""
    new = not args.config.exists()
    identity, kit = init_site(args.config), kit_of(args)
    site = read_site(args.config)
    kit.make(site.identity)
    document: dict[str, object] = {"config": str(args.config), "public_key": identity.hex(), "new": new}
    document["enrolment"] = str(kit.enrolment)
    lines = [
        f"file        {args.config}{' (new)' if new else ''}",
        f"public key  {identity.hex()}",
        f"enrolment   {kit.enrolment}",
    ]
    if new:
        lines.append(
            f"Next: edit {args.config}, and give the public key to who keeps the directory, in person. Send the "
            f"enrolment, which is not secret, to the server's operator; put the server.toml that you receive into "
            f"{kit.folder}."
        )
    else:
        document["data"] = site.source.summary
        lines.append(f"data        {document['data']}")
    return answer(args, document, lines)


def renew(args: argparse.Namespace) -> int:
    """Make the site's next certificate."""
    kit = kit_of(args)
    kit.make(read_site(args.config).identity, days=args.days, renew=True, only=args.now)
    ends = f"{kit.keyring.certificates()[0].ends:%Y-%m-%d}"
    meanwhile = "" if args.now else " Until then, the site connects with the earlier one."
    lines = [
        f"enrolment    {kit.enrolment}",
        f"certificate  valid until {ends}",
        f"Next: send the enrolment to the server's operator, who adds it again.{meanwhile}",
    ]
    return answer(args, {"enrolment": str(kit.enrolment), "valid_until": ends}, lines)


def kit_of(args: argparse.Namespace) -> SiteKit:
    """The site's kit, beside its file unless another folder is given."""
    return SiteKit(args.config.parent / "kit" if args.kit is None else args.kit)


def review(args: argparse.Namespace) -> int:
    """Exit code 0 if the plan is within the site's policy, 1 if it is not."""
    site, plan = read_site(args.config), read_plan(args.plan)
    result = site.review(plan)
    recorded = ""
    if args.accept or args.refuse:
        recorded = "accepted" if args.accept else "refused"
        site.record(plan, accepted=args.accept, outcome=result)
    document = {**asdict(result), **asdict(result.cost), "plan": result.plan.hex(), "accepted": result.accepted}
    document["recorded"] = recorded
    del document["cost"], document["mixed"]
    answer(args, document, _review_lines(site, plan, result, recorded))
    return 0 if result.accepted or args.refuse else 1


def _review_lines(site: SiteFiles, plan: FederationPlan, review: Review, recorded: str) -> Iterator[str]:
    yield f"plan {review.plan.hex()}"
    rounds = f" {review.rounds} rounds," if review.rounds else ""
    yield f"  {plan.method_name},{rounds} {plan.population} sites; this site is {site.name}"
    yield from ("", "What it would cost here", f"  {_cost(site, review.cost)}", "")
    if review.reveals:
        yield from ("Who would learn what", *(f"  {sentence}" for sentence in review.reveals), "")
    if review.reads:
        yield from ("Columns that it would read", *(f"  {line}" for line in review.reads), "")
    if review.remarks:
        yield from ("In this site's data", *(f"  {sentence}" for sentence in review.remarks), "")
    if review.objections:
        yield from ("This site's policy refuses the plan:", *(f"  {sentence}" for sentence in review.objections))
    else:
        yield "The plan is within this site's policy."
    if review.problems:
        yield from ("This site's data do not fit the plan:", *(f"  {sentence}" for sentence in review.problems))
    if recorded:
        yield f"Recorded as {recorded}, and signed with this site's key."
    elif review.accepted:
        yield "Nothing was recorded. Add --accept or --refuse."


def _cost(site: SiteFiles, cost: Cost) -> str:
    if cost.reason:
        return f"ε against the server is not bounded: {cost.reason}."
    earlier = f"; with ε = {cost.used:.4g} of earlier plans, {cost.total:.4g}" if cost.used else ""
    whose = "this site as a whole" if cost.within else f"every {cost.unit}"
    without = "without it, the site would send another update."
    single = f" {TAKES_PART} For a single record of it, ε = {cost.within:.4g}: {without}"
    return (
        f"ε = {cost.epsilon:.4g} at δ = {site.allow.delta:g} for {whose}, against the server{earlier}, "
        f"of {site.allow.epsilon:g} that this site allows.{single * bool(cost.within)}"
    )


def show_ledger(args: argparse.Namespace) -> int:
    """Print the charges, by run."""
    site = read_site(args.config)
    noted = site.noted_charges
    if noted is None and not site.has_ledger:
        return answer(args, {"rounds": 0}, ["Nothing has been charged at this site."])
    with site.open_ledger(noted, limit=site.allow.budget) as ledger:
        runs, use, head = _by_run(ledger), ledger.use, asdict(ledger.head)
    used = {"epsilons": {**use.epsilons}, "budget": asdict(use.budget), "rounds": use.rounds}
    document = {**used, "runs": runs, "head": head}
    rows = [["method", "plan and run of the server", "rounds", "charges"]]
    rows += [[str(run["method"]), _short(str(run["run"])), str(run["rounds"]), str(run["charges"])] for run in runs]
    return answer(args, document, [*_budget_use(use), *align(rows)])


def _short(run: str) -> str:
    """The first digits of the plan and of the server's run: enough to distinguish them."""
    return " ".join(part[:16] for part in run.split())


def _budget_use(use: LedgerUse) -> Iterator[str]:
    """The use of the budget, by unit."""
    for unit, epsilon in use.epsilons.items():
        whose = "the client as a whole" if unit == "client" else f"every {unit}"
        if epsilon is not None:
            yield f"ε = {epsilon:.4g} for {whose}, of {use.budget}, was used."
    if use.unbounded:
        yield use.unbounded


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
    if not site.log.exists():
        return answer(args, [], ["Nothing has happened at this site."])
    journal = ChainedFile(site.log, JOURNAL)
    return answer(args, journal.entries if args.json else [], _log_lines(journal))


def _log_lines(journal: ChainedFile) -> Iterator[str]:
    """The entries of a log that may be long, and its end."""
    yield from map(_log_line, journal.each_entry())
    yield f"{journal.count} entries, none changed; the last one is {journal.head.hex()}."


def _log_line(entry: Entry) -> str:
    details = ", ".join(f"{name} {_shorten(value)}" for name, value in content_of(entry).items())
    return f"{entry.get('time')}  {entry.get('event')}{f': {details}' if details else ''}"


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if len(text) in (32, 64) and all(letter in "0123456789abcdef" for letter in text) else text
