"""A comparison as text: measured beside published numbers, with footnotes on guarantees, traffic and settings."""

from collections.abc import Iterable, Iterator, Mapping

from tacit.papers.comparison import PRIVACY, Comparison, ComparisonRow, Spread
from tacit.report.labels import number, size

HEADER = ["row", "quantity", "paper", "ours", "range", "one more seed", "seeds", "verdict"]
IN_FOOTNOTES = {"loss", "up", "down", "seconds"}  # not in the table unless the paper prints them
LABELS = {
    "epsilon": "ε",
    "delta": "δ at the budget's ε",
    "cost": "cost (messages)",
    "best_round": "best round",
    "cost_down": "download cost, kB",
    "cost_up": "upload cost, kB",
    "kilobytes_down": "measured download, kB",
    "kilobytes_up": "measured upload, kB",
    "epsilon_classic": "ε as in the paper",
    "bound": "clipping bound S",
    "magnitude": "mean absolute weight in the mask",
    "volume": "traffic while pruning, MB",
    "volume_up": "upload while pruning, MB",
    "volume_down": "download while pruning, MB",
    "uploads": "upload per round, MB",
    "leakage": "leakage (d-privacy)",
    "miss": "distance to the farther optimum",
    "found": "both optima found",
    "right": "clients in the right group",
    "images": "images attacked",
    "recovered": "images recovered",
    "unrecognisable": "unrecognisable images",
    "ssim": "mean SSIM",
    "psnr": "mean PSNR, dB",
    "mse": "mean MSE",
}
HEADS = {
    "best_round": "at round",
    "cost_down": "cost down",
    "cost_up": "cost up",
    "kilobytes_down": "kB down",
    "kilobytes_up": "kB up",
    "epsilon_classic": "ε classic",
    "bound": "bound",
    "magnitude": "mean |weight|",
    "volume": "MB",
    "volume_up": "MB up",
    "volume_down": "MB down",
    "uploads": "MB up per round",
    "leakage": "leakage",
    "miss": "distance",
    "found": "found",
    "right": "right group",
    "images": "images",
    "recovered": "recovered",
    "unrecognisable": "unrecognisable",
    "ssim": "SSIM",
    "psnr": "PSNR, dB",
    "mse": "MSE",
}
_BEST = "the best of all rounds that were evaluated, chosen on the test data"
_FORMULA = "values · 4 bytes · rounds · cohort / clients up to the best round, in kilobytes of 1000 bytes"
_PRUNING = "megabytes of all messages of all clients, measured, in the rounds after the warm-up"
_MEASURED = (
    "measured bytes per client up to the best round, with headers, clipping bound and mask; mean over all clients"
)
EXPLANATIONS = {
    "best_round": _BEST,
    "cost_down": _FORMULA,
    "cost_up": _FORMULA,
    "kilobytes_down": _MEASURED,
    "kilobytes_up": _MEASURED,
    "epsilon_classic": "as in the paper: best round, moments accountant, as if sampling were Poisson; no guarantee",
    "epsilon": "the guarantee: all executed rounds, tight accountant",
    "bound": "the clipping bound, estimated on public data",
    "magnitude": "the mean absolute weight in the mask after training",
    "volume": _PRUNING,
    "volume_up": _PRUNING,
    "volume_down": _PRUNING,
    "uploads": "megabytes sent by all clients of a round, measured; mean over the rounds after the warm-up",
    "pruned_accuracy": "of the aggregated model, pruned to as many weights per layer as a client sends",
    "density": "the share of the aggregated model's weights that are not zero",
    "leakage": "leakage of the client that took part most often, within the radius; nominal if nothing is proved",
    "miss": "distance of the farther of the two optima from its nearest hypothesis",
    "found": "the share of the seeds that found both optima, to within 0.6",
    "right": "the share of clients that choose the hypothesis of their own group",
    "recovered": "images with a structural similarity (SSIM) above 0.9",
    "unrecognisable": "images with an SSIM below 0.3",
}


def label(quantity: str) -> str:
    """The name of a quantity in a line of the table.

    Example:
        >>> label("best_accuracy"), label("auroc_at_best"), label("epsilon")
        ('best accuracy of any round', 'auroc at the best round', 'ε')
    """
    if quantity in LABELS:
        return LABELS[quantity]
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
    return HEADS.get(quantity) or LABELS.get(quantity) or quantity.replace("_", " ")


def table(comparison: Comparison) -> list[list[str]]:
    """A header and a line per row and quantity; with columns, a line per row."""
    return _wide(comparison) if comparison.columns else _long(comparison)


def _long(comparison: Comparison) -> list[list[str]]:
    lines = [HEADER]
    for row in comparison.rows:
        shown = [
            name for name in row.quantities() if name in row.paper or (name not in IN_FOOTNOTES and row.spread(name))
        ]
        for quantity in shown:
            name = row.name if quantity == shown[0] else ""
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
    return [published, number(measured.mean), between, further, str(len(row.trials))]


def _wide(comparison: Comparison) -> list[list[str]]:
    """A column per quantity, followed by the paper's if any row has a published number."""
    published = {quantity for row in comparison.rows for quantity in row.paper}
    heads = [
        name for quantity in comparison.columns for name in (head(quantity), "paper")[: 1 + (quantity in published)]
    ]
    return [["row", *heads, "verdict"], *(_line(comparison, row, published) for row in comparison.rows)]


def _line(comparison: Comparison, row: ComparisonRow, published: set[str]) -> list[str]:
    cells = [row.name]
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
    differ = measured.lowest < measured.highest and quantity not in LABELS
    nominal = " nominal" * (quantity in PRIVACY and not row.proved)
    further = f" ({_range(measured)})" if measured.further is None else f" ±{measured.further:.2g}"
    return number(measured.mean) + further * differ + nominal


def _range(measured: Spread) -> str:
    return f"{number(measured.lowest)} to {number(measured.highest)}"


def _summary(comparison: Comparison, row: ComparisonRow) -> str:
    """The columns that were not reached, with the verdict of each; otherwise whether any was."""
    found = {quantity: comparison.verdict(row, quantity) for quantity in comparison.columns}
    others = [f"{verdict}: {head(name)}" for name, verdict in found.items() if verdict not in ("", "reached")]
    return "; ".join(others) or "reached" * ("reached" in found.values())


def footnotes(comparison: Comparison) -> Iterator[str]:
    """Lines below the table: meaning of columns, rankings, and each row's guarantee, traffic and settings."""
    if comparison.stand_in:
        yield f"Stand-in: {comparison.stand_in}"
    yield from _explanations(comparison.columns)
    yield (
        "Measured numbers are means over the seeds. A run with one more seed lies within ± of them with a probability "
        "of 95 % (Student's t, from three seeds on)."
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
        meaning = EXPLANATIONS.get(quantity, _BEST if quantity.startswith("best_") else "")
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
