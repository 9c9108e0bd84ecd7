"""Texts that others wrote, made safe to show: names, reasons and values of sites, servers, plans, files and libraries.

A terminal, a log, a page and a spreadsheet obey some characters instead of showing them: they erase a line that was
printed before, reverse the order of a sentence, begin a new entry, or compute. `tacit.errors.one_line` makes such
characters visible, as JSON escapes them, and leaves out the middle of a long text; here it is applied to other forms.
"""

import math
import re
from collections.abc import Mapping

from tacit.errors import escape_characters, one_line

_MAX_WORD = 200  # characters of a name or a value
_MAX_LEVELS = 16  # of lists and tables in each other
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # what spreadsheets compute
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-](?:inf|nan)", re.ASCII)


def word(text: object) -> str:
    """A name or a value inside a sentence, as one short line."""
    return one_line(text, _MAX_WORD)


def lines(text: str) -> str:
    r"""A text of several lines, in which all but the ends of lines and tabs is shown.

    Example:
        >>> lines("one\ntwo\x1b[2J")
        'one\ntwo\\u001b[2J'
    """
    return "\n".join(escape_characters(line, kept="\t") for line in text.split("\n"))


def plain(value: object, levels: int = _MAX_LEVELS) -> object:
    r"""Plain values for JSON: texts are single lines, and numbers that are not finite, which JSON lacks, are texts.

    Example:
        >>> plain({"site": "a\tb", "norm": float("inf"), "rounds": (1, 2)})
        {'site': 'a\\tb', 'norm': 'inf', 'rounds': [1, 2]}
    """
    match value:
        case str():
            return one_line(value)
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping() | list() | tuple() if levels == 0:
            return "…"
        case Mapping():
            return {word(key): plain(each, levels - 1) for key, each in value.items()}
        case list() | tuple():
            return [plain(each, levels - 1) for each in value]
    return value


def cell(text: str) -> str:
    """A text in a CSV file, which spreadsheets show and do not compute: an apostrophe stands before a formula.

    Example:
        >>> cell("=1+1"), cell("-1"), cell("loss")
        ("'=1+1", '-1', 'loss')
    """
    shown = escape_characters(text)
    return f"'{shown}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else shown
