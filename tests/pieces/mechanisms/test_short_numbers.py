"""Integers are sent with as few bits as their sum needs, which changes nothing but bytes."""

from dataclasses import replace

import pytest
import torch

import tacit
from tacit.core import Bound
from tacit.core.keys import Key
from tacit.core.state import SimulatedRound
from tacit.errors import UserError
from tacit.pieces.mechanisms import arithmetic
from tacit.pieces.mechanisms.arithmetic import Grid, SharedNoise
from tacit.privacy.noise.lattice import MAX_OVERFLOW


def noise(multiplier: float, dropouts: float = 0.1) -> SharedNoise:
    return SharedNoise(Bound((0.5,)), multiplier, 0.9, dropouts)


@pytest.mark.parametrize(
    ("cohort", "multiplier", "bits"), [(10, 1.2, 18), (100, 1.2, 20), (100, 5.0, 21), (1000, 1.2, 24)]
)
def test_the_sum_of_every_cohort_has_room_and_with_a_bit_less_the_largest_has_none(
    cohort: int, multiplier: float, bits: int
) -> None:
    """Up to 300 clients there is no bit to spare; all sizes up to the largest cohort fit."""
    grid = Grid()
    for size in range(cohort + 1):
        here = SimulatedRound.of(0, cohort, float(cohort), size, Key.from_seed(0), Key.from_seed(0, "secret"))
        lattice = grid.lattice(noise(multiplier), 8316, here)
        assert lattice.bits == bits
        assert lattice._tail <= MAX_OVERFLOW
    spare = cohort > 300
    with pytest.raises(UserError, match=f"to overflow {bits - 1 - spare} bits"):
        replace(lattice, bits=bits - 1 - spare)


def test_a_limit_is_kept() -> None:
    here = SimulatedRound.of(0, 100, 100.0, 100, Key.from_seed(0), Key.from_seed(0, "secret"))
    full, limited = (Grid(bits=bits).lattice(noise(1.2), 8316, here) for bits in (32, 18))
    assert (full.bits, limited.bits) == (20, 18)
    assert full.steps > limited.steps  # a coarser grid


def test_the_model_is_bitwise_the_same_and_so_is_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulation, and in a whole conversation, where the sum is known modulo fewer bits."""
    generator = torch.Generator().manual_seed(1)
    parts = [(torch.randn(6, 5, generator=generator), torch.arange(6) % 3) for _ in range(8)]
    task = tacit.Task(model=lambda: torch.nn.Linear(5, 3), clients=parts, public=parts[0])
    method = tacit.methods.fl_std_dp(rounds=2, cohort=8, epsilon=8, delta=1e-3)
    complete = replace(method, channel=tacit.pieces.SecureSum(conversation=True))
    short, whole = (tacit.train(each, task, randomness="seeded") for each in (method, complete))
    monkeypatch.setattr(arithmetic, "_shorten_lattice", arithmetic._fit_lattice)
    long = tacit.train(method, task, randomness="seeded")
    steps = [run.history[-1].grid_step for run in (short, whole, long)]
    assert [step.bits for step in steps if step is not None] == [steps[0].bits, steps[0].bits, 32]  # type: ignore[union-attr]
    assert 15 < steps[0].bits < 24  # type: ignore[union-attr]
    assert torch.equal(short.state.weights, whole.state.weights)
    assert torch.equal(short.state.weights, long.state.weights)
    assert short.epsilons == long.epsilons
    assert short.bytes.up < long.bytes.up
