import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch

from tacit import methods


def test_models_are_compared_bit_by_bit(script: Callable[[str], ModuleType]) -> None:
    differences = script("same_models").differences
    model = {"weight": torch.tensor([[1.0, -0.0], [torch.nan, 2.0]]), "bias": torch.zeros(2)}
    assert differences(model, {name: tensor.clone() for name, tensor in model.items()}) == []
    (changed,) = differences(model, {**model, "bias": torch.tensor([0.0, 1e-7])})
    assert changed.startswith("bias by up to 1.0e-07")
    assert differences(model, {**model, "bias": torch.tensor([0.0, -0.0])}) == ["bias by up to 0.0e+00"]
    assert differences(model, {**model, "bias": torch.zeros(2).double()}) == ["bias has another type or shape"]
    assert differences(model, {"weight": model["weight"]}) == ["bias is only in one"]


def test_every_method_is_a_case_and_every_variant_is_of_a_method(script: Callable[[str], ModuleType]) -> None:
    same_models, names = script("same_models"), [*methods.definitions()]
    cases = same_models.cases(names)
    assert {*cases} == {*names, *same_models.VARIANTS}
    assert {arguments[0] for arguments in cases.values()} == {*names}


@pytest.mark.law("benchmarks")
def test_this_tree_trains_the_same_models_again(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Randomness is seeded: without that, no two runs end in the same model."""
    same_models = script("same_models")
    chosen = ["geyer", "fedavg: table"]
    monkeypatch.setattr("sys.argv", ["same_models.py", str(same_models.ROOT), "--cases", *chosen])
    assert same_models.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"{name:24} same" for name in chosen),
        "2 of 2 cases train bitwise the same model.",
    ]


def test_a_case_that_fails_or_differs_is_named(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    compared = script("same_models").compared
    for tree, failures, weight in (("ours", {}, 1.0), ("theirs", {"geyer": "no budget"}, 2.0)):
        run = tmp_path / tree / "fedavg-table"
        run.mkdir(parents=True)
        (run.parent / "failures.json").write_text(json.dumps(failures))
        safetensors.torch.save_file({"weight": torch.tensor([weight])}, run / "model.safetensors")
    trees = tmp_path / "ours", tmp_path / "theirs"
    assert compared("geyer", *trees) == ["FAILED in theirs: no budget"]
    assert compared("fedavg: table", *trees) == ["DIFFERENT: weight by up to 1.0e+00"]


def test_a_folder_without_tacit_is_refused(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Otherwise a tree would be compared with itself, and found to be the same."""
    with pytest.raises(SystemExit, match="Expected a tree of Tacit"):
        script("environments").source_of(tmp_path)
    assert script("environments").source_of(script("environments").ROOT).name == "src"
