"""Unequal noise with a guarantee: rows are clipped to an ellipsoid with public axes, and noise is proportional to them.

Divided by the axes, the ellipsoid is a ball and the noise is isotropic, so the mechanism is an ordinary Gaussian
mechanism (AdaCliP, Pichapati et al. 2019): coordinates with a larger bound get more noise.

If rows are clipped to a ball and only the noise is unequal, the direction with the least noise determines the
guarantee, and additional noise elsewhere adds no privacy. This is clipping to the largest ball inside the ellipsoid.

With axes a_k and coordinates that change by e_k, the total noise for a given multiplier is Σ a_k² · Σ e_k²/a_k², which
is minimal for a_k ∝ √e_k: coordinates that change more should get *more* noise. This is `power=0.5`. Negative powers
put less noise on coordinates that change more, as noise by importance does; 0 is equal noise.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from torch import Tensor

from tacit.core import Bound, Rows, State
from tacit.core.interfaces import DryRun
from tacit.errors import PublicDataError, positive, within
from tacit.pieces.mechanisms.clipping import Clip
from tacit.pieces.mechanisms.groups import Grouping, Groups, InputFeatures

START, MOVES = "mechanism/start", "mechanism/moves"  # names in `State.memory`


class PublicImportance(Protocol):
    """How much each group of weights changes, computed from public information only."""

    def prepare(self, state: State, groups: Groups, dry_run: DryRun | None) -> State:
        """The state before the first round, with what `of` needs later."""

    def of(self, state: State, groups: Groups) -> Tensor | None:
        """(groups,): the root mean square change per weight; None if nothing is known yet."""


@dataclass(frozen=True)
class ReleasedMovement:
    """The change of the released model since the start; unknown in the first round."""

    def prepare(self, state: State, groups: Groups, dry_run: DryRun | None) -> State:
        return replace(state, memory=state.memory_with(START, state.weights.clone()))

    def of(self, state: State, groups: Groups) -> Tensor | None:
        change = _root_mean_square(state.weights - state.memory[START], groups)
        return change if bool((change > 0).any()) else None


@dataclass(frozen=True)
class PublicMovement:
    """The change of the initial model by one local round on the task's public data, which are not protected."""

    def prepare(self, state: State, groups: Groups, dry_run: DryRun | None) -> State:
        if dry_run is None:
            raise PublicDataError("PublicMovement", "add `--task-set public=50`, or `--set importance=released`.")
        return replace(state, memory=state.memory_with(MOVES, _root_mean_square(dry_run(0).dense()[0], groups)))

    def of(self, state: State, groups: Groups) -> Tensor | None:
        return state.memory[MOVES]


@dataclass(frozen=True, kw_only=True)
class EllipsoidClip(Clip):
    """Clip rows to an ellipsoid whose axes follow a public importance: axis ∝ importance^power.

    Args:
        value: the bound; axes are normalised to a root mean square of 1, or with `ball` to a shortest axis of 1.
        importance: `ReleasedMovement()` or `PublicMovement()`.
        power: 0 for a ball, 0.5 for the least total noise, negative for less noise on weights that change more.
        floor: lower limit of importance, as a fraction of its mean.
        ball: clip rows to the largest ball inside the ellipsoid, so that only the noise is unequal.
        groups: how the weights of the first layer are grouped; every other layer is one group.

    Formal guarantees: rows respect the ellipsoid, whose axes depend only on released or public values. With noise
    proportional to the axes, a round is a Gaussian mechanism of the declared multiplier. With `ball`, this multiplier
    is exact in the direction of the least noise.
    """

    value: float
    importance: PublicImportance
    power: float = 0.5
    floor: float = 0.1
    ball: bool = False
    groups: Grouping = InputFeatures()
    row_wise: ClassVar[bool] = True
    per_layer: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        positive(value=self.value)
        within("[-4, 4]", power=self.power)
        within("(0, 1]", floor=self.floor)

    def prepare(self, state: State, dry_run: DryRun | None) -> State:
        return self.importance.prepare(state, self._groups(state), dry_run)

    def bound(self, rows: Rows, state: State) -> Bound:
        """This round's ellipsoid; a ball as long as no importance is known."""
        groups = self._groups(state)
        importance = self.importance.of(state, groups)
        if importance is None or self.power == 0:
            return Bound((self.value,))
        axes = groups.spread((importance / importance.mean()).clamp(min=self.floor).pow(self.power), 1.0)
        unit = axes.min() if self.ball else axes.square().mean().sqrt()
        return Bound((self.value,), axes=axes / unit, ball=self.ball)

    def _groups(self, state: State) -> Groups:
        return self.groups.of(state.shapes).with_layers(state.shapes)


def _root_mean_square(values: Tensor, groups: Groups) -> Tensor:
    return (groups.sums(values.square()[None])[0] / groups.sizes()).sqrt()
