"""Describe a method: its pieces, what each party sees, and what is guaranteed.

Examples:
  tacit card fedavg
  tacit card fl-std --set rounds=50 descent.lr=0.1   with other arguments than the defaults
  tacit card mine.py:fedprox                         a function of your own that returns a tacit.Method
  tacit card fedavg --json
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from tacit.cli._console import add_method, figures, method_args, print_json

if TYPE_CHECKING:
    from tacit.report.cards import Card


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_method(parser)


def run(args: argparse.Namespace) -> int:
    """Print the card."""
    given = method_args(args)

    from tacit.report.cards import card

    found = card(args.method, given)
    if args.json:
        print_json(asdict(found))
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(card: "Card") -> Iterator[str]:
    yield card.name
    yield f"  {card.summary}"
    for title, table in (
        ("Pieces", card.pieces),
        ("Who sees what", card.sees),
        ("Arguments and their defaults", card.args),
    ):
        width = max(map(len, table), default=0)
        yield from ("", title, *(f"  {key:<{width}}  {value}" for key, value in table.items()))
    yield from ("", "Accounted release per round", f"  {card.event}")
    yield from ("", "Guarantee", f"  {card.guarantee}")
    if card.nominal:
        yield from ("", "Nominal figures (not a guarantee)", *(f"  {line}" for line in figures(card.nominal)))
    if card.uncovered:
        yield from ("", "Assumptions, and what is not covered", *(f"  {sentence}" for sentence in card.uncovered))
    yield from ("", "Rounds", f"  {card.rounds}")
    yield from ("", "Run it", f"  {card.run}")
    yield from ("", "In Python, with the names of tacit and tacit.pieces", f"  {card.repr}")
    yield from ("", "Cite", f"  {card.reference}")
