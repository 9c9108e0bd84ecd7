"""A client that sends huge finite numbers loses its own update, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
import zoo
from laws.compositions import all_methods
from tacit.cli import main
from tacit.core import ClientRound, DenseRows, Messages, Method, State, View, Wave
from tacit.core.client_half import make_messages
from tacit.core.prices import Unit
from tacit.core.server_half import reject_unusable
from tacit.engine import worker
from tacit.errors import TrainingError, UserError
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave, IdealSum
from tacit.runs.directory import read_manifest, read_rounds

HOSTILE, HUGE = 7, 3e38
FEDAVG = Method(name="fedavg", rounds=3, sampler=tacit.pieces.Everyone(), trainer=tacit.pieces.Sgd(lr=0.1, steps=3))
TASK = tacit.Task(model=zoo.mlp, clients=zoo.population([5] * 20), name="tiny")


def sending(value: float) -> Callable[..., Messages]:
    """The clients' half, in which one client sends this number in every coordinate."""

    def hostile(method: Method, view: View, data: Wave, now: ClientRound) -> Messages:
        messages = make_messages(method, view, data, now)
        rows = messages.rows.dense().clone()
        rows[messages.clients == HOSTILE] = value
        return replace(messages, rows=DenseRows(rows))

    return hostile


@pytest.mark.parametrize(
    "method",
    [
        FEDAVG,
        replace(FEDAVG, aggregator=WeightedMean()),
        replace(FEDAVG, channel=Enclave()),
        replace(FEDAVG, trainer=tacit.pieces.Sgd(lr=0.1, steps=3, sends="weights"), server=tacit.pieces.Replace()),
    ],
    ids=["fedavg", "weighted", "enclave", "weights"],
)
@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e20, 100.0])
def test_a_huge_row_is_rejected_by_name_and_the_round_goes_on(monkeypatch, method, value):
    monkeypatch.setattr(worker, "make_messages", sending(value))
    run = tacit.train(method, TASK, workers=1)
    assert [report.rejected for report in run.history] == [(HOSTILE,)] * 3
    monkeypatch.undo()
    assert bool(torch.isfinite(run.state.weights).all())
    assert float(run.state.weights.norm()) < 2 * float(tacit.train(method, TASK, workers=1).state.weights.norm())


def test_where_nobody_sees_a_row_nobody_rejects_it(monkeypatch):
    """Except its own client, if that is honest; the released sum is compared with what honest clients can send."""
    hidden = replace(FEDAVG, channel=IdealSum())
    monkeypatch.setattr(worker, "make_messages", sending(100.0))
    run = tacit.train(hidden, TASK, workers=1)
    assert [report.rejected for report in run.history] == [()] * 3
    assert float(run.state.weights.norm()) > 10  # a liar moves the model as far as it likes
    bounded = tacit.train(replace(hidden, max_row_norm=10.0), TASK, workers=1)
    assert [report.dropped for report in bounded.history] == [True] * 3
    assert bounded.disrupted
    monkeypatch.undo()
    with pytest.raises(TrainingError, match="No client sent a finite update"):  # honest ones withhold too long rows
        tacit.train(replace(hidden, max_row_norm=1e-6), TASK, workers=1)


def test_a_row_up_to_the_reach_is_accepted(monkeypatch):
    monkeypatch.setattr(worker, "make_messages", sending(15.9))
    run = tacit.train(FEDAVG, TASK, workers=1)
    assert [report.rejected for report in run.history] == [()] * 3
    strict = tacit.train(replace(FEDAVG, max_row_norm=10.0), TASK, workers=1)
    assert {report.rejected for report in strict.history} == {(HOSTILE,)}


@pytest.mark.parametrize("method", all_methods().values(), ids=all_methods())
def test_every_method_bounds_what_one_row_can_do(method):
    """Either the server clips every row, or a row longer than the method declares is rejected."""
    dim = 500
    reach, rows = method.max_norm(dim), torch.zeros(3, dim)
    rows[1] = HUGE
    _, report = reject_unusable(Messages(torch.arange(3), DenseRows(rows)), reach)
    clips = method.mechanism.requires in ("messages", "all messages")
    assert report.rejected == (() if clips else (1,))
    assert (reach == float("inf")) == clips


def test_a_reach_is_positive_and_part_of_the_method():
    with pytest.raises(UserError, match=r"Expected max_row_norm=-1.0 > 0"):
        replace(FEDAVG, max_row_norm=-1.0)
    assert replace(FEDAVG, max_row_norm=2.0).digest != FEDAVG.digest


@dataclass(frozen=True)
class Explodes(tacit.pieces.Add):
    """A server whose model is not finite after some round."""

    after: int = 2

    def apply(self, state: State, aggregate: torch.Tensor) -> State:
        new = tacit.pieces.Add.apply(self, state, aggregate)
        return replace(new, weights=new.weights * torch.inf) if state.round == self.after else new


def test_a_run_whose_model_is_not_finite_ends_with_the_last_finite_one(tmp_path: Path):
    good = tacit.train(replace(FEDAVG, rounds=2), TASK, workers=1)
    run = tacit.train(replace(FEDAVG, rounds=9, server=Explodes()), TASK, workers=1, out=tmp_path / "run")
    assert run.diverged
    assert run.state.round == len(run.history) == 2
    assert torch.equal(run.state.weights, good.state.weights)
    assert len(read_rounds(tmp_path / "run")) == 2
    assert read_manifest(tmp_path / "run").status == "finished"
    with pytest.raises(TrainingError, match="not finite after the first round"):
        tacit.train(replace(FEDAVG, server=Explodes(after=0)), TASK, workers=1, out=tmp_path / "first")
    assert not (tmp_path / "first").exists()


def test_the_round_that_is_not_released_is_charged():
    mechanism = tacit.pieces.CentralGaussian(clip=tacit.pieces.FixedClip(0.5), noise_multiplier=2.0)
    private = replace(FEDAVG, rounds=9, sampler=tacit.pieces.Poisson(10), mechanism=mechanism, server=Explodes())
    run = tacit.train(private, TASK, workers=1)
    assert run.diverged
    assert run.charges[Unit.CLIENT].epsilon > (run.history[-1].epsilons[Unit.CLIENT] or 0)


def test_the_command_says_why_it_stopped(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tacit.pieces.Add, "apply", _explode)
    line = ["run", "fedavg", "--rounds", "5", "--set", "cohort=2", "epochs=1", "--workers", "1"]
    assert main(line) == 0
    assert "Stopped after 2 of 5 rounds: the next round's model was not finite" in capsys.readouterr().out


def _explode(self: Any, state: State, aggregate: torch.Tensor) -> State:
    return replace(state, weights=(state.weights + aggregate) * (torch.inf if state.round == 2 else 1))
