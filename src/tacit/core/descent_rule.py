"""A public rule for noisy descent: rounds, step and clipping bound from the budget and the sizes alone.

All records take part in every step, and each step gets noise of the same multiplier, so that a budget buys as much
signal in few steps as in many. What a user pays for is the distance that the weights may travel: noise adds up with it.
The rule lets weights travel until the noise in all of them together has a norm of about `NORM_OF_NOISE`, in
standardised inputs, where the effects of all inputs have a norm of one or two. Its constants were chosen on IST, Adult,
on 1,000 to 15,000 of their rows and on a generated table of hospitals, so that results on these tables are no
independent test of it (`experiments/clinical/unaided.py`).
"""

from dataclasses import dataclass
from math import ceil, cos, log, pi, sqrt
from typing import Self

from tacit.core.prices import Budget
from tacit.errors import positive, whole

NORM_OF_NOISE = 2.5  # norm of the noise in the weights
FARTHEST = 1200.0  # the sum of the learning rates of all steps: more of it changed nothing on any table
LARGEST_STEP = 40.0  # learning rate of the first step: with larger ones, descent oscillates
FEWEST, MOST = 20, 60  # steps
BATCH_RATE = 0.2  # of methods without a rule: the probability with which a record is in a batch, unless it is chosen
CLIP_NORM = 1.0  # norm of a record's gradient in standardised inputs
LAST_STEP = 0.05  # of the first
_DECAY = 0.61  # the norm of all steps over their sum, times the square root of their number


@dataclass(frozen=True)
class DescentRule:
    """The settings of noisy full-batch descent.

    Attributes:
        rounds: steps.
        lr: the learning rate of the first; it falls along a cosine to a twentieth.
        clip: the largest norm of the gradient of one record, or person.
    """

    rounds: int
    lr: float
    clip: float = CLIP_NORM

    @classmethod
    def of(cls, units: float, weights: int, noise: float, rounds: int | None = None) -> Self:
        """The settings for this many records (or persons) and weights.

        Args:
            units: the number of all records or persons; public.
            weights: the number of weights that are trained.
            noise: the noise multiplier that a single release within the budget needs (`noise_at_once`).
            rounds: the number of steps, where it is given.

        Example:
            >>> DescentRule.of(160_000, 540, noise_at_once(Budget(1.0, 1e-5)))
            DescentRule(rounds=60, lr=40.0, clip=1.0)
            >>> small = DescentRule.of(500, 20, noise_at_once(Budget(1.0, 1e-5)))
            >>> small.rounds, round(small.lr, 1)
            (20, 4.7)
        """
        positive(units=units, noise=noise)
        whole(1, weights=weights, rounds=rounds)
        length = min(FARTHEST, NORM_OF_NOISE * units / (2 * _DECAY * noise * sqrt(weights)))
        steps = rounds or min(max(ceil(2 * length / LARGEST_STEP), FEWEST), MOST)
        return cls(steps, min(2 * length / steps, LARGEST_STEP))


def step_size(lr: float, step: int, steps: int) -> float:
    """The learning rate of one of these steps, counted from 0.

    Example:
        >>> [round(step_size(1.0, step, 3), 3) for step in range(3)]
        [0.936, 0.525, 0.114]
    """
    return lr * (LAST_STEP + (1 - LAST_STEP) * (1 + cos(pi * (step + 0.5) / steps)) / 2)


def noise_at_once(budget: Budget) -> float:
    """About the noise multiplier of a single release within a budget, by zero-concentrated privacy.

    Example:
        >>> round(noise_at_once(Budget(1.0, 1e-5)), 1), round(noise_at_once(Budget(3.0, 1e-5)), 1)
        (4.9, 1.7)
    """
    log_delta = log(1 / budget.delta)
    return 1 / (sqrt(2) * (sqrt(budget.epsilon + log_delta) - sqrt(log_delta)))


def records_in_row(rate: float, size: float) -> int:
    """The records for which a row has room: a batch of a client with four times the mean number of records.

    Example:
        >>> records_in_row(1.0, 10), records_in_row(0.2, 150)
        (40, 240)
    """
    mean = rate * 4 * size
    return min(ceil(4 * size), ceil(mean + 10 * sqrt(mean) + 10))  # ten standard deviations of a batch
