"""Accuracy under one privacy budget, equally tuned: FL-STD, FL-BASIC, FL-BAS-3, FL-CS and FL-TOP from ε = 0.25 to 8.

    python experiments/frontier/frontier.py covid-mx                          run what is missing, print and draw it
    python experiments/frontier/frontier.py fashion-mnist --epsilons 1 4      only these ε
    python experiments/frontier/frontier.py covid-mx --seeds 10               ten seeds instead of three
    python experiments/frontier/frontier.py covid-mx --show                   print and draw what there is
    python experiments/frontier/frontier.py fashion-mnist-cnn --epsilons 1    the paper's CNN at the settings that the
                                                                              small network of fashion-mnist has chosen

How all methods are tuned is in `tuning.py`. Results are written after every trial, and a second call goes on where the
first one stopped.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure
from tuning import (
    DELTA,
    DRAWS,
    NAMES,
    PROBLEMS,
    Cell,
    Contender,
    Problem,
    Progress,
    Results,
    Trial,
    add_options,
    differences,
    table,
)

import tacit
from tacit.report.style import COLOURS, INK, plain, to_png

METHODS = ("fl-std-dp", "fl-basic-dp", "fl-bas-3-dp", "fl-cs-dp", "fl-top-dp")
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MOMENTUM = 0.9  # of FL-CS, as in the paper
BESIDE = 1.035  # the factor between the points of two methods at one ε, so that their bars can be told apart
KILOBYTES = (2, 5, 10, 20, 30, 50, 70, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)  # on the axis


def method_of(trial: Trial, problem: Problem, _: tacit.Task) -> tacit.Method:
    """The method of a trial, through `SecureSum`."""
    given = dict(trial.settings)
    args = {"ratio": given["ratio"]} if "ratio" in given else {}
    made = tacit.methods.find(trial.method)(
        rounds=int(given["rounds"]), descent=problem.descent, epsilon=trial.epsilon, delta=DELTA, **args
    )
    assert isinstance(made.mechanism, tacit.pieces.DistributedGaussian)
    assert isinstance(made.mechanism.clip, tacit.pieces.PublicClip)
    clip = replace(made.mechanism.clip, factor=given["bound"], draws=min(made.mechanism.clip.draws, DRAWS))
    rate = given["length"] / given["bound"]
    with_momentum = tacit.pieces.Momentum(rho=MOMENTUM, rate=rate * (1 - MOMENTUM))  # in the long run as far
    server = with_momentum if trial.method == "fl-cs-dp" else tacit.pieces.Add(rate=rate)
    return replace(made, mechanism=replace(made.mechanism, clip=clip), server=server)


CONTENDERS = {
    name: Contender(name, method_of, tuple(each for each in NAMES if each != "ratio" or name != "fl-std-dp"))
    for name in METHODS
}


def draw(made: list[Cell], problem: Problem, title: str) -> bytes:
    """Accuracy over ε, and over bytes: a point is a chosen setting, its bar the 95 % interval over seeds."""
    figure = Figure(figsize=(10, 4.6))
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (colour, method) in enumerate(zip(COLOURS, METHODS, strict=False)):
        own, beside = [cell for cell in made if cell.name == method], BESIDE ** (number - len(METHODS) // 2)
        means, halves = [cell.metric.mean for cell in own], [cell.metric.half or 0.0 for cell in own]
        style = {"capsize": 3, "marker": "o", "color": colour, "ms": 4}
        left.errorbar([cell.epsilon * beside for cell in own], means, halves, label=_short(method), **style)
        right.errorbar([cell.kilobytes for cell in own], means, halves, linestyle="none", **style)
    for panel, label in (
        (left, "ε at δ = 1e-5, per client"),
        (right, "kB per client, up and down (a point for each ε)"),
    ):
        panel.set_xscale("log")
        panel.set_xlabel(label, color=INK)
        panel.minorticks_off()
        plain(panel)
    left.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    left.set_xlim(EPSILONS[0] / 1.3, EPSILONS[-1] * 1.3)
    low, high = min(cell.kilobytes for cell in made) / 1.2, max(cell.kilobytes for cell in made) * 1.2
    shown = [kilobytes for kilobytes in KILOBYTES if low <= kilobytes <= high]
    right.set_xticks(shown, [f"{kilobytes:,}" for kilobytes in shown])
    right.set_xlim(low, high)
    left.set_title(problem.metric.replace("_", " "), loc="left", size=9.5, color=INK)
    figure.suptitle(title, size=12, color=INK, x=0.06, ha="left")
    figure.legend(frameon=False, fontsize=8.5, labelcolor="linecolor", loc="upper right", ncols=len(METHODS))
    figure.tight_layout()
    return to_png(figure)


def _short(method: str) -> str:
    return method.removesuffix("-dp").upper()


def asked(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="run only these")
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=EPSILONS, help="run only these")
    add_options(parser)
    return parser.parse_args(argv)


def pairs(args: argparse.Namespace) -> list[tuple[Contender, float]]:
    """Which methods are asked for, at which ε."""
    return [*itertools.product((CONTENDERS[name] for name in args.methods), args.epsilons)]


def progress(argv: Sequence[str]) -> Progress:
    """What is done of a command line, for the backlog."""
    args = asked(argv)
    return Results.open(args).progress(pairs(args))


def main() -> None:
    """Run what is missing, unless only `--show` is asked for; print the tables and draw the figure."""
    args = asked()
    results = Results.open(args)
    if not args.show:
        results.complete(pairs(args))
    made = results.cells(CONTENDERS.values(), EPSILONS)
    print(table(made, results.problem.metric), differences(made, "fl-top-dp"), sep="\n\n")
    if not made:
        raise SystemExit("Nothing to draw yet: call this without --show.")
    tuned_as = results.problem.tuned_as
    how = f"as {tuned_as}" if tuned_as else f"{args.trials} trials each"
    title = f"{args.problem}: equally tuned, {how}"
    results.file.path.with_suffix(".png").write_bytes(draw(made, results.problem, title))


if __name__ == "__main__":
    main()
