"""The mechanism of analyses: a query's sum over all units, exact or with noise, in simulation."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import tacit
from tacit.analyses.sums import Released, SumRelease, bins, method_of, one_hot
from tacit.core import Method, State
from tacit.data import Task
from tacit.data.encoding import Encoding
from tacit.data.sum_task import choose_encoding, sum_task
from tacit.data.tables import read_table
from tacit.engine.learners.records.term_sums import term_sum
from tacit.errors import CompositionError, DataError, ModelError, UserError
from tacit.pieces.mechanisms import DistributedGaussian, RecordClip, TermClip
from tacit.pieces.servers import KeepSum
from tacit.pieces.trainers import RecordGradient, Sgd

AGES = Encoding(numbers={"age": (0, 100)}, indicators=())


@dataclass(frozen=True)
class Decades:
    """How many units are in each decade."""

    length: int = 10
    bound: float = 1.0
    sensitivity = 1.0  # declared, because it is not one of Tacit's own

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return one_hot(bins(x[:, 0], 10), 10)


@dataclass(frozen=True)
class Inputs(Decades):
    """The inputs themselves, however long."""

    length: int = 2

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return x.double()


def rows(count: int = 600, clients: int = 6) -> dict[str, list[object]]:
    ages = np.random.default_rng(0).integers(0, 100, count)
    hospitals = [f"h{i % clients}" for i in range(count)]
    return {"hospital": hospitals, "age": ages.tolist(), "id": [i // 2 for i in range(count)]}


def task_of(person: str = "") -> Task:
    return sum_task(read_table(rows()), AGES, 10, client="hospital", person=person, name="decades")


def release(epsilon: float | None = 1.0) -> SumRelease:
    return SumRelease(epsilon=epsilon, clients=6, units=100)


def played(method: Method, task: Task, **options: object) -> tacit.Run:
    return tacit.train(method, task, **{"workers": 1, "randomness": "seeded", **options})  # type: ignore[arg-type]


def test_without_noise_the_sum_is_exact() -> None:
    run = played(method_of("decades", Decades(), release(None)), task_of())
    expected = np.bincount(np.array(rows()["age"], dtype=int) // 10, minlength=10)
    assert run.state.weights.tolist() == expected.tolist()
    assert Released.of(run.spec.method, run.state).noise.deviation == 0
    assert run.epsilons == {}


def test_noise_is_what_is_declared() -> None:
    """Its deviation over 60 releases; two thirds and three halves of it are rejected."""
    task, exact = task_of(), played(method_of("decades", Decades(), release(None)), task_of()).state.weights
    method = played(method_of("decades", Decades(), release()), task).spec.method
    runs = [played(method, task, seed=seed) for seed in range(60)]
    deviation = Released.of(method, runs[0].state).noise.deviation
    measured = float(torch.stack([run.state.weights - exact for run in runs]).std())
    assert abs(measured / deviation - 1) < 0.15
    assert list(runs[0].epsilons.values()) == pytest.approx([1.0], abs=1e-3)
    assert "record" in str(runs[0].privacy)


def test_persons_count_once() -> None:
    run = played(method_of("decades", Decades(), release(None)), task_of(person="id"))
    ages = np.array(rows()["age"], dtype=int) // 10
    persons = {(hospital, person) for hospital, person in zip(rows()["hospital"], rows()["id"], strict=True)}
    assert float(run.state.weights.sum()) == pytest.approx(len(persons))
    assert len(persons) == len(ages)  # both rows of a person are at different hospitals here
    assert "person" in str(played(method_of("decades", Decades(), release()), task_of(person="id")).privacy)


def test_a_unit_never_adds_more_than_the_bound() -> None:
    """For hostile rows, alone or beside others of the same person; what is not finite adds nothing."""
    hostile = torch.tensor([[1e30, 1.0], [3e-30, 0.0], [torch.nan, 0.0], [torch.inf, 1.0], [0.3, 0.4]])
    empty = torch.zeros(2, dtype=torch.float64)
    for row in hostile:
        assert float(term_sum(Inputs(), empty, row[None], empty[:1], None).norm()) <= 1 + 2**-40
    together = term_sum(Inputs(), empty, hostile, empty, torch.tensor([3, 2]))
    assert together.tolist() == [0, 0]
    pair = term_sum(Inputs(), empty, hostile[[4, 4]], empty, torch.tensor([2]))
    assert pair.tolist() == pytest.approx([0.3, 0.4])
    assert term_sum(Inputs(), empty, hostile[:0], empty, None).tolist() == [0, 0]


def test_rows_are_divided_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x, counts = torch.rand(50, 2), torch.tensor([20, 1, 9, 5, 15])
    state = torch.zeros(2, dtype=torch.float64)
    whole = term_sum(Inputs(), state, x, x, counts)
    monkeypatch.setattr("tacit.engine.learners.records.term_sums.TERMS_AT_ONCE", 8)
    assert torch.allclose(term_sum(Inputs(), state, x, x, counts), whole, rtol=1e-14)


def test_any_number_of_workers_ends_bitwise_alike() -> None:
    method, task = method_of("decades", Decades(), release()), task_of()
    states = [played(method, task, workers=workers).state.weights for workers in (1, 2)]
    assert torch.equal(*states)


def test_a_second_analysis_is_refused_when_the_budget_is_used_up(tmp_path) -> None:  # type: ignore[no-untyped-def]
    method, task = method_of("decades", Decades(), release()), task_of()
    played(method, task, ledger=tmp_path / "ledger.db", randomness="secret")
    with pytest.raises(tacit.TacitError, match="budget"):
        played(method, task, ledger=tmp_path / "ledger.db", randomness="secret")


def test_pieces_that_do_not_fit() -> None:
    method = method_of("decades", Decades(), release())
    own = method.mechanism
    assert isinstance(own, DistributedGaussian)
    with pytest.raises(CompositionError, match="Use KeepSum"):
        replace(method, server=tacit.pieces.Add())
    with pytest.raises(CompositionError, match="KeepSum expects terms"):
        replace(method, trainer=Sgd(lr=0.1, steps=1))
    with pytest.raises(CompositionError, match=r"float64 \(TermClip\)\. Use RecordClip"):
        replace(method, trainer=RecordGradient(rate=1.0, clip=1.0), server=tacit.pieces.Add())
    with pytest.raises(CompositionError, match="same bound"):
        replace(method, mechanism=replace(own, clip=TermClip(0.5, 100)))
    assert replace(method, mechanism=replace(own, clip=RecordClip(1.0, 100))).server == KeepSum()


def test_a_state_of_another_form_is_refused() -> None:
    task = replace(task_of(), model=lambda: torch.nn.Linear(1, 1))
    with pytest.raises(ModelError, match="Use SumModel"):
        played(method_of("decades", Decades(), release(None)), task)


def test_fewer_than_three_clients_hide_nobody() -> None:
    with pytest.raises(UserError, match="at least 3 clients"):
        SumRelease(epsilon=1.0, clients=2, units=10)
    assert SumRelease(epsilon=None, clients=2, units=10).budget is None


def test_the_grid_is_as_fine_as_the_sum_has_room_for() -> None:
    assert SumRelease(epsilon=1.0, clients=4, units=300).steps == 4096
    assert SumRelease(epsilon=1.0, clients=14, units=100_000).steps == 383


def test_ranges_are_declared_or_reported() -> None:
    table = read_table(rows())
    computed = choose_encoding(table, ("age",), (), None, "Declare them.")
    assert "Preprocessing used the clients' rows" in computed.preprocessing.not_covered
    declared = choose_encoding(table, ("age",), (), AGES, "Declare them.")
    assert declared.preprocessing.not_covered == ""
    assert declared.numbers == {"age": (0, 100)}
    assert declared.names == ("age", "age missing")
    with pytest.raises(DataError, match="range of id to be declared"):
        choose_encoding(table, ("id",), (), AGES, "Declare them.")


def test_the_state_is_the_sum() -> None:
    state = State(0, torch.zeros(3, dtype=torch.float64))
    after = KeepSum().apply(state, torch.ones(3, dtype=torch.float64))
    assert after.weights.tolist() == [1, 1, 1]
