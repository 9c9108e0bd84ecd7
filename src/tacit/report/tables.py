"""A comparison as text: the paper's numbers beside ours, and beneath them what is guaranteed."""

from collections.abc import Iterator

from tacit.report.comparison import PRIVACY, Comparison, Row
from tacit.report.labels import NAMES, head, label, notes, size

HEAD = ["row", "quantity", "paper", "ours", "least to most", "seeds", "verdict"]
BENEATH = {"loss", "up", "down", "seconds"}  # told in words, or not at all


def table(comparison: Comparison) -> list[list[str]]:
    """A line per row and quantity, under a line of names; a row is named once. With columns, a line per row."""
    return _wide(comparison) if comparison.columns else _long(comparison)


def _long(comparison: Comparison) -> list[list[str]]:
    lines = [HEAD]
    for row in comparison.rows:
        shown = [name for name in row.quantities() if name in row.paper or (name not in BENEATH and row.ours(name))]
        for quantity in shown:
            name = row.name if quantity == shown[0] else ""
            nominal = " (nominal)" * (quantity in PRIVACY and not row.proved)
            verdict = comparison.verdict(row, quantity)
            lines.append([name, label(quantity) + nominal, *_figures(row, quantity), verdict])
    return lines


def _wide(comparison: Comparison) -> list[list[str]]:
    """Ours in a column per quantity, and beside it the paper's if any row has one."""
    told = {quantity for row in comparison.rows for quantity in row.paper}
    heads = [name for quantity in comparison.columns for name in (head(quantity), "paper")[: 1 + (quantity in told)]]
    return [["row", *heads, "verdict"], *(_line(comparison, row, told) for row in comparison.rows)]


def _line(comparison: Comparison, row: Row, told: set[str]) -> list[str]:
    cells = [row.name]
    for quantity in comparison.columns:
        paper = row.paper.get(quantity)
        cells.append(_spread(row, quantity))
        cells += ["" if paper is None else figure(paper)] * (quantity in told)
    return [*cells, _summed_up(comparison, row)]


def _spread(row: Row, quantity: str) -> str:
    """The mean over seeds; of metrics also half the way from least to most."""
    ours = row.ours(quantity)
    if ours is None:
        return ""
    several = ours.least < ours.most and quantity not in NAMES
    nominal = " nominal" * (quantity in PRIVACY and not row.proved)
    return figure(ours.mean) + f" ±{figure((ours.most - ours.least) / 2)}" * several + nominal


def _summed_up(comparison: Comparison, row: Row) -> str:
    """What was not reached, and why; if that is nothing, whether anything was."""
    found = {quantity: comparison.verdict(row, quantity) for quantity in comparison.columns}
    others = [f"{verdict}: {head(name)}" for name, verdict in found.items() if verdict not in ("", "reached")]
    return "; ".join(others) or "reached" * ("reached" in found.values())


def remarks(comparison: Comparison) -> Iterator[str]:
    """Line by line: what columns mean, each row's guarantee in words, what travelled, and its settings."""
    if comparison.stand_in:
        yield f"Stand-in: {comparison.stand_in}"
    yield from notes(comparison.columns)
    if comparison.columns:
        yield "Ours are means over the seeds; ± is half the way from the least to the most."
    if not comparison.fast:
        yield from (order.told(comparison.rows) for order in comparison.orders)
    for row in comparison.rows:
        yield row.name
        yield from (f"  {line}" for line in f"Guarantee: {row.guarantee}".splitlines())
        yield from (f"  Travelled: {said}" for said in _travelled(row))
        yield f"  Settings: {row.method} {_settings(row.args)}; {row.task} {_settings(row.task_args)}"
    if comparison.fast:
        yield "This is the short version: its numbers are not compared with the paper's."


def figure(value: float) -> str:
    """A number with four digits, or all of them before the point.

    Example:
        >>> figure(0.78123), figure(209_500.4), figure(1e-6), figure(380)
        ('0.7812', '209500', '1e-06', '380')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _figures(row: Row, quantity: str) -> list[str]:
    paper, ours = row.paper.get(quantity), row.ours(quantity)
    beside = "" if paper is None else figure(paper)
    if ours is None:
        return [beside, "", "", str(len(row.trials))]
    several = ours.least < ours.most
    spread = f"{figure(ours.least)} to {figure(ours.most)}" if several else ""
    return [beside, figure(ours.mean), spread, str(len(row.trials))]


def _travelled(row: Row) -> Iterator[str]:
    """Nothing, if nothing was measured."""
    cost, up, down = (row.ours(name) for name in ("cost", "up", "down"))
    if cost is None or up is None or down is None:
        return
    told = f"measured, {size(up.mean)} up and {size(down.mean)} down"
    yield f"{figure(cost.mean)} messages from clients in a run; {told}."


def _settings(args: object) -> str:
    return " ".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
