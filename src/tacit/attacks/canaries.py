"""The canaries that an audit tries: along layers, biases, blocks and coordinates, long and short, over rounds.

Where the server is an adversary, it also lies in its broadcasts; and clients train the task's own model on its own
records, one of which is hostile.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from tacit.attacks.auditing import CANARY_NORM, Canary
from tacit.attacks.lies import Lie
from tacit.core import Key, State
from tacit.data import Samples

_MAX_LAYERS = 12
BLOCKS = 10
COORDINATES = 3
_HOSTILE = {"not a number": torch.nan, "numbers whose squares overflow": 3e38}
_LENGTHS = (1.5, 3.0, 9.0)  # in clipping bounds: for rules that clip only very long updates


@dataclass(frozen=True)
class CanaryCatalog:
    """All canaries for a model, for a number of rounds.

    Attributes:
        state: of the model.
        rounds: of a run.
        bound: the clipping bound, as far as it is known.
        key: of random directions.
        records: hostile ones for the task's own model, by their names.
        lies: of a server that is an adversary.
    """

    state: State
    rounds: int
    bound: float
    key: Key
    records: Mapping[str, Samples] = field(default_factory=dict)
    lies: tuple[Lie, ...] = ()

    def first(self) -> Canary:
        """The first canary, which every method should withstand."""
        return self._over_rounds("random signs", self._random_signs, "same")

    def all(self) -> Iterator[Canary]:
        """Every canary of the catalog."""
        for name, direction in self._dense():
            for signs in ("same", "alternating", "first only"):
                yield self._over_rounds(name, direction, signs)
        for length in _LENGTHS:
            yield self._over_rounds("random signs", self._random_signs, "same", length * self.bound)
        for name, direction in (*self._layers(), *self._blocks(), *self._coordinates()):
            yield self._over_rounds(name, direction, "same")
        for name, value in _HOSTILE.items():
            hostile = Canary(name, torch.full((self.rounds, self.state.dim), value))
            yield hostile
            yield replace(hostile, name=f"{name}, among others that are long", others=self.first().updates[0])
        yield from self.variants(self.first())
        none = torch.zeros(self.rounds, self.state.dim)
        trained = [Canary(name, none, record=record) for name, record in self.records.items()]
        yield from trained
        dense, sparse = self.first(), self._over_rounds(*list(self._blocks())[1], "same")
        for lie in self.lies:
            for canary in (dense, sparse, *trained[:1]):
                yield replace(canary, name=f"{canary.name}, and the server sends {lie.name}", lie=lie)

    def variants(self, canary: Canary) -> Iterator[Canary]:
        """The same updates with other signs over the rounds, among other clients, and as the first client."""
        name = canary.name
        yield replace(canary, name=f"{name}, first client", first=True)
        if canary.record is not None:
            return
        rows = canary.updates[0]
        alternating = rows * _signs("alternating", self.rounds)[:, None]
        yield replace(canary, name=f"{name}, signs alternating between rounds", updates=alternating)
        for word, sign in (("opposite", -1.0), ("the same", 1.0)):
            yield replace(canary, name=f"{name}, among clients with {word} updates", others=sign * rows)

    def coordinate(self, index: int) -> Canary:
        """All in one coordinate."""
        return self._over_rounds(f"coordinate {index}", self._indicator(torch.tensor([index])), "same")

    def _over_rounds(self, name: str, direction: Tensor, signs: str, norm: float = CANARY_NORM) -> Canary:
        length = "" if norm == CANARY_NORM else f", {norm / self.bound:g} bounds long"
        over = "" if signs == "same" else f", signs {signs}" if signs == "alternating" else ", in the first round only"
        rows = _signs(signs, self.rounds)[:, None] * direction * (norm / direction.norm())
        return Canary(f"{name}{length}{over}", rows)

    @property
    def _random_signs(self) -> Tensor:
        coins = torch.randint(0, 2, (self.state.dim,), generator=self.key.child("signs").public_generator())
        return (2 * coins - 1).float()

    def _dense(self) -> Iterator[tuple[str, Tensor]]:
        yield "one sign", torch.ones(self.state.dim)
        yield "alternating signs", _signs("alternating", self.state.dim)
        yield "random signs", self._random_signs
        yield "Gaussian", torch.randn(self.state.dim, generator=self.key.child("gaussian").public_generator())

    def _layers(self) -> Iterator[tuple[str, Tensor]]:
        if len(self.state.layers) < 2:
            return
        ends = list(accumulate(self.state.layers))
        parts = [torch.arange(end - size, end) for size, end in zip(self.state.layers, ends, strict=True)]
        for number, part in list(enumerate(parts))[:_MAX_LAYERS]:
            yield f"parameter {number}", self._indicator(part)
        biases = [part for part, shape in zip(parts, self.state.shapes, strict=True) if len(shape) == 1]
        if biases:
            yield "biases", self._indicator(torch.cat(biases))
            yield "a bias", self._indicator(biases[0][:1])

    def _blocks(self) -> Iterator[tuple[str, Tensor]]:
        everything = torch.arange(self.state.dim)
        half = self.state.dim // 2
        blocks = {"first half": everything[:half], "second half": everything[half:]}
        blocks |= {"even coordinates": everything[::2], "odd coordinates": everything[1::2]}
        if self.state.dim >= 2 * BLOCKS:
            parts = torch.tensor_split(everything, BLOCKS)
            blocks |= {f"block {number} of {BLOCKS}": part for number, part in enumerate(parts, start=1)}
        for name, block in blocks.items():
            yield name, self._indicator(block)

    def _coordinates(self) -> Iterator[tuple[str, Tensor]]:
        order = torch.randperm(self.state.dim, generator=self.key.child("coordinates").public_generator())
        for index in dict.fromkeys((0, self.state.dim - 1, *order[:COORDINATES].tolist())):
            yield f"coordinate {index}", self._indicator(torch.tensor([index]))

    def _indicator(self, which: Tensor) -> Tensor:
        """Random signs there, zero elsewhere."""
        row = torch.zeros(self.state.dim)
        row[which] = self._random_signs[which]
        return row


def _signs(kind: str, count: int) -> Tensor:
    numbers = torch.arange(count)
    if kind == "alternating":
        return (-1.0) ** numbers
    return (numbers == 0).float() if kind == "first only" else torch.ones(count)
