"""Do few trained weights help where records are protected? Five ways at equal ε, equally tuned.

    python experiments/records/few_weights.py [CASE ...]

Five clients train together through secure aggregation, with noise for records. Each of five ways has twelve settings
(six learning rates, and two values of what else it can choose), of which the best on a validation part is trained with
three seeds and evaluated on the test images, once:

| way | what is trained | also chosen |
|---|---|---|
| `all` | all weights (`dp-fedsgd`) | 10 or 20 rounds |
| `largest` | those with the largest gradients on public images of the kind (`fl-top-record-dp`) | 2 or 10 % of them |
| `largest by digits` | the same, of Fashion-MNIST, with the largest gradients on public digits | 2 or 10 % of them |
| `random` | random ones, the same in all rounds | 2 or 10 % of them |
| `small` | all weights of a small model (`dp-fedsgd`) | none or 25 hidden units |

`public alone` trains all weights on the public images, without privacy and without any client: what they are worth by
themselves. Results are written after every trial, and a second call goes on where the first one stopped.
"""

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from hospitals import DELTA, divided
from torch import nn

import tacit
from tacit.data import Population, Samples
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.privacy.guarantee import Guarantee
from tacit.tasks.models import digits_mlp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
from trials import Result, TrialFile

FILE = Path(__file__).parent / "few-weights.json"
CLIENTS, RATE, ROUNDS, SEEDS = 5, 0.2, 20, (0, 1, 2)
LEARNING_RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
VALIDATION, PUBLIC = 2000, 100  # images of Fashion-MNIST
Settings = dict[str, float]


def two_layers(width: int = 200) -> nn.Module:
    """784-200-200-10: 199,210 weights."""
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def wide() -> nn.Module:
    """784-1000-1000-10: 1,796,010 weights."""
    return two_layers(1000)


def small(pixels: int, hidden: int) -> Callable[[], nn.Module]:
    """A linear model, or one with a few hidden units."""
    if not hidden:
        return lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, 10))
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 10))


@dataclass(frozen=True)
class Case:
    """What is trained at which ε.

    Attributes:
        data: `digits` or `fashion`.
        model: all of its weights, or few of them, are trained.
        records: of all five clients together.
        epsilon: of every record, at δ = 1e-5.
    """

    data: str
    model: Callable[[], nn.Module]
    records: int
    epsilon: float


CASES = {
    "digits, 1500 records, ε = 3": Case("digits", digits_mlp, 1500, 3.0),
    "fashion, 3000 records, ε = 1": Case("fashion", two_layers, 3000, 1.0),
    "fashion, 1000 records, ε = 0.5": Case("fashion", two_layers, 1000, 0.5),
    "fashion, 500 records, ε = 1": Case("fashion", two_layers, 500, 1.0),
    "fashion, 1000 records, ε = 0.5, wide": Case("fashion", wide, 1000, 0.5),
}
SECOND: dict[str, tuple[Settings, Settings]] = {
    "all": ({"rounds": ROUNDS}, {"rounds": ROUNDS // 2}),
    "largest": ({"ratio": 0.02}, {"ratio": 0.1}),
    "largest by digits": ({"ratio": 0.02}, {"ratio": 0.1}),
    "random": ({"ratio": 0.02}, {"ratio": 0.1}),
    "small": ({"hidden": 0}, {"hidden": 25}),
}


@cache
def task_of(data: str, records: int, part: str, *, by_digits: bool = False) -> tacit.Task:
    """The clients' images, what is evaluated (`validation` or `test`), and public ones, of the same kind or digits."""
    if data == "digits":
        whole = tacit.tasks.make_task("digits", clients=CLIENTS, public=50)
        return divided(whole) if part == "validation" else whole
    made = tacit.tasks.make_task("fashion-mnist", clients=1, samples=VALIDATION + PUBLIC + records, public=PUBLIC)
    x, y = made.population[0]
    held, public, rest = (tuple(side.split([VALIDATION, PUBLIC, records])[i] for side in (x, y)) for i in range(3))
    clients = Population.of(list(zip(*(side.chunk(CLIENTS) for side in rest), strict=True)))
    return replace(
        made,
        clients=clients,
        test=held if part == "validation" else made.test,
        public=made.public if by_digits else public,
        test_overlap="coincidental",
    )


def method_of(way: str, case: Case, settings: Settings, size: float) -> tacit.Method:
    """The method of a way."""
    gradient = tacit.pieces.RecordGradient(rate=RATE, clip=1.0)
    common = {"gradient": gradient, "size": size, "epsilon": case.epsilon, "delta": DELTA, "lr": settings["lr"]}
    if way in ("all", "small"):
        return tacit.methods.dp_fedsgd(rounds=int(settings.get("rounds", ROUNDS)), **common)
    method = tacit.methods.fl_top_record_dp(rounds=ROUNDS, ratio=settings["ratio"], **common)
    if way == "random":
        return replace(method, codec=Select(FixedRandom(size=Size(ratio=settings["ratio"]))))
    return method


def trained(way: str, case: Case, settings: Settings, part: str, seed: int) -> Result:
    """Metrics and ε of one run."""
    task = task_of(case.data, case.records, part, by_digits=way == "largest by digits")
    pixels = task.population.x[0].numel()
    model = small(pixels, int(settings["hidden"])) if way == "small" else case.model
    method = method_of(way, case, settings, task.population.mean_size)
    try:
        run = tacit.train(method, replace(task, model=model), seed=seed, workers=1, evaluate_every=method.rounds)
    except tacit.TrainingError:  # it diverged, and predicts nothing
        return {"accuracy": 0.1}
    assert isinstance(run.privacy, Guarantee)
    assert run.privacy.epsilon is not None
    return {**run.metrics, "epsilon": run.privacy.epsilon}


def public_alone(case: Case, seed: int) -> float:
    """The test accuracy of all weights after 200 steps on all public images."""
    task = task_of(case.data, case.records, "test")
    torch.manual_seed(seed)
    model, (x, y) = case.model(), task.public
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return accuracy_of(model, task.test)


def accuracy_of(model: nn.Module, test: Samples) -> float:
    """The part of the test images that a model classifies correctly."""
    x, y = test
    found = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return float((found == y).double().mean())


def choices(way: str) -> Iterator[Settings]:
    """The settings of a way."""
    for lr, second in itertools.product(LEARNING_RATES, SECOND[way]):
        yield {"lr": lr, **second}


@dataclass(frozen=True)
class Trial:
    """One run of a way: its case, its settings, what it is evaluated on, and its seed."""

    case: str
    way: str
    settings: Settings
    part: str
    seed: int


def run(trial: Trial) -> Result:
    """What a trial gives."""
    case = CASES[trial.case]
    if trial.way == "public alone":
        return {"accuracy": public_alone(case, trial.seed)}
    return trained(trial.way, case, trial.settings, trial.part, trial.seed)


def line(file: TrialFile, way: str, name: str) -> str:
    """The test accuracy of a way with the settings that are best in validation; what is missing is run."""

    def accuracy(settings: Settings, part: str, seed: int) -> float:
        trial = Trial(name, way, settings, part, seed)
        return file.measure(trial, lambda: run(trial))["accuracy"]

    best, note = Settings(), ""
    if way != "public alone":
        settings = list(choices(way))
        scores = [accuracy(each, "validation", 0) for each in settings]
        best = settings[scores.index(max(scores))]
        note = f", {best}, {max(scores):.3f} in validation"
    tested = [accuracy(best, "test", seed) for seed in SEEDS]
    return f"{way}: {statistics.mean(tested):.3f} ({min(tested):.3f} to {max(tested):.3f}){note}"


def main() -> None:
    """Run what is missing of some cases or of all, and print a line for each way."""
    file = TrialFile.open(FILE)
    for name in sys.argv[1:] or CASES:
        print(name, flush=True)
        for way in (*SECOND, "public alone"):
            if way == "largest by digits" and CASES[name].data == "digits":
                continue
            print(f"  {line(file, way, name)}", flush=True)


if __name__ == "__main__":
    main()
