"""Unequal noise with a guarantee: rows within an ellipsoid whose axes are public, and noise in proportion to the axes.

Divided by the axes, the ellipsoid is a ball and the noise is the same in all directions, so that the whole is an
ordinary Gaussian mechanism (AdaCliP, Pichapati et al. 2019): where a client has more room, there it is blurred more.

What if rows are clipped to a ball, and only the noise is unequal? Then the worst direction is that of the least noise,
and what other coordinates have more of it proves nothing: clipping to the largest ball inside the ellipsoid is that.

With axes a_k and coordinates that move by e_k, the noise that a multiplier needs is Σ a_k² · Σ e_k²/a_k², which is
least for a_k ∝ √e_k: what moves more should have *more* noise. That is `power=0.5`; negative powers put less noise on
what moves more, as noise by importance has it, and 0 is the same noise for all.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from torch import Tensor

from tacit.core import Bound, Rows, State
from tacit.core.pieces import DryRun
from tacit.errors import UserError, expect
from tacit.pieces.mechanisms.clipping import LearnsNothing
from tacit.pieces.mechanisms.groups import Grouping, Groups, Inputs

START, MOVES = "mechanism/start", "mechanism/moves"


class PublicImportance(Protocol):
    """How far each group of weights moves, as everybody can know."""

    def prepare(self, state: State, groups: Groups, rehearse: DryRun | None) -> State:
        """The state before the first round, with what is needed later."""
        ...

    def of(self, state: State, groups: Groups) -> Tensor | None:
        """(groups,): the root mean square per weight; None if nothing is known yet."""
        ...


@dataclass(frozen=True)
class ReleasedMovement:
    """How far the released model has moved since the start. The first round knows nothing."""

    def prepare(self, state: State, groups: Groups, rehearse: DryRun | None) -> State:
        """The first weights."""
        return replace(state, memory=state.remember(START, state.weights.clone()))

    def of(self, state: State, groups: Groups) -> Tensor | None:
        """The distance of the model that clients begin with from the first one."""
        moved = _root_mean_square(state.weights - state.memory[START], groups)
        return moved if bool((moved > 0).any()) else None


@dataclass(frozen=True)
class PublicMovement:
    """How far one local round on the task's public data moves the first model. Those data are not protected."""

    def prepare(self, state: State, groups: Groups, rehearse: DryRun | None) -> State:
        """The update on public data, group by group."""
        if rehearse is None:
            raise UserError(
                "PublicMovement takes importance from public data, but the task has none. Give the task some (public), "
                "or use ReleasedMovement (importance=released)."
            )
        return replace(state, memory=state.remember(MOVES, _root_mean_square(rehearse(0).dense()[0], groups)))

    def of(self, state: State, groups: Groups) -> Tensor | None:
        """What was found before the first round."""
        return state.memory[MOVES]


@dataclass(frozen=True, kw_only=True)
class EllipsoidClip(LearnsNothing):
    """Rows within an ellipsoid whose axes follow a public importance: axis ∝ importance^power.

    Args:
        value: the bound; axes are scaled to 1 in root mean square, or with `ball` so that the shortest is 1.
        importance: `ReleasedMovement()` or `PublicMovement()`.
        power: 0 for a ball, 0.5 for the least noise in all, negative for less noise on what moves more.
        floor: importance below this part of the mean counts as that much.
        ball: clip rows to the largest ball inside, so that only the noise is unequal.
        groups: which weights of the first layer belong together; all others do by their layer.

    Formal guarantees: rows respect the ellipsoid, whose axes are a function of what was released or is public; with
    noise in proportion to the axes a round is a Gaussian mechanism of the declared multiplier. With `ball` that is what
    the direction of the least noise gives, exactly.
    """

    value: float
    importance: PublicImportance
    power: float = 0.5
    floor: float = 0.1
    ball: bool = False
    groups: Grouping = Inputs()
    row_wise: ClassVar[bool] = True
    per_layer: ClassVar[bool] = True
    unproved: ClassVar[str] = ""

    def __post_init__(self) -> None:
        expect(0 < self.value < float("inf"), f"clip={self.value} > 0 and finite")
        expect(-4 <= self.power <= 4, f"power={self.power} in [-4, 4]")
        expect(0 < self.floor <= 1, f"floor={self.floor} in (0, 1]")

    def prepare(self, state: State, rehearse: DryRun | None) -> State:
        """What the importance needs."""
        return self.importance.prepare(state, self._groups(state), rehearse)

    def bound(self, rows: Rows, state: State) -> Bound:
        """This round's ellipsoid; a ball as long as nothing is known."""
        groups = self._groups(state)
        moves = self.importance.of(state, groups)
        if moves is None or self.power == 0:
            return Bound((self.value,))
        axes = groups.spread((moves / moves.mean()).clamp(min=self.floor).pow(self.power), 1.0)
        unit = axes.min() if self.ball else axes.square().mean().sqrt()
        return Bound((self.value,), axes=axes / unit, ball=self.ball)

    def _groups(self, state: State) -> Groups:
        return self.groups.of(state.shapes).completed(state.shapes)


def _root_mean_square(values: Tensor, groups: Groups) -> Tensor:
    return (groups.sums(values.square()[None])[0] / groups.sizes()).sqrt()
