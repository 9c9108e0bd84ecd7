"""How long a client's row may be, where somebody sees it: a client that scales its update up gains nothing.

| the mechanism | a row that is too long |
|---|---|
| clips every row before the sum | is clipped to the mechanism's bound, by the mechanism |
| adds noise in shares | is longer than honest rows with their noise, but for a probability of 2⁻⁶⁴: it is rejected |
| neither, `max_row_norm` is given | is longer than that: it is rejected |
| neither | is longer than 4 times the median of its round: it is shortened to the median; beyond 8 times, to nothing |

A row of whole weights is as long as its distance from the model: from the nearest hypothesis, or, for an enclave, which
does not know the model, from the median of the round's rows in each coordinate. A simulation that sums waves as they
arrive trains the waves of a round with outliers a second time.

Where clients add their own noise, or nobody clips, this is post-processing of messages that are private by themselves
or not at all.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tacit.core.method import Method
from tacit.core.rows import DenseRows, Rows
from tacit.core.state import Messages, Round, State

OUTLIER, ABSURD = 4.0, 8.0  # times the median: a longer row is shortened to the median, or to nothing


def row_limit(method: Method, messages: Messages, state: State, now: Round) -> float:
    """The largest L2 norm of a row that whoever sees these messages accepts; infinite where nobody sees them."""
    if method.channel.messages_seen_by == "nobody":
        return float("inf")
    limit = None if method.max_row_norm is not None else method.mechanism.max_row(messages, state, now)
    return method.max_norm(messages.rows.dim) if limit is None else limit


def row_lengths(method: Method, messages: Messages, state: State) -> Tensor:
    """The length of every row: its norm, or for whole weights its distance from the model."""
    return _moves(method, messages.rows, state)[0].norms()


def usual_length(lengths: Sequence[float]) -> float | None:
    """The median; None if there is none, or nothing to compare with."""
    median = float(np.median(lengths)) if len(lengths) else 0.0
    return median if median > 0 else None


def shorten(method: Method, messages: Messages, state: State, usual: float | None) -> Messages:
    """The messages, with outliers shortened; unchanged if there are none."""
    if usual is None or not method.shortens:
        return messages
    moves, start = _moves(method, messages.rows, state)
    lengths = moves.norms().double() / usual
    long = lengths > OUTLIER
    if not bool(long.any()):
        return messages
    factors = torch.where(lengths > ABSURD, 0.0, torch.where(long, 1 / lengths, 1.0))
    if start is None:
        return replace(messages, rows=moves.scaled(factors))
    shortened = start + moves.scaled(factors).dense()
    return replace(messages, rows=DenseRows(torch.where(long[:, None], shortened, messages.rows.dense())))


def shorten_outliers(method: Method, messages: Messages, state: State) -> Messages:
    """All messages of a round, with outliers shortened; unchanged if there are none."""
    if not method.shortens:
        return messages
    return shorten(method, messages, state, usual_length(row_lengths(method, messages, state).tolist()))


def _moves(method: Method, rows: Rows, state: State) -> tuple[Rows, Tensor | None]:
    """How far rows move the model, and from where; None: they are updates."""
    if method.trainer.sends != "weights" or rows.count == 0:
        return rows, None
    dense = rows.dense()
    if method.channel.messages_seen_by == "enclave":
        start = dense.median(0).values.expand_as(dense)
    else:
        start = _nearest(dense, state.weights.view(-1, rows.dim).to(dense))
    return DenseRows(dense - start), start


def _nearest(rows: Tensor, hypotheses: Tensor) -> Tensor:
    """The hypothesis nearest to each row."""
    if len(hypotheses) == 1:
        return hypotheses.expand_as(rows)
    return hypotheses[torch.cdist(rows, hypotheses, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)]
