"""What the clients of an audit train, with the engine: gradients that the adversary chooses, or the task's own model.

A model that is linear in its weights makes the gradient of a record the record itself, so that a client's data decide
its update in every coordinate. The task's own model is trained on the task's own records, beside one that is hostile.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import Key, Loss, Query, State
from tacit.data import Population, Samples, Task
from tacit.engine.layout import make_model
from tacit.engine.waves import AutoLearner

RECORDS = 4  # of an ordinary client of the task's own data, and beside a canary that is a record of its client
CLIENT_RECORDS = 3  # of a canary that is a client, all alike
PERSON_RECORDS = 3  # of a canary that is a person, all alike
LARGEST_GRADIENT = 3e38  # of a number of a gradient


class LinearInWeights(nn.Module):
    """The scalar product of a record with all weights, which are in as many parameters as those of another model.

    As layers, one after the other, they follow the rules for gradients of single records; together they are faster.
    """

    def __init__(self, sizes: Sequence[int], *, in_layers: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(size, 1, bias=False) for size in sizes)
        self.ends, self.in_layers = list(accumulate(sizes, initial=0)), in_layers

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_layers:
            return F.linear(x, torch.cat([*self.parameters()], 1))
        places = zip(self.parts, self.ends, self.ends[1:], strict=False)
        outputs: Tensor = sum(part(x[:, start:end]) for part, start, end in places)
        return outputs


class OutputIsLoss(Loss):
    """The loss of a record is the model's output."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0]

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        return

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class ChosenTerms(Query):
    """The terms of a row are the row."""

    length: int
    bound: float

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return x.double()


@dataclass(frozen=True, eq=False)
class AuditedModel:
    """A model with its learner, and what ordinary clients own.

    Attributes:
        task: with ordinary clients only.
        model: as the engine trains it.
        learner: of the model.
    """

    task: Task
    model: nn.Module
    learner: AutoLearner

    @classmethod
    def linear(cls, task: Task, state: State, *, in_layers: bool) -> Self:
        """A model with as many weights, whose gradients are its records; gradients of ordinary clients are zero."""
        model, zero = (
            LinearInWeights(state.layers, in_layers=in_layers).to(state.weights.dtype),
            state.weights.new_zeros(1, state.dim),
        )
        clients = [torch.zeros(1, dtype=torch.int64)] * len(task.population)
        there = task.on(Population.split(zero, torch.zeros(1), clients))
        return cls(there, model, AutoLearner(model, OutputIsLoss()))

    @classmethod
    def own(cls, task: Task, seed: int) -> Self:
        """The task's model, and a few records of every client."""
        population, model = task.population, make_model(task, seed)
        few = [population.indices(client)[:RECORDS] for client in range(len(population))]
        positions = torch.cat(few)
        parts = torch.split(torch.arange(len(positions)), [len(each) for each in few])
        there = task.on(Population.split(population.x[positions].clone(), population.y[positions], parts))
        return cls(there, model, AutoLearner(copy.deepcopy(model), task.loss, like=there.population[0]))

    @property
    def pool(self) -> Samples:
        """All records of ordinary clients."""
        return self.task.population.x, self.task.population.y


@dataclass(frozen=True, eq=False)
class AlwaysDrawn(Population):
    """Clients of whom some have all their units in every batch, each as often as any is drawn.

    A claim about a unit that is in a batch holds whichever others are: with all of them, runs differ by noise only, and
    what a unit does to others shows most.

    Attributes:
        always: these clients, with the number of their units.
    """

    always: Mapping[int, int] = field(default_factory=dict)

    def samples_of(self, client: int, units: Tensor) -> tuple[Tensor, Tensor | None]:
        count = self.always.get(client)
        if count is not None:
            times = int(units.bincount().max()) if len(units) else 1
            units = torch.arange(count).repeat_interleave(times)
        return Population.samples_of(self, client, units)


@dataclass(frozen=True, eq=False)
class CanaryClients:
    """The clients with canaries in a round.

    Attributes:
        numbers: of these clients, ascending.
        records: one record per canary, (x, y); it occurs several times if the canary is a client or a person.
        copies: how often.
        beside: positions in the pool of what each of these clients owns beside its canary.
        persons: whether a canary is a person.
        always: whether all that these clients own is in every batch.
    """

    numbers: Tensor
    records: Samples
    copies: int
    beside: Tensor
    persons: bool = False
    always: bool = False

    def among(self, pool: Samples, ordinary: Population) -> Population:
        """The population of these and of ordinary clients, who own positions of a pool."""
        count, own = len(self.numbers), len(self.beside) + self.copies
        first = len(pool[0])
        mine = [torch.cat([self.beside, torch.full((self.copies,), first + number)]) for number in range(count)]
        sizes, indices = ordinary.sizes, ordinary.sample_indices
        ours, ids = torch.full((count,), own), torch.cat(mine) if mine else indices[:0]
        front = bool(count) and int(self.numbers[0]) == 0
        order = [ids, indices] if front else [indices, ids]
        lengths = [ours, sizes] if front else [sizes, ours]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
        x = torch.cat([pool[0], self.records[0].to(pool[0].dtype)])
        y = torch.cat([pool[1], self.records[1].to(pool[1].dtype)])
        units = len(self.beside) + 1
        return AlwaysDrawn(
            x,
            y,
            torch.cat(order),
            offsets,
            persons=self._persons(torch.cat(lengths), front, count) if self.persons else None,
            clients_per_person=int(self.persons),
            always=dict.fromkeys(self.numbers.tolist(), units) if self.always else {},
        )

    def _persons(self, sizes: Tensor, front: bool, count: int) -> Tensor:
        """Every record is of a person of its own, but those of a canary, who is the last of its client."""
        ends = list(accumulate(sizes.tolist(), initial=0))
        numbers = torch.arange(ends[-1]) - torch.tensor(ends[:-1]).repeat_interleave(sizes)
        clients = range(count) if front else range(len(sizes) - count, len(sizes))
        for client in clients:
            numbers[ends[client] + len(self.beside) : ends[client + 1]] = len(self.beside)
        return numbers


def hostile_records(pool: Samples, key: Key) -> Mapping[str, Samples]:
    """Records of the form of the first one in a pool, by what is hostile in them; none where inputs are no numbers."""
    x, y = (part[:1] for part in pool)
    if not x.is_floating_point():
        return {}
    noise = torch.randn(x.shape, generator=key.child("hostile").public_generator()).to(x.dtype)
    other = pool[1][(pool[1].reshape(len(pool[1]), -1) != y.reshape(1, -1)).any(1)][:1]
    other = other if len(other) else y
    values = {
        "a record a million times as large": 1e6 * (x + noise),
        "a negative record": -10 * (x + noise),
        "a record of noise": 100 * noise,
        "a record at the end of the number range": 1e18 * noise,
        "a record of zeros": 0 * x,
    }
    return {name: (value, other) for name, value in values.items()}
