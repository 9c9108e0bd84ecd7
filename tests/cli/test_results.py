"""Sentences below the table of results."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from report.worlds import federate, simulate
from tacit.cli._results import _absent, _rounding
from tacit.core.losses import CrossEntropy
from tacit.engine.waves import AutoLearner


def test_a_site_that_took_part_in_no_round_is_named(tmp_path: Path) -> None:
    absent = federate("fl-std", tmp_path, missing=2).run
    assert _absent(absent) == ["Took part in 0 of 2 rounds: site-0, site-1. The model knows nothing of their data."]
    assert _absent(simulate("fl-std", tmp_path / "all").run) == []


def test_costly_rounding_names_a_remedy(tmp_path: Path) -> None:
    """Narrow sums cost noise; those of 32 bits hardly any."""
    narrow: dict[str, Any] = {"channel": "SecureSum(bits=16)", "mechanism.arithmetic": "Grid(bits=16,steps=8)"}
    coarse = simulate("fl-std-dp", tmp_path / "coarse", **narrow).run
    assert _rounding(coarse)[-1].endswith("give more bits: channel.bits=32.")
    assert "finer grid" not in _rounding(simulate("fl-std-dp", tmp_path / "fine").run)[-1]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(nn.Dropout(), "dropout"), (nn.BatchNorm1d(6, track_running_stats=False), "statistics of a batch")],
)
def test_slow_training_says_why(layer: nn.Module, reason: str) -> None:
    slow = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 2))
    assert reason in AutoLearner(slow, CrossEntropy()).why_slow
    fast = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    assert AutoLearner(fast, CrossEntropy(), (torch.zeros(2, 4), torch.zeros(2).long())).why_slow == ""
