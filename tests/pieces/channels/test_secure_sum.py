"""The channel of secure aggregation in whole runs: rounding, refusals, bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core import (
    Broadcast,
    DenseRows,
    GridStep,
    Key,
    Messages,
    Method,
    Report,
    Round,
    SimulatedRound,
    State,
    Sum,
    Traffic,
)
from tacit.core.keys import RunKeys
from tacit.core.server_half import download_size, with_overhead
from tacit.data import Task
from tacit.engine import rounds
from tacit.engine.simulation import draw, initial_state
from tacit.errors import ProtocolError, TooFewClientsError, UserError
from tacit.pieces.channels import IdealSum, Plain, SecureSum
from tacit.pieces.channels.secure_sum import SecureSumConversation
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.trainers import Sgd
from tacit.privacy.guarantee import Guarantee
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.wire.frames import Part

STATE = State(0, torch.zeros(6))


def now(cohort: int = 5, expected: float = 5.0, population: int = 40) -> SimulatedRound:
    return SimulatedRound.of(0, population, expected, cohort, Key.from_seed(0), Key.from_seed(0, "secret"))


def messages(rows: torch.Tensor, step: GridStep | None = None) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows), grid_step=step)


def add(seen: Messages) -> Sum:
    return Sum(seen.rows.sum(), float(seen.rows.count), grid_step=seen.grid_step)


def released(channel: SecureSum, rows: torch.Tensor, here: Round) -> torch.Tensor:
    """What the server receives of these rows."""
    conversation = SecureSumConversation(channel, secure())
    total = conversation.aggregate(channel.send(messages(rows), here), STATE, here, add)
    return conversation.release(total, here, lambda opened: opened).total


@pytest.mark.parametrize("bits", [32, 24, 17])
def test_rows_without_noise_are_rounded_to_the_finest_grid_that_fits(bits: int) -> None:
    channel, rows = SecureSum(bits=bits, value_range=2.0), torch.randn(5, 6).clamp(-2, 2)
    sent = channel.send(messages(rows), now())
    assert sent.grid_step is not None
    assert float((sent.rows.dense() - rows).abs().max()) <= sent.grid_step.size / 2
    largest = now().max_cohort
    steps = largest * 2.0 / sent.grid_step.size
    assert steps <= 2 ** (bits - 1) - 1 < steps * 2 + largest
    worst = torch.full((largest, 6), 2.0)
    here = now(cohort=largest)
    assert torch.equal(released(channel, worst, here), worst.double().sum(0))
    assert torch.equal(released(channel, -worst, here), -worst.double().sum(0))


@pytest.mark.parametrize("bits", [32, 20, 11])
@pytest.mark.parametrize("level", ["active_server", "semi_honest"])
def test_the_conversation_gives_the_simulated_sum(bits: int, level: Literal["active_server", "semi_honest"]) -> None:
    fast = SecureSum(bits=bits, value_range=1.0, level=level)
    complete, rows = replace(fast, conversation=True), torch.rand(7, 6) * 2 - 1
    assert torch.equal(released(fast, rows, now(7)), released(complete, rows, now(7)))
    assert (fast.streams, complete.streams) == (True, False)


def test_sums_wrap_around_like_integers() -> None:
    channel, step = SecureSum(bits=8), GridStep(0.5)
    rows = torch.tensor([[63.5, -64.0, 10.0]] * 2).double()
    for each in (channel, replace(channel, conversation=True)):
        way, here = SecureSumConversation(each, secure()), now(cohort=3)
        total = way.aggregate(messages(torch.cat([rows, torch.zeros(1, 3)]), step), STATE, here, add)
        assert way.release(total, here, lambda opened: opened).total.tolist() == [-1.0, 0.0, 20.0]


def test_a_client_with_a_number_out_of_reach_drops_out() -> None:
    rows = torch.zeros(3, 2)
    rows[1, 0] = 16.1
    sent = SecureSum().send(messages(rows), now())
    assert torch.isnan(sent.rows.dense()).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("cohort", [1, 2])
def test_fewer_than_three_clients_have_no_sum(cohort: int) -> None:
    with pytest.raises(TooFewClientsError, match=r"round 1 has fewer\. Use larger cohorts"):
        SecureSum().overhead(now(cohort))


def test_too_few_uploads_end_the_round_without_a_sum() -> None:
    conversation = SecureSumConversation(SecureSum(dropout=0.2), secure())
    total = Sum(torch.zeros(3).double(), 7.0, grid_step=GridStep(0.5))
    with pytest.raises(TooFewClientsError, match=r"Round 1: too few clients uploaded\. There is no sum"):
        conversation.release(total, now(10), lambda opened: opened)
    assert conversation.release(replace(total, weight=8.0), now(10), lambda opened: opened).weight == 8


def test_an_empty_cohort_releases_only_noise() -> None:
    nobody = Sum(torch.ones(3), 0.0)
    with secure().channel.open(secure(), 12) as conversation:
        assert conversation.release(nobody, now(0), lambda opened: replace(opened, weight=1.0)).weight == 1
    assert SecureSum().overhead(now(0)) == {}


def test_bytes_are_payload_and_overhead() -> None:
    channel, here = SecureSum(), now(100, 100.0, 6000)
    phases = channel.overhead(here)
    assert list(phases) == ["set-up", "upload", "agree", "open"]
    assert list(channel.overhead(now(10, 10.0, 6000))) == ["set-up", "upload", "agree", "open"]
    overhead = sum(phases.values(), Traffic())
    rows = messages(torch.empty(2, 8316, device="meta"))
    assert channel.message_format.sizes(rows) == (4 * 8316,) * 2
    assert with_overhead((5, 6, 7), 8) == (8, 9, 9)
    sent = Broadcast({Part.WEIGHTS: torch.zeros(8316)})
    assert download_size(channel, sent, first=False) == download_size(Plain(), sent, first=False)
    payload = 100 * 4 * 8316
    assert payload + overhead.up < 1.2 * payload  # up-link, relative to the payload
    assert payload + overhead.up + overhead.down < 1.6 * payload  # both directions together
    assert "agree" not in SecureSum(level="semi_honest").overhead(here)
    assert channel.message_format.sizes(messages(torch.empty(1, 80, device="meta"))) == (320,)
    assert SecureSum(bits=20).message_format.sizes(messages(torch.empty(1, 80, device="meta"))) == (200,)


def test_the_card_declares_what_is_tolerated() -> None:
    assert SecureSum(corrupt=0.05, dropout=0.1, level="semi_honest").tolerates() == (
        "up to 5% of a cohort may collude with the server, and up to 10% may drop out in any phase. "
        "In a cohort of 100, each shares its secrets with 26 others, and 7 shares recover a secret"
    )
    assert SecureSum(corrupt=0.25, dropout=0.25).tolerates(8) == (
        "in a round of 8, up to 2 may collude with the server, and up to 2 may drop out. "
        "Each shares its secrets with 7 others, and 6 shares recover a secret"
    )
    card = tacit.card("fl-top-dp")
    assert "may collude" in card.sees["tolerated"]
    assert any("a client may send any vector" in sentence for sentence in card.uncovered)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"level": "paranoid"}, "Expected level in semi_honest, active_server, got 'paranoid'"),
        ({"corrupt": 1.0}, r"Expected corrupt=1.0 in \[0, 1\)"),
        ({"dropout": -0.1}, r"Expected dropout=-0.1 in \[0, 1\)"),
        ({"bits": 33}, r"Expected bits=33 in \[8, 32\]"),
        ({"value_range": 0.0}, "Expected value_range=0.0 > 0"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SecureSum(**wrong)


SIZES = [5] * 12


def task(*, broken: tuple[int, ...] = ()) -> Task:
    population = zoo.population(SIZES)
    x = population.x.clone()
    for client in broken:
        x[5 * client : 5 * client + 5] = 1e38
    return Task(model=zoo.mlp, clients=replace(population, x=x))


def secure(**changes: Any) -> Method:
    made = Method(name="x", rounds=2, sampler=FixedSize(12), trainer=Sgd(lr=0.1, steps=2), channel=SecureSum())
    return replace(made, **changes)


def test_a_client_that_fails_drops_out_and_the_others_are_summed() -> None:
    for channel in (SecureSum(dropout=0.2), SecureSum(dropout=0.2, conversation=True)):
        method = secure(channel=channel)
        run = tacit.train(method, task(broken=(3, 7)), workers=1, randomness="seeded")
        assert run.history[0].rejected == (3, 7)
        alone = tacit.train(replace(method, channel=Plain()), task(broken=(3, 7)), workers=1, randomness="seeded")
        torch.testing.assert_close(run.state.weights, alone.state.weights, rtol=0, atol=1e-5)


def test_a_run_that_loses_too_many_stops_without_a_sum(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="There is no sum"):
        tacit.train(secure(), task(broken=(1, 2, 3)), workers=2, out=tmp_path / "run", randomness="seeded")


def test_a_public_cohort_size_that_is_too_small_is_refused() -> None:
    with pytest.raises(UserError, match=r"cohorts of at least 3 clients for SecureSum, got 2\. Use larger cohorts"):
        tacit.train(secure(sampler=FixedSize(2)), task(), workers=2, randomness="seeded")


def test_overhead_is_reported_by_phase_and_stored(tmp_path: Path) -> None:
    run = tacit.train(secure(), task(), workers=1, out=tmp_path / "run", randomness="seeded")
    overhead = run.bytes.overhead
    assert 0 < overhead.up < run.bytes.up
    first, second = run.history
    assert sum((first.overhead["upload"], second.overhead["upload"]), Traffic()) == run.bytes.phases["upload"]
    assert first.overhead["set-up"] == run.bytes.phases["set-up"]  # the whole population takes part in both rounds
    assert "set-up" not in second.overhead
    plain = tacit.train(secure(channel=IdealSum()), task(), workers=1, randomness="seeded")
    assert run.bytes.down - overhead.down == plain.bytes.down
    assert run.bytes.up - overhead.up == plain.bytes.up - 24 * 36  # here rows have no frame header
    again = RunDirectory.open(tmp_path / "run")
    again.close()
    assert [(r.overhead, r.grid_step) for r in again.history] == [(r.overhead, r.grid_step) for r in run.history]
    assert isinstance(run.history[0], Report)


def guarantee(run: Run) -> Guarantee:
    assert isinstance(run.privacy, Guarantee)
    return run.privacy


def test_distributed_noise_gives_the_same_run_with_and_without_the_conversation() -> None:
    """Only here do noise in shares, rounding and the whole protocol run together."""
    work = replace(task(), public=zoo.population([6], seed=3)[0])
    args = {"ratio": 0.1, "cohort": 10, "rounds": 3, "epsilon": 8, "delta": 1e-3, "clip": 0.3}
    runs = [
        tacit.train(
            methods.make("fl-top-dp", {**args, "channel.conversation": conversation}),
            work,
            workers=1,
            randomness="seeded",
        )
        for conversation in (False, True)
    ]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)
    ideal_sum = {"channel": "IdealSum()", "mechanism.arithmetic": "Reals()"}
    ideal = tacit.train(methods.make("fl-top-dp", {**args, **ideal_sum}), work, workers=1, randomness="seeded")
    simulated, complete, exact = (guarantee(run) for run in (*runs, ideal))
    assert simulated.epsilon is not None
    assert simulated.epsilon <= 8
    assert simulated.epsilon == complete.epsilon
    assert 0 < simulated.noise_error < 1e-12
    assert simulated.epsilon == pytest.approx(exact.epsilon, rel=1e-3)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_random_cohort_that_is_too_small_is_treated_as_empty(noisy: bool) -> None:
    """It must not end a run, nor show its size."""
    noise = methods.fl_std_dp(cohort=2, rounds=8, epsilon=None, noise=1.0, clip=0.5)
    method = noise if noisy else replace(secure(sampler=Poisson(2.0)), rounds=8)
    drawn = [len(draw(method, 12, RunKeys.from_seed(0).at(index), index)[0]) for index in range(8)]
    assert {1, 2} & set(drawn)
    assert max(drawn) >= 3
    before = initial_state(method, task(), seed=0)
    for size, (state, report) in zip(drawn, rounds(method, task(), workers=1, randomness="seeded"), strict=True):
        assert len(report.clients) == (size if size >= 3 else 0)
        assert torch.equal(state.weights, before.weights) == (size < 3 and not noisy)
        before = state


def test_poisson_cohorts_may_have_any_size() -> None:
    method = methods.fl_std_dp(cohort=10, rounds=4, epsilon=None, delta=1e-3, noise=1.0, clip=0.5)
    assert isinstance(method.sampler, Poisson)
    run = tacit.train(method, task(), workers=1, seed=1, randomness="seeded")
    assert len({len(report.clients) for report in run.history}) > 1
    steps = {report.grid_step for report in run.history}
    assert len(steps) == 1
    assert np.isfinite(run.state.weights.numpy()).all()
