"""`tacit site init`, `pin`, `review`, `ledger` and `log`: everything at a site but serving."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import aligned, print_json

if TYPE_CHECKING:
    from tacit.federation.journal import Entry
    from tacit.federation.plan.plan import FederationPlan
    from tacit.federation.site.files import SiteFiles
    from tacit.federation.site.policy import Review
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.ledger_head import LedgerUse


def configure_init(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `init`."""
    _declare(parser, _init)


def configure_pin(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `pin`."""
    parser.add_argument("function", metavar="PACKAGE.MODULE:FUNCTION", help="the function that makes a model")
    parser.set_defaults(do=_pin)


def configure_review(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `review`."""
    _declare(parser, _review)
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is to be trained")
    verdict = parser.add_mutually_exclusive_group()
    verdict.add_argument(
        "--accept", action="store_true", help="accept the plan: recorded, and signed by the site's key"
    )
    verdict.add_argument("--refuse", action="store_true", help="refuse the plan, also one that was accepted before")


def configure_ledger(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ledger`."""
    _declare(parser, _ledger)


def configure_log(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `log`."""
    _declare(parser, _log)


def _declare(parser: argparse.ArgumentParser, do: object) -> None:
    parser.add_argument("config", type=Path, metavar="SITE.toml", help="the site's file")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(do=do)


def _pin(args: argparse.Namespace) -> int:
    from tacit.federation.plan.entry_points import check_defined, pin

    check_defined(args.function, "the model")  # a pin of what does not exist would be of no use
    print(f'"{args.function}" = "{pin(args.function, "the model")}"')
    return 0


def _init(args: argparse.Namespace) -> int:
    from tacit.federation.site.files import init_site, read_site

    new = not args.config.exists()
    identity = init_site(args.config)
    found: dict[str, object] = {"config": str(args.config), "public_key": identity.hex(), "new": new}
    lines = [f"file        {args.config}{' (new)' if new else ''}", f"public key  {identity.hex()}"]
    if new:
        lines.append(f"Next: edit {args.config}, and give the public key to who keeps the directory, in person.")
    else:
        data = read_site(args.config).load_data()
        x, y = data.train
        counts = len(y), 0 if data.held_out is None else len(data.held_out[1])
        persons = {"persons": data.units} if data.unit == "person" else {}
        found |= {"samples": counts[0], "held_out": counts[1], **persons}
        whose = f" of {data.units} persons" if persons else ""
        trained, held = f"{counts[0]} samples{whose} to train on", f"{counts[1]} held out"
        lines.append(f"data        {trained}, {held}; inputs of shape {tuple(x.shape[1:])}")
    if args.json:
        print_json(found)
    else:
        print("\n".join(lines))
    return 0


def _review(args: argparse.Namespace) -> int:
    """Exit code 0 if the plan is within the site's policy, 1 if it is not."""
    from tacit.federation.plan.plan import read_plan
    from tacit.federation.site.files import read_site

    site, plan = read_site(args.config), read_plan(args.plan)
    found = site.review(plan)
    recorded = ""
    if args.accept or args.refuse:
        recorded = "accepted" if args.accept else "refused"
        site.record(plan, accepted=args.accept, found=found)
    if args.json:
        print_json({**asdict(found), "plan": found.plan.hex(), "accepted": found.accepted, "recorded": recorded})
    else:
        print("\n".join(_review_lines(site, plan, found, recorded)))
    return 0 if found.accepted or args.refuse else 1


def _review_lines(site: "SiteFiles", plan: "FederationPlan", found: "Review", recorded: str) -> Iterator[str]:
    yield f"plan {found.plan.hex()}"
    rounds = f" {found.rounds} rounds," if found.rounds else ""
    yield f"  {plan.method_name},{rounds} {plan.population} sites; this site is {site.name}"
    yield from ("", "What it would cost here", f"  {_cost(site, found)}", "")
    if found.reveals:
        yield from ("Who would learn what", *(f"  {sentence}" for sentence in found.reveals), "")
    if found.objections:
        yield from ("This site's policy refuses the plan:", *(f"  {sentence}" for sentence in found.objections))
    else:
        yield "The plan is within this site's policy."
    if recorded:
        yield f"Recorded as {recorded}, and signed with this site's key."
    elif found.accepted:
        yield "Nothing was recorded. Add --accept or --refuse."


def _cost(site: "SiteFiles", found: "Review") -> str:
    if found.reason:
        return f"ε against the server is not bounded: {found.reason}."
    earlier = f"; with ε = {found.used:.4g} of earlier plans, {found.total:.4g}" if found.used else ""
    whose = "this site as a whole" if found.within else f"every {found.unit}"
    single = f" For a single record of it, ε = {found.within:.4g}: without it, the site would send another update."
    return (
        f"ε = {found.epsilon:.4g} at δ = {site.allow.delta:g} for {whose}, against the server{earlier}, "
        f"of {site.allow.epsilon:g} that this site allows.{single * bool(found.within)}"
    )


def _ledger(args: argparse.Namespace) -> int:
    from tacit.federation.site.files import read_site
    from tacit.privacy.ledger import Ledger

    site = read_site(args.config)
    if not site.has_ledger:
        print_json({"rounds": 0}) if args.json else print("Nothing has been charged at this site.")
        return 0
    with Ledger.open(site.ledger) as ledger:
        runs, use = _by_run(ledger), ledger.use
        head = ledger.head
    if args.json:
        document = {
            "epsilons": {**use.epsilons},
            "budget": asdict(use.budget),
            "rounds": use.rounds,
            "runs": runs,
        }
        print_json({**document, "head": asdict(head)})
        return 0
    print("\n".join(_used(use)))
    rows = [["method", "plan and run of the server", "rounds", "charges"]]
    rows += [[str(run["method"]), _short(str(run["run"])), str(run["rounds"]), str(run["charges"])] for run in runs]
    print("\n".join(aligned(rows)))
    return 0


def _short(run: str) -> str:
    """The first digits of the plan and of the server's run: enough to distinguish them."""
    return " ".join(part[:16] for part in run.split())


def _used(use: "LedgerUse") -> Iterator[str]:
    """What was used of the budget, by unit."""
    from tacit.privacy.ledger_head import NO_CLIENTS

    for unit, epsilon in use.epsilons.items():
        whose = "the client as a whole" if unit == "client" else f"every {unit}"
        yield NO_CLIENTS if epsilon is None else f"ε = {epsilon:.4g} for {whose}, of {use.budget}, was used."


def _by_run(ledger: "Ledger") -> list[dict[str, object]]:
    """What every run of a server was charged; repeated attempts at a round are charges of their own."""
    runs = dict.fromkeys(entry.run for entry in ledger.entries)
    found = []
    for run in runs:
        entries = [entry for entry in ledger.entries if entry.run == run]
        rounds = len({entry.round for entry in entries})
        found.append({"method": entries[0].label, "run": run, "rounds": rounds, "charges": len(entries)})
    return found


def _log(args: argparse.Namespace) -> int:
    from tacit.core.files import ChainedFile
    from tacit.federation.journal import JOURNAL
    from tacit.federation.site.files import read_site

    site = read_site(args.config)
    journal = ChainedFile(site.log, JOURNAL) if site.log.exists() else None
    entries = journal.entries if journal else []
    if args.json:
        print_json(entries)
        return 0
    print("\n".join(map(_log_line, entries)) or "Nothing has happened at this site.")
    if journal:
        print(f"{len(entries)} entries, none changed; the last one is {journal.head.hex()}.")
    return 0


def _log_line(entry: "Entry") -> str:
    from tacit.federation.journal import content_of

    details = ", ".join(f"{name} {_shortened(value)}" for name, value in content_of(entry).items())
    return f"{entry['time']}  {entry['event']}{f': {details}' if details else ''}"


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if len(text) in (32, 64) and all(letter in "0123456789abcdef" for letter in text) else text
