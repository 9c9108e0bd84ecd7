"""Secure aggregation as a channel: the server learns the sum of a round's messages and nothing else."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, islice
from math import ceil, ldexp, log2
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import DenseRows, Messages, Round, State, Step, Sum, Traffic, View
from tacit.core.neutral import Unattended
from tacit.core.pieces import AddNoise, SumMessages, Visibility
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.protocols.secagg import Level, Parameters, Phase, Session, TooFewError, expected, ring
from tacit.protocols.secagg.local import play
from tacit.protocols.secagg.parameters import LEAST

LEVELS = {"semi_honest": Level.SEMI_HONEST, "active_server": Level.ACTIVE_SERVER}


@dataclass(frozen=True, kw_only=True)
class SecureSum(Unattended):
    """Clients pad what they send so that the pads cancel in the sum, and only there (Bonawitz 2017, Bell 2020).

    In a simulation messages are added up as integers, which gives what the conversation gives, to the last bit;
    `conversation` plays every message of it. Messages that are not on a grid yet (those without noise) are rounded to
    one whose step is the smallest power of two at which the largest cohort's sum fits the ring.

    Args:
        level: `active_server`: single messages stay hidden from a server that may send anything; `semi_honest`: from
            one that follows the protocol.
        corrupt: the part of a cohort that may collude with the server.
        dropout: the part that may be lost, in any phase; if more are, the round ends without a sum.
        bits: sums are modulo 2^bits; fewer than 32 save bytes and make the grid coarser.
        reach: the largest number that a message without noise may have; who has a larger one does not deliver.
        conversation: play every message, with real keys, instead of adding up.

    Formal guarantees: if no more than the given parts collude and drop out, the server and the colluders together learn
    nothing beyond the sum of the others that delivered, who are 3 or more (Bell et al. 2020, Theorem 3.9; statistical
    error 2⁻⁴⁰). Not covered: a client may put in any vector, too long a one or one without its noise, and can ruin a
    round, but not open anybody's message. Who takes part, and when, is known to the server.

    Sees: the server, the sum of those who delivered, the roster and who was lost; a neighbour, one share of each
    secret; nobody, a single message.
    """

    level: Literal["active_server", "semi_honest"] = "active_server"
    corrupt: float = 0.1
    dropout: float = 0.1
    bits: int = 32
    reach: float = 16.0
    conversation: bool = False
    server_sees: ClassVar[Visibility] = "sum"
    aggregates: ClassVar[Visibility] = "sum"

    def __post_init__(self) -> None:
        choose(LEVELS, self.level, "level")
        for name in ("corrupt", "dropout"):
            expect(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)} in [0, 1)")
        expect(8 <= self.bits <= 32, f"bits={self.bits} in [8, 32]")
        expect(0 < self.reach < float("inf"), f"reach={self.reach} > 0 and finite")

    @property
    def tolerates(self) -> str:
        """The parts that may collude and drop out, and what that means for a cohort of 100."""
        wiring = self._at(100, dim=1).wiring(100)
        lost = f"{self.dropout:.0%} may be lost in any phase"
        return (
            f"{self.corrupt:.0%} of a cohort may collude with the server, and {lost}. In a cohort of 100, each client "
            f"shares its secrets with {wiring.degree} others, and {wiring.threshold} shares open one"
        )

    @property
    def streams(self) -> bool:
        """Whether integers are added up as they come: a conversation needs all messages of a round."""
        return not self.conversation

    def send(self, messages: Messages, now: Round) -> Messages:
        """Messages on a grid; those that are on one stay as they are."""
        if messages.step is not None:
            return messages
        step, rows = self.step(now), messages.rows.dense().double()
        far = (rows.abs() > self.reach).any(1)
        put = (rows / step).round().mul_(step).masked_fill_(far[:, None], torch.nan)
        return replace(messages, rows=DenseRows(put), step=Step(step))

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """Padded, on the server; a simulation without the conversation adds up the integers themselves."""
        told = add(messages)
        if not self.conversation or messages.rows.count == 0:
            return told
        assert messages.step is not None  # every message was sent
        session = self._session(self.parameters(messages.rows.dim, now), state, now)
        vectors = _integers(messages, self.bits)
        others = (number for number in count() if number not in vectors)  # whoever of the cohort did not deliver
        outcome = play(session, vectors, lost=islice(others, now.cohort - len(vectors)))
        total = torch.from_numpy(outcome.total.astype(np.float64)).mul_(messages.step.size)
        return replace(told, total=total, weight=float(len(outcome.delivered)))

    def release(self, total: Sum, now: Round, blur: AddNoise) -> Sum:
        """The sum modulo 2^bits, between its halves; `TooFewError` if too few delivered."""
        if now.cohort == 0 or total.step is None:
            return blur(total)
        self._check_enough(int(total.weight), total.total.numel(), now)
        return blur(replace(total, total=_centred(total.total, total.step.size, self.bits)))

    def upload(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """The frames of all phases, as if nobody was lost."""
        phases = sum(self.phases(now).values(), Traffic())
        return (ring.size(messages.rows.dim, self.bits) + phases.up,) * messages.rows.count

    def download(self, view: View, now: Round, *, first: bool) -> int:
        """One frame with the view's parts, and the requests of all phases."""
        return view.size(first=first) + sum(self.phases(now).values(), Traffic()).down

    def phases(self, now: Round) -> Mapping[str, Traffic]:
        """Keys, shares, signatures and headers; padding makes no vector longer."""
        if now.cohort == 0:
            return {}
        return _phases(self.parameters(1, now))

    def parameters(self, dim: int, now: Round) -> Parameters:
        """Those of the protocol for this round's cohort."""
        if now.cohort < LEAST:
            raise TooFewError(
                f"Round {now.index + 1} has {now.cohort} of the {LEAST} clients that a secure sum needs. "
                "Use larger cohorts."
            )
        return self._at(now.cohort, dim)

    def _at(self, cohort: int, dim: int) -> Parameters:
        return Parameters(
            cohort=cohort,
            dim=dim,
            bits=self.bits,
            level=LEVELS[self.level],
            corrupt=Fraction(self.corrupt).limit_denominator(1000),
            dropout=Fraction(self.dropout).limit_denominator(1000),
        )

    def step(self, now: Round) -> float:
        """The grid of messages without noise: on it, sums of the largest cohort fit the ring."""
        return ldexp(1.0, ceil(log2(now.max_cohort * self.reach / ((1 << self.bits - 1) - now.max_cohort))))

    def _check_enough(self, delivered: int, dim: int, now: Round) -> None:
        least = self.parameters(dim, now).survivors
        if delivered < least:
            raise TooFewError(
                f"Round {now.index + 1}: {delivered} of {now.cohort} clients delivered, {least} are needed. "
                "There is no sum, and nothing is released. Allow a larger dropout."
            )

    def _session(self, parameters: Parameters, state: State, now: Round) -> Session:
        model = hashlib.sha256(state.weights.detach().cpu().contiguous().numpy().tobytes()).digest()
        return Session(
            run=now.shared.child("secure sum").value[:16],
            round=now.index,
            model=model,
            config=hashlib.sha256(repr(self).encode()).digest(),
            parameters=parameters,
        )


def _phases(parameters: Parameters) -> dict[str, Traffic]:
    payload = ring.size(parameters.dim, parameters.bits)
    sizes = expected(parameters)
    return {
        phase.name.lower(): Traffic(each.up - payload * (phase is Phase.UPLOAD), each.down)
        for phase, each in sizes.items()
    }


def _integers(messages: Messages, bits: int) -> dict[int, "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]"]:
    """Each client's row in steps, modulo 2^bits."""
    assert messages.step is not None
    steps = (messages.rows.dense() / messages.step.size).to(torch.int64).cpu().numpy() & (1 << bits) - 1
    return dict(zip(messages.clients.tolist(), steps.astype(np.uint32), strict=True))


def _centred(total: Tensor, step: float, bits: int) -> Tensor:
    """The representative of a sum that is nearest to zero."""
    half = 1 << bits - 1
    steps = (total / step).to(torch.int64)
    return ((steps + half) & (2 * half - 1)).sub_(half).to(total.dtype).mul_(step)
