"""Secure aggregation as a channel: the server learns the sum of a round's messages and nothing else."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from math import ceil, ldexp, log2
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import DenseRows, GridStep, Key, Messages, Method, Round, State, Sum, Traffic
from tacit.core.interfaces import AddNoise, Channel, Conversation, Reader, SumMessages
from tacit.core.plain_form import digest, to_plain
from tacit.core.prices import Unit
from tacit.core.rows import Surplus
from tacit.core.schema import choose, simplest_fraction
from tacit.core.server_half import sum_of_total
from tacit.errors import TooFewClientsError, positive, whole, within
from tacit.protocols.crypto import system_entropy
from tacit.protocols.kit import RUN
from tacit.protocols.secagg import (
    MAX_EPOCH,
    MIN_COHORT,
    LocalEpoch,
    Parameters,
    Phase,
    SecaggOutcome,
    SecaggSession,
    ThreatModel,
    Vector,
    by_part,
    cohort_bytes,
    pack_vector,
    unpack_vector,
)
from tacit.wire.packing import packed_size

THREAT_MODELS = {"semi_honest": ThreatModel.SEMI_HONEST, "active_server": ThreatModel.ACTIVE_SERVER}


@dataclass(frozen=True, kw_only=True)
class SecureSum(Channel):
    """Clients add pads that cancel in the sum, and only there (Bonawitz et al. 2017, Bell et al. 2020).

    A simulation sums the same integers without pads, which gives bitwise the same result; `conversation` runs the whole
    protocol. Messages without noise are rounded to a grid whose step is the smallest power of two at which the sum of
    the largest cohort does not wrap around.

    Args:
        level: the threat model. `active_server`: messages stay hidden from a server that may send anything;
            `semi_honest`: from one that follows the protocol.
        corrupt: the fraction of a cohort that may collude with the server.
        dropout: the fraction that may drop out, in any phase; if more do, or more than noise in shares provides for
            (`DistributedGaussian(dropouts=...)`), the round ends without a sum.
        bits: sums are modulo 2^bits at most. Where noise is in shares, integers have as few bits as a sum needs
            (`Grid`); messages without noise use all, and fewer than 32 make their grid coarser.
        value_range: the largest absolute value in a message without noise; a client that exceeds it drops out.
        conversation: run the protocol with real keys and messages.
        epoch: rounds for which clients set up once, if the whole population takes part in every round. Where cohorts
            are drawn, every round has a set-up of its own: whoever holds a client's shares must be there to open them.

    Formal guarantees: if at most the given fractions collude and drop out, the server and the colluders together learn
    nothing beyond the sum of the other clients' messages, which are 3 or more; up to 64 clients with certainty, above
    except with probability 2⁻⁴⁰ in a round (`tacit.protocols.secagg.graph`), also if the server chooses whom to drop
    after it has seen who shares secrets with whom. Of noise in shares they learn those shares that are removed, which
    follow from the survivors that the clients agreed upon, and no others. If at most the fraction `corrupt` lies about
    shares, the sum is exact and nobody honest is named; a client that is excluded for it counts as a dropout. Not
    covered: a client may send any vector, such as one that is not clipped, has no noise, or has its sign flipped.
    Nobody sees its length, and sums wrap around; but where the method bounds rows (noise in shares, `max_row_norm`), a
    released sum that honest clients cannot reach is not used (`Method.max_sum`), so that one client can move the sum
    by what the whole cohort could. Where nothing bounds rows, one client can set the mean to anything within about
    `value_range` in every number. If more clients lie, or `dropout` and twice `corrupt` together exceed a third, liars
    can make a round fail; they cannot learn another client's message. The server knows who takes part, and when.

    Sees: the server, the sum of the messages, who took part and who dropped out, and the seeds of surplus noise, which
    it subtracts; a neighbour, one share of each secret; nobody, a single message.
    """

    level: Literal["active_server", "semi_honest"] = "active_server"
    corrupt: float = 0.1
    dropout: float = 0.1
    bits: int = 32
    value_range: float = 16.0
    conversation: bool = False
    epoch: int = 50
    messages_seen_by: ClassVar[Reader] = "nobody"
    min_cohort: ClassVar[int] = MIN_COHORT
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def __post_init__(self) -> None:
        choose(THREAT_MODELS, self.level, "level")
        within("[0, 1)", corrupt=self.corrupt, dropout=self.dropout)
        whole(8, 32, bits=self.bits)
        whole(1, MAX_EPOCH, epoch=self.epoch)
        positive(value_range=self.value_range)

    def tolerates(self, cohort: int | None = None) -> str:
        if cohort is None:
            return (
                f"up to {self.corrupt:.0%} of a cohort may collude with the server, and up to {self.dropout:.0%} may "
                f"drop out in any phase. In a cohort of 100, {self._graph_in_words(100)}"
            )
        losses = cohort - self.parameters_for(max(cohort, MIN_COHORT)).min_survivors
        return (
            f"in a round of {cohort}, up to {int(self.corrupt * cohort)} may collude with the server, and up to "
            f"{max(losses, 0)} may drop out. {self._graph_in_words(cohort).capitalize()}"
        )

    def discloses(self, cohort: int | None = None) -> Mapping[str, str]:
        return {
            "the server": "who takes part, who drops out, and the seeds of noise beyond what is needed",
            "clients that share secrets": "one share of each secret of the other's",
        }

    def _graph_in_words(self, cohort: int) -> str:
        graph = self.parameters_for(max(cohort, MIN_COHORT)).graph(max(cohort, MIN_COHORT))
        return f"each shares its secrets with {graph.degree} others, and {graph.threshold} shares recover a secret"

    @property
    def streams(self) -> bool:
        return not self.conversation  # it needs all messages of a round

    def send(self, messages: Messages, now: Round) -> Messages:
        if messages.grid_step is not None:
            return messages
        step, rows = self.step(now), messages.rows.dense().double()
        out_of_range = (rows.abs() > self.value_range).any(1)
        rounded = (rows / step).round().mul_(step).masked_fill_(out_of_range[:, None], torch.nan)
        return replace(messages, rows=DenseRows(rounded), grid_step=GridStep(step))

    @property
    def message_format(self) -> "RingFormat":
        return RingFormat(self.bits)

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        """Keys, shares, signatures and headers of all phases if nobody drops out; a pad does not lengthen a vector.

        The first round of an epoch has its set-up.
        """
        if now.cohort == 0:
            return {}
        parameters = self.parameters(1, now, tolerated or None)
        turn = now.index % parameters.rounds
        return _overhead(parameters, turn if turn in (0, parameters.rounds - 1) else 1)  # all in between are the same

    def parameters(self, dim: int, now: Round, tolerated: int | None = None, bits: int = 0) -> Parameters:
        """The protocol's parameters for this round's cohort.

        `tolerated`: the number of lost clients that noise in shares provides for; None: it is not in shares. If more
        are lost, there is no sum, because the variance of its noise would reveal their number. `bits`: of a number, by
        its grid.
        """
        if now.cohort < MIN_COHORT:
            raise TooFewClientsError(
                f"Secure aggregation needs at least {MIN_COHORT} clients, but round {now.index + 1} has fewer. "
                "Use larger cohorts."
            )
        parameters = replace(self.parameters_for(now.cohort, dim), bits=bits or self.bits)
        if now.expected_cohort == now.population:  # between sites, some of them may be absent
            parameters = replace(parameters, rounds=self.epoch)
        if tolerated is None:
            return parameters
        least = max(parameters.min_survivors, now.cohort - tolerated)
        return replace(parameters, min_uploads=least, surplus=tolerated)

    def parameters_for(self, cohort: int, dim: int = 1) -> Parameters:
        """The protocol's parameters for a cohort of this size, and vectors without noise in shares."""
        return Parameters(
            cohort=cohort,
            dim=dim,
            bits=self.bits,
            threat_model=THREAT_MODELS[self.level],
            corrupt=simplest_fraction(self.corrupt),
            dropout=simplest_fraction(self.dropout),
        )

    def step(self, now: Round) -> float:
        """The grid step of messages without noise: sums of the largest cohort do not wrap around."""
        return ldexp(1.0, ceil(log2(now.max_cohort * self.value_range / ((1 << self.bits - 1) - now.max_cohort))))

    def open(
        self, method: Method, population: int, seed: int | None = None
    ) -> AbstractContextManager["SecureSumConversation"]:
        return nullcontext(SecureSumConversation(self, method))


class SecureSumConversation(Conversation):
    """What clients set up for an epoch is kept until it ends; a round outside an epoch has a set-up of its own."""

    def __init__(self, channel: SecureSum, method: Method) -> None:
        self.channel, self.method = channel, method
        self._run = system_entropy(RUN)
        self._epoch: tuple[int, Parameters, LocalEpoch] | None = None  # its first round, and terms

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        channel, steps = self.channel, self.channel.message_format
        if not channel.conversation or messages.rows.count == 0:
            return add(messages)
        assert messages.grid_step is not None  # `send` rounds every message
        losses = _max_losses(messages.surplus)
        parameters = channel.parameters(messages.rows.dim, now, losses, messages.grid_step.bits)
        vectors = {client: steps.integers(messages, i) for i, client in enumerate(messages.clients.tolist())}
        seeds = {} if messages.surplus is None else messages.surplus.seeds
        roots = {client: seed.value for client, seed in seeds.items()} if parameters.surplus else {}
        outcome = self._converse(parameters, state, now, vectors, roots)
        nobody = messages.keep(torch.zeros(messages.rows.count, dtype=torch.bool))
        surplus, delivered = opened_surplus(messages.surplus, outcome), len(outcome.clients)
        return sum_of_total(self.method, state, steps.numbers(outcome.result, nobody), delivered, nobody, surplus)

    def _converse(
        self,
        parameters: Parameters,
        state: State,
        now: Round,
        vectors: Mapping[int, Vector],
        seeds: Mapping[int, bytes],
    ) -> SecaggOutcome:
        """One round of the epoch that it belongs to; alone, if that epoch has not begun with its first round."""
        turn, terms = now.index % parameters.rounds, replace(parameters, dim=1)
        if turn and (self._epoch is None or self._epoch[:2] != (now.index - turn, terms)):
            turn, parameters = 0, replace(parameters, rounds=1)
        session = self._session(parameters, state, now)
        if turn == 0:
            others = (client for client in count() if client not in vectors)  # stand for clients that dropped out
            cohort = [*vectors, *islice(others, now.cohort - len(vectors))]
            self._epoch = now.index, terms, LocalEpoch(session, cohort)
        assert self._epoch is not None
        return self._epoch[2].sum(session, vectors, seeds, turn)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        """The sum modulo 2^bits, centred at zero; raises `TooFewClientsError` if too few clients uploaded."""
        if now.cohort == 0 or total.grid_step is None:
            return add_noise(total)
        self._check_enough(total, now)
        centred = _centre(total.total, total.grid_step.size, total.grid_step.bits or self.channel.bits)
        return add_noise(replace(total, total=centred))

    def _check_enough(self, total: Sum, now: Round) -> None:
        survivors, tolerated = int(total.weight), _max_losses(total.surplus)
        required = self.channel.parameters(total.total.numel(), now, tolerated).min_survivors
        if survivors < required:
            shares = "" if tolerated is None else ", for which noise is added"
            raise TooFewClientsError(
                f"Round {now.index + 1}: too few clients uploaded. There is no sum, and nothing is released. "
                f"Allow a larger dropout{shares}."
            )

    def _session(self, parameters: Parameters, state: State, now: Round) -> SecaggSession:
        model = hashlib.sha256(state.weights.detach().cpu().contiguous().numpy().tobytes()).digest()
        return SecaggSession(
            run=self._run,
            round=now.index,
            model=model,
            config=bytes.fromhex(digest(to_plain(self.channel))),
            parameters=parameters,
        )


def opened_surplus(surplus: Surplus | None, outcome: SecaggOutcome) -> Surplus | None:
    """The removable noise in a sum, by the seeds that clients opened; None if they add no noise in shares."""
    seeds = {client: Key(seed) for client, seed in outcome.noise_seeds.items()}
    return surplus and Surplus(surplus.tolerated, seeds)


def _max_losses(surplus: Surplus | None) -> int | None:
    """The number of losses that noise in shares provides for; None: there is none."""
    return None if surplus is None else surplus.tolerated


@cache
def _overhead(parameters: Parameters, turn: int) -> Mapping[str, Traffic]:
    sizes = cohort_bytes(parameters, turn)
    payload = packed_size(parameters.dim, parameters.bits) * parameters.cohort
    sizes[Phase.UPLOAD] += Traffic(up=-payload)
    return by_part(sizes)


@dataclass(frozen=True)
class RingFormat:
    """Rows in steps of their grid, as integers modulo 2^bits; a pad, added in the protocol, does not lengthen them.

    Attributes:
        bits: at most; a grid may need fewer.
    """

    bits: int

    def bits_of(self, messages: Messages) -> int:
        """The bits of these integers."""
        return (messages.grid_step and messages.grid_step.bits) or self.bits

    def integers(self, messages: Messages, i: int) -> Vector:
        """Row i in steps of its grid, modulo 2^bits."""
        assert messages.grid_step is not None
        steps = (messages.rows.dense()[i] / messages.grid_step.size).to(torch.int64).cpu().numpy()
        return (steps & (1 << self.bits_of(messages)) - 1).astype(np.uint32)

    def numbers(self, integers: Vector, like: Messages) -> Tensor:
        """Integers in steps of the grid as numbers, in [0, 2^bits) steps."""
        assert like.grid_step is not None
        return torch.from_numpy(integers.astype(np.float64)).mul_(like.grid_step.size)

    def pack(self, messages: Messages, i: int, now: Round) -> bytes:
        return pack_vector(self.integers(messages, i), self.bits_of(messages))

    def read(self, data: bytes, client: int, like: Messages, now: Round) -> Messages:
        """The row whose numbers are nearest to zero; it exists only before a pad is added."""
        row = self.numbers(unpack_vector(data, like.rows.dim, self.bits_of(like)), like)
        assert like.grid_step is not None
        centred = _centre(row, like.grid_step.size, self.bits_of(like))
        return Messages(torch.tensor([client]), DenseRows(centred[None]), grid_step=like.grid_step)

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        return (packed_size(messages.rows.dim, self.bits_of(messages)),) * messages.rows.count


def _centre(total: Tensor, step: float, bits: int) -> Tensor:
    """The representative of a sum modulo 2^bits that is nearest to zero."""
    half = 1 << bits - 1
    steps = (total / step).to(torch.int64)
    return ((steps + half) & (2 * half - 1)).sub_(half).to(total.dtype).mul_(step)
