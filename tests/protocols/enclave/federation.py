"""A federation in one process: a keeper, a host, clients; whatever travels can be looked at and exchanged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import DenseRows, Key, Messages, Method, NoNoise, Round
from tacit.core.neutral import Mean
from tacit.core.pieces import Aggregator, Mechanism
from tacit.pieces.channels import Enclave, enclave_service
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd
from tacit.protocols import crypto
from tacit.protocols.attestation import Policy, SimulationAttestor, code_measurement
from tacit.protocols.enclave import (
    ENCLAVE,
    Configuration,
    Desk,
    Held,
    Journal,
    Opening,
    Outcome,
    Verb,
    answer,
    converse,
    frames,
    hold,
    identity_of,
    join,
    simulated,
)

DIM, SEED, POPULATION = 40, 7, 12
LAYERS = (25, 15)
NOW = 1_800_000_000
MODEL = crypto.digest("model")
COHORT = (0, 2, 3, 5, 8, 9)
POLICY = Policy(measurements=(code_measurement(),), simulation=True)

Deliveries = Iterable[tuple[int, bytes]]  # who says to have sent it, and a whole frame


def method(
    channel: Enclave | None = None, mechanism: Mechanism | None = None, aggregator: Aggregator | None = None
) -> Method:
    return Method(
        name="tested",
        rounds=9,
        sampler=FixedSize(len(COHORT)),
        trainer=Sgd(lr=0.1, steps=1),
        mechanism=mechanism or NoNoise(),
        channel=channel or Enclave(),
        aggregator=aggregator or Mean(),
    )


def rows(index: int = 0, count: int = len(COHORT), dim: int = DIM) -> Tensor:
    """Sparse, so that all wires have something to do."""
    generator = torch.Generator().manual_seed(index)
    values = torch.randn(count, dim, generator=generator)
    return values * (torch.rand(count, dim, generator=generator) < 0.3)


def messages(values: Tensor, cohort: tuple[int, ...] = COHORT, weighed: bool = False) -> Messages:
    clients = torch.tensor(cohort)
    return Messages(clients, DenseRows(values), clients + 1 if weighed else None)


def now(index: int = 0, cohort: int = len(COHORT)) -> Round:
    keys = (Key.from_seed(SEED, name).child("round", index) for name in ("shared", "secret"))
    return Round(index, POPULATION, float(len(COHORT)), cohort, *keys)


@dataclass
class Federation:
    """All parties; `tamper` may add to, or exchange, what reaches the host as uploads."""

    method: Method
    journal: Journal | None = None
    layers: tuple[int, ...] = LAYERS
    desks: dict[int, bytes] = field(default_factory=dict)
    admitted: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.configuration: Configuration = simulated(self.method, POPULATION, SEED)
        self.restart()

    def restart(self) -> None:
        attestor = SimulationAttestor(insecure=True)
        self.keeper = enclave_service(self.configuration, self.method, attestor, self.journal)
        self.admitted = frozenset()

    @property
    def channel(self) -> Enclave:
        assert isinstance(self.method.channel, Enclave)
        return self.method.channel

    def desk(self, client: int) -> Desk:
        if client in self.desks:
            return Desk.from_bytes(self.desks[client])
        run, config = self.configuration.run, self.configuration.digest
        return join(run, client, config, POLICY, identity_of(SEED, client))

    def answer(self, client: int, request: bytes) -> bytes:
        desk, reply = answer(self.desk(client), request, NOW)
        self.desks[client] = desk.to_bytes()
        return reply

    def hold(self, sent: Messages, index: int, model: bytes = MODEL) -> None:
        for place, client in enumerate(sent.clients.tolist()):
            plain = self.channel.form.pack(sent, place, index)
            held = Held(index, model, sent.rows.dim, sent.samples is not None, plain)
            self.desks[client] = hold(self.desk(client), held).to_bytes()

    def opening(self, sent: Messages, index: int) -> Opening:
        cohort = tuple(sorted(sent.clients.tolist()))
        return Opening(index, MODEL, sent.rows.dim, cohort, len(cohort), self.layers, {})

    def play(
        self, sent: Messages, index: int = 0, tamper: Callable[[list[tuple[int, bytes]]], Deliveries] = list
    ) -> Outcome:
        """One round."""
        self.hold(sent, index)
        conversation = converse(self.opening(sent, index), self.admitted)
        requests = next(conversation)
        while True:
            if ENCLAVE in requests:
                replies = [(ENCLAVE, self.keeper.answer(requests[ENCLAVE]))]
            else:
                replies = [(client, self.answer(client, request)) for client, request in requests.items()]
                if replies and frames.unpack(replies[0][1]).verb is Verb.UPLOAD:
                    replies = list(tamper(replies))
            try:
                requests = conversation.send(replies)
            except StopIteration as stop:
                self.admitted = stop.value.admitted
                return stop.value
