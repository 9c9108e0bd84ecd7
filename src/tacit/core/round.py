"""One round, in the only order there is.

::

    before   codec.prepare ─► mechanism.prepare ──► what pieces learn from public data
    server   codec.view ─► mechanism.broadcast_parts ──► what is broadcast
    client   trainer.train ─► codec.encode ─► mechanism.at_client ─► channel.send ──► messages
    server   channel.aggregate: refuse non-finite rows ─► mechanism.before_sum ─► aggregator.combine ──► a sum per wave
    server   channel.release: mechanism.after_sum ─► aggregator.finish ─► codec.decode ─► server.apply ──► next state
             mechanism.remember, codec.remember ──► what the next round's bound and mask are made of

`receive` is called once per wave and `close` once per round, so that sums can be folded as waves come back.
The simulator and a real federation call these same functions.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.interfaces import MetricMechanism
from tacit.core.method import Method
from tacit.core.rows import Rows
from tacit.core.state import Messages, Round, State, Sum, View, WaveReport
from tacit.core.wave import Wave
from tacit.errors import PublicDataError, UserError


def prepare(method: Method, state: State, public: Wave | None, now: Round) -> State:
    """The state before the first round; `public` is a wave of one client that has the public data."""
    if public is None:
        try:
            return method.mechanism.prepare(method.codec.prepare(state, None, now), None)
        except PublicDataError as error:
            raise PublicDataError(method.name, error.remedy) from None
    state = method.codec.prepare(state, public, now)

    def dry_run(draw: int) -> Rows:
        again = replace(now, shared=now.shared.child("rehearsal", draw))
        view = method.codec.view(state, again)
        if method.codec.selects and view.mask is None:
            raise UserError(
                f"{method.name}: the bound cannot come from public data, because the coordinates that it is for are "
                "yet to be voted for. Choose a bound (FixedClip; clip=...)."
            )
        return method.codec.encode(method.trainer.train(view, public, again), view, again)

    return method.mechanism.prepare(state, dry_run)


def within_leakage_limit(method: Method, taken: Tensor, dim: int) -> Tensor:
    """Which clients take part, by how often each has before: one that would leak more than it allows declines."""
    mechanism = method.mechanism
    if not isinstance(mechanism, MetricMechanism) or mechanism.limit is None:
        return torch.ones_like(taken, dtype=torch.bool)
    return (taken + 1) * mechanism.leakage(dim) <= mechanism.limit * (1 + 1e-9)  # six times 0.4 is a little over 2.4


def broadcast(method: Method, state: State, now: Round) -> View:
    """What clients are told at the start of a round."""
    view = method.codec.view(state, now)
    return replace(view, parts={**view.parts, **method.mechanism.broadcast_parts(state)}, layers=state.layers)


def client_side(method: Method, view: View, data: Wave, now: Round) -> Messages:
    """What these clients send."""
    rows = method.codec.encode(method.trainer.train(view, data, now), view, now)
    samples = None if method.aggregator.uniform else data.samples
    messages = method.mechanism.at_client(Messages(data.clients, rows, samples), view, data, now)
    return method.channel.send(messages, now)


def reject_non_finite(messages: Messages) -> tuple[Messages, WaveReport]:
    """The messages that are finite, and a note of who was refused: one broken client costs only its own work."""
    norms = messages.rows.norms()
    fine = torch.isfinite(norms)
    kept = messages if bool(fine.all()) else messages.keep(fine)
    return kept, WaveReport(
        delivered=tuple(messages.clients[fine].tolist()),
        rejected=tuple(messages.clients[~fine].tolist()),
        norms=tuple(norms[fine].tolist()),
    )


def sum_messages(method: Method, state: State, messages: Messages, now: Round) -> Sum:
    """What these messages contribute to the round's sum."""

    def add(seen: Messages) -> Sum:
        return method.aggregator.combine(method.mechanism.before_sum(seen, state, now), state)

    return method.channel.aggregate(messages, state, now, add)


def finish_round(method: Method, state: State, total: Sum, now: Round) -> State:
    """The state after the round; a round to which nobody contributed leaves the model as it is."""
    blurred = released_sum(method, total, now)
    after = state
    if blurred.weight > 0:
        after = method.mechanism.update_state(state, total, now)
        aggregate = method.aggregator.finish(blurred).to(state.weights.dtype)
        after = method.codec.update_state(after, aggregate, now)
        after = method.server.apply(after, method.codec.decode(aggregate, state, now))
    return replace(after, round=state.round + 1)


def released_sum(method: Method, total: Sum, now: Round) -> Sum:
    """The round's sum as the server gets it: out of the channel, and blurred."""
    return method.channel.release(total, now, lambda opened: method.mechanism.after_sum(opened, now))


def server_side(method: Method, state: State, messages: Messages, now: Round) -> State:
    """A whole round's messages at once: the slow and obvious form of `receive` and `close`."""
    kept, _ = reject_non_finite(messages)
    return finish_round(method, state, sum_messages(method, state, kept, now), now)
