"""A look over a client's shoulder: what it has in hand in some rounds of a run, before its mechanism blurs it.

A run is repeated from its seed, so that nothing has to be kept while it goes. What is seen is private data: it is for
the one who holds them, in a simulation or on the client itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tacit.core import Messages, Method, Round, Task, View
from tacit.core.round import broadcast
from tacit.engine.layout import make_model
from tacit.engine.learners import Fastest
from tacit.engine.simulation import draw, initial_state, rounds
from tacit.engine.waves import StackedClients
from tacit.engine.worker import single_thread
from tacit.errors import expect


@dataclass(frozen=True, eq=False)
class ClientTrace:
    """One client in one round: the arguments of its mechanism's `at_client`.

    Attributes:
        messages: its row after trainer and codec, not blurred yet.
        view: what it was told.
        data: the client as a wave.
        now: the round.
    """

    messages: Messages
    view: View
    data: StackedClients
    now: Round


def client_traces(
    method: Method, task: Task, *, client: int, at: Sequence[int], seed: int = 0, workers: int | None = None
) -> Iterator[ClientTrace]:
    """What a client has in hand in these rounds, counted from 1, whether it takes part in them or not.

    Example:
        >>> import tacit
        >>> task = tacit.tasks.make_task("digits")
        >>> nbafl = tacit.methods.priority(rounds=2, samples=15)
        >>> (seen,) = client_traces(nbafl, task, client=3, at=[2], workers=1)
        >>> noise = nbafl.mechanism.deviations(seen.messages, seen.view, seen.data, seen.now)
        >>> noise.shape, noise.unique().numel()
        (torch.Size([1, 4810]), 2)
    """
    wanted = sorted(set(at))
    expect(bool(wanted) and wanted[0] >= 1, f"rounds from 1 on, got {[*at]}")
    expect(0 <= client < len(task.population), f"client={client} in [0, {len(task.population)})")
    learner = Fastest(make_model(task, seed), task.loss, like=task.population[0])
    wave = StackedClients(torch.tensor([client]), task.population, learner)
    state = initial_state(method, task, seed)
    for number in wanted:
        if state.round < number - 1:
            until = replace(method, rounds=number - 1)
            *_, (state, _) = rounds(until, task, seed=seed, workers=workers, state=state, evaluate_every=number)
        _, now = draw(method, len(task.population), seed, number - 1)
        view = broadcast(method, replace(state, shapes=learner.layout.shapes), now)
        with single_thread():
            rows = method.codec.encode(method.trainer.train(view, wave, now), view, now)
        yield ClientTrace(Messages(wave.clients, rows), view, wave, now)
