"""What quantities are called: in a line, at the head of a column, and in a sentence beneath it; bytes in words."""

from collections.abc import Iterable, Iterator

NAMES = {
    "epsilon": "ε",
    "delta": "δ at the budget's ε",
    "cost": "cost (messages)",
    "best_round": "round of the best",
    "cost_down": "cost down, kB",
    "cost_up": "cost up, kB",
    "kilobytes_down": "measured down, kB",
    "kilobytes_up": "measured up, kB",
    "epsilon_classic": "ε, paper column",
    "bound": "bound S",
    "magnitude": "mean absolute weight at the mask",
    "volume": "volume of pruning, MB",
    "volume_up": "volume of pruning up, MB",
    "volume_down": "volume of pruning down, MB",
    "uploads": "uploads of a round, MB",
    "leakage": "leakage (d-privacy)",
    "miss": "distance to the farther optimum",
    "found": "both optima found",
    "right": "clients in their own group",
    "images": "images attacked",
    "recovered": "images recovered",
    "unrecognisable": "images beyond recognition",
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
    "uploads": "MB up a round",
    "leakage": "leakage",
    "miss": "miss",
    "found": "found",
    "right": "right",
    "images": "images",
    "recovered": "recovered",
    "unrecognisable": "unrecognisable",
    "ssim": "SSIM",
    "psnr": "PSNR, dB",
    "mse": "MSE",
}
_BEST = "the best of all rounds that were measured, chosen on the test data"
_FORMULA = "values · 4 bytes · rounds · cohort / clients up to the best round, in kilobytes of 1000 bytes"
_PRUNING = "megabytes of all messages of all clients, as measured, in the rounds after the warm-up"
_MEASURED = "bytes per client up to the best round, with headers, bound and mask; the mean over all clients"
NOTES = {
    "best_round": _BEST,
    "cost_down": _FORMULA,
    "cost_up": _FORMULA,
    "kilobytes_down": _MEASURED,
    "kilobytes_up": _MEASURED,
    "epsilon_classic": "the paper's column: best round, moments accountant, as if cohorts were Poisson; no guarantee",
    "epsilon": "the guarantee: all rounds that were played, tight accountant",
    "bound": "the clipping bound, found on public data",
    "magnitude": "the mean absolute weight at the mask when training ended",
    "volume": _PRUNING,
    "volume_up": _PRUNING,
    "volume_down": _PRUNING,
    "uploads": "megabytes that all clients of a round sent, as measured, the mean of the rounds after the warm-up",
    "pruned_accuracy": "of the aggregated model with as few weights in each layer as a client sends",
    "density": "the share of the aggregated model's weights that are not zero",
    "leakage": "what the client that took part most often has leaked within the radius; nominal if nothing is proved",
    "miss": "the farther of the two optima from the nearest hypothesis",
    "found": "the share of the seeds that found both optima, to within 0.6",
    "right": "the share of clients that choose the hypothesis of their own group",
    "recovered": "images with a structural similarity (SSIM) above 0.9",
    "unrecognisable": "images with an SSIM below 0.3",
}


def label(quantity: str) -> str:
    """A quantity in words.

    Example:
        >>> label("best_accuracy"), label("auroc_at_best"), label("epsilon")
        ('best accuracy of any round', 'auroc at the best round', 'ε')
    """
    if quantity in NAMES:
        return NAMES[quantity]
    if quantity.startswith("best_"):
        return f"best {quantity.removeprefix('best_')} of any round"
    if quantity.endswith("_at_best"):
        return f"{quantity.removesuffix('_at_best')} at the best round"
    return quantity


def head(quantity: str) -> str:
    """A quantity at the head of a column.

    Example:
        >>> head("best_balanced_accuracy"), head("auroc_at_best"), head("cost_up")
        ('best balanced accuracy', 'auroc then', 'cost up')
    """
    if quantity in HEADS or quantity in NAMES:
        return HEADS.get(quantity) or NAMES[quantity]
    if quantity.endswith("_at_best"):
        return f"{quantity.removesuffix('_at_best').replace('_', ' ')} then"
    return quantity.replace("_", " ")


def notes(quantities: Iterable[str]) -> Iterator[str]:
    """A sentence for each meaning, with the heads of the columns that have it."""
    told: dict[str, list[str]] = {}
    for quantity in quantities:
        note = NOTES.get(quantity, _BEST if quantity.startswith("best_") else "")
        if note:
            told.setdefault(note, []).append(head(quantity))
    return (f"{'; '.join(heads)}: {note}." for note, heads in told.items())


def size(count: float) -> str:
    """A number of bytes in words.

    Example:
        >>> size(999), size(999.6), size(1_500_000)
        ('999 B', '1 kB', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # what is rounded to 1000 is one of the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
