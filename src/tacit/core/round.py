"""One round, as a fixed sequence of steps.

::

    before   codec.prepare ─► mechanism.prepare ──► what pieces learn from public data
    server   codec.view ─► mechanism.broadcast_parts ──► broadcast
    client   trainer.train ─► codec.encode ─► mechanism.at_client ─► channel.send ──► messages
    server   reject non-finite rows ─► conversation.aggregate: mechanism.before_sum ─► aggregator.combine ──► sum
    server   conversation.release: mechanism.after_sum ──► what the server learns
    server   aggregator.finish ─► codec.decode ─► server.apply ──► next state
             mechanism.update_state, codec.update_state ──► bound and mask of the next round

Where the channel permits it, `sum_messages` is called once per wave, so that sums can be accumulated as waves arrive;
elsewhere `aggregate_messages` once per round. `finish_round` is called once per round. The simulator and a real
federation call these same functions.
"""

from dataclasses import replace

import torch

from tacit.core.interfaces import Conversation
from tacit.core.method import Method
from tacit.core.rows import Rows
from tacit.core.state import Messages, Round, State, Sum, View, WaveReport
from tacit.core.wave import Wave
from tacit.errors import PublicDataError, UserError


def prepare(method: Method, state: State, public: Wave | None, now: Round) -> State:
    """The state before the first round; `public` is a wave of one client that holds the public data."""
    if public is None:
        try:
            return method.mechanism.prepare(method.codec.prepare(state, None, now), None)
        except PublicDataError as error:
            raise PublicDataError(method.name, error.remedy) from None
    state = method.codec.prepare(state, public, now)

    def dry_run(draw: int) -> Rows:
        drawn = replace(now, shared=now.shared.child("rehearsal", draw))
        view = method.codec.view(state, drawn)
        if method.codec.coordinates == "mask" and view.mask is None:
            raise UserError(
                f"{method.name}: the clipping bound cannot be estimated from public data, because its coordinates are "
                "not chosen before the first round (Vote). Set the bound (FixedClip; clip=...)."
            )
        return method.codec.encode(method.trainer.train(view, public, drawn), view, drawn)

    return method.mechanism.prepare(state, dry_run)


def broadcast(method: Method, state: State, now: Round) -> View:
    """What the server sends to clients at the start of a round."""
    view = method.codec.view(state, now)
    return replace(view, parts={**view.parts, **method.mechanism.broadcast_parts(state)}, layers=state.layers)


def client_side(method: Method, view: View, data: Wave, now: Round) -> Messages:
    """What these clients send, given the broadcast and their own data."""
    rows = method.codec.encode(method.trainer.train(view, data, now), view, now)
    samples = None if method.aggregator.uniform else data.samples
    messages = method.mechanism.at_client(Messages(data.clients, rows, samples), view, data, now)
    return method.channel.send(messages, now)


def reject_non_finite(messages: Messages) -> tuple[Messages, WaveReport]:
    """The messages whose rows are finite, and a report of the wave. A faulty client loses only its own update."""
    norms = messages.rows.norms()
    finite = torch.isfinite(norms)
    accepted = messages if bool(finite.all()) else messages.keep(finite)
    return accepted, WaveReport(
        delivered=tuple(messages.clients[finite].tolist()),
        rejected=tuple(messages.clients[~finite].tolist()),
        norms=tuple(norms[finite].tolist()),
    )


def sum_messages(method: Method, state: State, messages: Messages, now: Round) -> Sum:
    """The contribution of messages that a party sees in the clear, or whose sums a simulation may add."""
    return method.aggregator.combine(method.mechanism.before_sum(messages, state, now), state)


def aggregate_messages(method: Method, conversation: Conversation, state: State, messages: Messages, now: Round) -> Sum:
    """The sum of a round's messages, all at once, through the channel's conversation."""
    return conversation.aggregate(messages, state, now, lambda visible: sum_messages(method, state, visible, now))


def finish_round(method: Method, conversation: Conversation, state: State, total: Sum, now: Round) -> State:
    """The state after the round. Without contributions, the model is unchanged."""
    noisy = released_sum(method, conversation, total, now)
    after = state
    if noisy.weight > 0:
        after = method.mechanism.update_state(state, total, now)
        aggregate = method.aggregator.finish(noisy).to(state.weights.dtype)
        after = method.codec.update_state(after, aggregate, now)
        after = method.server.apply(after, method.codec.decode(aggregate, state, now))
    return replace(after, round=state.round + 1)


def released_sum(method: Method, conversation: Conversation, total: Sum, now: Round) -> Sum:
    """The round's sum as the channel releases it to the server, with the mechanism's noise added."""
    return conversation.release(total, now, lambda opened: method.mechanism.after_sum(opened, now))


def server_side(method: Method, state: State, messages: Messages, now: Round) -> State:
    """The state after a round whose messages are all at hand, in a conversation of this round alone."""
    accepted, _ = reject_non_finite(messages)
    with method.channel.open(method, now.population) as conversation:
        total = aggregate_messages(method, conversation, state, accepted, now)
        return finish_round(method, conversation, state, total, now)
