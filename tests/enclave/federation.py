"""A test federation in one process: an enclave service, a host, clients; uploads can be tampered with in transit."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tacit.core import DenseRows, Key, Messages, Method, NoNoise, RunKeys, SimulatedRound
from tacit.core.code_digest import code_measurement
from tacit.core.interfaces import Aggregator, Mechanism, Sampler
from tacit.core.neutral import Mean
from tacit.core.prices import Sampling
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.simulated_quotes import SimulatedAttestor
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.enclave.configuration import Configuration, Journal
from tacit.enclave.connection import EnclaveConnection, serve
from tacit.enclave.enclave_client import EnclaveClientState, PendingUpload, answer, join_run, set_time, set_upload
from tacit.enclave.enclave_messages import MessageType, RoundRequest
from tacit.enclave.host import ENCLAVE, EnclaveOutcome, converse
from tacit.enclave.service import EnclaveService
from tacit.enclave.simulated_enclave import simulated_configuration, simulated_identity
from tacit.pieces.channels import Enclave, enclave_service
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd
from tacit.protocols import crypto
from tacit.protocols.kit import LocalClients, Requests, play

DIM, SEED, POPULATION = 40, 7, 12
LAYERS = (25, 15)
NOW = 1_800_000_000
MODEL = crypto.digest("model")
COHORT = (0, 2, 3, 5, 8, 9)
POLICY = AttestationPolicy(measurements=(code_measurement(),), simulation=True)

Delivery = tuple[int, bytes]  # the sender as the transport knows it, and a whole frame


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
    """Sparse, so that every wire format is used."""
    generator = torch.Generator().manual_seed(index)
    values = torch.randn(count, dim, generator=generator)
    return values * (torch.rand(count, dim, generator=generator) < 0.3)


def messages(values: Tensor, cohort: tuple[int, ...] = COHORT, weighted: bool = False) -> Messages:
    clients = torch.tensor(cohort)
    return Messages(clients, DenseRows(values), clients + 1 if weighted else None)


def now(index: int = 0, cohort: int = len(COHORT)) -> SimulatedRound:
    keys = RunKeys.from_seed(SEED).at(index)
    return SimulatedRound(index, POPULATION, float(len(COHORT)), cohort, keys.shared, keys.server, keys.clients)


@dataclass(frozen=True)
class Chosen:
    """Draws the cohort that a test has chosen; all else is declared as by another sampler."""

    clients: tuple[int, ...]
    declared: Sampler

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        return torch.tensor(self.clients, dtype=torch.int64)

    def sampling(self, population: int, index: int) -> Sampling:
        return self.declared.sampling(population, index)


@dataclass
class Federation:
    """All parties; `tamper` may add to, or replace, the uploads that reach the host."""

    method: Method
    journal: Journal | None = None
    layers: tuple[int, ...] = LAYERS
    heads: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory: Mapping[str, Tensor] = {}  # of the mechanism, as the host stores it
        self.clients = LocalClients(EnclaveClientState, self._join, lambda state: set_time(state, NOW), answer)
        self.configuration: Configuration = simulated_configuration(self.method, POPULATION, SEED)
        self.restart()

    def restart(self) -> None:
        attestor = SimulatedAttestor(insecure=True)
        self.service = enclave_service(self.configuration, self.method, attestor, self.journal)
        self.heads = {}

    @property
    def channel(self) -> Enclave:
        assert isinstance(self.method.channel, Enclave)
        return self.method.channel

    def _join(self, client: int) -> EnclaveClientState:
        run, config = self.configuration.run, self.configuration.digest
        limit = self.configuration.rounds
        return join_run(run, client, config, POLICY, simulated_identity(SEED, client), limit=limit)

    def state(self, client: int) -> EnclaveClientState:
        return set_time(self.clients.load(client), NOW)

    def encode(self, sent: Messages, index: int, model: bytes = MODEL) -> None:
        for place, client in enumerate(sent.clients.tolist()):
            plaintext = self.channel.message_format.pack(sent, place, now(index))
            pending = PendingUpload(index, model, sent.rows.dim, sent.samples is not None, plaintext)
            self.clients.store(client, set_upload(self.state(client), pending))

    def request(self, sent: Messages, index: int) -> RoundRequest:
        return RoundRequest(index, MODEL, sent.rows.dim, self.layers, self.memory)

    def choose(self, cohort: tuple[int, ...]) -> None:
        """Let the enclave draw this cohort."""
        self.service.method = replace(self.method, sampler=Chosen(cohort, self.method.sampler))

    def run_round(
        self, sent: Messages, index: int = 0, tamper: Callable[[list[Delivery]], Iterable[Delivery]] = list
    ) -> EnclaveOutcome:
        self.encode(sent, index)
        self.choose(tuple(sorted(sent.clients.tolist())))

        def replies(requests: Requests) -> list[Delivery]:
            if ENCLAVE in requests:
                return [(ENCLAVE, self.service.answer(requests[ENCLAVE]))]
            answers = list(self.clients.replies(requests))
            uploads = answers and enclave_messages.unpack(answers[0][1]).kind is MessageType.UPLOAD
            return list(tamper(answers)) if uploads else answers

        outcome = play(converse(self.request(sent, index), self.heads), replies)
        self.heads, self.memory = outcome.heads, {**self.memory, **outcome.result.release.memory}
        return outcome


class ServingThread:
    """Stands for the enclave's process: the same service behind a socket, in a thread of this process."""

    def __init__(self, connection: socket.socket, service: EnclaveService) -> None:
        self._connection = connection
        self._thread = threading.Thread(target=serve, args=(connection, service.answer), daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        with suppress(OSError):  # it may be closed already
            self._connection.shutdown(socket.SHUT_RDWR)


def launch_in_thread(configuration: Configuration) -> tuple[ServingThread, EnclaveConnection]:
    """In place of `simulated_enclave.launch`, where a test is not about the process: starting one takes seconds."""
    ours, theirs = socket.socketpair()
    service = enclave_service(
        configuration, Method.from_canonical(configuration.method), SimulatedAttestor(insecure=True)
    )
    return ServingThread(theirs, service), EnclaveConnection(ours)
