"""What runs inside the enclave: it keeps the key, opens uploads, aggregates, and lets only the aggregate out.

`answer(request) -> reply` for every frame of the host. Nothing that a client or the host sends ends it: what cannot be
right is refused, with a reason that holds no values. Rows live from their upload to the end of their round.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import DenseRows, Key, Messages, Method, Round
from tacit.errors import ProtocolError, TacitError, WireError
from tacit.protocols import crypto
from tacit.protocols.attestation import Attestor, Chain, Evidence
from tacit.protocols.attestation.evidence import Binding
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.aggregate import Released, aggregate
from tacit.protocols.enclave.configuration import Configuration
from tacit.protocols.enclave.errors import Refusal
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.journal import Journal
from tacit.protocols.enclave.opening import Closing, Opening
from tacit.protocols.enclave.parcel import Form, Upload, unseal
from tacit.protocols.enclave.session import Session
from tacit.wire.packing import Reader, number


@dataclass(eq=False)
class _Room:
    """A round that is open: what it is for, and the rows that came."""

    opening: Opening
    session: Session
    rows: dict[int, tuple[Tensor, int | None]] = field(default_factory=dict)
    load: float = 0.0


class EnclaveService:
    """The enclave's side of everything.

    Args:
        configuration: what it will do. Its digest is in every quote.
        method: the method that the configuration names.
        form: how its channel turns rows into uploads.
        attestor: who makes quotes.
        journal: the file of what was let out, if it shall outlive this process.
        entropy: where its key comes from: the operating system's source everywhere but in tests.

    Formal guarantees: of a round, at most one aggregate leaves, of at least `method.channel.least` clients of the
    directory; with a mechanism that blurs sums, it is blurred. The noise comes from this process's own entropy, unless
    the configuration has a seed.
    """

    def __init__(
        self,
        configuration: Configuration,
        method: Method,
        form: Form,
        attestor: Attestor,
        journal: Journal | None = None,
        entropy: Entropy = crypto.system_entropy,
    ) -> None:
        self.configuration, self.method, self.attestor = configuration, method, attestor
        self._form, self._journal = form, journal
        entries = journal.entries if journal else ()
        self.chain = Chain.of(link for _, link in entries)
        self._released = max((index for index, _ in entries), default=-1)  # the last round of which something left
        self._config = configuration.digest
        self._secret = crypto.load(entropy(KEY))
        self._key = crypto.public(self._secret)
        self._keys = _streams(configuration)
        self._room: _Room | None = None
        self._refusals: Counter[Refusal] = Counter()

    def answer(self, request: bytes) -> bytes:
        """One step; a request that cannot be right is answered by a refusal."""
        try:
            frame = frames.unpack(request)
            steps = {
                Verb.ATTEST: self._attest,
                Verb.OPEN: self._open,
                Verb.DELIVERY: self._delivery,
                Verb.CLOSE: self._close,
            }
            if frame.verb not in steps:
                raise ProtocolError(f"Expected a request to an enclave, got {frame.verb.name.lower()}.")
            return steps[frame.verb](Reader(frame.body))
        except TacitError as error:
            return frames.pack(Verb.REFUSED, str(error).encode())

    def _attest(self, reader: Reader) -> bytes:
        nonce, seen = reader.take(KEY), reader.take(KEY)
        reader.done()
        links, head = self.chain.since(seen), self.chain.head
        quote = self.attestor.quote(Binding(self._key, nonce, self._config, head).report_data)
        kind, collateral = self.attestor.kind, self.attestor.collateral
        evidence = Evidence(kind, quote, collateral, self._key, self._config, head, links)
        return frames.pack(Verb.EVIDENCE, evidence.pack())

    def _open(self, reader: Reader) -> bytes:
        opening = Opening.read(reader)
        if opening.round <= self._released:
            raise ProtocolError(f"Round {opening.round} is over: of each round, one aggregate leaves.")
        if not set(opening.cohort) <= self.configuration.directory.keys():
            raise ProtocolError("The cohort has clients that are not in the directory.")
        if self.method.mechanism.per_layer and sum(opening.layers) != opening.dim:
            raise ProtocolError("The layers do not make up a row, but each has a bound of its own.")
        session = Session(
            run=self.configuration.run,
            round=opening.round,
            model=opening.model,
            dim=opening.dim,
            weighed=not self.method.aggregator.uniform,
            config=self._config,
            head=self.chain.head,
            key=self._key,
        )
        self._room = _Room(opening, session)
        return frames.pack(Verb.OPENED, self.chain.head)

    def _delivery(self, reader: Reader) -> bytes:
        sender = reader.number()
        began = time.perf_counter()
        reason = self._take(sender, bytes(reader.rest()))
        if self._room is not None:
            self._room.load += time.perf_counter() - began
        if reason:
            self._refusals[reason] += 1
        return frames.pack(Verb.RECEIPT, number(reason, 1))

    def _take(self, sender: int, data: bytes) -> Refusal:
        """Read one upload, or say why not."""
        room = self._room
        if room is None:
            return Refusal.LATE
        if len(data) > self._form.longest(room.opening.dim):
            return Refusal.OVERSIZE
        try:
            upload = Upload.read(data)
        except ProtocolError:
            return Refusal.MALFORMED
        refusal = self._foreign(room, sender, upload)
        return refusal or self._store(room, upload)

    def _foreign(self, room: _Room, sender: int, upload: Upload) -> Refusal:
        """Whether an upload is for somebody or something else; its header is not believed, only compared."""
        if upload.client != sender or sender not in room.opening.cohort:
            return Refusal.STRANGER
        if upload.round < room.opening.round:
            return Refusal.LATE
        if (upload.round, upload.context) != (room.opening.round, room.session.context):
            return Refusal.FOREIGN
        return Refusal.DUPLICATE if sender in room.rows else Refusal.NONE

    def _store(self, room: _Room, upload: Upload) -> Refusal:
        identity = self.configuration.directory[upload.client]
        try:
            plain = unseal(upload, room.session, self._secret, identity)
        except ProtocolError:
            return Refusal.FORGED
        try:
            row, samples = self._form.read(plain, room.session)
        except (WireError, ProtocolError):
            return Refusal.MALFORMED
        if not bool(torch.isfinite(row).all()):
            return Refusal.NOT_FINITE
        room.rows[upload.client] = row, samples
        return Refusal.NONE

    def _close(self, reader: Reader) -> bytes:
        index = reader.number()
        reader.done()
        room = self._room
        if room is None or room.opening.round != index:
            raise ProtocolError(f"Round {index} is not open.")
        began = time.perf_counter()
        state, messages, now = room.opening.state(), _messages(room), self._now(room)
        released = aggregate(self.method, state, messages, now)
        seconds = time.perf_counter() - began
        self._room, refusals, self._refusals = None, self._refusals, Counter()
        link = self._note(index, released) if released.delivered else b""
        return frames.pack(Verb.RELEASE, Closing(released, link, refusals, room.load, seconds).pack())

    def _note(self, index: int, released: Released) -> bytes:
        """The ledger moves before anything leaves."""
        link = crypto.digest("release", number(index), released.total.total.numpy().tobytes())
        if self._journal:
            self._journal.append(index, link)
        self._released, self.chain = index, self.chain.append(link)
        return link

    def _now(self, room: _Room) -> Round:
        index, population = room.opening.round, self.configuration.population
        expected = self.method.sampler.expected(population, index)
        keys = (key.child("round", index) for key in self._keys)
        return Round(index, population, expected, room.opening.asked, *keys)


def _messages(room: _Room) -> Messages:
    """The rows of a round, in the order of the clients' numbers."""
    clients = sorted(room.rows)
    rows = [room.rows[client][0] for client in clients]
    values = torch.stack(rows) if rows else torch.zeros(0, room.opening.dim)
    samples = torch.tensor([room.rows[client][1] for client in clients]) if room.session.weighed else None
    return Messages(torch.tensor(clients, dtype=torch.int64), DenseRows(values), samples)


def _streams(configuration: Configuration) -> tuple[Key, Key]:
    """What everybody may know, and the noise."""
    if configuration.seed is not None:
        return Key.from_seed(configuration.seed, "shared"), Key.from_seed(configuration.seed, "secret")
    return Key(configuration.digest), Key.from_entropy()
