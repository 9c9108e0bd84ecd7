"""A simulated federation around a separate process: every message of a round is packed, encrypted and transferred.

The enclave is `tacit enclave serve --insecure-simulation`, started for one run and reached through a socket only. The
clients live in this process; their states are serialised between messages. Seconds are measured by part, as in the rows
of Table 3 of the ESMFL paper; a client's encoding counts as encryption.
"""

import hashlib
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress

import torch

from tacit.core import Key, Messages, Method, Round, ServerRound, State, Sum
from tacit.core.code_digest import code_measurement
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.enclave.configuration import Configuration
from tacit.enclave.connection import EnclaveConnection
from tacit.enclave.enclave_client import EnclaveClientState, PendingUpload, answer, join_run, set_time, set_upload
from tacit.enclave.enclave_messages import EnclaveRelease, MessageType, RoundRequest, mechanism_memory
from tacit.enclave.host import ENCLAVE, Heads, converse
from tacit.enclave.secure_channel import ChannelIdentity
from tacit.enclave.uploads import UploadFormat
from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.protocols.kit import LocalClients, Requests, Transcript, play

_PARTS: dict[MessageType, str] = {
    MessageType.CHALLENGE: "attestation",
    MessageType.ATTEST: "attestation",
    MessageType.PRESENT_EVIDENCE: "attestation",
    MessageType.REQUEST_UPLOAD: "encryption",
    MessageType.OPEN_ROUND: "transfer",
    MessageType.READ_LOG: "transfer",
    MessageType.FORWARD_UPLOAD: "transfer",
    MessageType.CLOSE_ROUND: "publish",
}
_STOP_TIMEOUT = 10.0  # seconds


def simulated_identity(seed: int, client: int) -> bytes:
    """The Ed25519 secret of a simulated client; it is known to everyone who knows the seed."""
    return Key.from_seed(seed, "identity").child("client", client).value


def simulated_configuration(method: Method, population: int, seed: int) -> Configuration:
    """The configuration of a simulated run: everything in it, including noise and identities, follows from the seed."""
    directory = {client: crypto.public_identity(simulated_identity(seed, client)) for client in range(population)}
    text = method.canonical
    run = crypto.digest("simulated run", text.encode(), str((population, seed)).encode())[:16]
    return Configuration(
        run=run,
        method=text,
        population=population,
        directory=directory,
        rounds=method.rounds,
        memory=None,
        host=simulated_host(seed).certificate,
        seed=seed,
    )


def simulated_host(seed: int) -> ChannelIdentity:
    """The identity of a simulated host; it is known to everyone who knows the seed."""
    return ChannelIdentity.of(Key.from_seed(seed, "host").value)


class SimulatedEnclave:
    """The enclave's process, the host and the clients of a run. Close it after the run (`contextlib.closing`).

    Attributes:
        released: the enclave's last aggregate.
        transcript: of the last round.
        seconds: of the last round, by part; the caller adds `train`.
    """

    def __init__(self, method: Method, upload_format: UploadFormat, population: int, seed: int) -> None:
        self.upload_format, self.seed = upload_format, seed
        self.released = Sum(torch.empty(0), 0.0)
        self.configuration = simulated_configuration(method, population, seed)
        self.process, self.connection = launch(self.configuration)
        self.transcript, self.seconds = Transcript[MessageType](), defaultdict[str, float](float)
        self._config = self.configuration.digest
        self._policy = AttestationPolicy(measurements=(code_measurement(),), simulation=True)
        self._clients = LocalClients(EnclaveClientState, self._join, _at_this_time, answer)
        self._heads: Heads = {}

    def close(self) -> None:
        """Stop the process."""
        stop(self.process, self.connection)

    def run_round(self, state: State, messages: Messages, now: Round) -> EnclaveRelease:
        """The enclave's release of a round; raises `EnclaveUnavailableError` if its process ends."""
        model = hashlib.sha256(state.weights.detach().cpu().contiguous().numpy().tobytes()).digest()
        self.seconds = defaultdict(float)
        self._encode(messages, now, model)
        noise_key = now.server.value if isinstance(now, ServerRound) else b""
        request = RoundRequest(now.index, model, messages.rows.dim, state.layers, mechanism_memory(state), noise_key)
        outcome = play(converse(request, self._heads), self._answer)
        self._heads, self.transcript = outcome.heads, outcome.transcript
        result = outcome.result
        if result.release.contributors != tuple(sorted(messages.clients.tolist())):
            raise ProtocolError("The enclave drew another cohort than the simulation: they have different keys.")
        self.seconds["load"], self.seconds["aggregate"] = result.load_seconds, result.aggregate_seconds
        self.seconds["transfer"] -= result.load_seconds  # it includes the enclave's work
        self.seconds["publish"] -= result.aggregate_seconds
        self.released = result.release.total
        return result.release

    def _answer(self, requests: Requests) -> list[tuple[int, bytes]]:
        """The replies of the clients or of the enclave; the time they take is added to that of their part."""
        began, kind = time.perf_counter(), enclave_messages.unpack(next(iter(requests.values()))).kind
        if ENCLAVE in requests:
            replies = [(ENCLAVE, self.connection.ask(requests[ENCLAVE]))]
        else:
            replies = list(self._clients.replies(requests))
        self.seconds[_PARTS[kind]] += time.perf_counter() - began
        return replies

    def _join(self, client: int) -> EnclaveClientState:
        identity = simulated_identity(self.seed, client)
        limit = self.configuration.rounds
        return join_run(self.configuration.run, client, self._config, self._policy, identity, limit=limit)

    def _encode(self, messages: Messages, now: Round, model: bytes) -> None:
        """Every client encodes its update, and keeps it until the host requests the upload."""
        began, dim, weighted = time.perf_counter(), messages.rows.dim, messages.samples is not None
        for i, client in enumerate(messages.clients.tolist()):
            plaintext = self.upload_format.pack(messages, i, now)
            pending = PendingUpload(now.index, model, dim, weighted, plaintext)
            self._clients.store(client, set_upload(self._clients.load(client), pending))
        self.seconds["encryption"] = time.perf_counter() - began


def _at_this_time(state: EnclaveClientState) -> EnclaveClientState | None:
    """A client with an upload knows the time; one without, which declined, takes no part."""
    return None if state.pending is None else set_time(state, int(time.time()))


def launch(configuration: Configuration) -> "tuple[subprocess.Popen[bytes], EnclaveConnection]":
    """A simulated enclave in a separate process, without isolation, and the connection to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "tacit.cli", "enclave", "serve", "-", "--insecure-simulation"]
    with theirs:
        process = subprocess.Popen(
            [*command, "--descriptor", str(theirs.fileno())], stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),)
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # if it ended, the first request will fail
        process.stdin.write(configuration.to_bytes())
    connection = EnclaveConnection(ours)
    try:
        connection.ask(enclave_messages.pack(MessageType.ATTEST, bytes(2 * crypto.KEY)))  # it answers once it is ready
    except BaseException:
        stop(process, connection)
        raise
    return process, connection


def stop(process: "subprocess.Popen[bytes]", connection: EnclaveConnection) -> None:
    """End the process by closing its only connection, or kill it after a timeout."""
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT)
    if process.poll() is None:
        process.kill()
        process.wait()
