"""ESMFL and its baseline: the phases of a run, the bytes that are sent, and the metrics."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import zoo
from tacit import methods
from tacit.core import Broadcast, Key, Messages, Method, Plain, SimulatedRound
from tacit.core.rows import DenseRows
from tacit.core.server_half import download_size
from tacit.data import Task
from tacit.errors import UserError
from tacit.pieces.channels import Enclave
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune
from tacit.runs.training import train
from tacit.wire import frames
from tacit.wire.frames import Part
from tacit.wire.sparse import Compact, Csr, WireFormat

SMALL: dict[str, Any] = {
    "rounds": 4,
    "warm_up": 2,
    "ramp": 0,
    "cohort": 3,
    "compression": 10,
    "epochs": 2,
    "batch_size": 4,
    "channel": Plain(wire=Compact()),
}
NOW = SimulatedRound.of(0, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))
both = pytest.mark.parametrize("name", ["esmfl", "masked-pruning"])


def task() -> Task:
    return Task(model=zoo.mlp, clients=zoo.population([6] * 5), test=zoo.population([9], seed=3)[0])


@both
def test_two_phases(name: str) -> None:
    """Clients upload whole models in the warm-up, then a tenth of the weights and all biases; downloads are whole."""
    run = train(methods.make(name, {**SMALL, "wire": Csr()}), task(), workers=1, randomness="seeded")
    dense = frames.size({Part.ROW: run.state.weights})
    sent = 272 + 60  # a tenth of 2720 weights, and 60 biases
    sparse = dense - 4 * run.state.dim + 19 + 2 * 4 + 8 * sent
    assert [set(report.up) for report in run.history] == [{dense}, {dense}, {sparse}, {sparse}]
    assert all(set(report.down) == {dense} for report in run.history)


@both
@pytest.mark.law("processes of an enclave")
def test_with_an_enclave_the_run_is_the_same_with_encrypted_uploads_and_timings(name: str) -> None:
    """Only the order of summation differs.

    The only test that runs a method by name through the enclave's process and compares it with a run without.
    """
    channels = (Enclave(wire=Compact(), conversation=True), Plain(wire=Compact()))
    made = [methods.make(name, {**SMALL, "cohort": 4, "channel": channel}) for channel in channels]
    sealed, plain = (train(method, task(), workers=1, randomness="seeded") for method in made)
    torch.testing.assert_close(sealed.state.weights, plain.state.weights, rtol=1e-4, atol=1e-6)
    assert sealed.bytes.up > plain.bytes.up
    assert sealed.timings.keys() >= {"attestation", "encryption", "transfer", "load", "train", "aggregate", "publish"}
    assert "Simulated enclave (insecure)" in str(sealed.privacy)


@both
def test_the_metrics(name: str) -> None:
    run = train(methods.make(name, SMALL), task(), workers=1, randomness="seeded")
    warm, *_, last = (report.metrics for report in run.history)
    assert list(warm) == ["accuracy", "loss", "density"]
    assert warm["density"] == 1.0
    assert {"pruned_accuracy", "pruned_loss"} <= last.keys()
    held = [layer.held for layer in run.sparsity.values()]
    assert last["density"] == pytest.approx(sum(held) / 2720)
    assert [(layer.weights, layer.sent) for layer in run.sparsity.values()] == [(1920, 144), (600, 81), (200, 47)]
    assert list(run.sparsity) == ["1.weight", "3.weight", "5.weight"]
    assert all(layer.sent <= layer.held <= 3 * layer.sent for layer in run.sparsity.values())


def test_without_pruning_there_are_no_metrics_of_it() -> None:
    run = train(methods.fedavg(rounds=1, cohort=2, epochs=1), task(), workers=1, randomness="seeded")
    assert run.sparsity == {}
    assert "density" not in run.metrics


def test_pruned_metrics_are_those_of_the_pruned_model() -> None:
    method = methods.make("masked-pruning", SMALL)
    run = train(method, task(), workers=1, randomness="seeded")
    pruned = method.trainer.variants(run.state)["pruned"]
    pruned_model = replace(run, state=replace(run.state, weights=pruned)).model
    x, y = task().test or (torch.empty(0), torch.empty(0))
    accuracy = float((pruned_model(x).argmax(1) == y).float().mean())
    assert run.metrics["pruned_accuracy"] == pytest.approx(accuracy)


def test_wire_formats_change_only_the_bytes() -> None:
    formats: dict[str, WireFormat | None] = {"dense": None, "csr": Csr(), "compact": Compact()}
    made = {name: methods.make("esmfl", {**SMALL, "wire": form, "down": form}) for name, form in formats.items()}
    runs = {name: train(method, task(), workers=1, randomness="seeded") for name, method in made.items()}
    assert torch.equal(runs["dense"].state.weights, runs["csr"].state.weights)
    assert torch.equal(runs["dense"].state.weights, runs["compact"].state.weights)
    for direction in ("up", "down"):
        dense, csr, compact = (getattr(runs[name].bytes, direction) for name in formats)
        assert compact < csr < dense


def test_the_channel_packs_as_many_bytes_as_it_counts() -> None:
    """Row by row; a row that its format does not shorten is sent dense."""
    g = torch.Generator().manual_seed(0)
    density = torch.tensor([[0.1], [0.9], [1.0]])
    rows = torch.randn(3, 500, generator=g).where(torch.rand(3, 500, generator=g) < density, 0.0)
    messages = Messages(torch.arange(3), DenseRows(rows))
    formats: list[WireFormat] = [Csr(), Compact()]
    for form in formats:
        sizes = Plain(wire=form).message_format.sizes(messages)
        assert sizes == tuple(36 + min(len(form.encode(row)), 2000) for row in rows)
        data = Plain(wire=form).message_format.pack(messages, 0, NOW)
        assert len(data) == sizes[0]
        assert torch.equal(Plain(wire=form).message_format.read(data, 0, messages, NOW).rows.dense()[0], rows[0])
    assert Plain(wire=Csr()).message_format.sizes(messages)[1:] == (2036, 2036)
    sent = Broadcast({Part.WEIGHTS: rows[0], Part.BOUND: torch.zeros(1)})
    assert download_size(Plain(down=Compact()), sent, first=False) == 36 + len(Compact().encode(rows[0])) + 12 + 4


@both
def test_defaults(name: str) -> None:
    method, trainer = methods.make(name), pruning(methods.make(name))
    assert (method.rounds, trainer.warm_up, trainer.ramp, method.sampler) == (60, 20, 10, FixedSize(10))
    assert trainer.keep == Keep(compression=10.0)
    assert method.channel == Enclave(wire=Compact(), conversation=True)
    assert methods.make(name, {"channel": "Plain()", "down": "Csr()"}).channel == Plain(down=Csr())
    assert pruning(methods.make(name, {"rounds": 150})).warm_up == 50
    assert pruning(methods.make(name, {"keep": (1, 2)})).keep == Keep(counts=(1, 2))


def pruning(method: Method) -> AdmmPrune | MagnitudePrune:
    assert isinstance(method.trainer, AdmmPrune | MagnitudePrune)
    return method.trainer


def test_the_mask_is_frozen_halfway_but_not_before_the_end_of_the_warm_up() -> None:
    arguments: list[dict[str, Any]] = [{}, {"warm_up": 15}, {"freeze_after": 20}]
    trainers = [methods.make("esmfl", {"rounds": 20, **given}).trainer for given in arguments]
    assert [trainer.freeze_after for trainer in trainers if isinstance(trainer, AdmmPrune)] == [10, 15, 20]


@both
def test_gradual_pruning_sends_less_in_every_round(name: str) -> None:
    run = train(
        methods.make(name, {**SMALL, "rounds": 6, "warm_up": 4, "ramp": 3}), task(), workers=1, randomness="seeded"
    )
    up = [max(report.up) for report in run.history]
    assert up[0] > 1.3 * up[1] > 1.3 * 1.3 * up[2]
    assert up[2] > 1.3 * up[3] > 1.3 * 1.3 * up[4] > 1.2 * up[5]


def test_esmfl_differs_from_its_baseline_only_in_the_trainer() -> None:
    admm, masked = methods.esmfl(), methods.masked_pruning()
    assert isinstance(admm.trainer, AdmmPrune)
    assert replace(admm, name=masked.name, trainer=masked.trainer) == masked


@both
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"warm_up": 60}, "warm_up=60 < rounds=60"),
        ({"wire": "Cs()"}, "Did you mean 'Csr'?"),
        ({"down": "sparse"}, "Expected down of channel of method"),
        ({"compression": 10, "keep": (1, 2)}, "either compression or counts, and not both"),
    ],
)
def test_wrong_arguments_get_advice(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        methods.make(name, args)
    assert message in str(caught.value)


def test_pruned_models_cannot_be_added_as_updates() -> None:
    method = methods.esmfl()
    with pytest.raises(UserError, match="AdmmPrune sends weights, but Add expects updates"):
        Method(name="x", rounds=2, sampler=method.sampler, trainer=method.trainer)
