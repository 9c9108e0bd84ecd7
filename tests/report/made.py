"""Run directories without training: a method's manifest, and rounds whose numbers follow from their index."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from tacit import methods
from tacit.core import Report
from tacit.core.prices import Unit
from tacit.core.serialization import write_json
from tacit.core.state import Traffic
from tacit.privacy.guarantee import Guarantee
from tacit.runs import guarantee_file
from tacit.runs.directory import GUARANTEE, MANIFEST, ROUNDS
from tacit.runs.manifest import Manifest, MethodEntry, Status, TaskEntry, versions

DATA = f"keyed:{0xAB12:08x}:{0xCD34:032x}"  # a digest as manifests have it
TASK = TaskEntry(name="digits", args={"clients": 20}, clients=20, samples=300, parameters=4810, loss="L()", data=DATA)
PROVED = Guarantee(
    epsilon=1.25, delta=1e-5, rounds=10**6, adjacency="add-or-remove", sampling="Poisson, rate 0.25", amplified=True,
    accountant="pld", not_covered=("The number of clients, 20, is public.",),
)  # fmt: skip


def made_report(number: int, *, seed: int = 0, epsilon: float | None = None, cohort: int = 5) -> Report:
    """A round whose accuracy rises with its number, a little more with some seeds than with others."""
    return Report(
        round=number,
        clients=tuple((number + i) % 20 for i in range(cohort)),
        rejected=(number % 20,) if number % 7 == 0 else (),
        up=(1000,) * cohort,
        down=(2000,) * cohort,
        norm=None,
        variance=None,
        scale=None,
        metrics={"accuracy": 1 - 0.9 / (1 + 0.05 * number) + 0.01 * seed, "loss": 2.0 / number},
        seconds=0.25,
        epsilons={} if epsilon is None else {Unit.CLIENT: epsilon},
        overhead={"share": Traffic(100, 50), "open": Traffic(10, 5)},
        timings={"train": 0.2, "aggregate": 0.04},
    )


def made_run(
    path: Path,
    rounds: int,
    *,
    method: str = "fedavg",
    args: Mapping[str, object] | None = None,
    seed: int = 0,
    status: Status = "finished",
    guarantee: Guarantee | None = None,
    caveat: str = "",
    task: TaskEntry = TASK,
    cohort: int = 5,
) -> Path:
    """Write the directory of a run; one with a guarantee has an ε that grows with its rounds."""
    given = {"rounds": max(rounds, 1), **(args or {})}
    form = methods.make(method, given).to_plain() if method in methods.definitions() else {"type": "Method"}
    manifest = Manifest(
        method=MethodEntry(name=method, args=given, form=form),
        task=task,
        seed=seed,
        device="cpu",
        evaluate_every=1,
        versions=versions(),
        caveat=caveat,
        randomness="secret",
        key=f"{seed:02}{path.name}",
        status=status,
    )
    path.mkdir(parents=True)
    (path / MANIFEST).write_bytes(manifest.to_bytes())
    reports = (
        made_report(number, seed=seed, cohort=cohort, epsilon=None if guarantee is None else 1.25 * number / rounds)
        for number in range(1, rounds + 1)
    )
    (path / ROUNDS).write_bytes(b"".join(write_json(asdict(each)) for each in reports))
    if guarantee is not None:
        guarantee_file.write(path / GUARANTEE, {guarantee.unit: replace(guarantee, rounds=rounds)})
    return path


def add_round(path: Path, number: int) -> None:
    """Append a round, as a run that goes on does."""
    with (path / ROUNDS).open("ab") as file:
        file.write(write_json(asdict(made_report(number))))
