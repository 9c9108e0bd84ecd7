"""Runs with an enclave: every artefact warns that it is simulated, and the card declares who sees what."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

import tacit
import zoo
from enclave.federation import launch_in_thread
from tacit.core import CrossEntropy, Messages, Method, Round, State
from tacit.core.interfaces import Sampler
from tacit.data import Task
from tacit.enclave import simulated_enclave
from tacit.enclave.attestation.simulated_quotes import SIMULATED
from tacit.enclave.enclave_messages import EnclaveRelease
from tacit.enclave.simulated_enclave import SimulatedEnclave
from tacit.engine import initial_state
from tacit.errors import CompositionError, EnclaveUnavailableError, UserError
from tacit.papers.comparison import Comparison, ComparisonRow, RowTrial
from tacit.papers.comparison_figures import caption
from tacit.pieces.channels import Enclave
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.trainers import Sgd
from tacit.report.disclosures import who_sees
from tacit.wire.sparse import Compact


def method(channel: Enclave | None = None) -> Method:
    return Method(
        name="geyer inside",
        rounds=3,
        sampler=FixedSize(4),
        trainer=Sgd(lr=0.1, steps=2),
        mechanism=CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.5),
        channel=channel or Enclave(wire=Compact()),
    )


def task() -> Task:
    population = zoo.population([5, 3, 8, 5, 5, 4])
    return Task(model=zoo.mlp, clients=population, loss=CrossEntropy(), name="tested")


def test_every_artefact_of_a_run_carries_the_warning(tmp_path: Path) -> None:
    run = tacit.train(method(), task(), workers=1, out=tmp_path / "run", randomness="seeded")
    files = {path.name: path for path in (tmp_path / "run").iterdir()}
    assert json.loads(files["manifest.json"].read_text())["caveat"] == SIMULATED
    assert all(json.loads(line)["caveat"] == SIMULATED for line in files["rounds.jsonl"].read_text().splitlines())
    for name in ("checkpoint.safetensors", "model.safetensors"):
        with safe_open(files[name], "pt") as file:
            assert SIMULATED in json.dumps(file.metadata())
    assert SIMULATED in str(run.privacy)
    assert SIMULATED in run.privacy.not_covered
    assert SIMULATED in json.dumps(run.privacy.to_json()["not_covered"])


@pytest.mark.parametrize("sampler", [FixedSize(4), Poisson(5), Everyone()], ids=["fixed", "poisson", "everyone"])
def test_the_guarantee_says_that_sampling_does_not_amplify_against_the_host(sampler: Sampler) -> None:
    run = tacit.train(replace(method(), sampler=sampler), task(), workers=1)
    assert ("against it, sampling does not amplify privacy" in str(run.privacy)) is (sampler != Everyone())


def test_other_runs_carry_no_warning(tmp_path: Path) -> None:
    tacit.train(
        replace(method(), channel=tacit.pieces.Plain()), task(), workers=1, out=tmp_path / "run", randomness="seeded"
    )
    assert not any(b"imulated" in path.read_bytes() for path in (tmp_path / "run").iterdir())


def test_figures_carry_the_warning() -> None:
    trials = (RowTrial(seed=0, values={}),)
    row = ComparisonRow(name="a", method="m", args={}, task="t", task_args={}, trials=trials, caveat=SIMULATED)
    comparison = Comparison(name="n", title="t", fast=False, versions={}, rows=(row, row))
    assert caption(comparison, "Line", "band") == SIMULATED


def test_central_noise_is_added_inside() -> None:
    """Central noise needs every message, which the enclave sees and the server outside does not."""
    used = method()
    assert used.channel.messages_seen_by == "enclave"
    seen = who_sees(used)
    assert "only what the enclave releases" in seen["the server"]
    assert "ciphertext" in seen["the host of the enclave"]
    with pytest.raises(CompositionError, match="reveals only their sum"):
        replace(used, channel=tacit.pieces.IdealSum())


def test_distributed_noise_may_be_summed_in_an_enclave() -> None:
    shares = DistributedGaussian(clip=FixedClip(0.3), noise_multiplier=0.5)
    assert replace(method(), mechanism=shares).channel.messages_seen_by == "enclave"


@pytest.mark.parametrize("wire", [None, Compact()], ids=["dense", "compact"])
def test_a_run_with_all_messages_ends_with_the_same_model(wire: Compact | None, monkeypatch) -> None:
    """Attestation, encryption, transfer, decryption, clipping, sum and noise by the service: bitwise equal."""
    monkeypatch.setattr(simulated_enclave, "launch", launch_in_thread)
    methods = [method(Enclave(wire=wire, conversation=conversation)) for conversation in (False, True)]
    runs = [tacit.train(used, task(), workers=1, seed=4, randomness="seeded") for used in methods]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)
    assert [report.up for report in runs[0].history] == [report.up for report in runs[1].history]
    assert all(report.timings == {} for report in runs[0].history)
    parts = {"train", "attestation", "encryption", "transfer", "load", "aggregate", "publish"}
    assert set(runs[1].history[0].timings) == parts
    assert set(runs[1].history[-1].timings) <= parts


def test_workers_make_no_difference() -> None:
    runs = [tacit.train(method(), task(), workers=workers, seed=4, randomness="seeded") for workers in (1, 2)]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)


def test_with_too_few_contributors_the_model_stays() -> None:
    few = replace(method(Enclave(min_clients=6)), sampler=Poisson(4))  # of 6 clients
    run = tacit.train(few, task(), workers=1, randomness="seeded")
    assert torch.equal(run.state.weights, initial_state(few, task()).weights)


def test_cohorts_that_are_always_too_small_are_refused_before_the_run() -> None:
    with pytest.raises(
        UserError, match=r"cohorts of at least 5 clients for Enclave\(min_clients=4, colluding=0.1\), got 4"
    ):
        tacit.train(method(Enclave(min_clients=4)), task(), workers=1)


def test_a_run_whose_enclave_ends_fails_and_can_be_resumed(tmp_path: Path, monkeypatch) -> None:
    """The model of the last complete round is kept, and the rest is bitwise that of an undisturbed run."""
    monkeypatch.setattr(simulated_enclave, "launch", launch_in_thread)
    used, run_round = method(Enclave(conversation=True)), SimulatedEnclave.run_round
    whole = tacit.train(method(Enclave()), task(), workers=1, seed=4, randomness="seeded")

    def failing(enclave: SimulatedEnclave, state: State, messages: Messages, now: Round) -> EnclaveRelease:
        if now.index == 1:
            enclave.process.kill()
        return run_round(enclave, state, messages, now)

    monkeypatch.setattr(SimulatedEnclave, "run_round", failing)
    with pytest.raises(EnclaveUnavailableError, match="this round failed"):
        tacit.train(used, task(), workers=1, seed=4, out=tmp_path / "run", randomness="seeded")
    monkeypatch.setattr(SimulatedEnclave, "run_round", run_round)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "failed"
    run = tacit.train(used, task(), workers=1, seed=4, out=tmp_path / "run", resume=True, randomness="seeded")
    assert torch.equal(run.state.weights, whole.state.weights)


def test_a_conversation_needs_an_aggregator_of_one_model() -> None:
    several: Any = SimpleNamespace(aggregator=SimpleNamespace(models=2))
    with pytest.raises(UserError, match="one model"), Enclave(conversation=True).open(several, 3, 0):
        pass


def test_a_round_outside_a_run_starts_no_enclave(monkeypatch) -> None:
    """Without a seed there are no simulated parties: the same sum is computed without them."""
    monkeypatch.setattr(simulated_enclave, "launch", lambda _: pytest.fail("an enclave was started"))
    used = method(Enclave(conversation=True))
    with used.channel.open(used, 6) as conversation:
        assert conversation.timings() == {}
    assert used == method(Enclave(conversation=True))
