"""Secure sums in whole runs: what is rounded, what is refused, what is counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core import DenseRows, Key, Messages, Method, Report, Round, State, Step, Sum, Task, Traffic, View
from tacit.errors import UserError
from tacit.pieces.channels import IdealSum, Plain, SecureSum
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.trainers import Sgd
from tacit.protocols.secagg import ProtocolError, TooFewError
from tacit.runs.directory import RunDirectory
from tacit.wire.frames import Part

STATE = State(0, torch.zeros(6))


def now(cohort: int = 5, expected: float = 5.0, population: int = 40) -> Round:
    return Round(0, population, expected, cohort, Key.from_seed(0), Key.from_seed(0, "secret"))


def messages(rows: torch.Tensor, step: Step | None = None) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows), step=step)


def added(seen: Messages) -> Sum:
    return Sum(seen.rows.sum(), float(seen.rows.count), step=seen.step)


def through(channel: SecureSum, rows: torch.Tensor, here: Round) -> torch.Tensor:
    """What the server gets of these rows."""
    total = channel.aggregate(channel.send(messages(rows), here), STATE, here, added)
    return channel.release(total, here, lambda opened: opened).total


@pytest.mark.parametrize("bits", [32, 24, 17])
def test_rows_without_noise_are_rounded_to_the_finest_grid_that_fits(bits: int) -> None:
    channel, rows = SecureSum(bits=bits, reach=2.0), torch.randn(5, 6).clamp(-2, 2)
    sent = channel.send(messages(rows), now())
    assert sent.step is not None
    assert float((sent.rows.dense() - rows).abs().max()) <= sent.step.size / 2
    most = now().max_cohort
    assert most * 2.0 / sent.step.size <= 2 ** (bits - 1) - 1 < most * 2.0 / sent.step.size * 2 + most
    worst = torch.full((most, 6), 2.0)
    here = now(cohort=most)
    assert torch.equal(through(channel, worst, here), worst.double().sum(0))
    assert torch.equal(through(channel, -worst, here), -worst.double().sum(0))


@pytest.mark.parametrize("bits", [32, 20, 11])
@pytest.mark.parametrize("level", ["active_server", "semi_honest"])
def test_the_conversation_gives_what_adding_up_gives(bits: int, level: str) -> None:
    fast = SecureSum(bits=bits, reach=1.0, level=level)  # type: ignore[arg-type]
    played, rows = replace(fast, conversation=True), torch.rand(7, 6) * 2 - 1
    assert torch.equal(through(fast, rows, now(7)), through(played, rows, now(7)))
    assert (fast.streams, played.streams) == (True, False)


def test_sums_wrap_around_as_integers_do() -> None:
    channel, step = SecureSum(bits=8), Step(0.5)
    rows = torch.tensor([[63.5, -64.0, 10.0]] * 2).double()
    for way in (channel, replace(channel, conversation=True)):
        here = now(cohort=3)
        total = way.aggregate(messages(torch.cat([rows, torch.zeros(1, 3)]), step), STATE, here, added)
        assert way.release(total, here, lambda opened: opened).total.tolist() == [-1.0, 0.0, 20.0]


def test_who_has_a_number_out_of_reach_does_not_deliver() -> None:
    rows = torch.zeros(3, 2)
    rows[1, 0] = 16.1
    sent = SecureSum().send(messages(rows), now())
    assert torch.isnan(sent.rows.dense()).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("cohort", [1, 2])
def test_fewer_than_three_have_no_sum(cohort: int) -> None:
    with pytest.raises(TooFewError, match=f"Round 1 has {cohort} of the 3 clients .* Use larger cohorts"):
        SecureSum().phases(now(cohort))


def test_too_few_that_delivered_end_the_round_without_a_sum() -> None:
    channel, total = SecureSum(dropout=0.2), Sum(torch.zeros(3).double(), 7.0, step=Step(0.5))
    with pytest.raises(TooFewError, match="7 of 10 clients delivered, 8 are needed"):
        channel.release(total, now(10), lambda opened: opened)
    assert channel.release(replace(total, weight=8.0), now(10), lambda opened: opened).weight == 8


def test_an_empty_cohort_is_only_blurred() -> None:
    nobody = Sum(torch.ones(3), 0.0)
    assert SecureSum().release(nobody, now(0), lambda opened: replace(opened, weight=1.0)).weight == 1
    assert SecureSum().phases(now(0)) == {}


def test_bytes_are_payload_and_phases() -> None:
    channel, here = SecureSum(), now(100, 100.0, 6000)
    phases = channel.phases(here)
    assert list(phases) == ["announce", "share", "upload", "agree", "open"]
    overhead = sum(phases.values(), Traffic())
    rows = messages(torch.empty(2, 8316, device="meta"))
    assert channel.upload(rows, here) == (4 * 8316 + overhead.up,) * 2
    view = View(torch.zeros(8316), {Part.WEIGHTS: torch.zeros(8316)})
    assert channel.download(view, here, first=False) == Plain().download(view, here, first=False) + overhead.down
    whole = 4 * 8316 + overhead.up + overhead.down
    assert whole < 1.6 * 4 * 8316  # both ways together, of what the rows alone take one way
    assert "agree" not in SecureSum(level="semi_honest").phases(here)
    assert channel.upload(messages(torch.empty(1, 80, device="meta")), here)[0] - overhead.up == 320
    assert SecureSum(bits=20).upload(messages(torch.empty(1, 80, device="meta")), here)[0] - overhead.up == 200


def test_what_is_tolerated_is_said() -> None:
    assert SecureSum(corrupt=0.05, dropout=0.1, level="semi_honest").tolerates == (
        "5% of a cohort may collude with the server, and 10% may be lost in any phase. In a cohort of 100, each client "
        "shares its secrets with 16 others, and 6 shares open one"
    )
    card = tacit.card("fl-top-dp")
    assert "may collude" in card.sees["tolerated"]
    assert any("a client may put in any vector" in sentence for sentence in card.uncovered)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"level": "paranoid"}, "Expected level in semi_honest, active_server, got 'paranoid'"),
        ({"corrupt": 1.0}, r"Expected corrupt=1.0 in \[0, 1\)"),
        ({"dropout": -0.1}, r"Expected dropout=-0.1 in \[0, 1\)"),
        ({"bits": 33}, r"Expected bits=33 in \[8, 32\]"),
        ({"reach": 0.0}, "Expected reach=0.0 > 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SecureSum(**wrong)  # type: ignore[arg-type]


SIZES = [5] * 12


def task(*, broken: tuple[int, ...] = ()) -> Task:
    population = zoo.population(SIZES)
    x = population.x.clone()
    for client in broken:
        x[5 * client : 5 * client + 5] = 1e38
    return Task(model=zoo.mlp, clients=replace(population, x=x))


def secure(**changes: object) -> Method:
    made = Method(name="x", rounds=2, sampler=FixedSize(12), trainer=Sgd(lr=0.1, steps=2), channel=SecureSum())
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_client_that_fails_is_lost_and_the_others_are_summed() -> None:
    lost = secure(channel=SecureSum(dropout=0.2))
    for method in (lost, replace(lost, channel=replace(lost.channel, conversation=True))):
        run = tacit.train(method, task(broken=(3, 7)), workers=1)
        assert run.history[0].refused == (3, 7)
        alone = tacit.train(replace(method, channel=Plain()), task(broken=(3, 7)), workers=1)
        torch.testing.assert_close(run.state.weights, alone.state.weights, rtol=0, atol=1e-5)


def test_a_run_that_loses_too_many_stops_without_a_sum(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="There is no sum"):
        tacit.train(secure(), task(broken=(1, 2, 3)), workers=2, out=tmp_path / "run")


def test_a_cohort_too_small_for_a_secure_sum_is_said_by_the_workers_too() -> None:
    with pytest.raises(TooFewError, match="Use larger cohorts"):
        tacit.train(secure(sampler=FixedSize(2)), task(), workers=2)


def test_phases_are_in_the_book_and_survive_the_disk(tmp_path: Path) -> None:
    run = tacit.train(secure(), task(), workers=1, out=tmp_path / "run")
    overhead = run.bytes.overhead
    assert 0 < overhead.up < run.bytes.up
    assert sum((run.history[0].phases["share"], run.history[1].phases["share"]), Traffic()) == run.bytes.phases["share"]
    plain = tacit.train(secure(channel=IdealSum()), task(), workers=1)
    assert run.bytes.down - overhead.down == plain.bytes.down
    assert run.bytes.up - overhead.up == plain.bytes.up - 24 * 36  # rows have no frame of their own here
    again = RunDirectory.open(tmp_path / "run")
    again.close()
    assert [(r.phases, r.step) for r in again.history] == [(r.phases, r.step) for r in run.history]
    assert isinstance(run.history[0], Report)


def test_noise_in_shares_is_the_same_run_with_and_without_the_conversation() -> None:
    work = replace(task(), public=zoo.population([6], seed=3)[0])
    args = {"ratio": 0.1, "cohort": 8, "rounds": 3, "epsilon": 8, "delta": 1e-3, "clip": 0.3}
    runs = [
        tacit.train(methods.make("fl-top-dp", {**args, "channel.conversation": played}), work, workers=1)
        for played in (False, True)
    ]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon <= 8
    assert 0 < runs[0].privacy.slack < 1e-12
    ideal = tacit.train(methods.make("fl-top-dp", {**args, "channel": "ideal"}), work, workers=1)
    assert runs[0].privacy.epsilon == pytest.approx(ideal.privacy.epsilon, rel=1e-3)


def test_cohorts_that_are_hidden_may_have_any_size() -> None:
    method = methods.fl_std_dp(cohort=6, rounds=4, epsilon=None, noise=1.0, clip=0.5)
    assert isinstance(method.sampler, Poisson)
    run = tacit.train(method, task(), workers=1, seed=1)
    assert len({len(report.clients) for report in run.history}) > 1
    steps = {report.step for report in run.history}
    assert len(steps) == 1
    assert np.isfinite(run.state.weights.numpy()).all()
