"""What commands print: JSON documents, aligned tables, named figures and warnings."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence


def answer(args: argparse.Namespace, document: object, lines: Iterable[str]) -> int:
    """Print one JSON document with `--json`, and these lines without; returns the exit code 0."""
    if args.json:
        print_json(document)
    else:
        print(*lines, sep="\n")
    return 0


def print_json(document: object) -> None:
    """Print one JSON document; infinite numbers and NaN, which JSON does not have, are null."""
    print(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def note(*sentences: str | None) -> None:
    """Print the non-empty sentences on standard error."""
    for sentence in filter(None, sentences):
        print(sentence, file=sys.stderr)


def warn(sentence: str | None) -> None:
    """Print a warning on standard error, if there is one."""
    note(f"Warning: {sentence}" if sentence else None)


def aligned(rows: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    r"""Rows as lines of equal columns; the first `left` are left-aligned, all others right.

    Example:
        >>> print("\n".join(aligned([["a", "name", "x"], ["bb", "b", "10"]])))
        a   name   x
        bb  b     10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligns = [f"{'<' if column < left else '>'}{width}" for column, width in enumerate(widths)]
    return ["  ".join(map(format, row, aligns)).rstrip() for row in rows]


def figures(named: Mapping[str, float]) -> list[str]:
    """Named figures, one per line.

    Example:
        >>> figures({"nominal epsilon": 0.50001})
        ['nominal epsilon: 0.5']
    """
    return [f"{name}: {value:.4g}" for name, value in named.items()]


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value
