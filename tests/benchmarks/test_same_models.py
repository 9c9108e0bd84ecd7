from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch


def test_models_are_compared_bit_by_bit(script: Callable[[str], ModuleType]) -> None:
    differences = script("same_models").differences
    model = {"weight": torch.tensor([[1.0, -0.0], [torch.nan, 2.0]]), "bias": torch.zeros(2)}
    assert differences(model, {name: tensor.clone() for name, tensor in model.items()}) == []
    (changed,) = differences(model, {**model, "bias": torch.tensor([0.0, 1e-7])})
    assert changed.startswith("bias by up to 1.0e-07")
    assert differences(model, {**model, "bias": torch.tensor([0.0, -0.0])}) == ["bias by up to 0.0e+00"]
    assert differences(model, {**model, "bias": torch.zeros(2).double()}) == ["bias has another type or shape"]
    assert differences(model, {"weight": model["weight"]}) == ["bias is only in one"]


def test_a_folder_without_tacit_is_refused(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Otherwise a tree would be compared with itself, and found to be the same."""
    with pytest.raises(SystemExit, match="Expected a tree of Tacit"):
        script("environments").source_of(tmp_path)
    assert script("environments").source_of(script("environments").ROOT).name == "src"
