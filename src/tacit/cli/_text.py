"""Plain text: columns that line up, and named figures."""

from collections.abc import Mapping, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    r"""Rows as lines of equal columns; the first two to the left, figures to the right.

    Example:
        >>> print("\n".join(aligned([["a", "name", "x"], ["bb", "b", "10"]])))
        a   name   x
        bb  b     10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_cell(i, text, widths[i]) for i, text in enumerate(row)) for row in rows]


def _cell(column: int, text: str, width: int) -> str:
    return text.ljust(width) if column < 2 else text.rjust(width)


def figures(named: Mapping[str, float]) -> list[str]:
    """Named figures, a line each.

    Example:
        >>> figures({"nominal epsilon": 0.50001})
        ['nominal epsilon: 0.5']
    """
    return [f"{name}: {value:.4g}" for name, value in named.items()]
