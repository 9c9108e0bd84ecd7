"""`key=value` on the command line."""

import argparse
from collections.abc import Iterable


def add_options(parser: argparse.ArgumentParser, flag: str, owner: str) -> None:
    """Declare a flag that takes any number of `key=value`, and may be repeated."""
    parser.add_argument(
        flag, nargs="+", action="extend", default=[], metavar="KEY=VALUE", type=_pair, help=f"arguments of the {owner}"
    )


def to_dict(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The pairs as a dictionary; of equal keys the last one counts."""
    return dict(pairs)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key.replace("-", "_"), value
