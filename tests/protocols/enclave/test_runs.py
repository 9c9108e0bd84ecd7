"""A run through an enclave: every artefact says that it was simulated, and the card says who sees what."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

import tacit
import zoo
from tacit.core import CrossEntropy, Messages, Method, Round, State, Task
from tacit.engine import initial_state
from tacit.errors import CompositionError, UserError
from tacit.pieces.channels import Enclave
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd
from tacit.protocols.enclave import EnclaveGoneError, Stage
from tacit.report.cards import _sees
from tacit.report.comparison import Comparison, Row, Trial
from tacit.report.style import caption
from tacit.wire.sparse import Compact

SIMULATED = "enclave: simulated (insecure)"


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


def test_every_artefact_of_a_run_says_so(tmp_path: Path) -> None:
    run = tacit.train(method(), task(), workers=1, out=tmp_path / "run")
    files = {path.name: path for path in (tmp_path / "run").iterdir()}
    assert json.loads(files["manifest.json"].read_text())["caveat"] == SIMULATED
    assert all(json.loads(line)["caveat"] == SIMULATED for line in files["rounds.jsonl"].read_text().splitlines())
    for name in ("checkpoint.safetensors", "model.safetensors"):
        with safe_open(files[name], "pt") as file:
            assert SIMULATED in json.dumps(file.metadata())
    assert SIMULATED in str(run.privacy)
    assert SIMULATED in run.privacy.to_json()["unaccounted"]


def test_other_runs_say_nothing_of_it(tmp_path: Path) -> None:
    tacit.train(replace(method(), channel=tacit.Plain()), task(), workers=1, out=tmp_path / "run")
    assert not any(b"simulated" in path.read_bytes() for path in (tmp_path / "run").iterdir())


def test_pictures_say_so() -> None:
    row = Row(
        name="a", method="m", args={}, task="t", task_args={}, trials=(Trial(seed=0, values={}),), caveat=SIMULATED
    )
    comparison = Comparison(name="n", title="t", fast=False, versions={}, rows=(row, row))
    assert caption(comparison, "Line", "band") == SIMULATED


def test_noise_inside_is_a_composition() -> None:
    """Central noise needs every message, which the enclave has and the server outside has not."""
    used = method()
    assert (used.channel.server_sees, used.channel.aggregates) == ("sum", "messages")
    seen = _sees(used)
    assert "only what the enclave lets out" in seen["the server"]
    assert "ciphertext" in seen["as Enclave says"]
    with pytest.raises(CompositionError, match="reveals only their sum"):
        replace(used, channel=tacit.IdealSum())


def test_noise_in_shares_may_go_through_an_enclave() -> None:
    shares = DistributedGaussian(clip=FixedClip(0.3), noise_multiplier=0.5)
    assert replace(method(), mechanism=shares).channel.server_sees == "sum"


@pytest.mark.parametrize("wire", [None, Compact()], ids=["dense", "compact"])
def test_a_run_through_a_separate_process_ends_with_the_same_model(wire: Compact | None) -> None:
    """Attested, sealed, carried, opened, clipped, summed and blurred by another process: the same bits."""
    fast, played = (method(Enclave(wire=wire, conversation=talks)) for talks in (False, True))
    runs = [tacit.train(used, task(), workers=1, seed=4) for used in (fast, played)]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)
    assert [report.up for report in runs[0].history] == [report.up for report in runs[1].history]
    assert all(report.parts == {} for report in runs[0].history)
    parts = {"train", "attestation", "encryption", "transfer", "load", "aggregate", "publish"}
    assert set(runs[1].history[0].parts) == parts
    assert set(runs[1].history[-1].parts) <= parts


def test_workers_make_no_difference() -> None:
    runs = [tacit.train(method(), task(), workers=workers, seed=4) for workers in (1, 2)]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)


def test_of_too_few_nothing_leaves_and_the_model_stays() -> None:
    few = method(Enclave(least=5))
    run = tacit.train(few, task(), workers=1)
    assert torch.equal(run.state.weights, initial_state(few, task()).weights)


def test_the_death_of_the_enclave_is_a_failed_run_that_can_go_on(tmp_path: Path, monkeypatch) -> None:
    """The model of the last good round is kept, and the rest is bitwise as if nothing had happened."""
    used, carry = method(Enclave(conversation=True)), Stage.carry
    whole = tacit.train(method(Enclave()), task(), workers=1, seed=4)

    def dies(stage: Stage, state: State, messages: Messages, now: Round) -> object:
        if now.index == 1:
            stage.process.kill()
        return carry(stage, state, messages, now)

    monkeypatch.setattr(Stage, "carry", dies)
    with pytest.raises(EnclaveGoneError, match="this round is lost"):
        tacit.train(used, task(), workers=1, seed=4, out=tmp_path / "run")
    monkeypatch.setattr(Stage, "carry", carry)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "failed"
    run = tacit.train(used, task(), workers=1, seed=4, out=tmp_path / "run", resume=True)
    assert torch.equal(run.state.weights, whole.state.weights)


def test_a_conversation_is_about_one_model() -> None:
    several = SimpleNamespace(aggregator=SimpleNamespace(models=2))
    with pytest.raises(UserError, match="one model"), Enclave(conversation=True).open(several, 3, 0):
        pass
