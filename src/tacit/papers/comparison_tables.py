"""A comparison as text: measured beside published numbers, with footnotes on guarantees, traffic and settings."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tacit.papers.comparison import PRIVACY, Comparison, ComparisonRow, Spread
from tacit.report.labels import number, size

_HEADER = ["row", "quantity", "paper", "ours", "range", "one more seed", "seeds", "verdict"]
IN_FOOTNOTES = {"loss", "up", "down", "seconds"}  # not in the table unless the paper prints them
ONE_SEED = "one seed"  # in the place of an interval
_BEST = "the best of all rounds that were evaluated, chosen on the test data"
_WORDS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("quantities.toml").read_text("utf-8"))


def label(quantity: str) -> str:
    """The name of a quantity in a line of the table.

    Example:
        >>> label("best_accuracy"), label("auroc_at_best"), label("epsilon")
        ('best accuracy of any round', 'auroc at the best round', 'ε')
    """
    words = _WORDS.get(quantity, {})
    if "label" in words:
        return words["label"]
    if quantity.startswith("best_"):
        return f"best {quantity.removeprefix('best_')} of any round"
    if quantity.endswith("_at_best"):
        return f"{quantity.removesuffix('_at_best')} at the best round"
    return quantity


def head(quantity: str) -> str:
    """The name of a quantity at the head of a column.

    Example:
        >>> head("best_balanced_accuracy"), head("auroc_at_best"), head("cost_up")
        ('best balanced accuracy', 'auroc at best', 'cost up')
    """
    words = _WORDS.get(quantity, {})
    return words.get("head") or words.get("label") or quantity.replace("_", " ")


def table(comparison: Comparison) -> list[list[str]]:
    """A header and a line per row and quantity; with columns, a line per row."""
    return _wide(comparison) if comparison.columns else _long(comparison)


def _long(comparison: Comparison) -> list[list[str]]:
    lines = [_HEADER]
    for row in comparison.rows:
        quantities = [
            name for name in row.quantities() if name in row.paper or (name not in IN_FOOTNOTES and row.spread(name))
        ]
        for quantity in quantities:
            name = row.name if quantity == quantities[0] else ""
            nominal = " (nominal)" * (quantity in PRIVACY and not row.proved)
            verdict = comparison.verdict(row, quantity)
            lines.append([name, label(quantity) + nominal, *_cells(row, quantity), verdict])
    return lines


def _cells(row: ComparisonRow, quantity: str) -> list[str]:
    paper, measured = row.paper.get(quantity), row.spread(quantity)
    published = "" if paper is None else number(paper)
    if measured is None:
        return [published, "", "", "", str(len(row.trials))]
    differ = measured.lowest < measured.highest
    between = _range(measured) if differ else ""
    further = f"±{measured.further:.2g}" if differ and measured.further is not None else ""
    further = ONE_SEED if len(row.trials) == 1 else further
    return [published, number(measured.mean), between, further, str(len(row.trials))]


def _wide(comparison: Comparison) -> list[list[str]]:
    """A column per quantity, followed by the paper's if any row has a published number."""
    published = {quantity for row in comparison.rows for quantity in row.paper}
    heads = [
        name for quantity in comparison.columns for name in (head(quantity), "paper")[: 1 + (quantity in published)]
    ]
    return [["row", *heads, "verdict"], *(_line(comparison, row, published) for row in comparison.rows)]


def _line(comparison: Comparison, row: ComparisonRow, published: set[str]) -> list[str]:
    cells = [row.name + f" ({ONE_SEED})" * (len(row.trials) == 1)]
    for quantity in comparison.columns:
        paper = row.paper.get(quantity)
        cells.append(_mean_and_spread(row, quantity))
        cells += ["" if paper is None else number(paper)] * (quantity in published)
    return [*cells, _summary(comparison, row)]


def _mean_and_spread(row: ComparisonRow, quantity: str) -> str:
    """The mean over seeds, and for metrics where one more seed lies; with two seeds, their range."""
    measured = row.spread(quantity)
    if measured is None:
        return ""
    differ = measured.lowest < measured.highest and "label" not in _WORDS.get(quantity, {})
    nominal = " nominal" * (quantity in PRIVACY and not row.proved)
    further = f" ({_range(measured)})" if measured.further is None else f" ±{measured.further:.2g}"
    return number(measured.mean) + further * differ + nominal


def _range(measured: Spread) -> str:
    return f"{number(measured.lowest)} to {number(measured.highest)}"


def _summary(comparison: Comparison, row: ComparisonRow) -> str:
    """The columns that miss the published number, with the verdict of each; otherwise whether any has a verdict."""
    verdicts = {quantity: comparison.verdict(row, quantity) for quantity in comparison.columns}
    others = [f"{verdict}: {head(name)}" for name, verdict in verdicts.items() if verdict not in ("", "reached")]
    return "; ".join(others) or "reached" * ("reached" in verdicts.values())


def footnotes(comparison: Comparison) -> Iterator[str]:
    """Lines below the table: meaning of columns, rankings, and each row's guarantee, traffic and settings."""
    if comparison.stand_in:
        yield f"Stand-in: {comparison.stand_in}"
    yield from _explanations(comparison.columns)
    yield (
        "Measured numbers are means over the seeds. A run with one more seed lies within ± of them with a probability "
        "of 95 % (Student's t, from three seeds on). A published number is reached if the 95 % interval of the mean is "
        "not below it, and undecided if the interval contains it; with fewer seeds it is at most within reach."
    )
    if not comparison.fast:
        yield from (ranking.describe(comparison.rows) for ranking in comparison.rankings)
    for row in comparison.rows:
        yield row.name
        yield from (f"  {line}" for line in f"Guarantee: {row.guarantee}".splitlines())
        yield from _traffic(row)
        yield f"  Settings: {row.method} {_settings(row.args)}; {row.task} {_settings(row.task_args)}"
    if comparison.fast:
        yield "This is the short version: its numbers are not compared with the paper's."


def _explanations(quantities: Iterable[str]) -> Iterator[str]:
    """A sentence for each meaning, after the heads of the columns that have it."""
    heads: dict[str, list[str]] = {}
    for quantity in quantities:
        meaning = _WORDS.get(quantity, {}).get("meaning", _BEST if quantity.startswith("best_") else "")
        if meaning:
            heads.setdefault(meaning, []).append(head(quantity))
    return (f"{'; '.join(names)}: {meaning}." for meaning, names in heads.items())


def _traffic(row: ComparisonRow) -> Iterator[str]:
    """A line, if traffic was measured."""
    cost, up, down = (row.spread(name) for name in ("cost", "up", "down"))
    if cost is None or up is None or down is None:
        return
    yield (
        f"  Traffic: {number(cost.mean)} messages from clients per run; "
        f"measured: {size(up.mean)} up, {size(down.mean)} down."
    )


def _settings(args: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in args.items())
