"""Aggregation in an attested enclave as a channel: the server learns only what the enclave releases."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch

from tacit.core import DenseRows, Messages, Method, Round, State, Sum, Traffic
from tacit.core.interfaces import AddNoise, Reader, SumMessages
from tacit.errors import UserError, expect
from tacit.protocols.attestation import SIMULATED, Attestor
from tacit.protocols.tee import (
    OVERHEAD,
    UPLOAD_REQUEST,
    Configuration,
    EnclaveService,
    Journal,
    SimulatedEnclave,
    UploadFormat,
)
from tacit.wire.sparse import WireFormat


@dataclass(frozen=True, kw_only=True)
class Enclave:
    """Messages are encrypted to an attested process, which clips, sums and adds noise; it releases only the aggregate.

    A simulation isolates nothing, and every output of the run carries that warning.

    Args:
        wire: the wire format of rows, `Csr()` or `Compact()`, used where it is shorter; None: plain values.
        down: the wire format in which the server sends whole models, used where it is shorter.
        padding: uploads are padded to a multiple of this many bytes, so that sizes do not reveal how sparse rows are.
        least: with fewer contributors nothing is released, and the model stays unchanged.
        conversation: run the protocol with a separate process, including attestation; otherwise the same result is
            computed without it.

    Formal guarantees: none by itself. With a mechanism that adds noise to sums, the noise is added inside.

    Sees: the server outside, ciphertext, its length and time, who takes part, and what the enclave releases; the
    enclave, every message. An attacker with physical access to the processor, with an exploit against it, or who
    observes access patterns of sparse rows inside, possibly every message. In a simulation, the operator sees
    everything.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    padding: int = 1
    least: int = 2
    conversation: bool = False
    messages_seen_by: ClassVar[Reader] = "enclave"
    caveat: ClassVar[str] = SIMULATED
    min_cohort: ClassVar[int] = 0
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = False  # rows are summed in the order of the clients' numbers, whenever they arrive

    def __post_init__(self) -> None:
        expect(self.padding >= 1, f"padding={self.padding} >= 1")
        expect(self.least >= 1, f"least={self.least} >= 1")

    @cached_property
    def message_format(self) -> UploadFormat:
        """How rows become plaintexts of uploads."""
        return UploadFormat(self.wire, self.padding)

    def send(self, messages: Messages, now: Round) -> Messages:
        return messages  # encryption changes no number

    def overhead(self, now: Round) -> Mapping[str, Traffic]:
        """Headers, keys, signature and authentication tag of an upload, and the request for it.

        Attestation, once per client and enclave, is not included; the transcript of the conversation has it.
        """
        return {"deliver": Traffic(OVERHEAD, UPLOAD_REQUEST)}

    @contextmanager
    def open(self, method: Method, population: int, seed: int | None = None) -> Generator["EnclaveConversation"]:
        """The conversation with the enclave's process, if this run has one."""
        if not self.conversation or seed is None:
            yield EnclaveConversation(self.least)
            return
        if method.aggregator.models != 1:
            raise UserError(f"Expected an aggregator of one model for conversation=True, got {method.aggregator}.")
        with SimulatedEnclave(method, self.message_format, population, seed) as process:
            yield EnclaveConversation(self.least, process)


@dataclass(frozen=True, eq=False)
class EnclaveConversation:
    """Rounds with an enclave.

    Attributes:
        least: with fewer contributors nothing is released.
        process: the enclave; None: the same result is computed without it.
    """

    least: int
    process: SimulatedEnclave | None = None

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """The sum in the order of the clients' numbers; zero if there are too few contributors."""
        ordered = _ordered(messages)
        simulated = add(ordered)
        enough = messages.rows.count >= self.least
        if self.process is not None:
            self.process.seconds.clear()
            if enough:
                self.process.run_round(state, ordered, now)
        return simulated if enough else replace(simulated, total=torch.zeros_like(simulated.total), weight=0.0)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        if total.weight == 0:
            return total
        if self.process is None:
            return add_noise(total)
        released = self.process.released  # noise was added inside
        return replace(released, total=released.total.to(total.total.device))

    def timings(self) -> Mapping[str, float]:
        return {} if self.process is None else dict(self.process.seconds)


def enclave_service(
    configuration: Configuration, method: Method, attestor: Attestor, journal: Journal | None = None
) -> EnclaveService:
    """The service that aggregates inside the enclave, for a method whose channel is `Enclave`."""
    if not isinstance(method.channel, Enclave):
        raise UserError(f"Expected a method with the channel Enclave, got {method.channel}.")
    return EnclaveService(configuration, method, method.channel.message_format, attestor, journal)


def _ordered(messages: Messages) -> Messages:
    order = torch.argsort(messages.clients)
    samples = None if messages.samples is None else messages.samples[order]
    return replace(
        messages, clients=messages.clients[order], rows=DenseRows(messages.rows.dense()[order]), samples=samples
    )
