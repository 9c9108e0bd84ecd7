import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.core import Bound, ClientKeys, ClientRound, DenseRows, Key, Messages, ServerRound, State, View
from tacit.core.wave import EmptyWave
from tacit.errors import UserError, WireError
from tacit.pieces.mechanisms import DistributedGaussian, Grid, Reals, RecordClip
from tacit.privacy.noise.lattice import Lattice, float_error
from tacit.wire.frames import Part

DIM, CLIENTS = 300, 3
SHAPES, GRID = ((DIM,),), Grid()


def mechanism(*, single_draw: bool = True, arithmetic: Grid | Reals = GRID) -> DistributedGaussian:
    return DistributedGaussian(
        clip=RecordClip(0.5, records=20), noise_multiplier=2.0, arithmetic=arithmetic, single_draw=single_draw
    )


def at_client(found: DistributedGaussian, rows: torch.Tensor, bound: float = 0.5) -> torch.Tensor:
    view = View(torch.zeros(DIM), {Part.BOUND: torch.tensor([bound], dtype=torch.float64)})
    messages = Messages(torch.arange(len(rows)), DenseRows(rows))
    keys = ClientKeys(Key.from_seed(1, "clients"))
    now = ClientRound(0, CLIENTS, float(CLIENTS), CLIENTS, Key.from_seed(1, "shared"), keys)
    return found.at_client(messages, view, EmptyWave(SHAPES), now).rows.dense()


def lattice(records: int | None = 20, dim: int = DIM) -> Lattice:
    return Lattice.fit(clip=0.5, dim=dim, cohort=CLIENTS, honest=CLIENTS, noise_multiplier=2.0, records=records)


def hostile_pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of up to 40 records, with and without one of norm 0.5: dense, sparse, aligned, beyond the ball."""
    generator = np.random.default_rng(0)
    pairs = []
    for count in (1, 3, 20, 40):
        for shape in ("dense", "sparse", "aligned"):
            records = generator.normal(size=(count, DIM)) if shape == "dense" else np.zeros((count, DIM))
            if shape == "sparse":
                records[np.arange(count), generator.integers(0, DIM, count)] = 1e6
            if shape == "aligned":
                records[:] = 1.0
            records *= 0.5 / np.linalg.norm(records, axis=1, keepdims=True)
            pairs.append((records.sum(0), records[1:].sum(0)))
    return pairs


def test_a_record_changes_the_integers_by_at_most_the_bound_whatever_the_others_are() -> None:
    grid = lattice()
    for row, without in hostile_pairs():
        for seed in range(20):  # with equal randomness, as in the proof
            sources = [np.random.default_rng(seed).bytes for _ in range(2)]
            difference = grid.quantize(row, sources[0]) - grid.quantize(without, sources[1])
            assert math.sqrt(float((difference.astype(np.float64) ** 2).sum())) <= grid.bound.l2


def test_clipping_rows_to_a_bound_of_clients_would_let_a_record_change_more() -> None:
    """The defect that `records` prevents: scaling a whole row down to the bound, and rounding it again if too long."""
    grid = lattice(records=None)
    row = np.zeros(DIM)
    row[0] = 10.0  # the sum of twenty records, which a last one turns
    turned = row.copy()
    turned[1] = 0.5
    assert np.abs(grid.quantize(row, np.random.default_rng(0).bytes)).max() * 19 < 10.0 * grid.scale
    assert lattice().quantize(turned, np.random.default_rng(0).bytes)[0] == pytest.approx(10.0 * grid.scale, rel=0.01)


def test_rows_are_projected_to_the_ball_of_all_records_and_no_further() -> None:
    long = torch.zeros(CLIENTS, DIM)
    long[0, 0], long[1, 0], long[2, 0] = 9.0, 11.0, float("nan")
    for arithmetic in (Reals(), Grid()):
        rows = at_client(mechanism(arithmetic=arithmetic), long)
        assert rows.norm(dim=1).tolist() == pytest.approx([9.0, 10.0, 0.0], abs=1e-2)


@pytest.mark.parametrize("single_draw", [True, False])
def test_the_noise_of_a_sum_is_that_of_one_record_and_not_of_a_row(single_draw: bool) -> None:
    found = mechanism(single_draw=single_draw)
    rows = at_client(found, torch.zeros(CLIENTS, DIM))
    state = State(0, torch.zeros(DIM), shapes=SHAPES)
    bounded = found.before_sum(Messages(torch.arange(CLIENTS), DenseRows(rows)), state)
    assert bounded.bound == Bound((0.5,))
    total = bounded.summed(rows.sum(0), float(CLIENTS), 0.0)
    now = ServerRound(0, CLIENTS, float(CLIENTS), CLIENTS, Key.from_seed(2, "shared"), Key.from_seed(2, "server"))
    noisy = found.after_sum(total, now).total
    others = math.sqrt(CLIENTS / (CLIENTS - 1))  # each client knows its own share
    deviation, expected = float(noisy.double().std()), 2.0 * 0.5 * (1 + lattice().inflation) * others
    assert deviation == pytest.approx(expected, rel=5 / math.sqrt(2 * DIM))
    assert deviation != pytest.approx(expected * 2 / 3, rel=5 / math.sqrt(2 * DIM))
    assert deviation != pytest.approx(expected * 3 / 2, rel=5 / math.sqrt(2 * DIM))


def test_rounding_and_floating_point_are_part_of_the_bound() -> None:
    assert lattice().inflation > float_error(20) > 0
    assert lattice().inflation < 0.03
    assert lattice(dim=100_000).inflation < 0.03


def test_rows_of_the_largest_batches_do_not_overflow() -> None:
    grid = lattice()
    assert CLIENTS * grid.max_coordinate < 2**31
    assert grid.max_coordinate >= 20 * grid.steps
    assert grid.overflow <= 2.0**-64


def test_a_client_accepts_no_other_bound_than_its_trainers() -> None:
    with pytest.raises(WireError, match=r"Expected the bound of records, 0\.5, got 0\.001"):
        at_client(mechanism(), torch.zeros(CLIENTS, DIM), bound=1e-3)


def test_validation() -> None:
    with pytest.raises(UserError, match="Expected value=0 > 0 and finite"):
        RecordClip(0, 3)
    with pytest.raises(UserError, match="Expected records=0 >= 1"):
        RecordClip(1.0, 0)
    found = mechanism()
    assert (found.record_bound, found.row_bound) == (0.5, 10.0)
    assert replace(found, clip=RecordClip(1.0, 5)).row_bound == 5.0
