"""Compressive sensing (FL-CS): say a few Fourier coefficients of the update, and look for the sparsest that fits them.

The flat vector is cut into chunks, every chunk goes through an orthonormal DCT-II, and some of its coefficients are
sent: y = Ax with A Aᵀ = I. That is linear and makes no row longer, so that sums, clip bounds and noise mean for
coefficients what they mean for weights. From the aggregate the server solves, chunk by chunk,

    min ½‖Ax − y‖² + λ‖x‖₁,    λ = threshold · max|Aᵀy|,

by FISTA with step 1. Under noise on y the ℓ1 term removes what is small; a threshold of 0 gives Aᵀy as it is.

Reference: Kerkouche, Ács, Castelluccia, Genevès. Compression Boosts Differentially Private Federated Learning.
EuroS&P 2021 (FL-CS), as summarised by the same authors' UAI 2021 paper; chunks, P, in its Appendix, Table 3. Beck,
Teboulle. A Fast Iterative Shrinkage-Thresholding Algorithm. SIAM J. Imaging Sciences 2(1), 2009. Hale, Yin, Zhang.
Fixed-Point Continuation for ℓ1-Minimization. SIAM J. Optimization 19(3), 2008.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from scipy import fft
from torch import Tensor

from tacit.core import DenseRows, Descent, Identity, Round, Rows, State, View, Wave
from tacit.errors import TrainingError, expect
from tacit.pieces.codecs.size import Size

THRESHOLD = "codec/threshold"


@dataclass(frozen=True, kw_only=True)
class Sense:
    """Send some DCT coefficients of every chunk; the whole model comes down.

    Args:
        size: how many, over all chunks together.
        chunks: how many chunks (P), or as many as numbers are sent if these are fewer: a chunk sends one at least. The
            first ones send one more, if the numbers do not come out even.
        lowest: which coefficients: of those that a chunk sends, this share are its lowest ones, and one at least. The
            others are drawn from the shared key in every round anew, the same for all clients and chunks. Low ones say
            what neighbouring weights have in common; with nothing but these, all others are never heard.
        threshold: λ over max|Aᵀy| of a chunk, where no public data tell a better one.
        thresholds: those that are tried on public data; see `prepare`.
        iterations: of FISTA, at most.
        tolerance: relative change of the solution at which FISTA stops.
        lr: learning rate of the descent on public data.
        steps: its steps.
        batch_size: its samples per step; None: all public data.

    Formal guarantees: a row's coefficients are no longer than the row (L2), and so a bound on rows of coefficients
    is a bound on what a client can do to the sum. Reconstruction works on what the mechanism released, and the
    threshold comes from public data: neither costs privacy. Whoever is in the public data is not protected.
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
    selects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        expect(self.chunks >= 1, f"chunks={self.chunks} >= 1")
        expect(0 <= self.lowest <= 1, f"lowest={self.lowest} in [0, 1]")
        expect(0 <= self.threshold < 1, f"threshold={self.threshold} in [0, 1)")
        expect(len(self.thresholds) >= 1, "at least one of thresholds")
        expect(all(0 <= t < 1 for t in self.thresholds), f"thresholds={self.thresholds} in [0, 1)")
        expect(self.iterations >= 1, f"iterations={self.iterations} >= 1")
        expect(self.tolerance >= 0, f"tolerance={self.tolerance} >= 0")
        expect(self.lr > 0, f"lr={self.lr} > 0")
        expect(self.steps >= 1, f"steps={self.steps} >= 1")
        expect(self.batch_size is None or self.batch_size >= 1, f"batch_size={self.batch_size} >= 1")

    @property
    def fixed(self) -> bool:
        """If no coefficient is drawn."""
        return self.lowest == 1

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The threshold that reconstructs best what a client with the public data would have learnt."""
        if public is None:
            return state
        update, frame = self._rehearsed(state.weights, public, now), self._frame(state.dim)
        kept = self._kept(frame, now)
        coded = frame.encode(update, kept)

        def error(threshold: float) -> float:
            return float(torch.dist(self._decode(coded, frame, kept, threshold), update))

        best = torch.tensor(min(self.thresholds, key=error), dtype=torch.float64)
        return replace(state, memory=state.remember(THRESHOLD, best))

    def view(self, state: State, now: Round) -> View:
        """All weights."""
        return Identity().view(state, now)

    def encode(self, rows: Rows, view: View, now: Round) -> DenseRows:
        """Every row's coefficients, one row after the other, so that only one is ever held in chunks."""
        frame, values = self._frame(rows.dim), rows.dense()
        kept = self._kept(frame, now)
        coded = [frame.encode(row, kept) for row in values]
        return DenseRows(torch.stack(coded) if coded else values.new_empty(0, frame.count))

    def decode(self, total: Tensor, state: State, now: Round) -> Tensor:
        """The sparse vector that these are the coefficients of, more or less."""
        threshold, frame = float(state.memory.get(THRESHOLD, self.threshold)), self._frame(state.dim)
        return self._decode(total, frame, self._kept(frame, now), threshold)

    def remember(self, state: State, total: Tensor, now: Round) -> State:
        """Nothing."""
        return state

    def _frame(self, dim: int) -> "_Frame":
        count = self.size.of(dim)
        return _Frame(dim, min(self.chunks, count), count)

    def _kept(self, frame: "_Frame", now: Round) -> Tensor:
        """Which coefficients of a chunk; the last one is kept by the first `extra` chunks only, if there are any."""
        low = max(1, int(self.lowest * frame.most))
        if low == frame.most:
            return torch.arange(low)
        drawn = torch.randperm(frame.length - low, generator=now.shared.child("coefficients").torch())
        return torch.cat([torch.arange(low), low + drawn])[: frame.most]

    def _decode(self, total: Tensor, frame: "_Frame", kept: Tensor, threshold: float) -> Tensor:
        solved = [
            reconstruct(y, kept[: y.shape[1]], frame.length, threshold, self.iterations, self.tolerance)
            for y in frame.split(total)
        ]
        return torch.cat(solved).flatten()[: frame.dim]

    def _rehearsed(self, weights: Tensor, public: Wave, now: Round) -> Tensor:
        how = Descent(self.lr, self.steps, None, self.batch_size, 0.0, 0.0, now.shared.child("sensing"))
        update = public.descend(weights, how).sum()
        if not bool(torch.isfinite(update).all()):
            raise TrainingError("Training on the public data diverged, so no threshold can be tuned on it. Lower lr.")
        return update


@dataclass(frozen=True)
class _Frame:
    """How `dim` numbers are cut into chunks, and how many coefficients of each make `count` numbers."""

    dim: int
    chunks: int
    count: int

    @property
    def length(self) -> int:
        """Of a chunk; a little more than needed, where the DCT is several times as fast for it."""
        return int(fft.next_fast_len(-(-self.dim // self.chunks)))

    @property
    def least(self) -> int:
        """How many coefficients every chunk keeps."""
        return self.count // self.chunks

    @property
    def extra(self) -> int:
        """How many chunks keep one more."""
        return self.count % self.chunks

    @property
    def most(self) -> int:
        """How many coefficients the first chunk keeps."""
        return self.least + (self.extra > 0)

    def encode(self, row: Tensor, kept: Tensor) -> Tensor:
        """The kept coefficients of a row's chunks, as a message."""
        return self.join(measure(self.cut(row), kept))

    def cut(self, row: Tensor) -> Tensor:
        """(chunks, length), zeros at the end."""
        padded = row.new_zeros(self.chunks * self.length)
        padded[: self.dim] = row
        return padded.view(self.chunks, self.length)

    def join(self, coefficients: Tensor) -> Tensor:
        """(chunks, most) as a message: what all chunks keep, then what only the first ones do."""
        return torch.cat([coefficients[:, : self.least].flatten(), coefficients[: self.extra, self.least :].flatten()])

    def split(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients of the chunks that keep one more, and of the others."""
        shared = message[: self.chunks * self.least].view(self.chunks, self.least)
        last = message[self.chunks * self.least :].unsqueeze(1)
        return torch.cat([shared[: self.extra], last], dim=1), shared[self.extra :]


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
    """Sparse chunks with about these coefficients: min ½‖Ax − y‖² + λ‖x‖₁ with λ = threshold · max|Aᵀy|, by FISTA.

    A Aᵀ = I, so that a gradient step of size 1 puts y in the place of the kept coefficients. λ falls from max|Aᵀy| to
    its value over the first half of the iterations (continuation), since small ones converge slowly from afar.

    Args:
        y: coefficients, (chunks, kept). Every chunk is a problem of its own, with its own λ.
        kept: which ones they are, distinct.
        length: of a chunk.
        threshold: in [0, 1). With 0 the result is Aᵀy, the shortest vector with exactly these coefficients.
        iterations: at most.
        tolerance: relative change, over all chunks, at which to stop; looked at in the second half only.

    Returns:
        The chunks, (chunks, length).
    """
    x = z = y.new_zeros(len(y), length)
    if y.numel() == 0:
        return x
    fit = _fitter(y, kept, length)
    back = fit(x)
    if threshold == 0:
        return back
    top, momentum, half = back.abs().amax(1, keepdim=True), 1.0, iterations / 2
    for i in range(iterations):
        step = fit(z)
        weight = top * threshold ** min(1.0, (i + 1) / half)
        new = step - step.clamp(-weight, weight)
        moved, x = new - x, new
        if i >= half and moved.norm() <= tolerance * new.norm():
            break
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        z = torch.add(new, moved, alpha=(momentum - 1) / following)
        momentum = following
    return x


def _fitter(y: Tensor, kept: Tensor, length: int) -> Callable[[Tensor], Tensor]:
    """One gradient step of size 1: z ↦ z − Aᵀ(Az − y)."""
    if _few(kept, length):
        matrix = _matrix(tuple(kept.tolist()), length, y.dtype).to(y.device)
        return lambda z: torch.addmm(z, y - z @ matrix, matrix.T)

    def fit(z: Tensor) -> Tensor:
        coefficients = _dct(z)
        coefficients[:, kept] = y
        return _idct(coefficients)

    return fit


def _few(kept: Tensor, length: int) -> bool:
    """Whether a product with some columns is cheaper than a whole transform, of about 4 log₂ n multiply-adds a number.

    A matrix product does its multiply-adds much faster than a transform, which the factor stands for: for chunks of
    8400 numbers, 42 columns take 0.6 of the transform's time, and 100 all of it.
    """
    return len(kept) <= 4 * math.log2(length + 1)


@lru_cache(maxsize=4)
def _matrix(kept: tuple[int, ...], length: int, dtype: torch.dtype) -> Tensor:
    """The kept columns of the transform, Aᵀ; remembered, because every row of a round asks for the same."""
    places = torch.arange(length, dtype=torch.float64) + 0.5
    numbers = torch.tensor(kept, dtype=torch.float64)
    columns = torch.cos(torch.outer(places, numbers) * (math.pi / length)) * math.sqrt(2 / length)
    columns[:, numbers == 0] = math.sqrt(1 / length)
    return columns.to(dtype)


def _dct(x: Tensor) -> Tensor:
    return torch.from_numpy(fft.dct(x.cpu().numpy(), norm="ortho")).to(x.device)


def _idct(x: Tensor) -> Tensor:
    return torch.from_numpy(fft.idct(x.cpu().numpy(), norm="ortho", overwrite_x=True)).to(x.device)
