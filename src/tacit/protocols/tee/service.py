"""What runs inside the enclave: it holds the key, decrypts uploads, aggregates, and releases only the aggregate.

`EnclaveService.answer(request) -> reply` handles every frame of the host. No message of a client or of the host ends
it: an invalid request is refused, with a reason that contains no data. Updates are kept from their upload to the end of
their round. `aggregate` is the same computation that a simulation runs without an enclave.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from tacit.core import ClientKeys, DenseRows, Key, Messages, Method, RunKeys, ServerRound, State, Sum
from tacit.core.server_half import aggregate_messages, join_messages, released_sum
from tacit.errors import ProtocolError, TacitError, WireError
from tacit.protocols import crypto
from tacit.protocols.attestation import Attestor, Binding, Evidence, ReleaseLog
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.tee import enclave_messages
from tacit.protocols.tee.configuration import Configuration, EnclaveSession, Journal
from tacit.protocols.tee.enclave_messages import EnclaveRelease, MessageType, RoundRequest, RoundResult
from tacit.protocols.tee.uploads import Upload, UploadFormat, unseal
from tacit.wire.packing import Reader, pack_number


def aggregate(method: Method, state: State, messages: Messages, now: ServerRound) -> EnclaveRelease:
    """Clip, sum and add noise, by the method's own pieces; releases nothing if there are too few contributors.

    Rows are summed in the order of the clients' numbers, so the order of arrival does not change a single bit.
    """
    with method.channel.open(method, now.population) as conversation:
        total = aggregate_messages(method, conversation, state, messages, now)
        noisy = released_sum(method, conversation, total, now)
    public = Sum(noisy.total, noisy.weight)  # the other fields stay inside: they may reveal single rows
    if noisy.weight == 0:
        return EnclaveRelease(public, {}, ())
    after = method.mechanism.update_state(state, total, now)
    changed = {name: value for name, value in after.memory.items() if state.memory.get(name) is not value}
    return EnclaveRelease(public, changed, tuple(sorted(messages.clients.tolist())))


@dataclass(eq=False)
class _OpenRound:
    """The round in progress, and the updates received."""

    request: RoundRequest
    session: EnclaveSession
    received: dict[int, Messages] = field(default_factory=dict)
    load_seconds: float = 0.0

    def messages(self) -> Messages:
        """The updates, in the order of the clients' numbers."""
        return join_messages([self.received[client] for client in sorted(self.received)], self.like)

    @property
    def like(self) -> Messages:
        """The form of an update."""
        nobody = torch.zeros(0, dtype=torch.int64)
        samples = nobody if self.session.weighted else None
        return Messages(nobody, DenseRows(torch.zeros(0, self.request.dim)), samples)


class EnclaveService:
    """The enclave's side of the protocol.

    Args:
        configuration: what it does. Its digest is in every quote.
        method: the method that the configuration describes.
        upload_format: how the method's channel encodes updates.
        attestor: produces quotes.
        journal: the file of the release log, if it must outlive this process.
        entropy: source of its key: the operating system's everywhere but in tests.

    Formal guarantees: at most one aggregate is released per round, of at least `method.channel.least` clients in the
    directory; if the mechanism adds noise to sums, the noise is added inside. It comes from this process's own entropy,
    unless the configuration has a seed.
    """

    def __init__(
        self,
        configuration: Configuration,
        method: Method,
        upload_format: UploadFormat,
        attestor: Attestor,
        journal: Journal | None = None,
        entropy: Entropy = crypto.system_entropy,
    ) -> None:
        self.configuration, self.method, self.attestor = configuration, method, attestor
        self._upload_format, self._journal = upload_format, journal
        entries = journal.entries if journal else ()
        self.release_log = ReleaseLog.of(entry for _, entry in entries)
        self._last_released = max((index for index, _ in entries), default=-1)
        self._config = configuration.digest
        self._secret = crypto.load_key(entropy(KEY))
        self._key = crypto.public_key(self._secret)
        self._keys = _random_keys(configuration)
        self._round: _OpenRound | None = None
        self._rejected: Counter[ReplyStatus] = Counter()

    def answer(self, request: bytes) -> bytes:
        """One step; the reply to an invalid request is a refusal."""
        try:
            frame = enclave_messages.unpack(request)
            steps = {
                MessageType.ATTEST: self._attest,
                MessageType.OPEN_ROUND: self._open_round,
                MessageType.FORWARD_UPLOAD: self._take_upload,
                MessageType.CLOSE_ROUND: self._close_round,
            }
            if frame.kind not in steps:
                raise ProtocolError(f"Expected a request to an enclave, got a message of type {frame.kind.label}.")
            return steps[frame.kind](Reader(frame.body))
        except TacitError as error:
            return enclave_messages.pack(MessageType.REFUSED, str(error).encode())

    def _attest(self, reader: Reader) -> bytes:
        nonce, remembered = reader.take(KEY), reader.take(KEY)
        reader.expect_end()
        entries, head = self.release_log.since(remembered), self.release_log.head
        quote = self.attestor.quote(Binding(self._key, nonce, self._config, head).report_data)
        kind, collateral = self.attestor.kind, self.attestor.collateral
        evidence = Evidence(kind, quote, collateral, self._key, self._config, head, entries)
        return enclave_messages.pack(MessageType.EVIDENCE, evidence.pack())

    def _open_round(self, reader: Reader) -> bytes:
        request = RoundRequest.read(reader)
        if request.round <= self._last_released:
            raise ProtocolError(f"Round {request.round} is over: one aggregate is released per round.")
        if not set(request.cohort) <= self.configuration.directory.keys():
            raise ProtocolError("The cohort contains clients that are not in the directory.")
        if request.noise_key and self.configuration.seed is None:
            raise ProtocolError("Only a simulated enclave takes a noise key: an enclave draws its own.")
        if self.method.mechanism.per_layer and sum(request.layers) != request.dim:
            raise ProtocolError("The layers do not add up to an update, but each has its own clipping bound.")
        session = EnclaveSession(
            run=self.configuration.run,
            round=request.round,
            model=request.model,
            dim=request.dim,
            weighted=self.method.weighted,
            config=self._config,
            head=self.release_log.head,
            key=self._key,
        )
        self._round = _OpenRound(request, session)
        return enclave_messages.pack(MessageType.ROUND_OPENED, self.release_log.head)

    def _take_upload(self, reader: Reader) -> bytes:
        sender = reader.number()
        began = time.perf_counter()
        status = self._check_upload(sender, bytes(reader.rest()))
        if self._round is not None:
            self._round.load_seconds += time.perf_counter() - began
        if status is not ReplyStatus.ACCEPTED:
            self._rejected[status] += 1
        return enclave_messages.pack(MessageType.RECEIPT, pack_number(status, 1))

    def _check_upload(self, sender: int, data: bytes) -> ReplyStatus:
        """Store one upload, or return why it is rejected."""
        current = self._round
        if current is None:
            return ReplyStatus.LATE
        if len(data) > self._upload_format.max_size(current.request.dim):
            return ReplyStatus.OVERSIZE
        try:
            upload = Upload.read(data)
        except ProtocolError:
            return ReplyStatus.MALFORMED
        return self._check_header(current, sender, upload) or self._store(current, upload)

    def _check_header(self, current: _OpenRound, sender: int, upload: Upload) -> ReplyStatus:
        """Whether an upload is of this sender and for this session; its header is only compared, not trusted."""
        if upload.client != sender or sender not in current.request.cohort:
            return ReplyStatus.UNEXPECTED_SENDER
        if upload.round < current.request.round:
            return ReplyStatus.LATE
        if (upload.round, upload.context) != (current.request.round, current.session.context):
            return ReplyStatus.WRONG_SESSION
        return ReplyStatus.DUPLICATE if sender in current.received else ReplyStatus.ACCEPTED

    def _store(self, current: _OpenRound, upload: Upload) -> ReplyStatus:
        identity = self.configuration.directory[upload.client]
        try:
            plaintext = unseal(upload, current.session, self._secret, identity)
        except ProtocolError:
            return ReplyStatus.FORGED
        try:
            message = self._upload_format.read(plaintext, upload.client, current.like, self._now(current))
        except (WireError, ProtocolError):
            return ReplyStatus.MALFORMED
        if not bool(torch.isfinite(message.rows.dense()).all()):
            return ReplyStatus.NOT_FINITE
        current.received[upload.client] = message
        return ReplyStatus.ACCEPTED

    def _close_round(self, reader: Reader) -> bytes:
        index = reader.number()
        reader.expect_end()
        current = self._round
        if current is None or current.request.round != index:
            raise ProtocolError(f"Round {index} is not open.")
        began = time.perf_counter()
        state, messages, now = current.request.state(), current.messages(), self._now(current)
        release = aggregate(self.method, state, messages, now)
        seconds = time.perf_counter() - began
        self._round, rejected, self._rejected = None, self._rejected, Counter()
        log_entry = self._log(index, release) if release.contributors else b""
        result = RoundResult(release, log_entry, rejected, current.load_seconds, seconds)
        return enclave_messages.pack(MessageType.RELEASE, result.pack())

    def _log(self, index: int, release: EnclaveRelease) -> bytes:
        """Extend the release log before the aggregate is sent."""
        log_entry = crypto.digest("release", pack_number(index), release.total.total.numpy().tobytes())
        if self._journal:
            self._journal.append(index, log_entry)
        self._last_released, self.release_log = index, self.release_log.append(log_entry)
        return log_entry

    def _now(self, current: _OpenRound) -> ServerRound:
        index, population = current.request.round, self.configuration.population
        expected = self.method.sampler.sampling(population, index).mean_cohort(population)
        keys, given = self._keys.at(index), current.request.noise_key
        server = Key(given) if given else keys.server
        return ServerRound(index, population, expected, current.request.invited, keys.shared, server)


def _random_keys(configuration: Configuration) -> RunKeys:
    """Shared randomness, and that of the noise; an enclave plays no client."""
    if configuration.seed is not None:
        return RunKeys.from_seed(configuration.seed)
    return RunKeys(Key(configuration.digest), Key.from_entropy(), ClientKeys(Key.from_entropy()))
