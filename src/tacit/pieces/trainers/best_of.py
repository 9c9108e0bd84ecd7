"""Clients choose among hypotheses by their own loss (IFCA: Ghosh et al. 2020; Galli et al. 2023, Algorithm 1)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core import DenseRows, Round, Rows, View, Wave
from tacit.core.pieces import Content, Trainer


@dataclass(frozen=True)
class BestOf:
    """Every client trains the one of the server's hypotheses that loses least on its own data.

    Which one that was is not sent. With a single hypothesis there is nothing to choose.

    Args:
        trainer: how the chosen hypothesis is trained.

    Sees: the client alone knows its choice; the server has what its message gives away of it.
    """

    trainer: Trainer

    @property
    def sends(self) -> Content:
        """What the inner trainer sends; of several hypotheses it must be weights."""
        return self.trainer.sends

    @property
    def masked(self) -> bool:
        """Whether the inner trainer trains only the codec's coordinates."""
        return self.trainer.masked

    def choose(self, view: View, data: Wave) -> Tensor:
        """The number of the hypothesis that fits each client best; of equals, the first."""
        hypotheses = _hypotheses(view)
        if len(hypotheses) == 1:
            return torch.zeros(len(data.clients), dtype=torch.int64)
        return data.losses(hypotheses).argmin(1).cpu()

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One row per client, trained from its choice."""
        hypotheses, choice = _hypotheses(view), self.choose(view, data)
        if len(hypotheses) == 1:
            return self.trainer.train(replace(view, weights=hypotheses[0]), data, now)
        values = hypotheses.new_empty(len(choice), hypotheses.shape[1])
        for number in set(choice.tolist()):
            mine = choice == number
            one = replace(view, weights=hypotheses[number])
            values[mine] = self.trainer.train(one, data.only(mine), now).dense()
        return DenseRows(values)


def _hypotheses(view: View) -> Tensor:
    """The view's weights as a stack, (k, dim)."""
    return view.weights.view(-1, view.weights.shape[-1])
