"""Traces of one client: its message in selected rounds of a run, before its mechanism adds noise.

The run is repeated from its seed, so nothing has to be recorded while it runs. A trace is private data: it is meant
for simulations, or for the client itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tacit.core import Messages, Method, SeededKeys, SimulatedRound, View, Wave
from tacit.core.server_half import broadcast, client_view
from tacit.core.worker_choice import Workers
from tacit.data import Task
from tacit.engine.simulation import draw, initial_state, rounds, waves
from tacit.engine.waves import single_thread
from tacit.errors import expect


@dataclass(frozen=True, eq=False)
class ClientTrace:
    """One client in one round: the arguments of its mechanism's `at_client`.

    Attributes:
        messages: the client's row after trainer and codec, before clipping and noise.
        view: the broadcast.
        data: the client as a wave of one.
        now: the round.
    """

    messages: Messages
    view: View
    data: Wave
    now: SimulatedRound


def client_traces(
    method: Method, task: Task, *, client: int, at: Sequence[int], seed: int = 0, workers: Workers = None
) -> Iterator[ClientTrace]:
    """Yield one client's trace in each of these rounds, whether or not it is sampled in them.

    Args:
        method: the method to run.
        task: the population, the model and the loss.
        client: the client's number in the population.
        at: the rounds, counted from 1.
        seed: of the run, whose noise is seeded.
        workers: the number of processes that train; None: one per processor.

    Example:
        >>> import tacit
        >>> task = tacit.tasks.make_task("digits")
        >>> nbafl = tacit.methods.make("priority", {"rounds": 2, "samples": 15})
        >>> (trace,) = client_traces(nbafl, task, client=3, at=[2], workers=1)
        >>> noise = nbafl.mechanism.deviations(trace.messages, trace.view, trace.data, trace.now)
        >>> noise.shape, noise.unique().numel()
        (torch.Size([1, 4810]), 2)
    """
    wanted = sorted(set(at))
    expect(bool(wanted) and wanted[0] >= 1, f"at={[*at]} to list rounds, counted from 1")
    expect(0 <= client < len(task.population), f"client={client} in [0, {len(task.population)})")
    wave = waves(task, seed)(torch.tensor([client]))
    state = initial_state(method, task, seed)
    for number in wanted:
        if state.round < number - 1:
            until = replace(method, rounds=number - 1)
            played = rounds(
                until, task, seed=seed, workers=workers, state=state, evaluate_every=number, randomness="seeded"
            )
            *_, (state, _) = played
        _, now = draw(method, len(task.population), SeededKeys(seed).keys(number - 1), number - 1)
        view = client_view(method, broadcast(method, state, now), state, now)
        with single_thread():
            rows = method.codec.encode(method.trainer.train(view, wave, now), view, now)
        yield ClientTrace(Messages(wave.clients, rows), view, wave, now)
