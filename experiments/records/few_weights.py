"""Do few trained weights help where records are protected? Two methods at equal ε, equally tuned.

    python experiments/records/few_weights.py

Ten clients share the embedded digits; two hidden layers have 85,002 weights; 50 rounds go through secure aggregation.
Each of `dp-fedsgd` and `fl-top-record-dp` has four settings, of which the one with the best accuracy on a fifth of the
clients' images is trained on all of them with three seeds and evaluated on the test images. `fl-top-record-dp` chooses
its weights on 50 public images, which `dp-fedsgd` does not use. Results are written after every trial, and a second
call goes on where the first one stopped.
"""

import itertools
import json
import statistics
from pathlib import Path

from hospitals import DELTA, divided

import tacit
from tacit.core import files

FILE = Path(__file__).parent / "few-weights-digits.json"
EPSILONS, ROUNDS, SEEDS = (3.0,), 50, (0, 1, 2)
SETTINGS = {
    "dp-fedsgd": [{"lr": lr} for lr in (0.1, 0.2, 0.4, 0.8)],
    "fl-top-record-dp": [{"ratio": r, "lr": lr} for r, lr in itertools.product((0.02, 0.1), (0.2, 0.4))],
}


def trained(name: str, task: tacit.Task, epsilon: float, settings: dict[str, float], seed: int) -> dict[str, float]:
    """Metrics and ε of one run."""
    size = float(task.population.sizes.double().mean())
    gradient = tacit.pieces.RecordGradient(rate=0.2, clip=1.0)
    make = {"dp-fedsgd": tacit.methods.dp_fedsgd, "fl-top-record-dp": tacit.methods.fl_top_record_dp}[name]
    method = make(rounds=ROUNDS, gradient=gradient, size=size, epsilon=epsilon, delta=DELTA, **settings)
    try:
        run = tacit.train(method, task, seed=seed, workers=1, evaluate_every=ROUNDS)
    except tacit.TrainingError:  # it diverged, and predicts nothing
        return {"accuracy": 0.1}
    return {**run.metrics, "epsilon": run.privacy.epsilon}


def main() -> None:
    """Run what is missing, and print a line for each method and ε."""
    found: dict[str, dict[str, float]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    whole = tacit.tasks.make_task("digits", clients=10, public=50, model="digits-mlp")
    parts = {"validation": divided(whole), "test": whole}

    def accuracy(name: str, epsilon: float, settings: dict[str, float], part: str, seed: int) -> float:
        key = json.dumps([name, epsilon, settings, part, seed])
        if key not in found:
            found[key] = trained(name, parts[part], epsilon, settings, seed)
            files.write(FILE, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())  # whole, or not at all
        return found[key]["accuracy"]

    for epsilon, (name, choices) in itertools.product(EPSILONS, SETTINGS.items()):
        scores = [accuracy(name, epsilon, settings, "validation", 0) for settings in choices]
        best = choices[scores.index(max(scores))]
        tested = [accuracy(name, epsilon, best, "test", seed) for seed in SEEDS]
        spread = f"{min(tested):.3f} to {max(tested):.3f}"
        print(f"{name} ε = {epsilon:g}: accuracy {statistics.mean(tested):.3f} ({spread}), {best}", flush=True)


if __name__ == "__main__":
    main()
