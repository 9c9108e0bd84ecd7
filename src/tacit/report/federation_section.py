"""The part of a page about a federation, as its server knows it, and the statement that is signed."""

from collections import Counter

from tacit.core.prices import Unit
from tacit.privacy.guarantee import Guarantee
from tacit.report.markup import Html, element, join, pairs, table
from tacit.report.run_data import RunData
from tacit.runs.manifest import FederationEntry

KEY_DIGITS = 16  # of a public key, as commands print it


def federation_section(run: RunData, federation: FederationEntry) -> Html:
    """Plan, sites with their participation where it may be shown, units, and ledgers."""
    return join([pairs(_facts(run, federation), "facts"), *_sites(run, federation)])


def _facts(run: RunData, federation: FederationEntry) -> list[tuple[str, object]]:
    unit = run.manifest.task.unit
    facts: list[tuple[str, object]] = [
        ("plan", element("code", federation.plan)),
        ("accepted by", _list_accepting(run, federation)),
        ("a round ends with", f"at least {federation.min_cohort} sites"),
        (f"{unit}s of the sites", _describe_data(run, federation)),
        ("server's key", element("code", federation.server[:KEY_DIGITS])),
    ]
    head = run.manifest.ledger
    if head is not None:
        facts.append(("server's ledger", join([f"row {head.row}, ", element("code", head.hash)])))
    facts.append(("sites' ledgers", "each site has its own, whose head is in its log (tacit site log)"))
    return facts


def _describe_data(run: RunData, federation: FederationEntry) -> str:
    """What the server knows of the sites' data."""
    least = f"at least {federation.records:,} at every site, as the plan declares; " if federation.records else ""
    if run.method is not None and run.method.weighted:
        return f"{least}sites send how many they train on, which is not recorded"
    return f"{least}how many there are, and what they contain, is not known to the server"


def _list_accepting(run: RunData, federation: FederationEntry) -> str:
    """Which sites have shown that they accepted the plan."""
    rule = "A site answers a round only after it has accepted the plan, and signs its answers."
    if not run.shows_clients:
        return f"every site that took part. {rule} Who took part is not shown."
    delivered = _count_deliveries(run)
    names = [name for number, name in enumerate(federation.sites) if delivered[number]]
    if not names:
        return f"not known: no site has delivered yet. {rule}"
    if len(names) == len(federation.sites):
        return f"all {len(names)} sites. {rule}"
    return f"{', '.join(names)}; of the others it is not known. {rule}"


def _count_deliveries(run: RunData) -> Counter[int]:
    """In how many rounds each site delivered."""
    return Counter(client for report in run.reports for client in report.clients if client not in report.rejected)


def _sites(run: RunData, federation: FederationEntry) -> list[Html]:
    keys = [element("code", key[:KEY_DIGITS]) for key in federation.keys]
    if not run.shows_clients:
        rows: list[list[object]] = [[name, key] for name, key in zip(federation.sites, keys, strict=False)]
        return [table("Sites of the plan; which took part is withheld, because ε assumes that it is secret",
                      ["site", "public key"], rows)]  # fmt: skip
    asked, delivered = Counter(client for report in run.reports for client in report.clients), _count_deliveries(run)
    total = len(run.reports)
    rows = [
        [name, key, f"{asked[number]} of {total}", f"{delivered[number]} of {total}"]
        for number, (name, key) in enumerate(zip(federation.sites, keys, strict=False))
    ]
    return [
        table("Sites of the plan", ["site", "public key", "asked in rounds", "delivered in rounds"], rows, numbers=2)
    ]


def write_statement(run: RunData) -> str:
    """What a signature below the page says."""
    manifest = run.manifest
    what = f"the data with the digest {manifest.task.data}"
    if manifest.federation is not None:
        what = f"the plan {manifest.federation.plan[:KEY_DIGITS]}"
    claims = [_claim(unit, each) for unit, each in run.guarantees.items() if each.proved]
    proved = f"with what is guaranteed above ({'; '.join(claims)})" if claims else "although nothing is proved about it"
    released = "result" if run.is_analysis else "model"
    state = "" if manifest.status == "finished" else f", which is {manifest.status},"
    return (
        f"I have read this page about the run {run.name} of {run.label}{state} on {what}. I accept that its {released} "
        f"is released to those named above as recipients, {proved}, and I know what that does not cover."
    )


def _claim(unit: Unit, guarantee: object) -> str:
    if isinstance(guarantee, Guarantee):
        return f"ε = {guarantee.epsilon:.4g} at δ = {guarantee.delta:g} for every {unit}"
    return f"d-privacy for every {unit}"
