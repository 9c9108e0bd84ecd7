"""Train only the coordinates that the codec chose (Kerkouche et al. 2021, Algorithm 2)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from tacit.core import Round, Rows, View, Wave
from tacit.core.pieces import Content
from tacit.errors import UserError
from tacit.pieces.trainers.sgd import Sgd


@dataclass(frozen=True)
class Masked:
    """SGD that moves only the coordinates of the view's mask; all others stay as received, exactly.

    Without it, clients train all weights and send some of them.

    Args:
        sgd: how to descend. Its `sends` must be `updates`.
    """

    sgd: Sgd
    sends: ClassVar[Content] = "updates"
    masked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sgd.sends != "updates":
            raise UserError("Expected Masked to send updates: weights outside the mask are not sent at all.")

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One row per client; where no coordinates are chosen yet, all of them are trained."""
        return data.descend(view.weights, replace(self.sgd.descent(now), mask=view.mask))
