"""What runs inside the enclave: it holds the key, decrypts uploads, aggregates, and releases only the aggregate.

`EnclaveService.answer(request) -> reply` handles every frame of the host. No message of a client or of the host ends
it: an invalid request is refused, with a reason that contains no data. Updates are kept from their upload to the end of
their round. `aggregate` is the same computation that a simulation runs without an enclave.

The host chooses nothing that enters a price:

| what | where it comes from |
|---|---|
| cohort | drawn inside, by the configuration's sampler, from all clients of the directory |
| expected size of the cohort | the configuration's sampler and population |
| clipping bound, axes | the configuration; what changes from round to round is recognised by its digest |
| shares of the noise | the cohort drawn inside; every client signs the size that it used |
| dropouts | counted inside; if they cost more than declared, the round is charged so, or refused |
| number of rounds, budget | the configuration; a round is charged when it is opened, and by its turnout at its end |
| what was released before | the journal; a client follows only a log that has all rounds in which it took part |
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tacit.core import DenseRows, Key, Messages, Method, RunKeys, ServerRound, State, Sum, Turnout
from tacit.core.lengths import row_limit
from tacit.core.prices import Unit
from tacit.core.server_half import aggregate_messages, join_messages, release_sum
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.evidence import NO_CHANNEL, Binding, Evidence, ReleaseLog
from tacit.enclave.attestation.verification import Attestor
from tacit.enclave.configuration import Configuration, EnclaveSession, Journal, JournalEntry
from tacit.enclave.enclave_messages import (
    MAX_MEMORY,
    ROUND_OVER,
    EnclaveRelease,
    MessageType,
    RoundRequest,
    RoundResult,
    memory_digest,
)
from tacit.enclave.uploads import Upload, UploadFormat, unseal
from tacit.errors import ProtocolError, TacitError, WireError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import ReplyStatus
from tacit.wire.packing import Reader, pack_number

Charging = Callable[[int, Turnout | None], None]
"""Charges a round to the budget: as planned when it is opened, and by its turnout before its noise is drawn.

Raises `BudgetError` if the round would exceed the budget.
"""


def aggregate(
    method: Method, state: State, messages: Messages, now: ServerRound, charge: Callable[[], None] = lambda: None
) -> EnclaveRelease:
    """Clip, sum and add noise, by the method's own pieces; releases nothing if there are too few contributors.

    Rows are summed in the order of the clients' numbers, so the order of arrival does not change a single bit. If there
    is something to release, `charge` is called before noise is drawn.
    """
    with method.channel.open(method, now.population) as conversation:
        total = aggregate_messages(method, conversation, state, messages, now)
        if total.weight > 0:
            charge()
        noisy = release_sum(method, conversation, total, now)
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
    cohort: tuple[int, ...]
    received: dict[int, Messages] = field(default_factory=dict)
    load_seconds: float = 0.0

    @property
    def turnout(self) -> Turnout:
        return Turnout(len(self.cohort), len(self.received))

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
        configuration: its digest is in every quote.
        method: the method that the configuration describes.
        upload_format: how the method's channel encodes updates.
        attestor: produces quotes.
        journal: the file of releases and charges, if they must outlive this process.
        charge: charges rounds to the method's budget, those of the journal included; None: there is no budget.
        channel: the digest of the certificate with which its socket is served; zeros if it listens on none.
        entropy: source of its key: the operating system's everywhere but in tests.

    Formal guarantees: at most one aggregate is released per round, and at most `configuration.rounds` of them within
    the budget, each of a cohort that is drawn inside; if the mechanism adds noise to sums, the noise is added inside.
    Noise and cohorts come from the enclave's own entropy, unless the configuration has a seed. The host learns the
    cohort, so sampling amplifies privacy against recipients of the models, not against the host.
    """

    def __init__(
        self,
        configuration: Configuration,
        method: Method,
        upload_format: UploadFormat,
        attestor: Attestor,
        journal: Journal | None = None,
        charge: Charging | None = None,
        channel: bytes = NO_CHANNEL,
        entropy: Entropy = crypto.system_entropy,
    ) -> None:
        expect(
            configuration.rounds == method.rounds,
            f"a configuration of rounds={method.rounds}, as its method has, got {configuration.rounds}",
        )
        self.configuration, self.method, self.attestor = configuration, method, attestor
        self._upload_format, self._journal, self._charge_budget, self._channel = upload_format, journal, charge, channel
        if journal is not None:
            journal.start(configuration.digest)
        entries = journal.entries if journal else ()
        self.release_log = ReleaseLog(journal.log if journal else ())
        self._last_released = max((entry.round for entry in entries), default=-1)
        self._memory = entries[-1].memory if entries else configuration.memory
        self._config = configuration.digest
        self._opened = set(journal.opened) if journal else set[int]()
        self._entropy = entropy
        self._secret = crypto.load_key(entropy(KEY))
        self._key = crypto.public_key(self._secret)
        self._shared, self._noise, self._coins = _random_keys(configuration, journal)
        self._round: _OpenRound | None = None
        self._rejected: Counter[ReplyStatus] = Counter()

    @property
    def max_frame(self) -> int:
        """The longest frame that a host needs to send: an upload, or a round with the mechanism's memory."""
        parameters = self.configuration.parameters
        memory = min(16 * parameters, MAX_MEMORY)
        return (1 << 20) + max(self._upload_format.max_size(parameters), memory)

    def answer(self, request: bytes) -> bytes:
        """One step; the reply to an invalid request is a refusal."""
        try:
            frame = enclave_messages.unpack(request)
            steps = {
                MessageType.ATTEST: self._attest,
                MessageType.OPEN_ROUND: self._open_round,
                MessageType.FORWARD_UPLOAD: self._take_upload,
                MessageType.CLOSE_ROUND: self._close_round,
                MessageType.READ_LOG: self._read_log,
            }
            if frame.kind not in steps:
                raise ProtocolError(f"Expected a request to an enclave, got a message of type {frame.kind.label}.")
            return steps[frame.kind](Reader(frame.body))
        except TacitError as error:
            return enclave_messages.pack(MessageType.REFUSED, str(error).encode())
        except Exception as error:  # no message may end the service; the text could contain data
            self._round = None
            reason = f"The request could not be processed ({type(error).__name__}); the round in progress was dropped."
            return enclave_messages.pack(MessageType.REFUSED, reason.encode())

    def _attest(self, reader: Reader) -> bytes:
        nonce, remembered = reader.take(KEY), reader.take(KEY)
        reader.expect_end()
        entries, head = self.release_log.since(remembered), self.release_log.head
        quote = self.attestor.quote(Binding(self._key, nonce, self._config, head, self._channel).report_data)
        kind, collateral = self.attestor.kind, self.attestor.collateral
        evidence = Evidence(kind, quote, collateral, self._key, self._config, head, self._channel, entries)
        return enclave_messages.pack(MessageType.EVIDENCE, evidence.pack())

    def _read_log(self, reader: Reader) -> bytes:
        head = reader.take(KEY)
        reader.expect_end()
        return enclave_messages.pack(MessageType.LOG_ENTRIES, b"".join(self.release_log.since(head)))

    def _open_round(self, reader: Reader) -> bytes:
        request = RoundRequest.read(reader, self.configuration.parameters)
        self._check_round(request)
        self._note_opened(request.round)
        index, coins = request.round, self._round_key(self._coins, request).child("cohort")
        cohort = self.method.sampler.cohort(self.configuration.population, index, coins)
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
        self._round = _OpenRound(request, session, tuple(cohort.tolist()))
        opened = enclave_messages.pack_opened(self.release_log.head, self._round.cohort)
        return enclave_messages.pack(MessageType.ROUND_OPENED, opened)

    def _note_opened(self, index: int) -> None:
        """Charge a round and enter it in the release log, before anybody is told its cohort; once.

        Whoever takes part remembers the entry, so that the round cannot be forgotten with an older journal.
        """
        if index in self._opened:
            return
        if self._charge_budget is not None:
            self._charge_budget(index, None)
        if self._journal is None:
            self.release_log.append(self._entropy(KEY))
        else:
            self._journal.open_round(index)
            self.release_log.append(self._journal.log[-1])
        self._opened.add(index)

    def _check_round(self, request: RoundRequest) -> None:
        """Raise `ProtocolError` unless the configuration allows this round."""
        if request.round <= self._last_released:
            raise ProtocolError(f"Round {request.round} {ROUND_OVER}")
        if request.round >= self.configuration.rounds:
            raise ProtocolError(f"Round {request.round} is beyond the {self.configuration.rounds} rounds of this run.")
        if request.noise_key and self.configuration.seed is None:
            raise ProtocolError("Only a simulated enclave takes a noise key: an enclave draws its own.")
        if self.method.mechanism.per_layer and sum(request.layers) != request.dim:
            raise ProtocolError("The layers do not add up to an update, but each has its own clipping bound.")
        if self._memory is not None and memory_digest(request.memory) != self._memory:
            raise ProtocolError(
                "The mechanism's memory is not that of the configuration or of the last release: it decides about "
                "clipping and noise, so the host cannot choose it."
            )

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
        if upload.client != sender or sender not in current.cohort:
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
            if self.method.mechanism.requires == "only the sum":  # the client's share of the noise follows from it
                self._upload_format.check_cohort(plaintext, len(current.cohort))
        except (WireError, ProtocolError):
            return ReplyStatus.MALFORMED
        limit = row_limit(self.method, message, current.request.state(), self._now(current))
        if not float(message.rows.norms()[0]) <= limit:  # NaN is not
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
        release = aggregate(self.method, state, messages, now, lambda: self._charge(index, current.turnout))
        seconds = time.perf_counter() - began
        self._round, rejected, self._rejected = None, self._rejected, Counter()
        log_entry = self._log(current, release) if release.contributors else b""
        result = RoundResult(release, log_entry, rejected, current.load_seconds, seconds)
        return enclave_messages.pack(MessageType.RELEASE, result.pack())

    def _charge(self, index: int, turnout: Turnout) -> None:
        """Charge the round before its noise is drawn; without a budget, it may not cost more than declared."""
        if self._charge_budget is not None:
            self._charge_budget(index, turnout)
            return
        if self._costs_more(index, turnout):
            raise ProtocolError(
                f"{turnout.delivered} of {turnout.cohort} clients delivered their share of the noise, fewer than the "
                "mechanism declares: nothing is released."
            )

    def _log(self, current: _OpenRound, release: EnclaveRelease) -> bytes:
        """Extend the release log, and record the charge, before the aggregate is sent."""
        index, memory = current.request.round, memory_digest({**current.request.memory, **release.memory})
        total = release.total.total.numpy().tobytes()
        log_entry = crypto.digest("release", pack_number(index), total, memory)
        if self._journal:
            self._journal.append(JournalEntry(index, current.turnout, log_entry, memory))
        self._last_released, self._memory = index, memory
        self.release_log.append(log_entry)
        return log_entry

    def _costs_more(self, index: int, turnout: Turnout) -> bool:
        """Whether a round costs more than declared before it, by ρ of zero-concentrated differential privacy."""
        prices = (self.method.terms.price(Unit.CLIENT, index=index, turnout=each) for each in (turnout, None))
        incurred, planned = (None if price is None else price.accounted for price in prices)
        if planned is None:
            return False
        if incurred is None:
            return True
        actual, declared = incurred.release.loss, planned.release.loss
        return actual.rho + actual.xi > (declared.rho + declared.xi) * (1 + 1e-9)

    def _now(self, current: _OpenRound) -> ServerRound:
        index, population = current.request.round, self.configuration.population
        expected = self.method.sampler.sampling(population, index).mean_cohort(population)
        shared, secret = self._shared.child("round", index), self._round_key(self._noise, current.request)
        return ServerRound(index, population, expected, len(current.cohort), shared, secret)

    def _round_key(self, root: Key, request: RoundRequest) -> Key:
        """The key of this round below one of the enclave's own, or the one that a simulation shares with it."""
        shared = request.noise_key
        return Key(shared) if shared else root.child("round", request.round).child("attempt")


def _random_keys(configuration: Configuration, journal: Journal | None) -> tuple[Key, Key, Key]:
    """Shared randomness, that of the noise, and that of the cohorts."""
    if configuration.seed is not None:
        keys = RunKeys.from_seed(configuration.seed)
        return keys.shared, keys.server, keys.server
    coins = Key.from_entropy() if journal is None else Key(journal.coins)
    return Key(configuration.digest), Key.from_entropy(), coins
