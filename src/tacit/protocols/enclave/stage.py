"""A simulated federation around a real, separate process: every message of a round is packed, sealed and carried.

The enclave is `tacit enclave serve --insecure-simulation`, started for one run and reached through a socket only. The
clients live in this process; their desks are bytes between two messages. Seconds are measured by part, as in the rows
of Table 3 of the ESMFL paper; a client's encoding counts as encryption.
"""

import hashlib
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from tacit.core import Key, Messages, Method, Round, State, Sum
from tacit.protocols import crypto
from tacit.protocols.attestation import Policy, code_measurement
from tacit.protocols.enclave import client as clients
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.aggregate import Released
from tacit.protocols.enclave.client import Desk, Held, hold, join
from tacit.protocols.enclave.configuration import Configuration
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.host import ENCLAVE, Minutes, Outcome, Requests, converse
from tacit.protocols.enclave.link import Link
from tacit.protocols.enclave.opening import Opening, shared_memory
from tacit.protocols.enclave.parcel import Form

_PARTS: dict[Verb, str] = {
    Verb.CHALLENGE: "attestation",
    Verb.ATTEST: "attestation",
    Verb.PROVE: "attestation",
    Verb.DELIVER: "encryption",
    Verb.OPEN: "transfer",
    Verb.DELIVERY: "transfer",
    Verb.CLOSE: "publish",
}
_STOPS_WITHIN = 10.0  # seconds


def identity_of(seed: int, client: int) -> bytes:
    """The Ed25519 secret of a simulated client; whoever knows the seed knows it."""
    return Key.from_seed(seed, "identity").child("client", client).value


def simulated(method: Method, population: int, seed: int) -> Configuration:
    """The configuration of a simulated run: everything in it, noise and identities too, comes from the seed."""
    directory = {client: crypto.identity(identity_of(seed, client)) for client in range(population)}
    text = repr(method)
    run = crypto.digest("simulated run", text.encode(), str((population, seed)).encode())[:16]
    return Configuration(run=run, method=text, population=population, directory=directory, seed=seed)


class Stage:
    """A run's enclave, host and clients. Use it in a `with` statement.

    Attributes:
        released: what the enclave let out last.
        minutes: of the last round.
        seconds: of the last round, by part; `train` is the caller's to add.
    """

    def __init__(self, method: Method, form: Form, population: int, seed: int) -> None:
        self.form, self.seed = form, seed
        self.released = Sum(torch.empty(0), 0.0)
        self.configuration = simulated(method, population, seed)
        self.process, self.link = launch(self.configuration)
        self.minutes, self.seconds = Minutes(), defaultdict[str, float](float)
        self._config = self.configuration.digest
        self._policy = Policy(measurements=(code_measurement(),), simulation=True)
        self._desks: dict[int, bytes] = {}
        self._admitted: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the process."""
        stop(self.process, self.link)

    def carry(self, state: State, messages: Messages, now: Round) -> Released:
        """What the enclave lets out of a round; `EnclaveGoneError` if it dies on the way."""
        cohort, model = tuple(sorted(messages.clients.tolist())), _digest(state.weights)
        self.seconds = defaultdict(float)
        self._hold(messages, now.index, model)
        dim, memory = messages.rows.dim, shared_memory(state)
        outcome = self._play(Opening(now.index, model, dim, cohort, now.cohort, state.layers, memory))
        self._admitted, self.minutes = outcome.admitted, outcome.minutes
        closing = outcome.closing
        self.seconds["load"], self.seconds["aggregate"] = closing.load, closing.aggregate
        self.seconds["transfer"] -= closing.load  # which happened meanwhile
        self.seconds["publish"] -= closing.aggregate
        self.released = closing.released.total
        return closing.released

    def _play(self, opening: Opening) -> Outcome:
        conversation = converse(opening, self._admitted)
        requests = next(conversation)
        while True:
            began = time.perf_counter()
            verb = frames.unpack(next(iter(requests.values()))).verb if requests else Verb.DELIVER
            replies = self._replies(requests)
            self.seconds[_PARTS[verb]] += time.perf_counter() - began
            try:
                requests = conversation.send(replies)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                return outcome

    def _replies(self, requests: Requests) -> list[tuple[int, bytes]]:
        if ENCLAVE in requests:
            return [(ENCLAVE, self.link.ask(requests[ENCLAVE]))]
        now = int(time.time())
        return [(client, self._answer(client, request, now)) for client, request in requests.items()]

    def _answer(self, client: int, request: bytes, now: int) -> bytes:
        desk, reply = clients.answer(self._desk(client), request, now)
        self._put(client, desk)
        return reply

    def _desk(self, client: int) -> Desk:
        if client in self._desks:
            return Desk.from_bytes(self._desks[client])
        identity = identity_of(self.seed, client)
        return join(self.configuration.run, client, self._config, self._policy, identity)

    def _put(self, client: int, desk: Desk) -> None:
        self._desks[client] = desk.to_bytes()

    def _hold(self, messages: Messages, index: int, model: bytes) -> None:
        """Every client encodes its message, and keeps it until it is asked for it."""
        began, dim, weighed = time.perf_counter(), messages.rows.dim, messages.samples is not None
        for i, client in enumerate(messages.clients.tolist()):
            held = Held(index, model, dim, weighed, self.form.pack(messages, i, index))
            self._put(client, hold(self._desk(client), held))
        self.seconds["encryption"] = time.perf_counter() - began


def _digest(weights: Tensor) -> bytes:
    return hashlib.sha256(weights.detach().cpu().contiguous().numpy().tobytes()).digest()


def launch(configuration: Configuration) -> "tuple[subprocess.Popen[bytes], Link]":
    """A simulated enclave in a process of its own, and the link to it. It isolates nothing, and says so."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tacit.cli", "enclave", "serve", "-", "--insecure-simulation"]
    with theirs:
        process = subprocess.Popen(
            [*command, "--descriptor", str(theirs.fileno())], stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),)
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # if it died, the first question will tell
        process.stdin.write(configuration.to_bytes())
    link = Link(ours)
    try:
        link.ask(frames.pack(Verb.ATTEST, bytes(2 * crypto.KEY)))  # it answers once it is ready
    except BaseException:
        stop(process, link)
        raise
    return process, link


def stop(process: "subprocess.Popen[bytes]", link: Link) -> None:
    """Let the process end, or end it."""
    link.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOPS_WITHIN)
    if process.poll() is None:
        process.kill()
        process.wait()
