"""ESMFL and its baseline: phases, what travels, what is told."""

from dataclasses import replace

import pytest
import torch

import zoo
from tacit import methods
from tacit.core import Key, Messages, Method, Plain, Round, Task, View
from tacit.core.rows import DenseRows
from tacit.errors import UserError
from tacit.pieces.channels import Enclave
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune
from tacit.runs.training import train
from tacit.wire import frames
from tacit.wire.frames import Part
from tacit.wire.sparse import Compact, Csr

SMALL = {
    "rounds": 4,
    "warm_up": 2,
    "approach": 0,
    "cohort": 3,
    "compression": 10,
    "epochs": 2,
    "batch_size": 4,
    "enclave": False,
}
NOW = Round(0, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))
BOTH = [methods.esmfl, methods.masked_pruning]
both = pytest.mark.parametrize("factory", BOTH, ids=["esmfl", "masked-pruning"])


def task() -> Task:
    return Task(model=zoo.mlp, clients=zoo.population([6] * 5), test=zoo.population([9], seed=3)[0])


@both
def test_two_phases(factory) -> None:
    """Whole models up in the warm-up, then exactly so many weights and all biases; whole models down throughout."""
    run = train(factory(**SMALL, wire="csr"), task(), workers=1)
    dense = frames.size({Part.ROW: run.state.weights})
    sent = 272 + 60  # a tenth of 2720 weights, and 60 biases
    sparse = dense - 4 * run.state.dim + 19 + 2 * 4 + 8 * sent
    assert [set(report.up) for report in run.history] == [{dense}, {dense}, {sparse}, {sparse}]
    assert all(set(report.down) == {dense} for report in run.history)


@both
def test_in_an_enclave_it_is_the_same_run_with_sealed_uploads_and_time_by_part(factory) -> None:
    """Only the order in which floats are added up differs."""
    sealed, plain = (train(factory(**{**SMALL, "enclave": enclave}), task(), workers=1) for enclave in (True, False))
    torch.testing.assert_close(sealed.state.weights, plain.state.weights, rtol=1e-4, atol=1e-6)
    assert sealed.bytes.up > plain.bytes.up
    assert sealed.parts.keys() >= {"attestation", "encryption", "transfer", "load", "train", "aggregate", "publish"}
    assert "enclave: simulated (insecure)" in str(sealed.privacy)


@both
def test_what_is_told(factory) -> None:
    run = train(factory(**SMALL), task(), workers=1)
    warm, *_, last = (report.metrics for report in run.history)
    assert list(warm) == ["accuracy", "loss", "density"]
    assert warm["density"] == 1.0
    assert {"pruned_accuracy", "pruned_loss"} <= last.keys()
    held = [layer.held for layer in run.sparsity.values()]
    assert last["density"] == pytest.approx(sum(held) / 2720)
    assert [(layer.weights, layer.sent) for layer in run.sparsity.values()] == [(1920, 144), (600, 81), (200, 47)]
    assert list(run.sparsity) == ["1.weight", "3.weight", "5.weight"]
    assert all(layer.sent <= layer.held <= 3 * layer.sent for layer in run.sparsity.values())


def test_a_method_that_does_not_prune_tells_nothing_of_it() -> None:
    run = train(methods.fedavg(rounds=1, cohort=2, epochs=1), task(), workers=1)
    assert run.sparsity == {}
    assert "density" not in run.metrics


def test_pruned_metrics_are_those_of_the_pruned_model() -> None:
    method = methods.masked_pruning(**SMALL)
    run = train(method, task(), workers=1)
    shapes = tuple(tuple(p.shape) for p in run.model.parameters())
    trainer = method.trainer
    assert isinstance(trainer, MagnitudePrune)
    pruned = trainer.pruned(run.state, shapes)
    assert pruned is not None
    shipped = replace(run, state=replace(run.state, weights=pruned)).model
    x, y = task().test or (torch.empty(0), torch.empty(0))
    accuracy = float((shipped(x).argmax(1) == y).float().mean())
    assert run.metrics["pruned_accuracy"] == pytest.approx(accuracy)


def test_forms_change_bytes_and_nothing_else() -> None:
    runs = {
        form: train(methods.esmfl(**SMALL, wire=form, down=form), task(), workers=1)
        for form in ("dense", "csr", "compact")
    }
    assert torch.equal(runs["dense"].state.weights, runs["csr"].state.weights)
    assert torch.equal(runs["dense"].state.weights, runs["compact"].state.weights)
    for way in ("up", "down"):
        dense, csr, compact = (getattr(runs[form].bytes, way) for form in ("dense", "csr", "compact"))
        assert compact < csr < dense


def test_the_channel_packs_what_it_counts() -> None:
    """Row by row; a row that does not become shorter goes as it is."""
    g = torch.Generator().manual_seed(0)
    chance = torch.tensor([[0.1], [0.9], [1.0]])
    rows = torch.randn(3, 500, generator=g).where(torch.rand(3, 500, generator=g) < chance, 0.0)
    messages = Messages(torch.arange(3), DenseRows(rows))
    for form in (Csr(), Compact()):
        sizes = Plain(wire=form).upload(messages, NOW)
        assert sizes == tuple(36 + min(len(form.encode(row)), 2000) for row in rows)
        data = frames.pack(frames.Kind.MESSAGE, 7, messages.parts(0, form))
        assert len(data) == sizes[0]
        part = frames.unpack(data, frames.Kind.MESSAGE).parts[Part.ROW]
        assert torch.equal(form.decode(part.numpy().tobytes(), 500), rows[0])
    assert Plain(wire=Csr()).upload(messages, NOW)[1:] == (2036, 2036)
    view = View(rows[0], {Part.WEIGHTS: rows[0], Part.BOUND: torch.zeros(1)})
    assert Plain(down=Compact()).download(view, NOW, first=False) == 36 + len(Compact().encode(rows[0])) + 12 + 4


@both
def test_defaults(factory) -> None:
    made = factory()
    assert (made.rounds, made.trainer.warm_up, made.trainer.approach, made.sampler.size) == (60, 20, 10, 10)
    assert made.trainer.keep == Keep(compression=10.0)
    assert made.channel == Enclave(wire=Compact(), conversation=True)
    assert factory(enclave=False, down="csr").channel == Plain(wire=Compact(), down=Csr())
    assert factory(rounds=150).trainer.warm_up == 50
    assert factory(keep=[1, 2]).trainer.keep.counts == [1, 2]


def test_the_choice_is_settled_halfway_and_not_before_the_warm_up_is_over() -> None:
    settled = [methods.esmfl(rounds=20, **given).trainer.settled for given in ({}, {"warm_up": 15}, {"settled": 20})]
    assert settled == [10, 15, 20]


@both
def test_an_approach_sends_less_in_every_round_of_it(factory) -> None:
    run = train(factory(**{**SMALL, "rounds": 6, "warm_up": 4, "approach": 3}), task(), workers=1)
    up = [max(report.up) for report in run.history]
    assert up[0] > 1.3 * up[1] > 1.3 * 1.3 * up[2]
    assert up[2] > 1.3 * up[3] > 1.3 * 1.3 * up[4] > 1.2 * up[5]


def test_esmfl_differs_from_its_baseline_in_the_trainer_alone() -> None:
    admm, masked = methods.esmfl(), methods.masked_pruning()
    assert isinstance(admm.trainer, AdmmPrune)
    assert replace(admm, name=masked.name, trainer=masked.trainer) == masked


@both
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"warm_up": 60}, "warm_up=60 < rounds=60"),
        ({"compression": 0.5}, "compression=0.5 >= 1"),
        ({"wire": "cs"}, "Did you mean 'csr'?"),
        ({"down": "sparse"}, "Expected down of method"),
    ],
)
def test_bad_arguments_get_a_sentence(factory, args: dict[str, object], words: str) -> None:
    name = factory.__name__.replace("_", "-")
    with pytest.raises(UserError) as caught:
        methods.make(name, args)
    assert words in str(caught.value)


def test_composition() -> None:
    made = methods.esmfl()
    with pytest.raises(UserError, match="AdmmPrune sends weights, but Add takes updates"):
        Method(name="x", rounds=2, sampler=made.sampler, trainer=made.trainer)
