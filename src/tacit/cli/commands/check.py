"""Try the laws on which guarantees rest on a method of your own.

Every piece of your own is tried with hostile rows and data, and the method as a whole with runs on a few clients. A
failed trial is a violation; passing proves nothing. The exit code is 1 if a trial failed.

Examples:
  tacit check mine.py:fedprox                a function that returns a tacit.Method
  tacit check mine.py:fedprox --set mu=0.1   with other arguments than the defaults
  tacit check fl-top                         a method by name
"""

import argparse
from dataclasses import asdict

from tacit.cli._console import add_method, method_args, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_method(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was tried on each piece, and what failed."""
    given = method_args(args)

    from tacit import methods
    from tacit.core.provenance import is_ours
    from tacit.core.schema import SLOTS
    from tacit.runs.checking import check_method

    method = methods.make(args.method, given)
    found = check_method(method)
    passed = all(each.passed for each in found)
    if args.json:
        print_json({"method": args.method, "passed": passed, "checks": [asdict(each) for each in found]})
        return 0 if passed else 1
    print("\n".join(map(str, found)))
    tried = {each.slot for each in found}
    ours = {slot: getattr(method, slot) for slot in SLOTS if slot not in tried and is_ours(getattr(method, slot))}
    named = ", ".join(f"{slot} {type(piece).__name__}" for slot, piece in ours.items())
    print(f"Tacit's own, which its test suite tries: {named}." if ours else "No piece is Tacit's own.")
    if not is_ours(method.channel):
        print(f"channel {type(method.channel).__name__}: not tried; who sees what is a matter of proof.")
    return 0 if passed else 1
