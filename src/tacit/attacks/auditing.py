"""Audit a privacy claim: canaries take part or not, the adversary guesses which, and right guesses prove leakage.

A canary is a client whose update is as long as the protocol lets it be and points where nobody else's does, to and fro
from round to round. Everything that happens to it is the method's own code: sampler, codec, both halves of the
mechanism, aggregator, server. The adversary receives the model after every round.

In *many runs* one canary is in half of them (or, for replace-one adjacency, is replaced by its mirror image). A part
of the runs, whose answers the adversary knows, teaches it the best linear test and a threshold: noise that is missing
along some direction, or that repeats itself, is found without being told what to look for. The others are guessed.
In *one run* each of many canaries is in by a fair coin.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.bounds import CONFIDENCE, Errors, Guesses, Scores
from tacit.core import DenseRows, Descent, Key, Method, Perturbation, Round, State, Wave
from tacit.core.round import broadcast, client_side, close, receive, refuse
from tacit.core.wave import Shapes
from tacit.errors import expect

Adjacency = Literal["add-or-remove", "replace-one"]
Waves = Callable[[Tensor], Wave]
FAR = 1e4  # the length of a canary's raw update: any bound makes it as long as it may be
DIRECTIONS = 12  # in which the adversary looks, per round, beside the canary's own
LEARNT = 1 / 3  # of many runs teach the adversary
GUESSED = 0.1  # of the canaries of one run are guessed in, and as many out; a choice made before any run


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A method among real clients, ready to be run again and again with canaries in it.

    Attributes:
        method: what is audited, with its noise sized.
        state: before the first round.
        waves: what the bystanders do.
        bystanders: how many other clients there are.
        rounds: how many are played.
        dropouts: the part of every cohort that fails to deliver.
        adjacency: what becomes of a canary that is out: it is away, or mirrored.
    """

    method: Method
    state: State
    waves: Waves
    bystanders: int
    rounds: int = 2
    dropouts: float = 0.0
    adjacency: Adjacency = "add-or-remove"

    def __post_init__(self) -> None:
        expect(self.bystanders >= 0, f"bystanders={self.bystanders} >= 0")
        expect(self.rounds >= 1, f"rounds={self.rounds} >= 1")
        expect(self.state.weights.dim() == 1, "a method with one model", "Set models=1.")
        expect(0 <= self.dropouts < 1, f"dropouts={self.dropouts} in [0, 1)")

    def play(self, directions: Tensor, inside: Tensor, key: Key) -> Tensor:
        """One run with these canaries, (count, dim), in or out; how the model moved in every round, (rounds, dim)."""
        state, moves = self.state, []
        for index in range(self.rounds):
            after = self._round(state, directions * (-1) ** index, inside, key)
            moves.append(after.weights - state.weights)
            state = after
        return torch.stack(moves)

    def _round(self, state: State, directions: Tensor, inside: Tensor, key: Key) -> State:
        method, index = self.method, state.round
        everyone = self.bystanders + len(inside)
        secret = key.child("secret").child("round", index)
        cohort = method.sampler.cohort(everyone, index, secret.child("cohort"))
        here = cohort if self.adjacency == "replace-one" else cohort[self._present(cohort, inside)]
        now = Round(
            index=index,
            population=everyone,
            expected=method.sampler.expected(everyone, index),
            cohort=len(here),
            shared=key.child("shared").child("round", index),
            secret=secret,
        )
        view = broadcast(method, state, now)
        crowd = self._crowd(self._delivering(here, secret), directions, inside)
        kept, _ = refuse(client_side(method, view, crowd, now))
        return close(method, state, receive(method, state, kept, now), now)

    def _present(self, cohort: Tensor, inside: Tensor) -> Tensor:
        """Everybody but canaries that are out: their seats stay empty."""
        return torch.cat([torch.ones(self.bystanders, dtype=torch.bool), inside])[cohort]

    def _delivering(self, cohort: Tensor, secret: Key) -> Tensor:
        """Those of a cohort that do not drop out; canaries never do."""
        lost = int(self.dropouts * len(cohort))
        theirs = (cohort < self.bystanders).nonzero().flatten()
        order = torch.randperm(len(theirs), generator=secret.child("dropouts").torch())[:lost]
        stays = torch.ones(len(cohort), dtype=torch.bool)
        stays[theirs[order]] = False
        return cohort[stays]

    def _crowd(self, cohort: Tensor, directions: Tensor, inside: Tensor) -> "Crowd":
        mine = cohort[cohort >= self.bystanders] - self.bystanders
        sign = torch.where(inside[mine], 1.0, -1.0)[:, None]
        made_up, others = directions[mine] * sign * FAR, cohort[cohort < self.bystanders]
        return Crowd(cohort, self.waves(others) if len(others) else None, made_up, self.state.shapes)


@dataclass(frozen=True, eq=False)
class Crowd:
    """A wave of bystanders and, behind them, canaries, whose updates are made up."""

    clients: Tensor
    others: Wave | None
    canaries: Tensor
    shapes: Shapes  # of the model's parameters

    @property
    def samples(self) -> Tensor:
        """Those of the bystanders; a canary says it has as many as all of them together."""
        mine = torch.zeros(0, dtype=torch.int64) if self.others is None else self.others.samples
        return torch.cat([mine, mine.sum().clamp(min=1).repeat(len(self.canaries))])

    def descend(self, weights: Tensor, how: Descent) -> DenseRows:
        """Bystanders descend on their data, canaries say what they were made for."""
        made_up, count = self.canaries.to(weights.dtype), len(self.clients) - len(self.canaries)
        if how.mask is not None:
            made_up = torch.zeros_like(made_up).index_copy(1, how.mask, made_up[:, how.mask])
        if self.others is None:
            return DenseRows(made_up)
        theirs = weights if weights.dim() == 1 else weights[:count]
        return DenseRows(torch.cat([self.others.descend(theirs, how).dense(), made_up]))

    def perturbed_scores(self, weights: Tensor, nudge: Perturbation) -> Tensor:
        """Those of the bystanders; nothing changes anything for a canary."""
        alike = torch.zeros(len(self.canaries), 1 + nudge.count, dtype=torch.float64)
        if self.others is None:
            return alike
        return torch.cat([self.others.perturbed_scores(weights[: len(weights) - len(self.canaries)], nudge), alike])

    def losses(self, hypotheses: Tensor) -> Tensor:
        """Those of the bystanders; to a canary all hypotheses are alike."""
        alike = hypotheses.new_zeros(len(self.canaries), len(hypotheses))
        return alike if self.others is None else torch.cat([self.others.losses(hypotheses), alike])

    def only(self, which: Tensor) -> Wave:
        """Those where `which` is true, bystanders first."""
        count = len(which) - len(self.canaries)
        others = None if self.others is None or not bool(which[:count].any()) else self.others.only(which[:count])
        return Crowd(self.clients[which], others, self.canaries[which[count:]], self.shapes)


@dataclass(frozen=True, eq=False)
class Runs:
    """What the adversary measured in many runs, and the truth.

    Attributes:
        features: (runs, features): every round's move along a few directions, the canary's own first.
        inside: whether the canary was in.
        own: which features are along the canary's own direction, and with which sign it pushes them.
    """

    features: Scores
    inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    own: Scores

    def errors(self, confidence: float = CONFIDENCE) -> Errors:
        """Guesses about the runs that taught the adversary nothing."""
        learnt = max(int(LEARNT * len(self.features)), 2)
        test = _discriminant(self.features[:learnt], self.inside[:learnt], self.own)
        scores = self.features @ test
        threshold = _threshold(scores[:learnt], self.inside[:learnt])
        rest, inside = scores[learnt:], self.inside[learnt:]
        return Errors.at(threshold, rest[inside], rest[~inside], confidence)


def many_runs(trial: Trial, runs: int, key: Key) -> Iterator[Runs]:
    """Play so many runs, in every second of which the canary is in; yields what there is after each."""
    expect(runs >= 20, f"runs={runs} >= 20", "A few runs prove nothing.")
    looks = _orthonormal(1 + min(DIRECTIONS, trial.state.dim - 1), trial.state.dim, key.child("directions"))
    own = np.zeros((trial.rounds, len(looks)))
    own[:, 0] = (-1.0) ** np.arange(trial.rounds)
    features, inside = np.zeros((runs, own.size)), np.arange(runs) % 2 == 0
    for run in range(runs):
        moves = trial.play(looks[:1], torch.tensor([bool(inside[run])]), key.child("run", run))
        features[run] = (moves @ looks.T).double().flatten().numpy()
        yield Runs(features[: run + 1], inside[: run + 1], own.flatten())


def one_run(trial: Trial, canaries: int, key: Key, confidence: float = CONFIDENCE) -> Guesses:
    """Play one run with many canaries, each in by a fair coin, and guess the clearest."""
    dim = trial.state.dim
    expect(10 <= canaries <= dim, f"10 <= canaries={canaries} <= {dim}, the model's weights, to tell them apart")
    looks = _orthonormal(canaries, dim, key.child("directions"))
    inside = torch.rand(canaries, generator=key.child("coins").torch()) < 0.5
    moves = trial.play(looks, inside, key.child("run"))
    signs = (-1.0) ** torch.arange(trial.rounds, dtype=moves.dtype)
    order = (looks @ (signs @ moves)).argsort(descending=True)
    guessed = max(int(GUESSED * canaries), 1)
    right = int(inside[order[:guessed]].sum()) + int((~inside[order[-guessed:]]).sum())
    return Guesses(canaries, 2 * guessed, right, confidence)


def _discriminant(features: Scores, inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]", own: Scores) -> Scores:
    """Fisher's linear test for a shift along the canary's own directions, under the noise that was seen."""
    centred = np.concatenate([features[which] - features[which].mean(0) for which in (inside, ~inside)])
    scatter = centred.T @ centred / len(centred)
    ridge = 1e-9 * np.trace(scatter) / len(own) + 1e-30
    test: Scores = np.linalg.solve(scatter + ridge * np.eye(len(own)), own)
    return test / np.linalg.norm(test)


def _threshold(scores: Scores, inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
    """Between the means, where each sort is wrong equally often if both are equally wide."""
    mine, theirs = scores[inside], scores[~inside]
    wide, wider = float(mine.std()), float(theirs.std())
    share = wider / (wide + wider) if wide + wider > 0 else 0.5
    return float(theirs.mean() + share * (mine.mean() - theirs.mean()))


def _orthonormal(count: int, dim: int, key: Key) -> Tensor:
    """Random directions at right angles, (count, dim)."""
    drawn = torch.randn(dim, count, generator=key.torch(), dtype=torch.float64)
    directions: Tensor = torch.linalg.qr(drawn).Q
    return directions.T.float()
