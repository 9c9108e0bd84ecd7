"""Differencing: what two sums reveal about the one patient that only the first of them contains.

The first message of a federated logistic regression is a gradient and a Hessian, at coefficients of zero. Where a
hospital sends both in the clear, before and after a patient joined, the difference is that patient's ¼·z·zᵀ and
(½ − y)·z, with the record z, a constant first, and the outcome y: one line of the first is the record, and the sign of
the second the outcome. With noise for single patients the same computation gives noise.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.analyses.sums import SumNoise, Sums64
from tacit.core import Query
from tacit.data.population import Population
from tacit.engine.learners.records.term_sums import term_sum
from tacit.errors import DataError, expect, whole

CLOSE_VALUE = 0.005  # of a column's range: the largest error of a value that counts as recovered


@dataclass(frozen=True)
class NewtonTerms(Query):
    """Gradient and Hessian (its upper triangle) of the logistic loss at coefficients of zero: the first Newton step.

    Args:
        inputs: how many each row has, from 0 to 1; a constant is added, and rows are scaled into the unit ball.
    """

    inputs: int

    def __post_init__(self) -> None:
        whole(1, inputs=self.inputs)

    @property
    def length(self) -> int:
        width = self.inputs + 1
        return width + width * (width + 1) // 2

    @property
    def bound(self) -> float:
        return float(np.hypot(1 / 2, 1 / 4))

    @property
    def constant(self) -> float:
        """The first number of every scaled row."""
        return float(1 / np.sqrt(self.inputs + 1))

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x.double()], 1) * self.constant
        first, second = torch.triu_indices(self.inputs + 1, self.inputs + 1)
        return torch.cat([(0.5 - y.double().view(-1, 1)) * z, z[:, first] * z[:, second] / 4], 1)

    def read(self, difference: Sums64) -> tuple[Sums64, Sums64]:
        """The records and outcomes of which these are the terms, (patients, length), with or without noise."""
        width = self.inputs + 1
        records = difference[:, width + 1 : 2 * width] * 4 / self.constant**2  # ¼·c²·x: the Hessian's first line
        return np.clip(records, 0.0, 1.0), (difference[:, 0] < 0).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Differences:
    """Patients and what the differences of two sums give back of them, (patients, inputs) and (patients,)."""

    records: Sums64
    outcomes: Sums64
    read_records: Sums64
    read_outcomes: Sums64

    @property
    def errors(self) -> Sums64:
        """The largest error of each patient's values, as a fraction of a column's range."""
        largest: Sums64 = np.abs(self.read_records - self.records).max(1)
        return largest

    @property
    def recovered(self) -> int:
        """How many patients' values are all right, and their outcomes, too."""
        return int(((self.errors < CLOSE_VALUE) & (self.read_outcomes == self.outcomes)).sum())

    @property
    def outcomes_right(self) -> float:
        """The part of the outcomes that is right; that of the more frequent outcome, if all were guessed alike."""
        return float((self.read_outcomes == self.outcomes).mean())


def attack_sums(population: Population, noise: SumNoise, random: np.random.Generator) -> Differences:
    """Attack every patient of every client: two sums of the client, with and without, each with this noise.

    Args:
        population: rows with inputs from 0 to 1 and two classes.
        noise: of each sum; none: sums are exact.
        random: from which the noise is drawn.
    """
    query = NewtonTerms(population.x.shape[1])
    state = torch.zeros(query.length, dtype=torch.float64)
    outcomes = population.y.double().view(-1)
    if not bool(((outcomes == 0) | (outcomes == 1)).all()):
        raise DataError("Expected an outcome of two classes, got another.")
    expect(len(population.x) > 1, "at least two patients")
    differences, order = [], []
    for client in range(len(population)):
        index = population.indices(client)
        x, y = population.x[index], population.y[index]
        both = term_sum(query, state, x, y, None)
        for place in range(len(index)):
            others = torch.arange(len(index)) != place
            differences.append((both - term_sum(query, state, x[others], y[others], None)).numpy())
        order.append(index)
    patients = torch.cat(order)
    difference = np.array(differences)
    difference = difference + noise.draw(random, *difference.shape) - noise.draw(random, *difference.shape)
    records, read_outcomes = query.read(difference)
    return Differences(population.x[patients].double().numpy(), outcomes[patients].numpy(), records, read_outcomes)
