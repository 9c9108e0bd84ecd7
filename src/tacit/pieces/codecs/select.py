"""Say only some coordinates: which ones is a record of its own.

| selection | coordinates | who learns them how |
|---|---|---|
| `TopK` | those with the largest gradients on public data, the same in all rounds | told once to every client |
| `Vote` | those that most clients of the first round find important, the same from then on | told once |
| `FixedRandom` | random, the same in all rounds | drawn from the shared key |
| `RandomK` | random, others in every round | drawn from the shared key |

With the trainer `Masked`, the model never moves at other coordinates than these: where they are the same in all
rounds, all others stay at their first values, which every client has from the task, and need not be sent either.

Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
Low-bandwidth Devices. UAI 2021, Sections 3 and 4, Appendix D.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tacit.core import DenseRows, Descent, Key, Round, Rows, State, View, Wave
from tacit.errors import TrainingError, UserError, expect
from tacit.pieces.codecs.size import Size
from tacit.wire import indices
from tacit.wire.frames import Part

MASK = "codec/mask"


class Selection(Protocol):
    """Which coordinates are said."""

    @property
    def size(self) -> Size:
        """How many."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether they are the same in all rounds, so that no others are ever sent."""
        ...

    @property
    def told(self) -> bool:
        """Whether clients must be told them."""
        ...

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The state before the first round, with the coordinates if they are known by then."""
        ...

    def mask(self, state: State, now: Round) -> Tensor | None:
        """The coordinates of this round, ascending; None: they are yet to be voted for."""
        ...


@dataclass(frozen=True)
class Select:
    """Send the values at some coordinates, up, and where those are fixed, down as well.

    Args:
        which: `TopK`, `Vote`, `FixedRandom` or `RandomK`.
    """

    which: Selection
    selects: ClassVar[bool] = True

    @property
    def fixed(self) -> bool:
        """As the selection is."""
        return self.which.fixed

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """As the selection does."""
        return self.which.prepare(state, public, now)

    def view(self, state: State, now: Round) -> View:
        """The weights at fixed coordinates, or all; before a vote nothing, since everybody has the first weights."""
        mask = self.which.mask(state, now)
        if mask is None:
            return View(state.weights, {})
        if not self.fixed:
            return View(state.weights, {Part.WEIGHTS: state.weights}, mask=mask)
        values = {Part.VALUES: state.weights[mask]}
        once = {Part.MASK: _packed(mask, state.dim)} if self.which.told else {}
        return View(state.weights, values, once, mask)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The values at the coordinates; before they are known, every client's votes for them."""
        if view.mask is not None:
            return rows.select(view.mask)
        count = self.which.size.of(rows.dim)
        return DenseRows(torch.stack([_ballot(row, count) for row in rows.dense()]) if rows.count else rows.dense())

    def decode(self, total: Tensor, state: State, now: Round) -> Tensor:
        """The values at their places. All others are −0, which changes nothing that it is added to, not even 0."""
        spread = torch.full_like(state.weights, -0.0)
        mask = self.which.mask(state, now)
        return spread if mask is None else spread.index_copy_(0, mask, total)

    def remember(self, state: State, total: Tensor, now: Round) -> State:
        """The coordinates with the most votes, after the round in which they were voted for."""
        if self.which.mask(state, now) is not None:
            return state
        return _with_mask(state, largest(total, self.which.size.of(state.dim)))


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The coordinates whose gradients on public data are largest, added up over a few steps (Algorithm 1, line 3).

    The model steps along with the gradients, from its first weights; of equal ones the lower coordinate is taken.

    Args:
        size: how many, over all layers and biases together.
        lr: learning rate of the steps.
        steps: how many (T_init).
        batch_size: samples per step; None: all public data.

    Formal guarantees: nothing of the clients' data is used, so the choice costs no privacy. Whoever is in the public
    data is not protected.
    """

    size: Size
    lr: float
    steps: int = 5
    batch_size: int | None = None
    fixed: ClassVar[bool] = True
    told: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect(self.lr > 0, f"lr={self.lr} > 0")
        expect(self.steps >= 1, f"steps={self.steps} >= 1")

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The coordinates, from the public data."""
        if public is None:
            raise UserError(
                "TopK chooses coordinates by gradients on public data, but the task has none. Give the task some "
                "(public), let clients vote for coordinates (Vote; select=vote), or take random ones (FixedRandom)."
            )
        return _with_mask(state, largest(self._scores(state.weights, public, now), self.size.of(state.dim)))

    def mask(self, state: State, now: Round) -> Tensor:
        """Those found at the start."""
        return state.memory[MASK]

    def _scores(self, weights: Tensor, public: Wave, now: Round) -> Tensor:
        """Σ |gradient|, times the learning rate."""
        scores = torch.zeros_like(weights)
        for step in range(self.steps):
            key = now.shared.child("top-k", step)
            moved = public.descend(weights, Descent(self.lr, 1, None, self.batch_size, 0.0, 0.0, key)).sum()
            scores += moved.abs()
            weights = weights + moved
        if not bool(torch.isfinite(scores).all()):
            raise TrainingError("Training on the public data diverged, so no coordinates can be chosen. Lower lr.")
        return scores


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The coordinates that the first round's clients vote for: each for those where its own update is largest.

    A vote is a row like any other: the mechanism bounds and blurs it, and prices the round as it prices all others.
    It is as long as the model, and only its order counts.

    Args:
        size: how many.

    Formal guarantees: those of the mechanism; the vote is one of its rounds.
    """

    size: Size
    fixed: ClassVar[bool] = True
    told: ClassVar[bool] = True

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """Nothing: the first round is for that."""
        return state

    def mask(self, state: State, now: Round) -> Tensor | None:
        """Those that were elected."""
        return state.memory.get(MASK)


@dataclass(frozen=True, kw_only=True)
class FixedRandom:
    """Random coordinates, drawn once from the shared key."""

    size: Size
    fixed: ClassVar[bool] = True
    told: ClassVar[bool] = False

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The coordinates, from the shared key."""
        return _with_mask(state, _random(now.shared.child("mask"), state.dim, self.size.of(state.dim)))

    def mask(self, state: State, now: Round) -> Tensor:
        """Those drawn at the start."""
        return state.memory[MASK]


@dataclass(frozen=True, kw_only=True)
class RandomK:
    """Random coordinates, drawn from the shared key in every round anew."""

    size: Size
    fixed: ClassVar[bool] = False
    told: ClassVar[bool] = False

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """Nothing."""
        return state

    def mask(self, state: State, now: Round) -> Tensor:
        """This round's."""
        return _random(now.shared.child("mask"), state.dim, self.size.of(state.dim))


def largest(scores: Tensor, count: int) -> Tensor:
    """The coordinates of the largest scores, ascending; of equal ones the lower coordinate goes first.

    Example:
        >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3).tolist()
        [1, 2, 3]
    """
    return torch.sort(scores, descending=True, stable=True).indices[:count].sort().values


def _ballot(row: Tensor, count: int) -> Tensor:
    """1 where the row is largest, 0 elsewhere."""
    return torch.zeros_like(row).index_fill_(0, largest(row.abs(), count), 1.0)


def _with_mask(state: State, mask: Tensor) -> State:
    return replace(state, memory=state.remember(MASK, mask))


@lru_cache(maxsize=2)
def _random(key: Key, dim: int, count: int) -> Tensor:
    """Kept, because every wave of a round asks for the same one."""
    return torch.randperm(dim, generator=key.torch())[:count].sort().values


@lru_cache(maxsize=2)
def _packed(mask: Tensor, dim: int) -> Tensor:
    """The mask's bytes; kept, because every wave of a round asks for the same (tensors are told apart by identity)."""
    return indices.pack(mask, dim)
