"""Stand-ins for trainers that protect records: their prices are real, what they train is not."""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Self

import torch

from tacit.core import ClientRound, DenseRows, Rows, View, Wave
from tacit.core.interfaces import Trainer
from tacit.core.prices import Gaussian, RecordPrice, RecordSum, Release, Repeated, Sampling, Uncalibrated


class Untrained(Trainer):
    """What both have in common: they change the weights a little, whatever the records are."""

    sensitivity: ClassVar[float] = 1.0

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        return DenseRows(torch.full((len(data.clients), view.weights.shape[-1]), 0.01))


@dataclass(frozen=True, kw_only=True)
class NoisySteps(Untrained):
    """Local steps with noise, on Poisson batches of records."""

    batch_size: int = 10
    epochs: int = 1
    noise_multiplier: float | None = 1.0

    def record_price(self, samples: int) -> RecordPrice | None:
        if self.noise_multiplier is None:
            return Uncalibrated()
        rate = min(1.0, self.batch_size / samples)
        release = Release(Gaussian(self.noise_multiplier), sampling=Sampling.at(rate, "poisson"))
        return Repeated(release, ceil(self.epochs / rate))

    def with_noise_multiplier(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)


@dataclass(frozen=True, kw_only=True)
class SumOfRecords(Untrained):
    """Rows that are sums over Poisson batches of clipped records."""

    clip: float = 1.0
    rate: float = 0.1

    @property
    def record_sum(self) -> RecordSum | None:
        return RecordSum(self.clip, self.rate)
