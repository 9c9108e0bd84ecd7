"""Accuracy under one privacy budget, equally tuned: FL-STD, FL-BASIC, FL-BAS-3, FL-CS and FL-TOP from ε = 0.25 to 8.

    python experiments/frontier/frontier.py covid-mx                run what is missing, print and draw the result
    python experiments/frontier/frontier.py covid-mx --trials 12    tune with more trials
    python experiments/frontier/frontier.py covid-mx --show         print and draw what there is

For every method and every ε, equally many settings are drawn from the same lists (bound, server's step, rounds and,
where there is one, ratio) and trained with one seed. One is chosen by its metric on a validation part, a half of the
held-out samples. That one is trained with three other seeds, and evaluated on the other half, once. Trials are made in
an order in which all methods and all ε have equally many at any time. Results are written after every trial, and a
second call goes on where the first one stopped. Noise is seeded, so that a call repeats what another one found.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

import tacit
from tacit.core import files
from tacit.papers.sweeps import divided
from tacit.privacy.accountants import Accounting, RdpClassic
from tacit.privacy.charging import release_of
from tacit.privacy.guarantee import Guarantee
from tacit.report.run_groups import Interval
from tacit.report.style import COLOURS, INK, plain, to_png
from tacit.runs.records import size_noise

METHODS = ("fl-std-dp", "fl-basic-dp", "fl-bas-3-dp", "fl-cs-dp", "fl-top-dp")
EPSILONS, DELTA = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 1e-5
TUNING_SEED, SEEDS = 100, (0, 1, 2)
COLUMNS = ("method", "ε (PLD)", "ε, classic", "test", "AUROC", "seeds", "kB per client", "chosen")
DRAWS = 25  # of random coordinates, at most, whose median is the bound
SETTINGS: Mapping[str, tuple[float, ...]] = {
    "bound": (0.25, 0.5, 1.0),  # times the norm of an update on the public data
    "step": (1.0, 2.0, 4.0),  # of the server; FL-CS has momentum 0.9, and a tenth of it as its rate
    "rounds": (10, 20),
    "ratio": (0.005, 0.05, 0.2),
}


@dataclass(frozen=True)
class Problem:
    """A task with the settings that are not tuned, and the metric that is."""

    task: str
    task_args: Mapping[str, object]
    descent: tacit.pieces.Sgd
    metric: str

    def make(self) -> tacit.Task:
        return tacit.tasks.make_task(self.task, **self.task_args)


PROBLEMS = {
    "covid-mx": Problem(
        task="covid-mx",
        task_args={"clients": 5010, "public": 356, "balanced": True},
        descent=tacit.pieces.Sgd(lr=0.4, steps=10),
        metric="balanced_accuracy",
    ),
    "fashion-mnist": Problem(
        task="fashion-mnist",
        task_args={"clients": 6000, "samples": 10, "public": 10, "model": "mlp"},
        descent=tacit.pieces.Sgd(lr=0.215, steps=5, batch_size=10),
        metric="accuracy",
    ),
}


@dataclass(frozen=True)
class Trial:
    """One run: a method at an ε with its settings, evaluated on one part of the held-out samples."""

    method: str
    epsilon: float
    settings: tuple[tuple[str, float], ...]
    part: str
    seed: int

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def grid(method: str) -> list[tuple[tuple[str, float], ...]]:
    """All settings of a method; FL-STD sends everything, and has no ratio."""
    names = [name for name in SETTINGS if name != "ratio" or method != "fl-std-dp"]
    return [tuple(zip(names, values, strict=True)) for values in itertools.product(*(SETTINGS[name] for name in names))]


def tuning(method: str, epsilon: float, trials: int) -> list[Trial]:
    """Distinct random settings; more trials begin with the same ones."""
    every = grid(method)
    drawn = random.Random(f"{method} {epsilon:g}").sample(every, len(every))[:trials]
    return [Trial(method, epsilon, settings, "validation", TUNING_SEED) for settings in drawn]


def method_of(trial: Trial, descent: tacit.pieces.Sgd) -> tacit.Method:
    """The method of a trial, through `SecureSum`, with as much noise as ε requires in all rounds."""
    given = dict(trial.settings)
    args: dict[str, object] = {"rounds": int(given["rounds"]), "descent": descent, "epsilon": trial.epsilon}
    if "ratio" in given:
        args["ratio"] = given["ratio"]
    made = tacit.methods.find(trial.method)(delta=DELTA, **args)
    assert isinstance(made.mechanism, tacit.pieces.DistributedGaussian)
    assert isinstance(made.mechanism.clip, tacit.pieces.PublicClip)
    clip = replace(made.mechanism.clip, factor=given["bound"], draws=min(made.mechanism.clip.draws, DRAWS))
    step = given["step"]
    server = (
        tacit.pieces.Momentum(rho=0.9, rate=step / 10) if trial.method == "fl-cs-dp" else tacit.pieces.Add(rate=step)
    )
    return replace(made, mechanism=replace(made.mechanism, clip=clip), server=server)


@cache
def noise_for(epsilon: float, rounds: int, clients: int) -> float:
    """The noise multiplier that ε requires in so many rounds, the same for all methods; it takes seconds to compute."""
    sized = size_noise(tacit.methods.fl_std_dp(rounds=rounds, epsilon=epsilon, delta=DELTA), clients).mechanism
    assert isinstance(sized, tacit.pieces.DistributedGaussian)
    assert sized.noise_multiplier is not None
    return sized.noise_multiplier


def run(trial: Trial, problem: Problem, task: tacit.Task) -> dict[str, float]:
    """Metrics, ε by both accountants, and kilobytes per client of the population."""
    began = time.process_time()
    method = method_of(trial, problem.descent)
    method = method.sized(noise_for(trial.epsilon, method.rounds, len(task.population)))
    done = tacit.train(method, task, seed=trial.seed, workers=1, evaluate_every=method.rounds, noise="seeded")
    clients, rounds = len(task.population), done.state.round
    releases = [release_of(done.plan.method, clients, index) for index in range(rounds)]
    classic = Accounting.of(RdpClassic(), [release for release in releases if release is not None]).epsilon(DELTA)
    proved = done.privacy
    assert isinstance(proved, Guarantee)
    assert proved.epsilon is not None
    noise = done.plan.method.mechanism
    assert isinstance(noise, tacit.pieces.DistributedGaussian)
    return {
        **done.metrics,
        "epsilon": proved.epsilon,
        "epsilon_classic": classic,
        "noise_multiplier": noise.noise_multiplier or 0.0,
        "rounds": rounds,
        "kilobytes_up": done.bytes.up / clients / 1000,
        "kilobytes_down": done.bytes.down / clients / 1000,
        "cpu_seconds": round(time.process_time() - began, 2),
    }


Found = dict[str, dict[str, float]]


def chosen(found: Found, problem: Problem, method: str, epsilon: float, trials: int) -> Trial | None:
    """The best of a method's trials on the validation part; None: not all of them have been made."""
    made = tuning(method, epsilon, trials)
    if any(trial.key not in found for trial in made):
        return None
    return max(made, key=lambda trial: found[trial.key][problem.metric])


def finals(best: Trial) -> list[Trial]:
    """The chosen settings on the test part, with every seed."""
    return [replace(best, part="test", seed=seed) for seed in SEEDS]


@dataclass(frozen=True)
class Cell:
    """A method at an ε, as far as it is finished: its chosen settings, and what they give on the test part."""

    method: str
    epsilon: float
    settings: Mapping[str, float]
    metric: Interval
    auroc: str
    kilobytes: float
    classic: float

    @property
    def line(self) -> str:
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return (
            f"| {self.method.removesuffix('-dp').upper()} | {self.epsilon:g} | {self.classic:.2f} | "
            f"{self.metric.text()} | {self.auroc} | {self.metric.count} | {self.kilobytes:,.1f} | {settings} |"
        )


def cells(found: Found, problem: Problem, trials: int) -> list[Cell]:
    """All that are finished."""
    made = []
    for method, epsilon in itertools.product(METHODS, EPSILONS):
        best = chosen(found, problem, method, epsilon, trials)
        done = [found[trial.key] for trial in finals(best) if trial.key in found] if best else []
        if best is None or not done:
            continue
        interval = Interval.of([result[problem.metric] for result in done])
        assert interval is not None
        kilobytes = sum(each["kilobytes_up"] + each["kilobytes_down"] for each in done) / len(done)
        also = Interval.of([result["auroc"] for result in done if "auroc" in result])
        auroc, classic = also.text() if also else "", done[0]["epsilon_classic"]
        made.append(Cell(method, epsilon, dict(best.settings), interval, auroc, kilobytes, classic))
    return made


def draw(made: list[Cell], problem: Problem, title: str) -> bytes:
    """Accuracy over ε, and over bytes: a point is a chosen setting, its bar the 95 % interval over seeds."""
    figure = Figure(figsize=(10, 4.6))
    left, right = figure.subplots(1, 2, sharey=True)
    for colour, method in zip(COLOURS, METHODS, strict=False):
        own = [cell for cell in made if cell.method == method]
        means, halves = [cell.metric.mean for cell in own], [cell.metric.half or 0.0 for cell in own]
        name, style = method.removesuffix("-dp").upper(), {"capsize": 3, "marker": "o", "color": colour, "ms": 4}
        left.errorbar([cell.epsilon for cell in own], means, halves, label=name, **style)
        right.errorbar([cell.kilobytes for cell in own], means, halves, linestyle="none", **style)
        for cell in own:
            right.annotate(f"{cell.epsilon:g}", (cell.kilobytes, cell.metric.mean), size=6, color=colour,
                           xytext=(3, 3), textcoords="offset points")  # fmt: skip
    for panel, label in ((left, "ε at δ = 1e-5, per client"), (right, "kB per client, up and down (numbers: ε)")):
        panel.set_xscale("log")
        panel.set_xlabel(label, color=INK)
        panel.minorticks_off()
        plain(panel)
    left.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    left.set_xlim(EPSILONS[0] / 1.3, EPSILONS[-1] * 1.3)
    means = [cell.metric.mean for cell in made] or [0.5]
    left.set_ylim(min(means) - 0.1, max(means) + 0.1)  # intervals of two seeds can be wider than any accuracy
    left.legend(frameon=False, fontsize=8.5, labelcolor="linecolor", loc="lower right")
    left.set_title(problem.metric.replace("_", " "), loc="left", size=9.5, color=INK)
    figure.suptitle(title, size=12, color=INK, x=0.06, ha="left")
    figure.tight_layout()
    return to_png(figure)


def main() -> None:
    """Run what is missing, unless only `--show` is asked for; print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--trials", type=int, default=4, help="settings per method and ε (default: 4)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="run only these")
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=EPSILONS, help="run only these")
    parser.add_argument("--show", action="store_true", help="run nothing")
    args = parser.parse_args()
    file, problem = Path(__file__).parent / f"{args.problem}.json", PROBLEMS[args.problem]
    found: Found = json.loads(file.read_text()) if file.exists() else {}
    if not args.show:
        complete(found, problem, args.trials, file, [*itertools.product(args.methods, args.epsilons)])
    made = cells(found, problem, args.trials)
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n")
    print(*(cell.line for cell in made), sep="\n")
    title = f"{args.problem}: equally tuned, {args.trials} trials each"
    file.with_suffix(".png").write_bytes(draw(made, problem, title))


def complete(found: Found, problem: Problem, trials: int, file: Path, pairs: Sequence[tuple[str, float]]) -> None:
    """Make all trials that are missing: first those of tuning, number by number, then the chosen ones."""
    validation, test = divided(problem.make(), 0.5)

    def measure(trial: Trial) -> None:
        if trial.key in found:
            return
        found[trial.key] = run(trial, problem, validation if trial.part == "validation" else test)
        files.write(file, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())  # whole, or not at all
        print(f"{len(found)}: {trial.key} {found[trial.key]}", flush=True)

    for number in range(trials):
        for method, epsilon in pairs:
            measure(tuning(method, epsilon, trials)[number])
    for seed in range(len(SEEDS)):
        for method, epsilon in pairs:
            best = chosen(found, problem, method, epsilon, trials)
            assert best is not None  # all of its trials have been made
            measure(finals(best)[seed])


if __name__ == "__main__":
    main()
