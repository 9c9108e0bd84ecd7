"""What an enclave lets out of a round: by the same functions that a simulation uses on its fast path.

All rows of a round are there at once and are summed in the order of the clients' numbers, so that the order in which
they came makes no difference, not even to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacit.core import Messages, Method, Round, State, Sum
from tacit.core.round import receive


@dataclass(frozen=True, eq=False)
class Released:
    """All that leaves.

    Attributes:
        total: the blurred sum; its weight is 0, and all numbers are, if too few contributed.
        memory: what the mechanism learnt for the next round.
        delivered: who contributed.
    """

    total: Sum
    memory: Mapping[str, Tensor]
    delivered: tuple[int, ...]


def aggregate(method: Method, state: State, messages: Messages, now: Round) -> Released:
    """Bound, sum and blur, by the method's own pieces; nothing, if too few contribute."""
    total = receive(method, state, messages, now)
    blurred = method.channel.release(total, now, lambda opened: method.mechanism.after_sum(opened, now))
    public = Sum(blurred.total, blurred.weight)  # bound, tally and squares stay inside: they may tell about single rows
    if blurred.weight == 0:
        return Released(public, {}, ())
    after = method.mechanism.remember(state, total, now)
    learnt = {name: value for name, value in after.memory.items() if state.memory.get(name) is not value}
    return Released(public, learnt, tuple(sorted(messages.clients.tolist())))
