"""A comparison as text: the paper's numbers beside ours, and beneath them what is guaranteed."""

from collections.abc import Iterator

from tacit.report.comparison import PRIVACY, Comparison, Row

HEAD = ["row", "quantity", "paper", "ours", "least to most", "seeds", "verdict"]
NAMES = {"epsilon": "ε", "delta": "δ at the budget's ε", "cost": "cost (messages)"}
BENEATH = {"loss", "up", "down", "seconds"}  # told in words, or not at all


def table(comparison: Comparison) -> list[list[str]]:
    """A line per row and quantity, under a line of names; a row is named once."""
    lines = [HEAD]
    for row in comparison.rows:
        shown = [name for name in row.quantities() if name in row.paper or (name not in BENEATH and row.ours(name))]
        for quantity in shown:
            name = row.name if quantity == shown[0] else ""
            nominal = " (nominal)" * (quantity in PRIVACY and not row.proved)
            verdict = comparison.verdict(row, quantity)
            lines.append([name, label(quantity) + nominal, *_figures(row, quantity), verdict])
    return lines


def remarks(comparison: Comparison) -> Iterator[str]:
    """Line by line: each row's guarantee in words, what travelled, and its settings."""
    for row in comparison.rows:
        yield row.name
        yield from (f"  {line}" for line in f"Guarantee: {row.guarantee}".splitlines())
        yield f"  Travelled: {_travelled(row)}"
        yield f"  Settings: {row.method} {_settings(row.args)}; {row.task} {_settings(row.task_args)}"
    if comparison.fast:
        yield "This is the short version: its numbers are not compared with the paper's."


def label(quantity: str) -> str:
    """A quantity in words.

    Example:
        >>> label("best_accuracy"), label("epsilon")
        ('best accuracy of any round', 'ε')
    """
    name = quantity.removeprefix("best_")
    return NAMES.get(quantity, quantity) if name == quantity else f"best {name} of any round"


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


def _travelled(row: Row) -> str:
    cost, up, down = (row.ours(name) for name in ("cost", "up", "down"))
    if cost is None or up is None or down is None:
        return "not measured."
    return (
        f"{figure(cost.mean)} messages from clients in a run; measured, {up.mean / 1e6:,.1f} MB up and "
        f"{down.mean / 1e6:,.1f} MB down."
    )


def _settings(args: object) -> str:
    return " ".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
