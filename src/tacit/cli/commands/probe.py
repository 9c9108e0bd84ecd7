"""`tacit probe`: print the trials of each piece of a method, and their failures."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tacit import methods
from tacit.cli._console import answer
from tacit.core import Method
from tacit.core.provenance import is_ours
from tacit.core.schema import SLOTS
from tacit.runs.probing import Probe, probe_method


def run(args: argparse.Namespace) -> int:
    """Exit code 1 if a trial failed."""
    method = methods.make(args.method, dict(args.set))
    checks = probe_method(method)
    passed = all(each.passed for each in checks)
    document = {"method": args.method, "passed": passed, "checks": [asdict(each) for each in checks]}
    answer(args, document, _lines(method, checks))
    return 0 if passed else 1


def _lines(method: Method, probes: Sequence[Probe]) -> Iterator[str]:
    yield from (line for each in probes for line in str(each).split("\n"))
    tried = {each.slot for each in probes}
    ours = {slot: getattr(method, slot) for slot in SLOTS if slot not in tried and is_ours(getattr(method, slot))}
    named = ", ".join(f"{slot} {type(piece).__name__}" for slot, piece in ours.items())
    yield f"Tacit's own, which its test suite tries: {named}." if ours else "No piece is Tacit's own."
    if not is_ours(method.channel):
        yield f"channel {type(method.channel).__name__}: not tried; who sees what is a matter of proof."
