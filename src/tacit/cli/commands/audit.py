"""`tacit audit`: print a lower bound on ε with the claim."""

import argparse
from dataclasses import asdict

from tacit.attacks.auditing import Audit, one_run
from tacit.attacks.bounds import OneRunGuesses
from tacit.attacks.claims import AuditEvidence, AuditResult, Claim, Power, claim_of, power_of
from tacit.attacks.scenario import prepare_audit
from tacit.attacks.search import Search
from tacit.cli._console import align, answer
from tacit.cli._progress import track
from tacit.core import Key
from tacit.core.prices import Unit

VIOLATED = 1  # the exit code
NOT_SEEN = (
    "timing and memory access",
    "other models, data and lies than those that were tried",
    "later rounds",
    "cryptography of secure aggregation, and the enclave: runs compute the same sums without them",
    "what reports mark as not private, such as the size of a cohort",
)
Found = AuditEvidence | OneRunGuesses
_GROUPS = {"client": "cohort", "record": "batch"}  # that samples a canary


def run(args: argparse.Namespace) -> int:
    """Audit, and print the lower bound with the claim."""
    audit = prepare_audit(
        args.experiment.build_method(),
        args.experiment.build_task(),
        rounds=args.rounds,
        dropouts=args.dropouts,
        adjacency=args.adjacency,
        unit=None if args.unit is None else Unit(args.unit),
        seed=args.seed,
    )
    args.unit, args.adjacency = audit.unit.value, audit.adjacency
    claim = claim_of(audit, args.canaries or 1, sampled=bool(args.canaries))
    evidence = _find(audit, claim, args)
    result, power = AuditResult.of(claim, evidence), power_of(claim, evidence)
    tried = _describe_trials(audit, evidence)
    document = {**_document(args, result, evidence, power), "tried": tried, "not_seen": list(NOT_SEEN)}
    answer(args, document, [*_lines(args, result, evidence, power), *tried, f"Not seen: {'; '.join(NOT_SEEN)}."])
    return VIOLATED if result.violated else 0


def _describe_trials(audit: Audit, evidence: Found) -> list[str]:
    """What was tried, as sentences."""
    if isinstance(evidence, OneRunGuesses):
        return [
            f"Tried: {evidence.canaries} canaries in one run of the engine, with gradients that the adversary chooses."
        ]
    hostile = [f"{len(audit.records)} hostile {audit.unit}s in the task's own model"] if audit.records else []
    hostile += [f"{len(audit.lies)} kinds of lies in the server's broadcasts"] if audit.lies else []
    kinds = ", ".join(("gradients that the adversary chooses", *hostile))
    lines = [f"Tried: {evidence.canaries} canaries, in runs of the engine that trains, clips and sums: {kinds}."]
    if evidence.noise is not None:
        measured = f"{evidence.noise.ratio:.3f} ± {evidence.noise.error:.3f}"
        lines += [f"The noise of the sums was {measured} times what the claim assumes (one standard error)."]
    return lines


def _find(audit: Audit, claim: Claim, args: argparse.Namespace) -> Found:
    key = Key.from_seed(args.seed, "audit")
    if args.canaries:
        return one_run(audit, args.canaries, key)
    searching = Search(audit, claim, args.runs, key)
    for _ in track(searching.steps(), args.runs, f"audit {args.method}: run"):
        pass
    return searching.evidence


def _document(args: argparse.Namespace, result: AuditResult, evidence: Found, power: Power | None) -> dict[str, object]:
    claim = result.claim
    return {
        "method": args.method,
        "unit": args.unit,
        "task": args.task,
        "rounds": args.rounds,
        "adjacency": args.adjacency,
        "dropouts": args.dropouts,
        "delta": claim.delta,
        "claimed_epsilon": claim.epsilon if claim.amplified is None else claim.amplified,
        "claimed_epsilon_in_every_cohort": claim.epsilon if claim.amplified is not None else None,
        "reason": claim.reason,
        "epsilon_lower_bounds": dict(result.lower_bounds),
        "bootstrap_epsilon": result.bootstrap,
        "evidence": asdict(evidence),
        "profile_refuted": result.profile_refuted,
        "premises_refuted": list(result.premises),
        "violated": result.violated,
        "power": None if power is None else asdict(power),
    }


def _lines(args: argparse.Namespace, result: AuditResult, evidence: Found, power: Power | None) -> list[str]:
    claim = result.claim
    rows = [
        *([["claimed ε", f"{claim.amplified:.4g}"]] if claim.amplified is not None else []),
        [
            "claimed ε" if claim.amplified is None else f"claimed ε if in every {_GROUPS[args.unit]}",
            f"none: {claim.reason}" if claim.epsilon is None else f"{claim.epsilon:.4g}",
        ],
        *(
            [f"lower bound on ε ({name})", f"{bound:.4g}" if bound else "none evidence"]
            for name, bound in result.lower_bounds.items()
        ),
    ]
    if result.bootstrap is not None:
        rows += [["bootstrap's 5 % quantile of ε", f"{result.bootstrap:.4g} (an estimate, not a bound)"]]
    always = f", in every {_GROUPS[args.unit]}" * getattr(evidence, "always_in_cohort", False)
    rows += [
        ["δ", f"{claim.delta:g}"],
        ["rounds", str(args.rounds)],
        ["adjacency", f"{args.adjacency}, one {args.unit}{always}"],
        ["confidence", f"{100 * evidence.confidence:.0f} %"],
        ["guesses", str(evidence)],
    ]
    if isinstance(evidence, AuditEvidence):
        rows += [["seen best in", f"{evidence.released} ({evidence.statistic})"], ["by the canary", evidence.canary]]
    rows += [["not as declared", premise] for premise in result.premises]
    return [*align(rows), _conclusion(result, args.unit), *_power_lines(power, result)]


def _conclusion(result: AuditResult, unit: str = "client") -> str:
    claimed = result.claim.epsilon
    if result.violated and claimed is not None and result.best > claimed:
        where = "" if result.claim.amplified is None else f" for a {unit} that is in every {_GROUPS[unit]}"
        return f"The claim is violated: ε is at least {result.best:.4g}{where}, more than claimed."
    if result.violated and result.profile_refuted:
        return "The claim is violated: at another δ, this method leaks more than it claims."
    if result.violated:
        return "The claim is violated: it assumes cohorts that are drawn as declared, and they are not."
    if claimed is None and result.best:
        return f"No privacy is claimed, and the audit found leakage: ε is at least {result.best:.4g}."
    if claimed is None:
        return "No privacy is claimed. The audit found no leakage, which is no proof that there is none."
    return "No violation was found. This is no proof: see what this audit could have missed."


def _power_lines(power: Power | None, result: AuditResult) -> list[str]:
    """The largest leak that could be missed, by simulation."""
    if power is None or result.violated:
        return []
    tenth = f"With a tenth of the claimed noise, {100 * power.tenth:.0f} % of such audits would find a violation"
    if power.factor is None:
        return [f"{tenth}: this audit is too weak for the claim. Use more runs, or fewer rounds."]
    epsilon = "" if power.epsilon is None else f" (ε = {power.epsilon:.3g})"
    less = f"less than a factor of {power.factor:g} of missing noise{epsilon}"
    where = "any leak in what it does not look at"
    return [f"{tenth}. An audit like this misses, once in ten times or more often, {less}, and {where}."]
