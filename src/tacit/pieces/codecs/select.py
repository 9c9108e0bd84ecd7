"""Sparse updates: send only the values at selected coordinates (a mask).

| selection | coordinates | how clients learn the mask |
|---|---|---|
| `TopK` | those with the largest gradients on public data, fixed | sent once to every client |
| `Vote` | those that most clients of the first round vote for, fixed from then on | sent once to every client |
| `FixedRandom` | random, fixed | derived from the shared key |
| `RandomK` | random, redrawn every round | derived from the shared key |

A vote is for methods that protect clients: one record may change a whole ballot.

With the trainer `Masked`, weights outside the mask never change. If the mask is fixed, they keep their initial values,
which every client derives from the task, so they are not sent in either direction.

Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
Low-bandwidth Devices. UAI 2021, Sections 3 and 4, Appendix D.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tacit.core.interfaces import Bounded, Codec, Coordinates
from tacit.core.keys import ClientKeys, Key
from tacit.core.prices import Unit
from tacit.core.provenance import is_bounded_for
from tacit.core.rows import DenseRows, Rows
from tacit.core.schema import instead_of
from tacit.core.state import MASK, Broadcast, ClientMemory, Round, State, View
from tacit.core.wave import Descent, Wave
from tacit.errors import PublicDataError, TrainingError, WireError, expect, positive, whole, within
from tacit.wire import indices
from tacit.wire.frames import Part, Parts


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many numbers a client sends: a ratio of the model's size, rounded down, or an absolute number.

    Example:
        >>> Size(ratio=0.005).count(1_663_370), Size(number=12).count(100)
        (8316, 12)
    """

    ratio: float | None = instead_of("number")
    number: int | None = instead_of("ratio")

    def __post_init__(self) -> None:
        expect((self.ratio is None) != (self.number is None), "either ratio or number, and not both")
        within("(0, 1]", ratio=self.ratio)
        whole(1, number=self.number)

    def count(self, dim: int) -> int:
        """The number for a model of `dim` weights."""
        if self.number is not None:
            expect(self.number <= dim, f"number={self.number} <= {dim}, the number of the model's weights")
            return self.number
        assert self.ratio is not None
        count = int(self.ratio * dim + 1e-9)  # 0.29 · 100 is 28.999999999999996
        expect(count >= 1, f"ratio={self.ratio} to be at least one of {dim} weights", f"Use a ratio >= {1 / dim:.2g}.")
        return count


class Selection(Bounded, Protocol):
    """Which coordinates are sent. One that depends on public values alone declares so in `bounded_for`."""

    size: Size  # how many coordinates

    @property
    def fixed(self) -> bool:
        """Whether the mask is the same in all rounds, so that no other weight is ever sent."""
        return True

    @property
    def sends_mask(self) -> bool:
        """Whether the server must send the mask, because clients cannot derive it from the shared key."""
        return True

    @property
    def votes(self) -> bool:
        """Whether clients vote on the mask in the first round."""
        return False

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        """The state before the first round, with the mask if it is fixed by then."""
        return state

    def mask(self, known: Tensor | None, dim: int, now: Round) -> Tensor | None:
        """The coordinates of this round, ascending; None where it is not known and cannot be derived.

        Args:
            known: the fixed mask, if server or client have one.
            dim: the number of the model's weights.
            now: the round.
        """
        return known


@dataclass(frozen=True)
class Select(Codec):
    """Send the values at the selected coordinates: upwards, and downwards too if the mask is fixed.

    Args:
        selection: `TopK`, `Vote`, `FixedRandom` or `RandomK`.
    """

    selection: Selection
    coordinates: ClassVar[Coordinates] = "mask"

    @property
    def fixed(self) -> bool:
        return self.selection.fixed

    @property
    def bounded_for(self) -> tuple[Unit, ...]:
        """Those of the selection: the values at coordinates that are public are a linear map of the update."""
        return tuple(unit for unit in Unit if is_bounded_for(self.selection, unit))

    @property
    def reads(self) -> tuple[Part, ...]:
        if not self.fixed:
            return (Part.WEIGHTS,)
        return (Part.VALUES, Part.MASK) if self.selection.sends_mask else (Part.VALUES,)

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        return self.selection.prepare(state, public, now)

    def broadcast(self, state: State, now: Round) -> Broadcast:
        """The weights under a fixed mask, otherwise all; for a vote none, since clients have the initial weights."""
        if not self.fixed:
            return Broadcast({Part.WEIGHTS: state.weights})
        if self._votes(now):
            return Broadcast({})
        mask = self._mask(state, now)
        first_parts = {Part.MASK: _pack(mask, state.dim)} if self.selection.sends_mask else {}
        return Broadcast({Part.VALUES: state.weights[mask]}, first_parts)

    def read(self, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
        """The model of this round; under a fixed mask, the initial weights with the received ones in their places."""
        if not self.fixed:
            mask = self.selection.mask(None, memory.weights.numel(), now)
            return View(memory.read_weights(parts), parts, mask), memory
        if self._votes(now):
            return self._read_before_vote(parts, memory)
        mask = self._received_mask(parts, memory)
        values = parts.get(Part.VALUES)
        if values is None or values.shape != mask.shape or values.dtype != memory.weights.dtype:
            raise WireError(f"Expected the weights at the {len(mask)} coordinates of the mask, got other numbers.")
        return View(memory.weights.index_copy(0, mask, values), parts, mask), replace(memory, mask=mask)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        """The values under the mask; in the round of a vote, every client's ballot, and in no other."""
        if view.mask is not None:
            return rows.select(view.mask)
        if not self._votes(now):
            raise WireError("Expected a mask: without it, clients would send another row than the method says.")
        values, count = rows.dense(), self.selection.size.count(rows.dim)
        ballots = torch.zeros_like(values)
        for ballot, row in zip(ballots, values, strict=True):
            ballot[largest(row.abs(), count)] = 1.0
        return DenseRows(ballots)

    def decode(self, total: Tensor, state: State, now: Round) -> tuple[Tensor, State]:
        """The values at their coordinates, and −0 elsewhere: adding −0 changes no number, not even the sign of 0.

        After the round of a vote, all is −0, and the state has the coordinates with the most votes.
        """
        spread = torch.full_like(state.weights, -0.0)
        if self._votes(now):
            return spread, _with_mask(state, largest(total, self.selection.size.count(state.dim)))
        return spread.index_copy_(0, self._mask(state, now), total), state

    def _votes(self, now: Round) -> bool:
        """Whether clients vote in this round: in the first one, and never again, whatever a server sends."""
        return now.index == 0 and self.selection.votes

    def _mask(self, state: State, now: Round) -> Tensor:
        mask = self.selection.mask(state.memory.get(MASK), state.dim, now)
        if mask is None:
            raise TrainingError(
                "No coordinates were selected, because nobody voted in the first round. Use larger cohorts, or "
                "FixedRandom instead of Vote."
            )
        return mask

    def _read_before_vote(self, parts: Parts, memory: ClientMemory) -> tuple[View, ClientMemory]:
        """The initial weights, without a mask."""
        if parts.keys() & {Part.VALUES, Part.MASK}:
            raise WireError("Expected neither a mask nor weights in the round in which clients vote on the mask.")
        return View(memory.weights, parts), memory

    def _received_mask(self, parts: Parts, memory: ClientMemory) -> Tensor:
        """The fixed mask that the client has, receives or derives; received again, it must be the same."""
        dim = memory.weights.numel()
        if memory.mask is not None:
            if Part.MASK in parts and not torch.equal(indices.unpack(parts[Part.MASK], dim), memory.mask):
                raise WireError("Expected the mask that this client has received before, got another.")
            return memory.mask
        if not self.selection.sends_mask:
            return _random_mask(memory.before.child("mask"), dim, self.selection.size.count(dim))
        if Part.MASK not in parts:
            raise WireError(
                "Expected the mask with the first broadcast, got none: this client sends nothing without it."
            )
        mask = indices.unpack(parts[Part.MASK], dim)
        if len(mask) != self.selection.size.count(dim):
            raise WireError(f"Expected a mask of {self.selection.size.count(dim)} coordinates, got {len(mask)}.")
        return mask


@dataclass(frozen=True, kw_only=True)
class TopK(Selection):
    """The coordinates with the largest absolute gradients on public data, summed over a few steps (Alg. 1, line 3).

    The steps start at the initial weights and follow the gradients. Ties go to the lower coordinate.

    Args:
        size: how many coordinates, over all layers and biases together.
        lr: learning rate of the steps.
        steps: number of steps (T_init).
        batch_size: samples per step; None: all public data.

    Formal guarantees: no client's data are used, so the selection costs no privacy. The people in the public data are
    not protected.
    """

    size: Size
    lr: float
    steps: int = 5
    batch_size: int | None = None
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def __post_init__(self) -> None:
        positive(lr=self.lr)
        whole(1, steps=self.steps, batch_size=self.batch_size)

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        if public is None:
            random = f"codec.selection={FixedRandom(size=self.size)}"
            raise PublicDataError("TopK", f"add `--task-set public=50`, or `--set '{random}'`.")
        return _with_mask(state, largest(self._scores(state.weights, public, now), self.size.count(state.dim)))

    def _scores(self, weights: Tensor, public: Wave, now: Round) -> Tensor:
        """Σ |gradient|, times the learning rate."""
        scores = torch.zeros_like(weights)
        for step in range(self.steps):
            keys = ClientKeys(now.shared.child("top-k", step))
            update = public.descend(weights, Descent(self.lr, 1, None, self.batch_size, 0.0, 0.0, keys)).sum()
            scores += update.abs()
            weights = weights + update
        if not bool(torch.isfinite(scores).all()):
            raise TrainingError("Training on the public data diverged, so no coordinates can be selected. Lower lr.")
        return scores


@dataclass(frozen=True, kw_only=True)
class Vote(Selection):
    """The coordinates with the most votes in the first round: each client votes for those of its largest updates.

    A ballot is a row like any other: the mechanism bounds it, adds noise to it, and the round is accounted as every
    other. It has as many numbers as the model, and the model does not change in that round. A client votes in the first
    round and in no other.

    Args:
        size: how many coordinates.

    Formal guarantees: those of the mechanism for clients; the vote is one of its rounds. For records and persons none:
    a single record may change all votes of its client, however little it adds to the update. `Method` refuses it where
    a mechanism adds noise for records (`RecordClip`); after noise of the trainer's own (`DpSgd`) it is post-processing.
    """

    size: Size
    votes: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class FixedRandom(Selection):
    """Random coordinates, drawn once from the shared key."""

    size: Size
    sends_mask: ClassVar[bool] = False
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def prepare(self, state: State, public: Wave | None, now: Round) -> State:
        return _with_mask(state, _random_mask(now.shared.child("mask"), state.dim, self.size.count(state.dim)))


@dataclass(frozen=True, kw_only=True)
class RandomK(Selection):
    """Random coordinates, redrawn from the shared key in every round."""

    size: Size
    fixed: ClassVar[bool] = False
    sends_mask: ClassVar[bool] = False
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def mask(self, known: Tensor | None, dim: int, now: Round) -> Tensor:
        return _random_mask(now.shared.child("mask"), dim, self.size.count(dim))


def largest(scores: Tensor, count: int) -> Tensor:
    """The coordinates of the largest scores, ascending; ties go to the lower coordinate.

    Example:
        >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3).tolist()
        [1, 2, 3]
    """
    return torch.sort(scores, descending=True, stable=True).indices[:count].sort().values


def _with_mask(state: State, mask: Tensor) -> State:
    return replace(state, memory=state.memory_with(MASK, mask))


@lru_cache(maxsize=2)  # every wave of a round needs the same mask
def _random_mask(key: Key, dim: int, count: int) -> Tensor:
    return torch.randperm(dim, generator=key.public_generator())[:count].sort().values


@lru_cache(maxsize=2)  # every wave of a round packs the same mask; tensors hash by identity
def _pack(mask: Tensor, dim: int) -> Tensor:
    return indices.pack(mask, dim)
