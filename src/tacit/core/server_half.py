"""The server's half of a round: state to bytes for the clients, and their bytes to the next state.

::

    before   codec.prepare ─► mechanism.prepare ─► codec.tune ──► what pieces learn from public data
    out      codec.broadcast ─► mechanism.broadcast_parts ──► broadcast
    in       message_format.read ─► reject rows that are not finite or too long ──► messages
             conversation.aggregate: shorten outliers ─► mechanism.before_sum ─► aggregator.combine ──► sum
             conversation.release: mechanism.after_sum ──► what the server learns
             aggregator.finish ─► codec.decode ─► server.apply ──► next state
             mechanism.update_state ──► bound of the next round

Where the channel permits it, `sum_messages` is called once per wave, so that sums can be accumulated as waves arrive;
elsewhere `aggregate_messages` once per round. Where nobody sees a message, `sum_of_total` starts from the total that
secure aggregation revealed. `finish_round` is called once per round. A simulation and a federation call these same
functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.client_half import empty_messages, read_broadcast, read_model
from tacit.core.interfaces import Channel, Conversation
from tacit.core.lengths import row_limit, shorten_outliers
from tacit.core.method import Method
from tacit.core.rows import DenseRows, Rows, Surplus
from tacit.core.state import (
    DROPPED,
    Broadcast,
    ClientMemory,
    Messages,
    Round,
    ServerRound,
    SimulatedRound,
    State,
    Sum,
    View,
    WaveReport,
    count_dropped,
    drop_round,
)
from tacit.core.wave import Wave
from tacit.errors import ProtocolError, PublicDataError, UserError, WireError
from tacit.wire import frames
from tacit.wire.frames import FrameKind


def prepare(method: Method, state: State, public: Wave | None, now: SimulatedRound) -> State:
    """The state before the first round; `public` is a wave of one client that holds the public data."""
    if public is None:
        try:
            return method.mechanism.prepare(method.codec.prepare(state, None, now), None)
        except PublicDataError as error:
            raise PublicDataError(method.name, error.remedy) from None
    state = method.codec.prepare(state, public, now)

    def dry_run(draw: int) -> Rows:
        rehearsal = replace(now, shared=now.shared.child("rehearsal", draw))
        view, _ = read_model(method, method.codec.broadcast(state, rehearsal).parts, ClientMemory.of(state), rehearsal)
        if method.codec.coordinates == "mask" and view.mask is None:
            raise UserError(
                f"{method.name}: the clipping bound cannot be estimated from public data, because its coordinates are "
                "not chosen before the first round (Vote). Set the bound (FixedClip; clip=...)."
            )
        return method.codec.encode(method.trainer.train(view, public, rehearsal), view, rehearsal)

    after = method.mechanism.prepare(state, dry_run)
    noise = method.mechanism.aggregate_noise(after, now.expected_cohort)
    return after if noise is None else method.codec.tune(after, public, noise, now)


def broadcast(method: Method, state: State, now: Round) -> Broadcast:
    """The server's broadcast at the start of a round."""
    sent = method.codec.broadcast(state, now)
    return replace(sent, parts={**sent.parts, **method.mechanism.broadcast_parts(state)})


def pack_broadcast(method: Method, sent: Broadcast, now: Round, *, first: bool) -> bytes:
    """A broadcast as bytes; `first`: for a client that has received none before."""
    parts = sent.client_parts(first=first, wire_format=method.channel.down)
    return frames.pack(FrameKind.VIEW, now.index, parts, now.cohort)


def download_size(channel: Channel, sent: Broadcast, *, first: bool) -> int:
    """The number of bytes of a broadcast for one client.

    Args:
        channel: of the method.
        sent: the broadcast.
        first: whether this is the client's first broadcast.
    """
    return frames.size(sent.client_parts(first=first, wire_format=channel.down))


def with_overhead(sizes: tuple[int, ...], overhead: int) -> tuple[int, ...]:
    """Each client's bytes, with an even part of the cohort's overhead, to the byte; a cohort of nobody has none."""
    each, rest = divmod(overhead, max(len(sizes), 1))
    return tuple(size + each + (place < rest) for place, size in enumerate(sizes))


def client_view(method: Method, sent: Broadcast, state: State, now: Round) -> View:
    """The view of a client that took part in all earlier rounds."""
    parts = sent.client_parts(first=False, wire_format=method.channel.down)
    return read_broadcast(method, parts, ClientMemory.of(state), now)[0]


def no_messages(method: Method, sent: Broadcast, state: State, now: Round) -> Messages:
    """A stack of no messages in this round's form: the broadcast determines length, number type and grid."""
    return empty_messages(method, client_view(method, sent, state, now), state.shapes, now)


def read_messages(
    method: Method, replies: Mapping[int, bytes], like: Messages, now: Round
) -> tuple[Messages, Mapping[int, str]]:
    """The messages in these replies, in the order of the clients' numbers, and why others were rejected.

    Args:
        method: whose messages these are.
        replies: by client; a malformed reply costs only its own client's message.
        like: their form, from `no_messages`.
        now: the round.
    """
    messages, rejected = [], {}
    for client in sorted(replies):
        try:
            messages.append(method.channel.message_format.read(replies[client], client, like, now))
        except (WireError, ProtocolError) as error:
            rejected[client] = str(error)
    return join_messages(messages, like), rejected


def join_messages(messages: Sequence[Messages], like: Messages) -> Messages:
    """All these messages in one stack; `like` itself if there are none."""
    if not messages:
        return like
    clients, rows = torch.cat([each.clients for each in messages]), torch.cat([each.rows.dense() for each in messages])
    samples = [each.samples for each in messages if each.samples is not None]
    stacked = None if like.samples is None else torch.cat(samples)
    return replace(like, clients=clients, rows=DenseRows(rows), samples=stacked)


def reject_unusable(messages: Messages, max_row_norm: float = torch.inf) -> tuple[Messages, WaveReport]:
    """Return the messages whose rows are finite and no longer than `max_row_norm`, and a report of the wave.

    A faulty or hostile client loses only its own update. `max_row_norm` is the method's `row_limit`.
    """
    norms = messages.rows.norms()
    usable = torch.isfinite(norms) & (norms <= max_row_norm)
    accepted = messages if bool(usable.all()) else messages.keep(usable)
    return accepted, WaveReport(
        delivered=tuple(messages.clients[usable].tolist()),
        rejected=tuple(messages.clients[~usable].tolist()),
        norms=tuple(norms[usable].tolist()),
    )


def sum_messages(method: Method, state: State, messages: Messages) -> Sum:
    """The contribution of messages that a party sees in the clear, or whose sums a simulation may accumulate."""
    return method.aggregator.combine(method.mechanism.before_sum(messages, state), state)


def sum_of_total(
    method: Method, state: State, total: Tensor, delivered: int, like: Messages, surplus: Surplus | None = None
) -> Sum:
    """The sum where nobody sees a message, from the total that secure aggregation revealed and the number of clients.

    Bound and grid follow from the broadcast, through `like`; norms of rows are unknown. `surplus` holds the seeds of
    surplus noise that the clients opened.
    """
    empty = sum_messages(method, state, like)
    return replace(empty, total=total, weight=float(delivered), surplus=surplus or empty.surplus)


def aggregate_messages(method: Method, conversation: Conversation, state: State, messages: Messages, now: Round) -> Sum:
    """The sum of a round's messages, all at once, through the channel's conversation.

    Whoever sees them shortens outliers (`tacit.core.lengths`).
    """

    def add(visible: Messages) -> Sum:
        return sum_messages(method, state, shorten_outliers(method, visible, state))

    return conversation.aggregate(messages, state, now, add)


def finish_round(method: Method, conversation: Conversation, state: State, total: Sum, now: ServerRound) -> State:
    """The state after the round. Without contributions, the model is unchanged.

    So it is if the released sum, noise included, is longer than honest clients can make it (`Method.max_sum`): some
    client has sent a row that is not clipped, and nobody saw it. Only what is released is looked at, so the check
    reveals nothing more; the round stays charged.
    """
    noisy = release_sum(method, conversation, total, now)
    if noisy.weight > 0 and not float(noisy.total.double().norm()) <= method.max_sum(total, now):  # NaN is not
        return drop_round(state)
    if count_dropped(state):
        state = replace(state, memory={name: value for name, value in state.memory.items() if name != DROPPED})
    after = method.mechanism.update_state(state, total, now) if noisy.weight > 0 else state
    return apply_release(method, after, noisy, now)


def apply_release(method: Method, state: State, noisy: Sum, now: ServerRound) -> State:
    """The state after a round that released this sum, noise included; the mechanism's memory is up to date."""
    after = state
    if noisy.weight > 0:
        aggregate = method.aggregator.finish(noisy).to(state.weights.dtype)
        vector, after = method.codec.decode(aggregate, state, now)
        after = method.server.apply(after, vector)
    return replace(after, round=state.round + 1)


def release_sum(method: Method, conversation: Conversation, total: Sum, now: ServerRound) -> Sum:
    """The round's sum as the channel releases it to the server, with the mechanism's noise added."""
    return conversation.release(total, now, lambda opened: method.mechanism.after_sum(opened, now))


def server_side(method: Method, state: State, messages: Messages, now: ServerRound) -> tuple[State, Sum]:
    """The state after a round, and its sum, from all of its messages, in a conversation of this round alone."""
    accepted, _ = reject_unusable(messages, row_limit(method, messages, state, now))
    with method.channel.open(method, now.population) as conversation:
        total = aggregate_messages(method, conversation, state, accepted, now)
        noisy = release_sum(method, conversation, total, now)
    after = method.mechanism.update_state(state, total, now) if noisy.weight > 0 else state
    return apply_release(method, after, noisy, now), noisy
