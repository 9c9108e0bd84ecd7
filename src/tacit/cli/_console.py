"""What commands print: JSON documents, aligned tables, named figures and warnings.

Names, reasons and values come from files and parties that nobody here wrote. Every line is printed as one line
(`tacit.core.texts`), and `escape_streams` escapes what else a terminal would obey.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from tacit.core import texts
from tacit.errors import one_line

_MAX_LINE = 20_000  # characters
_MAX_CELL = 200  # of a table


def answer(args: argparse.Namespace, document: object, lines: Iterable[str]) -> int:
    """Print one JSON document with `--json`, and these lines without; returns the exit code 0."""
    if args.json:
        print_json(document)
    else:
        for line in lines:
            print(one_line(line, _MAX_LINE))
    return 0


def print_json(document: object) -> None:
    """Print one JSON document; infinite numbers and NaN, which JSON does not have, are null."""
    print(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))  # escapes are JSON's, too


def note(*sentences: str | None) -> None:
    """Print the non-empty sentences on standard error, unless nobody reads it any more (`tacit run 2>&1 | head`)."""
    try:
        for sentence in filter(None, sentences):
            print(one_line(sentence), file=sys.stderr, flush=True)
    except BrokenPipeError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for the rest of the process


def warn(sentence: str | None) -> None:
    """Print a warning on standard error, if there is one."""
    note(f"Warning: {sentence}" if sentence else None)


def align(rows: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    r"""Rows as lines of equal columns; the first `left` are left-aligned, all others right.

    Example:
        >>> print("\n".join(align([["a", "name", "x"], ["bb", "b", "10"]])))
        a   name   x
        bb  b     10
    """
    cells = [[one_line(cell, _MAX_CELL) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligns = [f"{'<' if column < left else '>'}{width}" for column, width in enumerate(widths)]
    return ["  ".join(map(format, row, aligns)).rstrip() for row in cells]


def figures(named: Mapping[str, float]) -> list[str]:
    """Named figures, one per line.

    Example:
        >>> figures({"nominal epsilon": 0.50001})
        ['nominal epsilon: 0.5']
    """
    return [f"{texts.word(name)}: {value:.4g}" for name, value in named.items()]


@contextmanager
def escape_streams() -> Iterator[None]:
    """Inside this block, standard output and error show all characters but the ends of lines and tabs."""
    before = {"stdout": sys.stdout, "stderr": sys.stderr}
    shown = {name: _ShownStream(stream) for name, stream in before.items()}
    for name, stream in shown.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in shown.items():
            if getattr(sys, name) is stream:  # a broken pipe was replaced
                setattr(sys, name, before[name])


def terminal() -> TextIO:
    """Standard error as it is, for what moves the cursor on purpose."""
    return getattr(sys.stderr, "stream", sys.stderr)


class _ShownStream:
    """A stream of text that shows what is written to it; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(texts.lines(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, parts: Iterable[str]) -> None:
        for part in parts:
            self.write(part)


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value
