"""Audit a privacy claim: canaries take part or not, the adversary guesses which, and correct guesses prove leakage.

A canary is a client whose update is as long as the protocol allows and orthogonal to those of all other canaries; its
sign alternates from round to round. Everything that happens to its update is the method's own code: sampler, codec,
both halves of the mechanism, aggregator, server. The adversary receives the model after every round.

In *many runs* one canary is included in every second run (or, for replace-one adjacency, replaced by its negative in
the others). The adversary knows the answers of a part of the runs and learns from them the best linear test and a
threshold: noise that is missing in some direction, or that repeats between rounds, is detected without knowing what to
look for. The other runs are guessed. In *one run* each of many canaries is included with probability ½.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.attacks.bounds import CONFIDENCE, ErrorCounts, OneRunGuesses, Scores
from tacit.core import DenseRows, Descent, Key, Method, Perturbation, SimulatedRound, State, Wave
from tacit.core.client_half import make_messages
from tacit.core.server_half import broadcast, client_view, server_side
from tacit.core.wave import Shapes
from tacit.errors import expect

AuditAdjacency = Literal["add-or-remove", "zero-out", "replace-one"]
MakeWave = Callable[[Tensor], Wave]
Flags = NDArray[np.bool_]
CANARY_NORM = 1e4  # before clipping: larger than any clipping bound
EXTRA_DIRECTIONS = 12  # observed per round besides the canary's own
TRAINING_FRACTION = 1 / 3  # of many runs: the adversary knows their answers
GUESSED_FRACTION = 0.1  # of the canaries of one run are guessed included, and as many excluded; fixed before any run


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A method among the clients of a task, which can be run repeatedly with canaries.

    Attributes:
        method: the audited method, with its noise sized.
        state: before the first round.
        make_wave: stacks the data of the task's clients.
        clients: number of the task's clients; canaries are added to them.
        rounds: rounds per run.
        dropouts: fraction of every cohort that drops out.
        adjacency: an excluded canary is absent (add-or-remove), or sends zeros (zero-out) or its negated update
            (replace-one).
    """

    method: Method
    state: State
    make_wave: MakeWave
    clients: int
    rounds: int = 2
    dropouts: float = 0.0
    adjacency: AuditAdjacency = "add-or-remove"

    def __post_init__(self) -> None:
        expect(self.clients >= 0, f"clients={self.clients} >= 0")
        expect(self.rounds >= 1, f"rounds={self.rounds} >= 1")
        expect(self.state.weights.dim() == 1, "a method with one model", "Set models=1.")
        expect(0 <= self.dropouts < 1, f"dropouts={self.dropouts} in [0, 1)")

    def run(self, directions: Tensor, included: Tensor, key: Key) -> Tensor:
        """One run with canaries in these directions, (canaries, dim); returns the model's change per round.

        Returns:
            (rounds, dim).
        """
        state, changes = self.state, []
        for index in range(self.rounds):
            after = self._run_round(state, directions * (-1) ** index, included, key)
            changes.append(after.weights - state.weights)
            state = after
        return torch.stack(changes)

    def _run_round(self, state: State, directions: Tensor, included: Tensor, key: Key) -> State:
        method, index = self.method, state.round
        population = self.clients + len(included)
        secret = key.child("secret").child("round", index)
        cohort = method.sampler.cohort(population, index, secret.child("cohort"))
        present = cohort[self._is_present(cohort, included)] if self.adjacency == "add-or-remove" else cohort
        now = SimulatedRound.of(
            index=index,
            population=population,
            expected_cohort=method.sampler.sampling(population, index).mean_cohort(population),
            cohort=len(present),
            shared=key.child("shared").child("round", index),
            secret=secret,
        )
        view = client_view(method, broadcast(method, state, now), state, now)
        wave = self._wave(self._survivors(present, secret), directions, included)
        return server_side(method, state, make_messages(method, view, wave, now), now)

    def _is_present(self, cohort: Tensor, included: Tensor) -> Tensor:
        """All but excluded canaries, which are not replaced in the cohort."""
        return torch.cat([torch.ones(self.clients, dtype=torch.bool), included])[cohort]

    def _survivors(self, cohort: Tensor, secret: Key) -> Tensor:
        """The clients that do not drop out; canaries never do."""
        dropped = int(self.dropouts * len(cohort))
        others = (cohort < self.clients).nonzero().flatten()
        order = torch.randperm(len(others), generator=secret.child("dropouts").torch())[:dropped]
        survives = torch.ones(len(cohort), dtype=torch.bool)
        survives[others[order]] = False
        return cohort[survives]

    def _wave(self, cohort: Tensor, directions: Tensor, included: Tensor) -> "CanaryWave":
        canaries = cohort[cohort >= self.clients] - self.clients
        sign = torch.where(included[canaries], 1.0, 0.0 if self.adjacency == "zero-out" else -1.0)[:, None]
        updates, others = directions[canaries] * sign * CANARY_NORM, cohort[cohort < self.clients]
        return CanaryWave(cohort, self.make_wave(others) if len(others) else None, updates, self.state.shapes)


@dataclass(frozen=True, eq=False)
class CanaryWave:
    """A wave of clients with data, followed by canaries, whose updates are given.

    Attributes:
        clients: numbers of all clients, canaries last.
        others: the clients with data; None if there are none.
        updates: the canaries' updates, (canaries, dim).
        shapes: of the model's parameters.
    """

    clients: Tensor
    others: Wave | None
    updates: Tensor
    shapes: Shapes

    @property
    def samples(self) -> Tensor:
        """A canary claims as many samples as all other clients together."""
        others = torch.zeros(0, dtype=torch.int64) if self.others is None else self.others.samples
        return torch.cat([others, others.sum().clamp(min=1).repeat(len(self.updates))])

    def descend(self, weights: Tensor, how: Descent) -> DenseRows:
        updates, count = self.updates.to(weights.dtype), len(self.clients) - len(self.updates)
        if how.mask is not None:
            updates = torch.zeros_like(updates).index_copy(1, how.mask, updates[:, how.mask])
        if self.others is None:
            return DenseRows(updates)
        start = weights if weights.dim() == 1 else weights[:count]
        return DenseRows(torch.cat([self.others.descend(start, how).dense(), updates]))

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        """A canary scores all perturbations equally."""
        equal = torch.zeros(len(self.updates), 1 + perturbation.count, dtype=torch.float64)
        if self.others is None:
            return equal
        count = len(weights) - len(self.updates)
        return torch.cat([self.others.perturbed_scores(weights[:count], perturbation), equal])

    def losses(self, hypotheses: Tensor) -> Tensor:
        """To a canary all hypotheses are equal."""
        equal = hypotheses.new_zeros(len(self.updates), len(hypotheses))
        return equal if self.others is None else torch.cat([self.others.losses(hypotheses), equal])

    def keep(self, which: Tensor) -> Wave:
        count = len(which) - len(self.updates)
        others = None if self.others is None or not bool(which[:count].any()) else self.others.keep(which[:count])
        return CanaryWave(self.clients[which], others, self.updates[which[count:]], self.shapes)


@dataclass(frozen=True, eq=False)
class ManyRuns:
    """What the adversary observed in many runs, and the ground truth.

    Attributes:
        features: (runs, features): the model's change per round along a few directions, the canary's own first.
        included: (runs,): whether the canary was included.
        effect: (features,): the canary's effect on each feature: ±1 along its own direction, else 0.
    """

    features: Scores
    included: Flags
    effect: Scores

    def count_errors(self, confidence: float = CONFIDENCE) -> ErrorCounts:
        """Wrong guesses about the runs that the adversary did not learn from."""
        known = max(int(TRAINING_FRACTION * len(self.features)), 2)
        direction = _fisher_discriminant(self.features[:known], self.included[:known], self.effect)
        scores = self.features @ direction
        threshold = _threshold(scores[:known], self.included[:known])
        guessed, included = scores[known:], self.included[known:]
        return ErrorCounts.at(threshold, guessed[included], guessed[~included], confidence)


def many_runs(audit: Audit, runs: int, key: Key) -> Iterator[ManyRuns]:
    """Run this often, every second time with the canary; yields the observations so far after each run."""
    expect(runs >= 20, f"runs={runs} >= 20", "Fewer runs cannot prove anything.")
    dim = audit.state.dim
    directions = _orthonormal(1 + min(EXTRA_DIRECTIONS, dim - 1), dim, key.child("directions"))
    effect = np.zeros((audit.rounds, len(directions)))
    effect[:, 0] = (-1.0) ** np.arange(audit.rounds)
    features, included = np.zeros((runs, effect.size)), np.arange(runs) % 2 == 0
    for run in range(runs):
        changes = audit.run(directions[:1], torch.tensor([bool(included[run])]), key.child("run", run))
        features[run] = (changes @ directions.T).double().flatten().numpy()
        yield ManyRuns(features[: run + 1], included[: run + 1], effect.flatten())


def one_run(audit: Audit, canaries: int, key: Key, confidence: float = CONFIDENCE) -> OneRunGuesses:
    """One run with many canaries, each included with probability ½; the clearest ones are guessed."""
    dim = audit.state.dim
    expect(
        10 <= canaries <= dim,
        f"10 <= canaries={canaries} <= {dim}",
        "A canary needs a direction of its own, so the number of weights is the maximum.",
    )
    directions = _orthonormal(canaries, dim, key.child("directions"))
    included = torch.rand(canaries, generator=key.child("coins").torch()) < 0.5
    changes = audit.run(directions, included, key.child("run"))
    signs = (-1.0) ** torch.arange(audit.rounds, dtype=changes.dtype)
    order = (directions @ (signs @ changes)).argsort(descending=True)
    each = max(int(GUESSED_FRACTION * canaries), 1)
    correct = int(included[order[:each]].sum()) + int((~included[order[-each:]]).sum())
    return OneRunGuesses(canaries, 2 * each, correct, confidence)


def _fisher_discriminant(features: Scores, included: Flags, effect: Scores) -> Scores:
    """Fisher's linear discriminant for a shift by the canary's effect, with the observed covariance of the noise."""
    centred = np.concatenate([features[which] - features[which].mean(0) for which in (included, ~included)])
    covariance = centred.T @ centred / len(centred)
    ridge = 1e-9 * np.trace(covariance) / len(effect) + 1e-30
    direction: Scores = np.linalg.solve(covariance + ridge * np.eye(len(effect)), effect)
    return direction / np.linalg.norm(direction)


def _threshold(scores: Scores, included: Flags) -> float:
    """Between the means, at equal distance from both in units of their standard deviations."""
    positive, negative = scores[included], scores[~included]
    positive_std, negative_std = float(positive.std()), float(negative.std())
    total = positive_std + negative_std
    share = negative_std / total if total > 0 else 0.5
    return float(negative.mean() + share * (positive.mean() - negative.mean()))


def _orthonormal(count: int, dim: int, key: Key) -> Tensor:
    """Random orthonormal directions, (count, dim)."""
    gaussian = torch.randn(dim, count, generator=key.torch(), dtype=torch.float64)
    directions: Tensor = torch.linalg.qr(gaussian).Q
    return directions.T.float()
