"""What is proved about a run, and in which words it is said.

A guarantee holds only what the mechanism proves. Everything else is `none`, with the reason, and every input that
depends on private data without being accounted for is listed beside it.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Self

from tacit.core import Event
from tacit.errors import expect
from tacit.privacy.accounting import Accounting
from tacit.privacy.events import releases

RECIPIENTS = "whoever receives the models; the server is trusted"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy with everything it rests on, or none and why.

    Attributes:
        epsilon: at the last executed round; None if nothing is proved.
        delta: the probability that the guarantee fails.
        slack: the part of δ that pays for noise being drawn on a computer: the samplers' errors.
        rounds: how many rounds it covers.
        unit: whose presence is protected.
        adjacency: which two populations must look alike.
        sampling: how cohorts were drawn.
        accountant: who computed ε.
        against: from whom the unit is protected.
        unaccounted: inputs that depend on private data, and that ε does not cover; a sentence each.
        survivors: of how many honest clients the noise must have come, if it came from clients.
        reason: why nothing is proved; empty if something is.
    """

    epsilon: float | None
    delta: float | None = None
    slack: float = 0.0
    rounds: int = 0
    unit: str = "client"
    adjacency: str = ""
    sampling: str = ""
    accountant: str = ""
    against: str = RECIPIENTS
    unaccounted: tuple[str, ...] = ()
    survivors: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        expect((self.epsilon is None) == bool(self.reason), "either an epsilon or the reason why there is none")

    @classmethod
    def none(cls, reason: str, unaccounted: tuple[str, ...] = (), rounds: int = 0) -> Self:
        """Nothing is proved.

        Example:
            >>> print(Guarantee.none("no noise was added"))
            none: no noise was added.
        """
        return cls(epsilon=None, reason=reason.rstrip("."), unaccounted=unaccounted, rounds=rounds)

    @classmethod
    def of(cls, book: Accounting, delta: float, event: Event | None, against: str = RECIPIENTS) -> Self:
        """What a book proves at this δ; `event` is that of the last round, None if a round proved nothing."""
        if event is None:
            return cls.none("no noise was added that an accountant could price", rounds=book.rounds)
        epsilon = book.epsilon(delta)
        if math.isinf(epsilon):
            return cls.none(f"no finite ε holds at δ = {delta:g}", rounds=book.rounds)
        return cls(
            epsilon=epsilon,
            delta=delta,
            slack=book.slack(delta),
            rounds=book.rounds,
            adjacency=book.accountant.adjacency.value,
            sampling="; ".join(str(release) for release in releases(event)),
            accountant=book.accountant.name,
            against=against,
        )

    @property
    def proved(self) -> bool:
        """Whether anything is."""
        return self.epsilon is not None

    def but(self, *unaccounted: str) -> Self:
        """The same, with more inputs that are not accounted for; empty sentences say nothing."""
        return replace(self, unaccounted=(*self.unaccounted, *filter(None, unaccounted)))

    def to_json(self) -> dict[str, object]:
        """Plain values; `guarantee` is true only if something is proved."""
        return {"guarantee": self.proved, **asdict(self), "unaccounted": list(self.unaccounted)}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.epsilon is None:
            yield f"none: {self.reason}."
        else:
            yield (
                f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for every {self.unit} ({self.adjacency}), "
                f"over {self.rounds} round{'s' * (self.rounds != 1)}, against {self.against}."
            )
            yield f"Sampling: {self.sampling}. Accountant: {self.accountant}."
            if self.slack:
                yield f"Of δ, {self.slack:.1g} pays for the samplers' errors."
        if self.survivors is not None:
            yield f"It assumes noise from at least {self.survivors} honest clients in every round."
        if self.unaccounted:
            yield "Not covered by it:"
            yield from (f"  {sentence}" for sentence in self.unaccounted)
