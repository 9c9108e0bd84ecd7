"""Runs of an audit as records of one form, whatever each of them released."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.attacks.auditing import STRUCTURE, Audit, Canary, Released
from tacit.attacks.lies import Lie
from tacit.attacks.statistics import FloatVector
from tacit.core import Key

Record = Mapping[str, FloatVector]


@dataclass
class Recorder:
    """Runs an audit and records the releases, in the form of the first run.

    Attributes:
        audit: what is run.
        sampled: whether the sampler decides about the canary.
        lie: of the server in all runs, whatever the canary; None: that of the canary.
        sizes: count of numbers in each kind of release.
    """

    audit: Audit
    sampled: bool
    lie: Lie | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def __call__(self, canary: Canary, key: Key, *, included: bool, sampled: bool | None = None) -> Record:
        drawn = self.sampled if sampled is None else sampled
        canary = canary if self.lie is None else replace(canary, lie=self.lie)
        return self._in_form(self.audit.run(canary, key, included=included, sampled=drawn))

    def _in_form(self, released: Released) -> Record:
        if not self.sizes:
            self.sizes.update({name: value.numel() for name, value in released.items()})
        same = {name: value.numel() for name, value in released.items()} == self.sizes
        record = {STRUCTURE: np.array([0.0 if same else 1.0])}
        for name, size in self.sizes.items():
            if name in self.ignored:
                continue
            value = released.get(name)
            record[name] = np.zeros(size) if value is None or value.numel() != size else value.numpy()
        return record
