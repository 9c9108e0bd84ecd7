"""The client's half of a round: bytes from the server, the client's own data and its memory become bytes.

::

    channel.down ─► codec.read ─► mechanism.check_broadcast ──► view, and what the client keeps
    trainer.train ─► codec.encode ─► mechanism.at_client ─► channel.send ──► messages
    channel.message_format ──► bytes

A simulation calls `read_broadcast` once and `make_messages` for every wave, on tensors in memory; a site calls
`ClientHalf.messages`, on what it read from bytes. Neither sees the server's state.

A client does not rely on the server to follow the method: `read_broadcast` refuses a broadcast that deviates from it,
before anything is computed. A site calls it before it charges its ledger.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core.keys import ClientKeys, Key
from tacit.core.method import Method
from tacit.core.provenance import read_parts
from tacit.core.rows import DenseRows
from tacit.core.state import ClientMemory, ClientRound, Messages, Round, View, decode_part
from tacit.core.wave import EmptyWave, Shapes, Wave
from tacit.errors import WireError
from tacit.wire.frames import Part, Parts

MAX_WEIGHT = 2.0**20  # of a model in a broadcast, where records are protected


def read_broadcast(method: Method, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
    """A client's view of a broadcast and its memory afterwards; uses no data.

    Raises `WireError` unless the broadcast is one of this method in this round: no part is missing, unread by all
    pieces or inconsistent with what the client knows, all numbers are finite, and where records are protected, weights
    are in a range in which gradients are computed well.
    """
    expected = {*read_parts(method.codec), *read_parts(method.mechanism)}
    if unexpected := parts.keys() - expected:
        names = ", ".join(sorted(part.name for part in unexpected))
        raise WireError(f"Expected a broadcast of {method.name}, got one with {names}, which no piece of it reads.")
    view, memory = read_model(method, parts, memory, now)
    method.mechanism.check_broadcast(view)
    return view, memory


def read_model(method: Method, parts: Parts, memory: ClientMemory, now: Round) -> tuple[View, ClientMemory]:
    """A client's view of the codec's parts of a broadcast, and its memory afterwards."""
    if Part.WEIGHTS in parts:
        weights = decode_part(parts[Part.WEIGHTS], method.channel.down, memory.weights.numel())
        parts = {**parts, Part.WEIGHTS: weights}
    view, memory = method.codec.read(parts, memory, now)
    if not bool(torch.isfinite(view.weights).all()):
        raise WireError("Expected a model of finite numbers, got infinite ones, or NaN.")
    if method.trainer.sends != "terms" and method.terms.protects_records:
        largest = float(view.weights.abs().max()) if view.weights.numel() else 0.0
        if largest > MAX_WEIGHT:
            raise WireError(
                f"Expected weights up to {MAX_WEIGHT:g} where records are protected, got {largest:g}: at such "
                "weights, rounding errors of gradients could be as large as what one record may add."
            )
    return view, memory


def make_messages(method: Method, view: View, data: Wave, now: ClientRound) -> Messages:
    """The messages of these clients, from their view and their own data."""
    rows = method.codec.encode(method.trainer.train(view, data, now), view, now)
    samples = data.samples if method.weighted else None
    messages = method.mechanism.at_client(Messages(data.clients, rows, samples), view, data, now)
    if method.channel.messages_seen_by == "nobody":
        messages = _withhold_long(messages, method.max_norm(messages.rows.dim))
    return method.channel.send(messages, now)


def _withhold_long(messages: Messages, max_norm: float) -> Messages:
    """The messages, with NaN in those rows that are too long: where nobody sees a message, clients check their own."""
    long = messages.rows.norms() > max_norm
    if not bool(long.any()):
        return messages
    return replace(messages, rows=DenseRows(messages.rows.dense().masked_fill(long[:, None], torch.nan)))


def empty_messages(method: Method, view: View, shapes: Shapes, now: Round) -> Messages:
    """A stack of no messages in the form of this view: the broadcast determines length, number type and grid.

    Uses no client's data and no key. Raises `WireError` if the broadcast lacks a part that the mechanism needs.
    """
    data = EmptyWave(shapes)
    rows = method.codec.encode(DenseRows(view.weights.new_zeros(0, view.weights.shape[-1])), view, now)
    samples = data.samples if method.weighted else None
    at_client = ClientRound(now.index, now.population, now.expected_cohort, now.cohort, now.shared, _NO_KEYS)
    messages = method.mechanism.at_client(Messages(data.clients, rows, samples), view, data, at_client)
    return method.channel.send(messages, at_client)


_NO_KEYS = ClientKeys(Key(bytes(32)))  # for rounds in which no client draws


@dataclass(frozen=True)
class ClientHalf:
    """One client of a run, with its knowledge before the first round.

    Attributes:
        method: what is trained, and how.
        population: how many clients can be sampled.
        shared: the run's shared key.
        keys: the client's own.
    """

    method: Method
    population: int
    shared: Key
    keys: ClientKeys

    def join(self, weights: Tensor) -> ClientMemory:
        """The memory before the first round; `weights` are the model's initial ones."""
        return ClientMemory(weights, self.shared.child("before"))

    def messages(
        self, parts: Parts, data: Wave, memory: ClientMemory, now: ClientRound
    ) -> tuple[Messages, ClientMemory]:
        """Return the client's message, and its memory for later rounds.

        Args:
            parts: of the broadcast.
            data: the client, as a wave of one.
            memory: what it kept from earlier rounds.
            now: the round.
        """
        if len(data.clients) != 1:
            raise WireError(f"Expected a single client, got {len(data.clients)}.")
        view, memory = read_broadcast(self.method, parts, memory, now)
        return make_messages(self.method, view, data, now), memory

    def round(self, index: int, cohort: int, attempt: int = 0) -> ClientRound:
        """The round as this client knows it; a repetition is another attempt, so that no noise repeats."""
        expected = self.method.sampler.sampling(self.population, index).mean_cohort(self.population)
        keys = self.keys.child("round", index).child("attempt", attempt)
        return ClientRound(index, self.population, expected, cohort, self.shared.child("round", index), keys)
