"""Exported models compute what the run's model computes, for any number of samples, in the programs that read them."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import tacit
from scale import scaled
from tacit.core import files
from tacit.tasks.models import MODELS

LONG = scaled(False, campaign=True)
SHAPES: dict[str, tuple[int, ...]] = {
    "mobilenet-v2": (3, 32, 32), "digits-sigmoid-lenet": (1, 8, 8), "hospital-net": (4,), "medical-net": (7280,),
    "digits-net": (64,), "digits-mlp": (64,), "linear": (2,),
}  # fmt: skip
CHOSEN = [*MODELS] if LONG else ["softmax-regression", "tanh-cnn", "digits-mlp"]


def run_on(model: Callable[[], nn.Module], *clients: Any, **options: Any) -> tacit.Run:
    """A run of one short round."""
    task = tacit.Task(model=model, clients=clients, **options)
    method = tacit.methods.fedavg(rounds=1, cohort=len(clients), epochs=1)
    return tacit.train(method, task, workers=1)


def computed(file: Path, inputs: dict[str, Tensor]) -> list[np.ndarray[Any, Any]]:
    """The outputs of an exported file on these inputs, by the program that reads it."""
    if file.suffix == ".pt2":
        program = torch.export.load(file).module()
        found = program(*inputs.values()) if "x" in inputs else program(**inputs)
        return [each.detach().numpy() for each in torch.utils._pytree.tree_leaves(found)]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, (each.numpy() for each in inputs.values()), strict=True))))


def assert_same(file: Path, inputs: dict[str, Tensor], expected: Tensor) -> None:
    for count in (1, 7):
        found = computed(file, {name: each[:count] for name, each in inputs.items()})[0]
        np.testing.assert_allclose(found, expected[:count].detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHOSEN)
def test_models_of_the_catalogue_compute_the_same_in_other_programs(name: str, tmp_path: Path) -> None:
    shape, model = SHAPES.get(name, (1, 28, 28)), MODELS[name]
    x = torch.randn(8, *shape)
    with torch.no_grad():
        targets = torch.zeros_like(model().eval()(x))
    run = run_on(model, (x[:4], targets[:4]), (x[4:], targets[4:]), loss=tacit.MeanSquared())
    for suffix in (".onnx", ".pt2"):
        assert_same(run.export(tmp_path / f"m{suffix}"), {"x": x}, run.model.eval()(x))


class TwoInputs(nn.Module):
    """Words and a number, as keyword arguments; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(20, 4), nn.Linear(5, 3)

    def forward(self, words: Tensor, age: Tensor) -> dict[str, Tensor]:
        mixed = torch.cat([self.words(words).mean(1), age], dim=1)
        return {"logits": self.linear(mixed), "mixed": mixed}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(self.lstm(x)[0][:, -1])
        return found


class Branching(nn.Module):
    """Its graph depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found if bool(x.sum() > 0) else -found


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_own_models_keep_their_inputs_and_outputs(suffix: str, tmp_path: Path) -> None:
    inputs = {"words": torch.randint(0, 20, (8, 6)), "age": torch.randn(8, 1)}
    parts = [({name: each[half] for name, each in inputs.items()}, torch.arange(4) % 3)
             for half in (slice(0, 4), slice(4, 8))]  # fmt: skip
    run = run_on(TwoInputs, *parts, output="logits")
    assert_same(run.export(tmp_path / f"m{suffix}"), inputs, run.model.eval()(**inputs)["logits"])


def test_a_recurrent_model_is_exported(tmp_path: Path) -> None:
    x = torch.randn(8, 4, 6)
    run = run_on(Recurrent, (x, torch.arange(8) % 2))
    for suffix in (".onnx", ".pt2") if LONG else (".pt2",):
        assert_same(run.export(tmp_path / f"m{suffix}"), {"x": x}, run.model.eval()(x))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_that_cannot_be_exported_gets_a_sentence_and_no_file(suffix: str, tmp_path: Path) -> None:
    run = run_on(Branching, (torch.randn(8, 3), torch.arange(8) % 2))
    (tmp_path / f"m{suffix}").write_text("from before")
    with pytest.raises(tacit.ModelError, match=r"cannot be exported to .*: .*export a state_dict, which needs none"):
        run.export(tmp_path / f"m{suffix}")
    assert (tmp_path / f"m{suffix}").read_text() == "from before"
    assert [path.name for path in tmp_path.iterdir()] == [f"m{suffix}"]
    assert run.export(tmp_path / "m.pt").exists()


class Dice(nn.Module):
    """Its output is random in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found if self.training else found + torch.randn_like(found)


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    run = run_on(Dice, (torch.randn(8, 3), torch.arange(8) % 2))
    with pytest.raises(tacit.ModelError, match="computes something else than the trained one"):
        run.export(tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_no_sample_is_in_the_file(tmp_path: Path) -> None:
    """A program of torch.export keeps the inputs that it was made from: they are random."""
    x = torch.rand(16, 3)
    y = torch.arange(8) % 2
    run = run_on(lambda: nn.Linear(3, 2), (x[:8], y), test=(x[8:], y))
    program = torch.export.load(run.export(tmp_path / "m.pt2"))
    (kept,), _ = program.example_inputs
    assert not torch.isin(kept, x).any()
    content = (tmp_path / "m.pt2").read_bytes() + run.export(tmp_path / "m.onnx").read_bytes()
    assert not any(row.numpy().tobytes() in content for row in x)


def test_weights_are_exported_for_pytorch_and_safetensors(tmp_path: Path) -> None:
    run = run_on(lambda: nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2))
    for found in (
        safetensors.torch.load_file(run.export(tmp_path / "m.safetensors")),
        torch.load(run.export(tmp_path / "m.pt"), weights_only=True),
    ):
        assert torch.equal(found["weight"], run.model.weight)  # type: ignore[arg-type]
    with pytest.raises(tacit.UserError, match=r"ends in one of .safetensors, .pt, .onnx, .pt2, got m.h5"):
        run.export(tmp_path / "m.h5")
    with pytest.raises(tacit.UserError, match="Expected a model from 0 to 0, got 1"):
        run.export(tmp_path / "m.pt", model=1)


def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    parts = [(torch.randn(6, 3), torch.arange(6) % 2) for _ in range(2)]
    task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts)
    run = tacit.train(tacit.methods.ifca(rounds=1, models=2, cohort=2), task, workers=1)
    with pytest.raises(tacit.UserError, match=r"the run trained 2. Choose one of 0 to 1 with model="):
        run.export(tmp_path / "m.pt")
    found = torch.load(run.export(tmp_path / "m.pt", model=1), weights_only=True)
    assert torch.equal(found["weight"], run.models[1].weight)  # type: ignore[arg-type]


def test_without_onnx_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_on(lambda: nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(tacit.UserError, match=r"Expected onnxscript to be installed.*pip install 'tacit-fl\[onnx\]'"):
        run.export(tmp_path / "m.onnx")


def test_a_full_disk_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_on(lambda: nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2))

    def full(file: io.BufferedWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(tacit.errors.StorageError, match="Free some space"):
        run.export(tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []
