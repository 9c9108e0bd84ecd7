"""The channel: what a method says of it, and what becomes of a round's messages in it."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch

from tacit.core import DenseRows, Messages, Method, Round, State, Sum, Traffic, View
from tacit.core.pieces import AddNoise, SumMessages, Visibility
from tacit.errors import UserError, expect
from tacit.protocols.attestation import SIMULATED, Attestor
from tacit.protocols.enclave.client import DELIVER
from tacit.protocols.enclave.configuration import Configuration
from tacit.protocols.enclave.journal import Journal
from tacit.protocols.enclave.keeper import EnclaveService
from tacit.protocols.enclave.parcel import AROUND, Form
from tacit.protocols.enclave.stage import Stage
from tacit.wire.sparse import Wire


@dataclass(frozen=True, kw_only=True)
class Enclave:
    """Messages go sealed into an attested process, which bounds, sums and blurs; only the aggregate comes out.

    In a simulation there is no isolation: the run says `enclave: simulated (insecure)` wherever it says anything.

    Args:
        wire: how rows become bytes where that is shorter, `Csr()` or `Compact()`; None: all numbers one by one.
        down: the form in which the server sends whole models, where it is shorter.
        padding: uploads are padded to a multiple of so many bytes, so that sizes do not tell how sparse rows are.
        least: of fewer contributors nothing leaves, and the model stays as it is.
        conversation: play every message through a separate process, attestation included; otherwise the same is
            computed without it, with the same result.

    Formal guarantees: none by itself. With a mechanism that blurs sums, the noise is added inside.

    Sees: the server outside, ciphertext, its length and time, who takes part, and what the enclave lets out; the
    enclave, every message. Whoever holds the processor in hand, breaks it, or reads access patterns of a sparse row
    inside, possibly every message. In a simulation, whoever runs it sees everything.
    """

    wire: Wire | None = None
    down: Wire | None = None
    padding: int = 1
    least: int = 2
    conversation: bool = False
    stage: Stage | None = field(default=None, repr=False, compare=False)  # while a run goes that plays conversations
    server_sees: ClassVar[Visibility] = "sum"
    aggregates: ClassVar[Visibility] = "messages"
    caveat: ClassVar[str] = SIMULATED
    bits: ClassVar[int | None] = None
    tolerates: ClassVar[str] = ""
    streams: ClassVar[bool] = False  # rows are summed in the order of the clients' numbers, whenever they came

    def __post_init__(self) -> None:
        expect(self.padding >= 1, f"padding={self.padding} >= 1")
        expect(self.least >= 1, f"least={self.least} >= 1")

    @cached_property
    def form(self) -> Form:
        """How rows become plaintexts."""
        return Form(self.wire, self.padding)

    def send(self, messages: Messages, now: Round) -> Messages:
        """The messages themselves; they are sealed on their way."""
        return messages

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """Inside, in the order of the clients' numbers; of too few, nothing."""
        ordered = _ordered(messages)
        told = add(ordered)
        enough = messages.rows.count >= self.least
        if self.stage is not None:
            self.stage.seconds.clear()
            if enough:
                self.stage.carry(state, ordered, now)
        return told if enough else replace(told, total=torch.zeros_like(told.total), weight=0.0)

    def release(self, total: Sum, now: Round, blur: AddNoise) -> Sum:
        """What the enclave lets out: blurred inside, or nothing."""
        if total.weight == 0:
            return total
        if self.stage is None:
            return blur(total)
        out = self.stage.released
        return replace(out, total=out.total.to(total.total.device))

    def upload(self, messages: Messages, now: Round) -> tuple[int, ...]:
        """One sealed upload per message."""
        return self.form.sizes(messages)

    def download(self, view: View, now: Round, *, first: bool) -> int:
        """One frame with the view's parts, and the request to deliver."""
        return view.size(first=first, form=self.down) + DELIVER

    def phases(self, now: Round) -> Mapping[str, Traffic]:
        """Headers, keys, signature and seal of an upload, and the request for it.

        The attestation, once for every client and enclave, is in the minutes of the conversation.
        """
        return {"deliver": Traffic(AROUND, DELIVER)}

    @contextmanager
    def open(self, method: Method, population: int, seed: int) -> Generator["Enclave"]:
        """This channel with the process that it speaks to, if it does."""
        if not self.conversation:
            yield self
            return
        if method.aggregator.models != 1:
            raise UserError(f"Expected an aggregate of one model for a conversation, got {method.aggregator}.")
        with Stage(method, self.form, population, seed) as stage:
            yield replace(self, stage=stage)

    def seconds(self) -> Mapping[str, float]:
        """Of a conversation."""
        return {} if self.stage is None else dict(self.stage.seconds)


def enclave_service(
    configuration: Configuration, method: Method, attestor: Attestor, journal: Journal | None = None
) -> EnclaveService:
    """The service that aggregates inside the enclave, for a method whose channel is `Enclave`."""
    if not isinstance(method.channel, Enclave):
        raise UserError(f"Expected a method with the channel Enclave, got {method.channel}.")
    return EnclaveService(configuration, method, method.channel.form, attestor, journal)


def _ordered(messages: Messages) -> Messages:
    order = torch.argsort(messages.clients)
    samples = None if messages.samples is None else messages.samples[order]
    return replace(
        messages, clients=messages.clients[order], rows=DenseRows(messages.rows.dense()[order]), samples=samples
    )
