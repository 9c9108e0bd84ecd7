"""Server updates: how the aggregate changes the model. The neutral one, `Add`, is in `tacit.core`."""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit.core import Add, State
from tacit.core.descent_rule import step_size
from tacit.core.interfaces import Payload, ServerUpdate
from tacit.core.standardised import StandardisedLayout
from tacit.core.state import SERVER
from tacit.errors import UserError, at_least, positive, whole, within

__all__ = ["Add", "KeepSum", "Momentum", "RecordDescent", "Replace", "StandardisedDescent"]


@dataclass(frozen=True)
class Replace(ServerUpdate):
    """Replace the model by the aggregated weights."""

    expects: ClassVar[Payload] = "weights"

    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=aggregate)


@dataclass(frozen=True)
class KeepSum(ServerUpdate):
    """Keep the released sum of terms as the state, from which an analysis computes its result."""

    expects: ClassVar[Payload] = "terms"

    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=aggregate)


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """Server momentum: m ← rho·m + update, w ← w + rate·m."""

    rho: float = 0.9
    rate: float = 1.0

    def __post_init__(self) -> None:
        within("[0, 1)", rho=self.rho)
        positive(rate=self.rate)

    def apply(self, state: State, aggregate: Tensor) -> State:
        name = SERVER + "momentum"
        momentum = self.rho * state.memory[name] + aggregate if name in state.memory else aggregate
        weights = state.weights.add(momentum, alpha=self.rate)
        return replace(state, weights=weights, memory=state.memory_with(name, momentum))


@dataclass(frozen=True, kw_only=True)
class RecordDescent(ServerUpdate):
    """A step of SGD with momentum from sums of records' gradients, divided by the expected size of a batch.

    Args:
        rate: the probability with which a record is in a batch.
        size: the mean number of records of a client; public. None: that of the task's data, or of the plan's.
        lr: learning rate of the mean gradient; None: 0.5, or by the rule of standardised descent.
        rho: momentum.
        rounds: the number of rounds, where it was chosen; None: it was not.
    """

    rate: float
    size: float | None = None
    lr: float | None = None
    rho: float = 0.9
    rounds: int | None = None

    def __post_init__(self) -> None:
        within("(0, 1]", rate=self.rate)
        at_least(1, size=self.size)
        positive(lr=self.lr)
        within("[0, 1)", rho=self.rho)
        whole(1, rounds=self.rounds)

    @property
    def counts(self) -> tuple[tuple[float, str], ...]:
        return () if self.size is None else ((self.size, PER_CLIENT),)

    def apply(self, state: State, aggregate: Tensor) -> State:
        return Momentum(self.rho, (self.lr or _LEARNING_RATE) / (self.rate * (self.size or MEAN_SIZE))).apply(
            state, aggregate
        )


@dataclass(frozen=True, kw_only=True)
class StandardisedDescent(ServerUpdate):
    """Noisy descent on a `StandardisedLinear`: the first round's moments standardise it, the others are steps.

    The first sum (`Moments`) gives the number of records, the mean and the variance of every input, and the base rate
    of every class, all with noise. The weights start from zero and the biases from the base rates. All other sums are
    of clipped gradients; a step is the learning rate, which falls along a cosine, times the sum over the number of
    records that the first round counted: it does not depend on `size`.

    Args:
        lr: learning rate of the first step.
        rounds: of the run, the first included.
        size: the mean number of records of a client; public. If the noisy count contradicts it, a warning says so.
        largest: the largest norm of a record's moments over the trainer's clipping bound.
        numbers: the inputs that are numbers; all others are 0 or 1.
        noise: about the standard deviation of the noise in the mean of an input.
        rare: inputs of 0 and 1 with a smaller standard deviation are divided by this one: rare categories would
            otherwise get more noise than signal.
        link: how biases follow from base rates: `logit` for two classes, `log` for more, `identity` for a number.
    """

    lr: float
    rounds: int
    size: float
    largest: float
    numbers: tuple[int, ...] = ()
    noise: float = 0.0
    rare: float = 0.15
    link: Literal["logit", "log", "identity"] = "logit"

    def __post_init__(self) -> None:
        positive(lr=self.lr, largest=self.largest, rare=self.rare)
        whole(1, rounds=self.rounds)
        at_least(1, size=self.size)
        at_least(0, noise=self.noise)

    @property
    def counts(self) -> tuple[tuple[float, str], ...]:
        return ((self.size, PER_CLIENT),)

    def apply(self, state: State, aggregate: Tensor) -> State:
        layout = StandardisedLayout.of(state.shapes)
        if layout is None:
            raise UserError("Expected the model standardised for StandardisedDescent. Use RecordDescent for others.")
        if state.round == 0:
            return self._standardise(state, aggregate.double() * self.largest, layout)
        step = step_size(self.lr, state.round - 1, self.rounds - 1) / float(state.memory[_COUNT])
        weights = state.weights.clone()
        weights[layout.first :] += step * aggregate[layout.first :]
        return replace(state, weights=weights)

    def _standardise(self, state: State, moments: Tensor, layout: StandardisedLayout) -> State:
        """The state with centre, scale and biases from the moments of a mean client."""
        sums, squares, matrix, labels = layout.split(moments)
        counted = float(matrix[0, 0])
        self._check_size(counted)
        count = max(counted, self.size / 100)
        centre = (sums / count).clamp(0, 1)
        variance = squares / count - centre.square()
        variance[_others(self.numbers, layout.inputs)] = (centre - centre.square())[
            _others(self.numbers, layout.inputs)
        ]
        least = torch.full_like(variance, self.rare**2)
        least[list(self.numbers)] = max(self.noise / 2, 1e-8)
        scale = torch.maximum(variance, least).rsqrt()
        rates = (labels / count).clamp(1e-3, 1 - 1e-3)
        bias = {"logit": rates.logit(), "log": rates.log(), "identity": rates}[self.link]
        weights = torch.cat([centre, scale, torch.zeros_like(matrix).flatten(), bias]).to(state.weights)
        return replace(state, weights=weights, memory=state.memory_with(_COUNT, torch.tensor(count)))

    def _check_size(self, counted: float) -> None:
        """Warn if the noisy count contradicts the declared size by more than noise explains."""
        error = 4 * self.noise * self.size
        if abs(counted - self.size) > error + self.size / 4:
            warnings.warn(
                f"The declared mean number of records of a client, size = {self.size:g}, is wrong: the first round "
                f"counted about {max(counted, 0):.3g}, give or take {error:.2g}. Steps use the count, so that the "
                "model is not affected; the rule that chose rounds and learning rate used the declared number.",
                stacklevel=2,
            )


_COUNT = SERVER + "count"  # records of a mean client, with noise
MEAN_SIZE = 150.0  # records of a client, in rounds outside a run
PER_CLIENT = "at a client on average"
_LEARNING_RATE = 0.5  # of gradients over batches of records


def _others(numbers: tuple[int, ...], inputs: int) -> Tensor:
    """The inputs that are none of these."""
    others = torch.ones(inputs, dtype=torch.bool)
    others[list(numbers)] = False
    return others
