"""Runs with and without a canary as records: what is released, how a canary moves it, and how statistics score it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.attacks.auditing import STRUCTURE, Audit, Canary, Released
from tacit.attacks.statistics import Linear, Statistic, Vector
from tacit.core import Key

STEADY = 1.05  # an effect is known if it differs between keys by no more than this factor
Record = Mapping[str, Vector]


@dataclass
class Recorder:
    """Runs an audit and records what is released, in the form of the first run.

    Attributes:
        audit: what is run.
        sampled: whether the sampler decides about the canary.
        sizes: how many numbers each kind of release has.
    """

    audit: Audit
    sampled: bool
    sizes: dict[str, int] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def __call__(self, canary: Canary, key: Key, *, included: bool, sampled: bool | None = None) -> Record:
        drawn = self.sampled if sampled is None else sampled
        return self._in_form(self.audit.run(canary, key, included=included, sampled=drawn))

    def _in_form(self, released: Released) -> Record:
        if not self.sizes:
            self.sizes.update({name: value.numel() for name, value in released.items()})
        same = {name: value.numel() for name, value in released.items()} == self.sizes
        found = {STRUCTURE: np.array([0.0 if same else 1.0])}
        for name, size in self.sizes.items():
            if name in self.ignored:
                continue
            value = released.get(name)
            fits = value is not None and value.numel() == size
            found[name] = value.numpy() if fits and value is not None else np.zeros(size)
        return found


@dataclass(frozen=True, eq=False)
class CanaryTrial:
    """A canary with its effect on everything that is released.

    Attributes:
        canary: its updates.
        effects: by the name of what is released.
        others: the same with another key; very different where the noise depends on the canary.
        offsets: how much the other clients' updates move it.
        separation: the best predicted separation of any linear test.
    """

    canary: Canary
    effects: Mapping[str, Vector]
    others: Mapping[str, Vector]
    offsets: Mapping[str, Vector]
    separation: float

    def moved(self, statistic: Statistic) -> float | None:
        """By how much it moves a linear statistic in every run; None if that depends on the run."""
        if not isinstance(statistic, Linear):
            return None
        one, other = (float(statistic.weights @ each[statistic.released]) for each in (self.effects, self.others))
        return min(one, other) if 0 < max(one, other) <= STEADY * min(one, other) else None


@dataclass(frozen=True, eq=False)
class Scored:
    """A statistic with its scores in runs with and without a canary, (2, runs).

    `moved` is by how much the canary moves it in every run, if that is known.
    """

    canary: Canary
    statistic: Statistic
    scores: NDArray[np.float64]
    moved: float | None = None

    @property
    def worlds(self) -> tuple[Vector, Vector]:
        """The scores with, and without the canary."""
        return self.scores[0], self.scores[1]

    @property
    def spread(self) -> float:
        """The standard deviation of the scores, with and without the canary."""
        return float(np.sqrt(self.scores.var(1).mean()))

    @property
    def gap(self) -> float:
        """The difference of the mean scores in standard deviations."""
        difference = float(self.scores[0].mean() - self.scores[1].mean())
        return difference / max(self.spread, abs(difference) / 1e6, 1e-100)
