"""Compressive sensing (FL-CS): send a few DCT coefficients of the update, and reconstruct a sparse update from them.

The flat vector is split into chunks, each chunk is transformed by an orthonormal DCT-II, and some of its coefficients
are sent: y = Ax with A Aᵀ = I. The map is linear and increases no norm, so sums, clipping bounds and noise apply to
coefficients as they do to weights. From the aggregate the server solves, chunk by chunk,

    min ½‖Ax − y‖² + λ‖x‖₁,    λ = threshold · max|Aᵀy|,

by FISTA with step 1. With a threshold of 0 the result is Aᵀy.

The threshold is chosen on public data, under the noise that the mechanism declares (`calibrate`), and for the sum of
several rounds: the noise of many rounds cancels, and what a threshold removes in each of them does not come back.
Removing small coefficients as noise (soft thresholding of y) was tried, too: one update is then reconstructed better,
but the model after many rounds is worse (experiments/fl-top/README.md).

Reference: Kerkouche, Ács, Castelluccia, Genevès. Compression Boosts Differentially Private Federated Learning.
EuroS&P 2021 (FL-CS), as summarised by the same authors' UAI 2021 paper; chunks, P, in its Appendix, Table 3. Beck,
Teboulle. A Fast Iterative Shrinkage-Thresholding Algorithm. SIAM J. Imaging Sciences 2(1), 2009. Hale, Yin, Zhang.
Fixed-Point Continuation for ℓ1-Minimization. SIAM J. Optimization 19(3), 2008.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import ClientKeys, DenseRows, Descent, Round, Rows, State, View, Wave
from tacit.core.interfaces import Codec
from tacit.core.prices import AggregateNoise
from tacit.errors import TrainingError, at_least, expect, positive, whole, within
from tacit.pieces.codecs.select import Size
from tacit.wire.frames import Part

THRESHOLD = "codec/threshold"
ADDED = 3  # rounds whose sum is compared


@dataclass(frozen=True, kw_only=True)
class Sense(Codec):
    """Send some DCT coefficients of every chunk; the server sends the whole model.

    Args:
        size: how many coefficients, over all chunks together.
        chunks: number of chunks (P), but never more than coefficients, so that every chunk sends at least one. If the
            coefficients do not divide evenly, the first chunks send one more.
        lowest: of the coefficients that a chunk sends, the share with the lowest frequencies, at least one. The others
            are redrawn from the shared key in every round, the same for all clients and chunks. Low frequencies carry
            what neighbouring weights have in common; with these alone, all other frequencies are never sent.
        threshold: λ over max|Aᵀy| of a chunk, if there are no public data to tune it on, or the mechanism does not
            declare its noise.
        thresholds: the candidates to tune on public data; see `calibrate`.
        iterations: FISTA iterations, at most.
        tolerance: relative change of the solution at which FISTA stops.
        lr: learning rate of the training on public data.
        steps: its gradient steps.
        batch_size: its samples per step; None: all public data.

    Formal guarantees: a row's coefficients have no larger L2 norm than the row, so a bound on rows of coefficients
    bounds what a client contributes to the sum. Reconstruction is post-processing, and the threshold is tuned on public
    data and the declared noise: neither costs privacy. The people in the public data are not protected. Bounded for
    clients only: coefficients are linear in the row, but rounded in proportion to all of it.
    """

    size: Size
    chunks: int = 200
    lowest: float = 0.5
    threshold: float = 0.01
    thresholds: tuple[float, ...] = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    iterations: int = 40
    tolerance: float = 1e-3
    lr: float = 0.215
    steps: int = 5
    batch_size: int | None = 10
    reads: ClassVar[tuple[Part, ...]] = (Part.WEIGHTS,)

    def __post_init__(self) -> None:
        whole(1, chunks=self.chunks)
        within("[0, 1]", lowest=self.lowest)
        within("[0, 1)", threshold=self.threshold)
        expect(len(self.thresholds) >= 1, "at least one of thresholds")
        for each in self.thresholds:
            within("[0, 1)", thresholds=each)
        whole(1, iterations=self.iterations)
        at_least(0, tolerance=self.tolerance)
        positive(lr=self.lr)
        whole(1, steps=self.steps, batch_size=self.batch_size)

    @property
    def fixed(self) -> bool:
        """Whether all coefficients are the lowest, so that none is drawn."""
        return self.lowest == 1

    def tune(self, state: State, public: Wave, noise: AggregateNoise, now: Round) -> State:
        """The threshold with the smallest error for the update of a client with the public data.

        The update is clipped as a client's, and its coefficients get noise as those of an aggregate, in each of several
        rounds, and the reconstructions are summed. The error is that of the best multiple of their sum, because the
        server's rate scales it in any case: otherwise, under much noise, zero would be best.
        """
        update = self._public_update(state.weights, public, now)
        rounds = self._rounds(update, noise, now)
        best = min(self.thresholds, key=lambda each: angular_error(self._add(rounds, len(update), each), update))
        return replace(state, memory={**state.memory, THRESHOLD: torch.tensor(best, dtype=torch.float64)})

    def encode(self, rows: Rows, view: View, now: Round) -> DenseRows:
        """Every row's coefficients; row by row, so that only one copy in chunks is in memory."""
        frame, values = self._frame(rows.dim), rows.dense()
        kept = self._keep(frame, now)
        coded = [frame.encode(row, kept) for row in values]
        return DenseRows(torch.stack(coded) if coded else values.new_empty(0, frame.count))

    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        """The sparse vector that approximately has these coefficients."""
        threshold, frame = float(state.memory.get(THRESHOLD, self.threshold)), self._frame(state.dim)
        return self._decode(total, frame, self._keep(frame, now), threshold), state

    def _frame(self, dim: int) -> "_Frame":
        count = self.size.count(dim)
        return _Frame(dim, min(self.chunks, count), count)

    def _keep(self, frame: "_Frame", now: Round) -> Tensor:
        """Indices of a chunk's coefficients that are sent; the last one only by the first `extra` chunks, if any."""
        low = max(1, int(self.lowest * frame.most))
        if low == frame.most:
            return torch.arange(low)
        drawn = torch.randperm(frame.length - low, generator=now.shared.child("coefficients").public_generator())
        return torch.cat([torch.arange(low), low + drawn])[: frame.most]

    def _rounds(self, update: Tensor, noise: AggregateNoise, now: Round) -> list[tuple[Tensor, Tensor]]:
        """Noisy coefficients of the clipped update, and their indices, in several rounds; without noise, in one.

        This noise may be public: it protects nobody.
        """
        frame, rounds = self._frame(len(update)), []
        generator = now.shared.child("calibration noise").public_generator()
        for number in range(ADDED if noise.deviation else 1):
            key = now.shared.child("calibration", number) if number else now.shared
            kept = self._keep(frame, replace(now, shared=key))
            coded = frame.encode(update, kept)
            clipped = min(1.0, noise.bound / max(float(coded.norm()), torch.finfo(coded.dtype).tiny))
            drawn = torch.randn(len(coded), generator=generator, dtype=coded.dtype).to(coded.device)
            rounds.append((coded * clipped + noise.deviation * drawn, kept))
        return rounds

    def _add(self, rounds: Sequence[tuple[Tensor, Tensor]], dim: int, threshold: float) -> Tensor:
        """The sum of the reconstructions from the coefficients of several rounds."""
        frame = self._frame(dim)
        return torch.stack([self._decode(y, frame, kept, threshold) for y, kept in rounds]).sum(0)

    def _decode(self, total: Tensor, frame: "_Frame", kept: Tensor, threshold: float) -> Tensor:
        solved = [
            reconstruct(y, kept[: y.shape[1]], frame.length, threshold, self.iterations, self.tolerance)
            for y in frame.split(total)
        ]
        return torch.cat(solved).flatten()[: frame.dim]

    def _public_update(self, weights: Tensor, public: Wave, now: Round) -> Tensor:
        descent = Descent(self.lr, self.steps, None, self.batch_size, 0.0, 0.0, ClientKeys(now.shared.child("sensing")))
        update = public.descend(weights, descent).sum()
        if not bool(torch.isfinite(update).all()):
            raise TrainingError("Training on the public data diverged, so no threshold can be tuned on it. Lower lr.")
        return update


def angular_error(estimate: Tensor, wanted: Tensor) -> float:
    """The squared error of the best multiple of `estimate`, relative to ‖wanted‖²: 1 − cos² of their angle.

    Example:
        >>> wanted = torch.tensor([3.0, 4.0])
        >>> angular_error(2 * wanted, wanted), angular_error(torch.zeros(2), wanted)
        (0.0, 1.0)
    """
    lengths = float(estimate.double().square().sum() * wanted.double().square().sum())
    return 1 - max(float(estimate.double() @ wanted.double()), 0.0) ** 2 / lengths if lengths else 1.0


@dataclass(frozen=True)
class _Frame:
    """How `dim` numbers are split into chunks, and how many coefficients each chunk sends, `count` in total."""

    dim: int
    chunks: int
    count: int

    @property
    def length(self) -> int:
        """Length of a chunk, padded to a size for which the DCT is several times faster."""
        return int(_fft().next_fast_len(-(-self.dim // self.chunks)))

    @property
    def least(self) -> int:
        """How many coefficients every chunk sends."""
        return self.count // self.chunks

    @property
    def extra(self) -> int:
        """How many chunks send one more."""
        return self.count % self.chunks

    @property
    def most(self) -> int:
        """How many coefficients the first chunk sends."""
        return self.least + (self.extra > 0)

    def encode(self, row: Tensor, kept: Tensor) -> Tensor:
        """The coefficients of a row's chunks that are sent, as one vector."""
        return self.join(measure(self._split_chunks(row), kept))

    def _split_chunks(self, row: Tensor) -> Tensor:
        """(chunks, length), padded with zeros."""
        padded = row.new_zeros(self.chunks * self.length)
        padded[: self.dim] = row
        return padded.view(self.chunks, self.length)

    def join(self, coefficients: Tensor) -> Tensor:
        """(chunks, most) as one vector: first what all chunks send, then what only the first ones send."""
        return torch.cat([coefficients[:, : self.least].flatten(), coefficients[: self.extra, self.least :].flatten()])

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients of the chunks that send one more, and of the others."""
        common = vector[: self.chunks * self.least].view(self.chunks, self.least)
        last = vector[self.chunks * self.least :].unsqueeze(1)
        return torch.cat([common[: self.extra], last], dim=1), common[self.extra :]


def measure(x: Tensor, kept: Tensor) -> Tensor:
    """The kept coefficients of the orthonormal DCT-II of every chunk, (chunks, length) to (chunks, kept).

    Example:
        >>> measure(torch.ones(1, 4), torch.tensor([0, 2])).tolist()
        [[2.0, 0.0]]
    """
    if _few(kept, x.shape[1]):
        return x @ _matrix(tuple(kept.tolist()), x.shape[1], x.dtype).to(x.device)
    return _dct(x)[:, kept]


def reconstruct(
    y: Tensor, kept: Tensor, length: int, threshold: float, iterations: int = 40, tolerance: float = 1e-3
) -> Tensor:
    """Sparse chunks with approximately these coefficients, by FISTA.

    Solves min ½‖Ax − y‖² + λ‖x‖₁ with λ = threshold · max|Aᵀy|. As A Aᵀ = I, a gradient step of size 1 replaces the
    kept coefficients by y. λ decreases from max|Aᵀy| to its value over the first half of the iterations (continuation),
    because a small λ converges slowly from a distant start.

    Args:
        y: coefficients, (chunks, kept). Every chunk is a separate problem with its own λ.
        kept: their indices, distinct.
        length: length of a chunk.
        threshold: in [0, 1). With 0 the result is Aᵀy, the shortest vector with exactly these coefficients.
        iterations: number of iterations, at most.
        tolerance: relative change, over all chunks, at which to stop; checked in the second half only.

    Returns:
        The chunks, (chunks, length).
    """
    x = z = y.new_zeros(len(y), length)
    if y.numel() == 0:
        return x
    gradient_step = _gradient_step(y, kept, length)
    back = gradient_step(x)
    if threshold == 0:
        return back
    peak, momentum, half = back.abs().amax(1, keepdim=True), 1.0, iterations / 2
    for i in range(iterations):
        step = gradient_step(z)
        penalty = peak * threshold ** min(1.0, (i + 1) / half)
        new = step - step.clamp(-penalty, penalty)
        change, x = new - x, new
        if i >= half and change.norm() <= tolerance * new.norm():
            break
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        z = torch.add(new, change, alpha=(momentum - 1) / next_momentum)
        momentum = next_momentum
    return x


def _gradient_step(y: Tensor, kept: Tensor, length: int) -> Callable[[Tensor], Tensor]:
    """One gradient step of size 1: z ↦ z − Aᵀ(Az − y)."""
    if _few(kept, length):
        matrix = _matrix(tuple(kept.tolist()), length, y.dtype).to(y.device)
        return lambda z: torch.addmm(z, y - z @ matrix, matrix.T)

    def replace_kept(z: Tensor) -> Tensor:
        coefficients = _dct(z)
        coefficients[:, kept] = y
        return _idct(coefficients)

    return replace_kept


def _few(kept: Tensor, length: int) -> bool:
    """Whether a product with the kept columns is faster than the whole transform.

    A transform takes about log₂ n multiply-adds per number; the factor 4 reflects that a matrix product is faster per
    multiply-add. For chunks of 8400 numbers, 42 columns take 0.6 of the transform's time, and 100 columns all of it.
    """
    return len(kept) <= 4 * math.log2(length + 1)


@lru_cache(maxsize=4)
def _matrix(kept: tuple[int, ...], length: int, dtype: torch.dtype) -> Tensor:
    """The kept columns of the transform, Aᵀ; cached, because all rows of a round need the same."""
    positions = torch.arange(length, dtype=torch.float64) + 0.5
    frequencies = torch.tensor(kept, dtype=torch.float64)
    columns = torch.cos(torch.outer(positions, frequencies) * (math.pi / length)) * math.sqrt(2 / length)
    columns[:, frequencies == 0] = math.sqrt(1 / length)
    return columns.to(dtype)


def _fft() -> ModuleType:
    """SciPy's transforms; importing them takes a third of a second, which other methods need not spend."""
    from scipy import fft

    return fft


def _dct(x: Tensor) -> Tensor:
    return torch.from_numpy(_fft().dct(x.cpu().numpy(), norm="ortho")).to(x.device)


def _idct(x: Tensor) -> Tensor:
    return torch.from_numpy(_fft().idct(x.cpu().numpy(), norm="ortho", overwrite_x=True)).to(x.device)
