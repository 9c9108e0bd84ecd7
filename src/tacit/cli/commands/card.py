"""`tacit card`: describe a method."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import answer, figures
from tacit.report.cards import Card, card


def run(args: argparse.Namespace) -> int:
    """Print the card."""
    method_card = card(args.method, dict(args.set))
    return answer(args, asdict(method_card), _lines(method_card))


def _lines(card: Card) -> Iterator[str]:
    yield card.name
    yield f"  {card.summary}"
    tables = {"Pieces": card.pieces, "Who sees what": card.sees}
    for title, table in tables.items():
        width = max(map(len, table), default=0)
        yield from ("", title, *(f"  {key:<{width}}  {value}" for key, value in table.items()))
    yield from ("", "Arguments and their defaults")
    for name, value in card.args.items():
        yield from (f"  {name} = {value}", f"      {card.explanations.get(name, '')}".rstrip())
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
