"""Compressive sensing: the coefficients that are sent, and the sparse vectors that are reconstructed."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import fft
from torch import Tensor

from tacit.core import (
    ClientKeys,
    ClientMemory,
    DenseRows,
    Descent,
    Key,
    Perturbation,
    Query,
    Round,
    Rows,
    SimulatedRound,
    State,
    View,
    Wave,
)
from tacit.core.prices import AggregateNoise
from tacit.core.rows import ClippedSum
from tacit.core.wave import Shapes
from tacit.errors import TrainingError, UserError
from tacit.pieces.codecs import Size, sensing
from tacit.pieces.codecs.sensing import ADDED, THRESHOLD, Sense, angular_error, measure, reconstruct

DIM = 1_663_370  # the Fashion-MNIST model of the FL-TOP paper
ROOT = Key.from_seed(0)
NOW = SimulatedRound.of(0, 1, 1.0, 1, ROOT.child("shared"), ROOT.child("secret"))
LOWEST = (0.0, 0.5, 1.0)  # shares of the lowest coefficients
TUNED = Sense(size=Size(ratio=0.3), chunks=2, lr=0.5, steps=3, batch_size=7)


def normal(*shape: int, name: str = "x", dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=ROOT.child(name).public_generator(), dtype=dtype)


def sparse(count: int, length: int, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """One chunk with `count` non-zero numbers."""
    x = torch.zeros(1, length, dtype=dtype)
    x[0, torch.randperm(length, generator=ROOT.child(name, 1).public_generator())[:count]] = normal(
        count, name=name, dtype=dtype
    )
    return x


def encode(codec: Sense, rows: Tensor, now: Round = NOW) -> Tensor:
    state = State(0, rows.new_zeros(rows.shape[1]))
    return codec.encode(DenseRows(rows), View(state.weights), now).dense()


def random_kept(count: int, length: int, draw: int = 0) -> Tensor:
    return torch.randperm(length, generator=ROOT.child("kept", draw).public_generator())[:count]


@dataclass(frozen=True, eq=False)
class Public:
    """A wave of one client whose update is given."""

    update: Tensor
    clients: Tensor = torch.zeros(1, dtype=torch.int64)
    samples: Tensor = torch.ones(1, dtype=torch.int64)
    units: Tensor = torch.ones(1, dtype=torch.int64)
    shapes: Shapes = ()

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        assert (how.lr, how.steps, how.epochs, how.batch_size) == (0.5, 3, None, 7)
        return DenseRows(self.update[None])

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        raise NotImplementedError

    def term_sums(self, query: Query, state: Tensor, *, cells: bool = False) -> Tensor:
        raise NotImplementedError

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        raise NotImplementedError

    def losses(self, hypotheses: Tensor) -> Tensor:
        raise NotImplementedError

    def keep(self, which: Tensor) -> Wave:
        raise NotImplementedError


@pytest.mark.parametrize(("ratio", "count"), [(0.005, 8316), (0.05, 83_168), (0.1, 166_337)])
def test_a_row_has_exactly_the_paper_s_number_of_values(ratio: float, count: int) -> None:
    row = normal(1, DIM, dtype=torch.float32)
    coded = encode(Sense(size=Size(ratio=ratio)), row)
    assert coded.shape == (1, count)
    assert coded.dtype == torch.float32


@pytest.mark.parametrize(("dim", "chunks", "ratio"), [(100, 7, 0.29), (100, 7, 0.02), (5, 9, 1.0), (64, 1, 0.5)])
@pytest.mark.parametrize("lowest", LOWEST)
def test_any_number_of_chunks_and_values(dim: int, chunks: int, ratio: float, lowest: float) -> None:
    codec = Sense(size=Size(ratio=ratio), chunks=chunks, lowest=lowest)
    coded = encode(codec, normal(3, dim))
    assert coded.shape == (3, {0.29: 29, 0.02: 2, 1.0: 5, 0.5: 32}[ratio])
    assert codec.decode(coded[0], State(0, torch.zeros(dim)), NOW)[0].shape == (dim,)


@pytest.mark.parametrize("lowest", LOWEST)
def test_every_weight_counts_with_fewer_values_than_chunks(lowest: float) -> None:
    codec = Sense(size=Size(ratio=0.05), chunks=200, lowest=lowest)
    coded = encode(codec, torch.eye(100, dtype=torch.float64))
    assert coded.shape == (100, 5)
    assert (coded != 0).sum(1).tolist() == [1] * 100


def test_the_lowest_coefficients_of_every_chunk_are_sent() -> None:
    """14 values of 4 chunks of 10: two chunks send four, two send three."""
    row = normal(40)
    expected = torch.from_numpy(fft.dct(row.view(4, 10).numpy(), norm="ortho", axis=1))
    coded = encode(Sense(size=Size(ratio=0.35), chunks=4, lowest=1.0), row[None])[0]
    torch.testing.assert_close(coded, torch.cat([expected[:, :3].flatten(), expected[:2, 3]]))


def test_half_of_the_coefficients_are_the_lowest_and_half_change_with_the_round() -> None:
    codec, rounds = (
        Sense(size=Size(number=40), chunks=2),
        [replace(NOW, shared=ROOT.child("round", i)) for i in range(9)],
    )
    sent = [codec._keep(codec._frame(1000), now) for now in rounds]
    assert all(len(kept.unique()) == 20 and kept[:10].tolist() == list(range(10)) for kept in sent)
    assert all(int(kept[10:].min()) >= 10 and int(kept.max()) < 500 for kept in sent)
    assert len(torch.cat([kept[10:] for kept in sent]).unique()) > 60


@pytest.mark.parametrize("length", [64, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kept_columns_give_the_same_as_the_whole_transform(
    length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = random_kept(12, length)
    kept[0] = 0
    x = normal(5, length, dtype=dtype)
    both = []
    for few in (True, False):
        monkeypatch.setattr(sensing, "_few", lambda *_, few=few: few)
        y = measure(x, kept)
        both.append((y, reconstruct(y, kept, length, 0.1)))
    for one, other in zip(*both, strict=True):
        assert one.dtype == dtype
        assert torch.dist(one, other) < (1e-4 if dtype == torch.float32 else 1e-12) * one.norm()


def test_the_faster_transform_is_used() -> None:
    assert sensing._few(torch.arange(42), 8400)
    assert not sensing._few(torch.arange(416), 8400)


@pytest.mark.parametrize("ratio", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("lowest", LOWEST)
def test_coefficients_are_linear_and_increase_no_norm(ratio: float, lowest: float) -> None:
    codec = Sense(size=Size(ratio=ratio), chunks=3, lowest=lowest)
    a, b = normal(4, 1000, name="a"), normal(4, 1000, name="b")
    torch.testing.assert_close(encode(codec, a + b), encode(codec, a) + encode(codec, b))
    assert bool((encode(codec, a).norm(dim=1) <= a.norm(dim=1) * (1 + 1e-12)).all())
    back, _ = codec.decode(encode(codec, a)[0], State(0, a[0], {THRESHOLD: torch.tensor(0.0)}), NOW)
    if ratio == 1.0:  # 3 chunks of 336 numbers; all but 8 coefficients are sent
        assert torch.dist(back, a[0]) < 0.25 * a[0].norm()


def test_an_isometry_on_the_span() -> None:
    codec = Sense(size=Size(ratio=0.25), chunks=5, threshold=0.0)
    span, _ = codec.decode(normal(50), State(0, torch.zeros(200)), NOW)
    torch.testing.assert_close(encode(codec, span[None]).norm(), span.norm())


def test_rows_do_not_mix_and_there_may_be_none() -> None:
    codec, rows = Sense(size=Size(ratio=0.1), chunks=4), normal(3, 500)
    hostile = rows.clone()
    hostile[1] = torch.inf
    assert torch.equal(encode(codec, hostile)[[0, 2]], encode(codec, rows)[[0, 2]])
    assert not torch.isfinite(encode(codec, hostile)[1]).any()
    assert encode(codec, rows[:0]).shape == (0, 50)


def test_random_coefficients_are_drawn_from_the_shared_key_with_the_lowest_among_them() -> None:
    codec, row = Sense(size=Size(ratio=0.05), chunks=2, lowest=0.0), normal(1, 1000)
    again = replace(NOW, server=ROOT.child("another"), clients=ClientKeys(ROOT.child("another")))
    other = replace(NOW, shared=ROOT.child("another"))
    assert torch.equal(encode(codec, row), encode(codec, row, again))
    assert not torch.allclose(encode(codec, row), encode(codec, row, other))
    constant = torch.ones(1, 1000, dtype=torch.float64)  # only its lowest coefficient is not zero
    for now in (NOW, other):
        torch.testing.assert_close(encode(codec, constant, now).norm(), constant.norm())


@pytest.mark.parametrize(("count", "length"), [(5, 500), (10, 1000), (20, 4000)])
def test_sparse_vectors_are_recovered_above_the_sampling_limit(count: int, length: int) -> None:
    """2 s ln(N/s) random coefficients are enough (Donoho and Tanner 2009), a fifth of them is far too few.

    Only this test catches a solver that fits the coefficients but does not find the sparse solution.
    """
    enough = math.ceil(2 * count * math.log(length / count))
    for draw in range(3):
        x = sparse(count, length, f"sparse {draw}")
        kept = random_kept(enough, length, draw)
        solved = reconstruct(measure(x, kept), kept, length, threshold=1e-4, iterations=2000, tolerance=1e-9)
        assert torch.dist(solved, x) < 1e-3 * x.norm()
        kept = kept[: enough // 5]
        solved = reconstruct(measure(x, kept), kept, length, threshold=1e-4, iterations=200, tolerance=1e-9)
        assert torch.dist(solved, x) > 0.1 * x.norm()


def test_the_solution_is_a_minimum() -> None:
    """Optimality: Aᵀ(y − Ax) is λ·sign(x) where x is not zero, and at most λ in magnitude elsewhere."""
    kept, length, threshold = random_kept(60, 200), 200, 0.05
    y = normal(3, 60)
    x = reconstruct(y, kept, length, threshold, iterations=3000, tolerance=0.0)
    back = reconstruct(y, kept, length, 0.0)
    penalty = threshold * back.abs().amax(1, keepdim=True)
    slope = (back - reconstruct(measure(x, kept), kept, length, 0.0)) / penalty
    assert float(slope.abs().max()) < 1 + 1e-3
    torch.testing.assert_close(slope[x != 0], x.sign()[x != 0], rtol=0, atol=1e-3)


def test_thresholding_removes_noise() -> None:
    """A noisy sparse vector is reconstructed with a smaller error with a threshold than without."""
    x, kept = sparse(10, 2000, "noisy"), random_kept(600, 2000)
    y = measure(x, kept) + 0.1 * normal(1, 600, name="noise")
    errors = [float(torch.dist(reconstruct(y, kept, 2000, t), x) / x.norm()) for t in (0.0, 0.2)]
    assert errors[1] < 0.6 * errors[0]


def test_the_threshold_is_tuned_on_public_data() -> None:
    """The best threshold is small but positive for a sparse update, and zero for one in their span."""
    codec = Sense(size=Size(ratio=0.3), chunks=2, lowest=0.0, lr=0.5, steps=3, batch_size=7)
    state = State(0, torch.zeros(2000, dtype=torch.float64))
    peaks = sparse(20, 2000, "public")[0]
    tuned = codec.tune(state, Public(peaks), AggregateNoise(), NOW)
    assert 0 < float(tuned.memory[THRESHOLD]) < 0.1
    coded = encode(codec, peaks[None])[0]
    errors = [torch.dist(codec.decode(coded, replace(state, memory=m), NOW)[0], peaks) for m in ({}, tuned.memory)]
    assert errors[1] <= errors[0]
    span, _ = TUNED.decode(normal(600), replace(state, memory={THRESHOLD: torch.tensor(0.0)}), NOW)
    assert calibrated(TUNED, span, AggregateNoise()) == 0.0


def error(codec: Sense, update: Tensor, deviation: float, threshold: float) -> float:
    """Of the best multiple of what is reconstructed in several rounds together; other noise than the calibration's."""
    state = State(0, torch.zeros_like(update), {THRESHOLD: torch.tensor(threshold)})
    total = torch.zeros_like(update)
    for number in range(ADDED):
        now = replace(NOW, shared=NOW.shared.child("other round", number))
        coded = encode(codec, update[None], now)[0]
        total += codec.decode(coded + deviation * normal(len(coded), name=f"other noise {number}"), state, now)[0]
    return angular_error(total, update)


def calibrated(codec: Sense, update: Tensor, noise: AggregateNoise) -> float:
    """The threshold that a codec chooses."""
    memory = codec.tune(State(0, torch.zeros_like(update)), Public(update), noise, NOW).memory
    return float(memory[THRESHOLD])


def smooth(length: int, width: int) -> Tensor:
    """A vector of few large low frequencies, and many small others, as updates have."""
    coefficients = torch.cat([3 * normal(width, name="low"), 0.03 * normal(length - width, name="high")])
    return torch.from_numpy(fft.idct(coefficients.numpy(), norm="ortho"))


UPDATES = {"sparse": sparse(20, 2000, "public")[0], "dense": normal(2000), "smooth": smooth(2000, 20)}


@pytest.mark.parametrize("lowest", LOWEST)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_what_is_chosen_under_noise_is_about_the_best_on_other_noise(lowest: float, update: Tensor) -> None:
    codec = replace(TUNED, lowest=lowest)
    deviation = float(encode(codec, update[None]).norm()) / math.sqrt(600)  # as much noise as signal
    threshold = calibrated(codec, update, AggregateNoise(deviation=deviation))
    errors = [error(codec, update, deviation, each) for each in codec.thresholds]
    assert error(codec, update, deviation, threshold) < min(errors) + 0.02


def test_a_threshold_that_is_right_without_noise_is_not_chosen_under_noise() -> None:
    """It was chosen without: for a sparse update in much noise, sparse vectors that fit it are worse than Aᵀy."""
    codec, update, deviation = replace(TUNED, lowest=0.0), UPDATES["sparse"], 1.0
    without, under = (calibrated(codec, update, AggregateNoise(deviation=each)) for each in (0.0, deviation))
    assert 0 < without != under
    assert error(codec, update, deviation, under) < error(codec, update, deviation, without)


def test_the_update_is_clipped_as_a_client_s_before_anything_is_chosen() -> None:
    """A bound of a tenth leaves a tenth of the signal: the same as ten times the noise without a bound."""
    codec, update = replace(TUNED, lowest=0.0), UPDATES["sparse"]
    norm = float(encode(codec, update[None]).norm())
    clipped = calibrated(codec, update, AggregateNoise(norm / 10, 0.1))
    assert calibrated(codec, update, AggregateNoise(2 * norm, 1.0)) == clipped
    assert calibrated(codec, update, AggregateNoise(2 * norm, 0.1)) != clipped


def test_without_public_data_the_given_threshold_is_used() -> None:
    state, coded = State(0, torch.zeros(500, dtype=torch.float64)), normal(50)
    codec = Sense(size=Size(ratio=0.1), chunks=5, threshold=0.2)
    assert codec.prepare(state, None, NOW) is state
    tuned = replace(state, memory={THRESHOLD: torch.tensor(0.2, dtype=torch.float64)})
    assert torch.equal(codec.decode(coded, state, NOW)[0], replace(codec, threshold=0.5).decode(coded, tuned, NOW)[0])
    other, _ = replace(codec, threshold=0.5).decode(coded, state, NOW)
    assert not torch.equal(codec.decode(coded, state, NOW)[0], other)


def test_public_training_that_diverges_is_refused() -> None:
    codec = Sense(size=Size(ratio=0.5), chunks=2, lr=0.5, steps=3, batch_size=7)
    with pytest.raises(TrainingError, match="diverged"):
        codec.tune(State(0, torch.zeros(10)), Public(torch.full((10,), torch.nan)), AggregateNoise(), NOW)


def test_the_whole_model_is_broadcast_and_the_state_does_not_change() -> None:
    state, codec = State(0, normal(10)), Sense(size=Size(ratio=0.5))
    sent = codec.broadcast(state, NOW)
    assert [part.name for part in sent.client_parts(first=True)] == ["WEIGHTS"]
    memory = ClientMemory(torch.zeros(10, dtype=torch.float64), ROOT)
    view, kept = codec.read(sent.parts, memory, NOW)
    assert torch.equal(view.weights, state.weights)
    assert kept is memory
    assert codec.decode(normal(5), state, NOW)[1] is state
    assert codec.coordinates == "other"


def test_a_large_model_is_decoded_within_seconds() -> None:
    """About 0.7 s for 40 iterations; only this test catches a transform that is far too slow for large models."""
    codec, total = Sense(size=Size(ratio=0.1), tolerance=0.0), normal(166_337, dtype=torch.float32)
    start = time.perf_counter()
    update, _ = codec.decode(total, State(0, torch.zeros(DIM)), NOW)
    assert time.perf_counter() - start < 10
    assert update.shape == (DIM,)
    assert update.dtype == torch.float32


@pytest.mark.parametrize(
    ("thresholds", "sentence"),
    [((), "Expected at least one of thresholds."), ((0.1, -0.1), r"Expected thresholds=-0.1 in \[0, 1\)\.")],
)
def test_every_threshold_is_in_its_limits(thresholds: tuple[float, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Sense(size=Size(ratio=0.1), thresholds=thresholds)


def test_a_ratio_too_small_for_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"Expected ratio=0.001 to be at least one of 100 weights\."):
        encode(Sense(size=Size(ratio=0.001)), normal(1, 100))
