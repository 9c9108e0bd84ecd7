"""Broadcasts of a server that deviates from the method: claims against the server hold whatever it sends.

A client refuses what would make its row another than the method says, and sends nothing; otherwise it answers, and what
it sends is as private as the claim says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import Broadcast, Key, Method, Round, State
from tacit.core.server_half import broadcast
from tacit.wire import indices
from tacit.wire.frames import Part, Parts

Change = Callable[[Parts, int], Parts]  # the parts of a client's first broadcast, and the number of the model's weights
_MODELS = (Part.WEIGHTS, Part.VALUES)


@dataclass(frozen=True)
class Lie:
    """A change of every broadcast.

    Attributes:
        name: in words.
        change: of all parts that a client receives.
    """

    name: str
    change: Change

    def change_broadcast(self, method: Method, state: State, now: Round) -> Broadcast:
        """The broadcast of a round, changed: everything is sent in every round."""
        honest = broadcast(method, state, now)
        return Broadcast(self.change({**honest.first_parts, **honest.parts}, state.dim))


def lies(key: Key) -> Iterator[Lie]:
    """Broadcasts that leave out, add or change a part."""
    for name, factor in (("weights of zero", 0.0), ("large weights", 1e5), ("weights near overflow", 1e30)):
        yield Lie(name, _change_models(lambda values, factor=factor: values * factor))  # type: ignore[misc]
    yield Lie("random weights", _change_models(lambda values: _random(values, key.child("weights"))))
    yield Lie("weights that are not numbers", _change_models(lambda values: values * torch.nan))
    yield Lie("no mask", lambda parts, _: _leave_out(parts, Part.MASK))
    yield Lie("no mask and no values", lambda parts, dim: _whole_model(_leave_out(parts, Part.MASK, Part.VALUES), dim))
    yield Lie("a mask of one weight", lambda parts, dim: _mask(parts, dim, 1))
    yield Lie("a mask of all weights", lambda parts, dim: _mask(parts, dim, dim))
    for name, factor in (("a larger bound", 1e3), ("a smaller bound", 1e-3), ("a bound that is no number", torch.nan)):
        yield Lie(name, lambda parts, _, factor=factor: _scaled(parts, Part.BOUND, factor))  # type: ignore[misc]
    yield Lie("no bound", lambda parts, _: _leave_out(parts, Part.BOUND))
    yield Lie("two models", lambda parts, dim: {**parts, Part.WEIGHTS: torch.zeros(2 * dim)})


def applies(lie: Lie, method: Method, state: State, now: Round) -> bool:
    """Whether this lie changes what the method broadcasts."""
    honest = broadcast(method, state, now)
    parts = {**honest.first_parts, **honest.parts}
    changed = lie.change(parts, state.dim)
    return parts.keys() != changed.keys() or any(not torch.equal(parts[each], changed[each]) for each in parts)


def _change_models(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda parts, _: {name: change(v) if name in _MODELS else v for name, v in parts.items()}


def _random(values: Tensor, key: Key) -> Tensor:
    """The same numbers in every run, so that runs differ by their canaries only."""
    return torch.randn(values.shape, generator=key.public_generator()).to(values.dtype)


def _leave_out(parts: Parts, *left_out: Part) -> Parts:
    return {name: value for name, value in parts.items() if name not in left_out}


def _whole_model(parts: Parts, dim: int) -> Parts:
    return parts if Part.WEIGHTS in parts else {**parts, Part.WEIGHTS: torch.zeros(dim)}


def _mask(parts: Parts, dim: int, count: int) -> Parts:
    if Part.VALUES not in parts:
        return parts
    values = torch.zeros(count, dtype=parts[Part.VALUES].dtype)
    return {**parts, Part.MASK: indices.pack(torch.arange(count), dim), Part.VALUES: values}


def _scaled(parts: Parts, which: Part, factor: float) -> Parts:
    return {**parts, which: parts[which] * factor} if which in parts else parts
