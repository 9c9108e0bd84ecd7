"""Defaults that follow from the task: private descent on tables, its public rule, and what is said about it."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.analyses.questions import DescribeQuestion, Question, RegressionQuestion
from tacit.core.descent_rule import DescentRule, noise_at_once
from tacit.core.prices import Unit
from tacit.core.standardised import StandardisedLayout, StandardisedLinear
from tacit.engine.learners.records.record_learners import ReferenceRecords
from tacit.engine.learners.records.standardised_records import StandardisedRecords
from tacit.errors import CompositionError
from tacit.privacy.charging import begin_charges
from tacit.runs.analyses import Setting, spec_of
from tacit.runs.run import RunSpec


def patients(rows: int = 4000, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A table with wide ranges: the outcome is rare and depends on a number of 1 % of its range, and on a category."""
    draw = np.random.default_rng(seed)
    age, crp, sex = draw.uniform(20, 90, rows), np.exp(draw.normal(2, 0.7, rows)), draw.integers(2, size=rows)
    chance = 1 / (1 + np.exp(4.5 - 2.2 * np.log(crp / 7.4) - 0.05 * (age - 55) - sex))
    return {
        "hospital": [f"H{each}" for each in draw.integers(8, size=rows)],
        "age": age,
        "crp": crp,
        "sex": [("f", "m")[each] for each in sex],
        "died": (draw.random(rows) < chance).astype(int),
        **more,
    }


def task(tmp_path: Any, table: Any = None, **options: Any) -> tacit.Task:
    """The task of a table whose ranges are declared, and far wider than the data."""
    file = tmp_path / "encoding.toml"
    file.write_text(
        '[numbers]\nage = [0, 120]\ncrp = [0, 1000]\n[categories]\nsex = ["f", "m"]\n'
        '[target]\nname = "died"\nclasses = ["0", "1"]\n'
    )
    rows = patients() if table is None else table
    return tacit.Task.from_table(rows, client="hospital", target="died", encoding=file, **options)


def test_epsilon_is_all_there_is_to_set(tmp_path: Any) -> None:
    """What no other test would catch: moments, steps and noise together learn what a statistician would, within ε."""
    data = task(tmp_path, patients(8000))
    run = tacit.train(tacit.methods.dp_fedsgd(epsilon=3.0), data, workers=1)
    assert isinstance(run.model, StandardisedLinear)
    assert (run.epsilons[Unit.RECORD] or 9.0) <= 3.0
    assert len(run.history) == run.spec.method.rounds > 20
    assert run.metrics["auroc"] > 0.78
    layout = StandardisedLayout.of(run.state.shapes)
    assert layout is not None
    centre, scale, _, _ = layout.split(run.state.weights)
    assert float(centre[0]) == pytest.approx(55 / 120, abs=0.05)
    assert float(scale[2]) > 8  # of a number that uses 1 % of its range
    assert any("The first buys counts, means and variances" in note for note in run.spec.task.notes)


def test_the_step_does_not_depend_on_the_declared_size_and_a_wrong_one_is_said(tmp_path: Any) -> None:
    data = task(tmp_path, patients(6000))
    with pytest.warns(UserWarning, match=r"size = 10, is wrong: it is 6\d\d"):
        spec = RunSpec(method=tacit.methods.dp_fedsgd(size=10, lr=40.0, rounds=30), task=data)
    with pytest.warns(UserWarning, match="size = 10, is wrong: the first round counted about"):
        run = tacit.train(spec.method, spec.task, workers=1)
    assert run.metrics["auroc"] > 0.65
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RunSpec(method=tacit.methods.dp_fedsgd(), task=data).method.rounds > 20


def test_a_model_that_was_chosen_is_kept(tmp_path: Any) -> None:
    method = tacit.methods.dp_fedsgd(rounds=3)
    mlp = RunSpec(method=method, task=task(tmp_path, model="mlp"))
    assert len([*mlp.simulation.layout.sizes]) == 4
    assert mlp.method.rounds == 3
    assert mlp.method.server.size == pytest.approx(400, abs=2)  # type: ignore[attr-defined]  # that of the data
    assert isinstance(RunSpec(method=method, task=task(tmp_path)).simulation.model, StandardisedLinear)
    for name in ("dp_sgd", "fl_std_dp"):  # noise for records or clients: linear by default
        private = getattr(tacit.methods, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(RunSpec(method=private(rounds=2), task=task(tmp_path)).simulation.layout.sizes) == 2
    plain = RunSpec(method=tacit.methods.fedavg(rounds=2, cohort=4), task=task(tmp_path))
    assert len(plain.simulation.layout.sizes) == 4
    with pytest.raises(CompositionError, match="the model standardised needs a first round"):
        RunSpec(method=tacit.methods.fedavg(rounds=2, cohort=4), task=task(tmp_path, model="standardised"))


@pytest.mark.parametrize("loss", [tacit.BinaryCrossEntropy(), tacit.CrossEntropy(), tacit.MeanSquared()])
@pytest.mark.parametrize("persons", [False, True])
def test_closed_forms_are_the_gradients_of_the_reference(loss: Any, persons: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = 3 if isinstance(loss, tacit.CrossEntropy) else 1
    model = StandardisedLinear(5, outputs)
    weights = torch.rand(10 + outputs * 6, generator=generator) + 0.1
    x = torch.rand(150, 5, generator=generator)
    y = torch.arange(150) % 3 if outputs == 3 else (torch.rand(150, 1, generator=generator) > 0.5).float()
    counts = torch.tensor([1, 3, 2, 1, 1, 2] * 15) if persons else None
    mask = torch.arange(10, len(weights))
    assert StandardisedRecords.fits(model, loss, mask)
    ways = StandardisedRecords(model, loss), ReferenceRecords(model, loss)
    for clip in (0.05, 100.0):
        fast = ways[0].clipped_sum(weights, x, y, clip, counts)
        slow = ways[1].clipped_sum(weights, x, y, clip, mask, counts)
        torch.testing.assert_close(fast.total, slow.total, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fast.norms, slow.norms, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), 1e30, 3e38])
def test_hostile_rows_add_no_more_than_the_bound(hostile: float) -> None:
    model, loss = StandardisedLinear(4, 1), tacit.BinaryCrossEntropy()
    weights, x, y = torch.ones(13), torch.rand(9, 4), torch.zeros(9, 1)
    way = StandardisedRecords(model, loss)
    before = way.clipped_sum(weights, x[:8], y[:8], 0.5, None).total
    x[8, 2] = hostile
    for counts in (None, torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 1])):
        after = way.clipped_sum(weights, x, y, 0.5, counts).total
        assert float((after - before).norm()) <= 0.5 * (1 + 2**-13)
    of_two = way.clipped_sum(weights, x, y, 0.5, torch.tensor([1] * 7 + [2])).total
    without = way.clipped_sum(weights, x[:7], y[:7], 0.5, None).total
    assert float((of_two - without).norm()) <= 0.5 * (1 + 2**-13)


def test_the_rule_travels_as_far_as_the_budget_allows() -> None:
    noise = noise_at_once(tacit.Budget(1.0, 1e-5))
    rules = [DescentRule.of(units, 100, noise) for units in (300, 3_000, 30_000, 300_000)]
    distances = [rule.lr * rule.rounds for rule in rules]
    assert distances == sorted(distances)
    assert [rules[0].rounds, rules[-1].rounds] == [20, 60]
    assert rules[0].lr < rules[-1].lr == 40.0
    assert DescentRule.of(3_000, 100, noise, rounds=7).rounds == 7


def fitted(name: str, more: int) -> RunSpec:
    """A method, fitted to data of three clients, of whom the first has this many records more."""
    hospitals = ["H0", "H1", "H2"] * 20 + ["H0"] * (10 + more)
    ages = [20.0 + each for each in range(len(hospitals))]
    rows = {"hospital": hospitals, "age": ages, "died": [each % 2 for each in range(len(ages))]}
    asked: dict[str, Question] = {
        "describe": DescribeQuestion(),
        "regress": RegressionQuestion(target="died", columns=("age",)),
    }
    if name in asked:
        return spec_of(rows, asked[name], Setting(client="hospital", epsilon=100.0))
    if name == "standardised":
        table = tacit.Task.from_table(rows, client="hospital", target="died", test=0.0)
        return RunSpec(method=tacit.methods.make("dp-fedsgd", {"epsilon": 100.0}), task=table)
    x, owners = torch.tensor(ages)[:, None].repeat(1, 8), np.array(hospitals)
    places = [torch.from_numpy(np.flatnonzero(owners == each)) for each in ("H0", "H1", "H2")]
    data = tacit.Task(
        model=lambda: torch.nn.Linear(8, 2),
        clients=[(x[own], own % 2) for own in places],
        public=(torch.ones(2, 8), torch.tensor([0, 1])),
    )
    return RunSpec(method=tacit.methods.make(name, {"rounds": 1, "epsilon": 100.0}), task=data)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("dp-fedsgd", "72 for which a client's row has room, 23.33333333 at a client on average"),
        ("fl-top-record-dp", "72 for which a client's row has room, 23.33333333 at a client on average"),
        ("standardised", "31 for which a client's row has room, 23.33333333 at a client on average"),
        ("describe", "30 for which a client's row has room"),
        ("regress", "30 for which a client's row has room, 70 at all clients"),
    ],
)
def test_a_guarantee_lists_what_its_method_says_about_numbers_of_records(name: str, counts: str) -> None:
    """A method that was fitted to one record more is another, which manifests and pages show."""
    one, other = (fitted(name, more).method.to_plain() for more in (0, 1))
    assert one != other
    spec = fitted(name, 0)
    method, population = spec.method, spec.task.population
    within = method.terms.public_units(population.client_units)
    charges = begin_charges(method, len(population), within)[Unit.RECORD]
    assert f"Numbers of records in the method are public, also where they were counted in the data: {counts}." in str(
        charges.guarantee()
    )
