"""Tallies of participation: a server's memory of them grows with its cohorts, not with its population.

A tally is a tensor with two rows: the numbers of clients, ascending, and how often each took part.
"""

import torch
from torch import Tensor


def empty_tally() -> Tensor:
    """Nobody took part."""
    return torch.zeros(2, 0, dtype=torch.int64)


def counts_of(tally: Tensor, clients: Tensor) -> Tensor:
    """How often each of these clients took part.

    Example:
        >>> counts_of(with_one_more(empty_tally(), torch.tensor([7, 3])), torch.tensor([3, 5, 7])).tolist()
        [1, 0, 1]
    """
    counted, counts = tally
    if not len(counted):
        return torch.zeros_like(clients)
    place = torch.searchsorted(counted, clients).clamp(max=len(counted) - 1)
    return torch.where(counted[place] == clients, counts[place], 0)


def with_one_more(tally: Tensor, clients: Tensor) -> Tensor:
    """The tally after these clients took part once more."""
    counted, which = torch.unique(torch.cat([tally[0], clients]), return_inverse=True)
    added = torch.cat([tally[1], torch.ones_like(clients)])
    return torch.stack([counted, torch.zeros_like(counted).index_add(0, which, added)])
