"""A table of texts in the formats of papers and spreadsheets."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from tacit.core.texts import cell
from tacit.errors import one_line

Row = Sequence[str]
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "ε": r"$\varepsilon$"}
    | {"±": r"$\pm$", "δ": r"$\delta$"}
)


def to_csv(header: Row, rows: Sequence[Row]) -> str:
    """Comma-separated values; a text that a spreadsheet would run as a formula is quoted as one (`cell`).

    Example:
        >>> print(to_csv(["a", "b"], [["1", "x,y"]]), end="")
        a,b
        1,"x,y"
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(
        [[cell(one_line(text)) for text in row] for row in (header, *rows)]
    )
    return stream.getvalue()


def to_markdown(header: Row, rows: Sequence[Row]) -> str:
    r"""A table of Markdown.

    Example:
        >>> print(to_markdown(["a", "b"], [["1", "x|y"]]), end="")
        | a | b |
        |---|---|
        | 1 | x\|y |
    """
    lines = [[one_line(text).replace("|", "\\|") for text in row] for row in (header, *rows)]
    lines.insert(1, [])
    return "".join(f"| {' | '.join(row)} |\n" if row else f"|{'---|' * len(header)}\n" for row in lines)


def to_latex(header: Row, rows: Sequence[Row]) -> str:
    r"""A `tabular` with the rules of booktabs; the first two columns are left-aligned.

    Example:
        >>> print(to_latex(["method", "ε"], [["fl_std", "1 %"]]), end="")
        \begin{tabular}{ll}
        \toprule
        method & $\varepsilon$ \\
        \midrule
        fl\_std & 1 \% \\
        \bottomrule
        \end{tabular}
    """
    columns = "l" * min(len(header), 2) + "r" * max(len(header) - 2, 0)
    first, *others = (" & ".join(one_line(text).translate(_LATEX) for text in row) + r" \\" for row in (header, *rows))
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        first,
        r"\midrule",
        *others,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "".join(f"{part}\n" for part in parts)


FORMATS: Mapping[str, Callable[[Row, Sequence[Row]], str]] = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
