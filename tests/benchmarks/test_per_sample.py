from collections.abc import Callable
from types import ModuleType

import torch


def test_ratios_are_relative_to_tacit(script: Callable[[str], ModuleType]) -> None:
    per_sample = script("per_sample")
    measured = [
        per_sample.Measured(case="W1", contender=name, seconds=[t, 9.0, 0.0], cpu_seconds=[t], mebibytes=m)
        for name, t, m in (("tacit", 0.5, 10.0), ("ghost", 1.0, 25.0))
    ]
    title, ours, other = per_sample.table(measured)
    assert title.split()[:3] == ["case", "contender", "seconds"]
    assert ours.split() == ["W1", "tacit", "0.5000", "1.00", "x", "0.5000", "1.00", "x", "10", "1.00", "x"]
    assert other.split()[3::3] == ["2.00", "2.00", "2.50"]


def test_the_sum_that_is_measured_is_the_clipped_one(script: Callable[[str], ModuleType]) -> None:
    per_sample = script("per_sample")
    model, x, y = per_sample.batch_of("W1")
    total = per_sample.tacit_step(model)(x[:3], y[:3])
    expected = torch.zeros_like(total)
    for i in range(3):
        loss = torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).double()
        expected += gradient * min(1.0, per_sample.CLIP / float(gradient.norm()))
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-7)
