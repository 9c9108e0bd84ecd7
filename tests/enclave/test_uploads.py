"""Invalid uploads: each is rejected with its reason, and the round ends as if it had never arrived."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from enclave.federation import COHORT, DIM, SEED, Federation, messages, method, rows
from tacit.core import Messages
from tacit.enclave import enclave_messages
from tacit.enclave.configuration import EnclaveSession
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.host import EnclaveOutcome
from tacit.enclave.simulated_enclave import simulated_identity
from tacit.enclave.uploads import Upload, seal, upload_statement
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave
from tacit.protocols import crypto
from tacit.protocols.kit import HEADER, ReplyStatus
from tacit.wire import frames
from tacit.wire.frames import FrameKind, Part
from tacit.wire.packing import pack_chunk
from tacit.wire.sparse import Csr

VICTIM = 3  # whose place an attacker tries to take
ROW = 9.0 * (torch.arange(DIM) % 8 == 0)
OTHER_KEY = crypto.public_key(crypto.load_key(bytes([1]) * 32))
Delivery = tuple[int, bytes]


@dataclass(frozen=True)
class Attacker:
    """What an attacker can make who has the victim's identity, or another client's, and observes all traffic.

    Attributes:
        session: of this round.
        uploads: honest uploads of this round.
        previous: honest uploads of the round before.
    """

    session: EnclaveSession
    uploads: Mapping[int, bytes]
    previous: Mapping[int, bytes]

    def upload(
        self, plaintext: bytes, signer: int = VICTIM, client: int = VICTIM, session: EnclaveSession | None = None
    ) -> bytes:
        return seal(session or self.session, client, simulated_identity(SEED, signer), bytes(32), plaintext)

    def plaintext(self, parts: dict[Part, torch.Tensor] | None = None) -> bytes:
        parts = {Part.ROW: encoded(ROW)} if parts is None else parts
        return pack_chunk(frames.pack(FrameKind.MESSAGE, self.session.round, parts))

    def row(self, data: bytes) -> bytes:
        return self.upload(self.plaintext({Part.ROW: raw(data)}))

    @property
    def honest(self) -> Upload:
        return Upload.read(self.uploads[VICTIM])


def raw(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def encoded(row: torch.Tensor) -> torch.Tensor:
    return raw(Csr().encode(row))


def csr(columns: list[int], values: list[float], dim: int = DIM) -> bytes:
    count = len(columns)
    head = struct.pack("<BQBBQ", 1, dim, 4, 4, count) + struct.pack("<II", 0, count)
    return head + struct.pack(f"<{count}I", *columns) + struct.pack(f"<{len(values)}f", *values)


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def other_key(a: Attacker) -> bytes:
    """Encrypted to a key that is not the enclave's, but with its context, and signed by the victim."""
    session = replace(a.session, key=OTHER_KEY)
    upload = replace(Upload.read(seal(session, VICTIM, bytes(32), bytes(32), b"")), context=a.session.context)
    statement = upload_statement(upload.context, VICTIM, upload.ephemeral, upload.sealed)
    return replace(upload, signature=crypto.sign(simulated_identity(SEED, VICTIM), statement)).pack()


Make = Callable[[Attacker], bytes]
BEFORE: dict[str, tuple[Make, ReplyStatus]] = {  # with the victim's number, before its own upload
    "of nothing": (lambda _: b"", ReplyStatus.MALFORMED),
    "of other bytes": (lambda _: bytes(range(256)), ReplyStatus.MALFORMED),
    "truncated": (lambda a: a.uploads[VICTIM][:-1], ReplyStatus.MALFORMED),
    "extended": (lambda a: a.uploads[VICTIM] + b"\0", ReplyStatus.MALFORMED),
    "cut inside its header": (lambda a: a.uploads[VICTIM][:60], ReplyStatus.MALFORMED),
    "of another version": (lambda a: flip(a.uploads[VICTIM], 4), ReplyStatus.MALFORMED),
    "with a flipped bit of ciphertext": (lambda a: flip(a.uploads[VICTIM], 200), ReplyStatus.FORGED),
    "with a flipped bit of its fresh key": (
        lambda a: replace(a.honest, ephemeral=bytes([9]) * 32).pack(),
        ReplyStatus.FORGED,
    ),
    "with a fresh key of low order": (lambda a: replace(a.honest, ephemeral=bytes(32)).pack(), ReplyStatus.FORGED),
    "with another signature": (lambda a: replace(a.honest, signature=bytes(64)).pack(), ReplyStatus.FORGED),
    "signed with another client's key": (lambda a: a.upload(a.plaintext(), signer=5), ReplyStatus.FORGED),
    "of another client, renamed": (
        lambda a: replace(Upload.read(a.uploads[5]), client=VICTIM).pack(),
        ReplyStatus.FORGED,
    ),
    "of another client": (lambda a: a.uploads[5], ReplyStatus.UNEXPECTED_SENDER),
    "replayed from an earlier round": (lambda a: a.previous[VICTIM], ReplyStatus.LATE),
    "of an earlier round, renumbered": (
        lambda a: replace(Upload.read(a.previous[VICTIM]), round=1).pack(),
        ReplyStatus.WRONG_SESSION,
    ),
    "for a later round": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, round=2)),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another run": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, run=bytes(16))),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another model": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, model=bytes(32))),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another schema": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, dim=DIM + 1)),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another configuration": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, config=bytes(32))),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another release-log head": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, head=bytes(32))),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another enclave's key": (
        lambda a: a.upload(a.plaintext(), session=replace(a.session, key=OTHER_KEY)),
        ReplyStatus.WRONG_SESSION,
    ),
    "for another key under this round's context": (other_key, ReplyStatus.FORGED),
    "oversize": (lambda a: a.upload(bytes(100_000)), ReplyStatus.OVERSIZE),
    "with a length bomb inside": (lambda a: a.upload(b"\xff" * 8 + bytes(64)), ReplyStatus.MALFORMED),
    "with an empty plaintext": (lambda a: a.upload(b""), ReplyStatus.MALFORMED),
    "padded against the configuration": (lambda a: a.upload(a.plaintext() + bytes(8)), ReplyStatus.MALFORMED),
    "with a frame of another round inside": (
        lambda a: a.upload(pack_chunk(frames.pack(FrameKind.MESSAGE, 0, {Part.ROW: encoded(ROW)}))),
        ReplyStatus.MALFORMED,
    ),
    "with a view inside": (
        lambda a: a.upload(pack_chunk(frames.pack(FrameKind.VIEW, 1, {Part.ROW: encoded(ROW)}))),
        ReplyStatus.MALFORMED,
    ),
    "with integers": (lambda a: a.upload(a.plaintext({Part.ROW: ROW.int()})), ReplyStatus.MALFORMED),
    "with a number too few, dense": (lambda a: a.upload(a.plaintext({Part.ROW: ROW[1:]})), ReplyStatus.MALFORMED),
    "with NaN, dense": (lambda a: a.upload(a.plaintext({Part.ROW: ROW * torch.nan})), ReplyStatus.NOT_FINITE),
    "of huge numbers": (
        lambda a: a.upload(a.plaintext({Part.ROW: torch.full_like(ROW, 3e38)})),
        ReplyStatus.NOT_FINITE,
    ),
    "with float64 numbers": (lambda a: a.upload(a.plaintext({Part.ROW: ROW[::2].double()})), ReplyStatus.MALFORMED),
    "without a row": (lambda a: a.upload(a.plaintext({})), ReplyStatus.MALFORMED),
    "with a weight outside the schema": (
        lambda a: a.upload(a.plaintext({Part.ROW: encoded(ROW), Part.SAMPLES: torch.tensor(10**9)})),
        ReplyStatus.MALFORMED,
    ),
    "with too few numbers": (lambda a: a.row(Csr().encode(ROW[:-1])), ReplyStatus.MALFORMED),
    "with too many numbers": (lambda a: a.row(Csr().encode(ROW.repeat(2))), ReplyStatus.MALFORMED),
    "with one number to broadcast": (lambda a: a.row(Csr().encode(ROW[:1])), ReplyStatus.MALFORMED),
    "with NaN": (lambda a: a.row(csr([1, 2], [float("nan"), 1.0])), ReplyStatus.MALFORMED),
    "with infinity": (lambda a: a.row(csr([1, 2], [float("inf"), 1.0])), ReplyStatus.MALFORMED),
    "with indices out of range": (lambda a: a.row(csr([1, DIM], [1.0, 1.0])), ReplyStatus.MALFORMED),
    "with huge indices": (lambda a: a.row(csr([1, 2**32 - 1], [1.0, 1.0])), ReplyStatus.MALFORMED),
    "with indices unsorted": (lambda a: a.row(csr([2, 1], [1.0, 1.0])), ReplyStatus.MALFORMED),
    "with indices duplicated": (lambda a: a.row(csr([2, 2], [1.0, 1.0])), ReplyStatus.MALFORMED),
    "with fewer values than indices": (lambda a: a.row(csr([1, 2], [1.0])), ReplyStatus.MALFORMED),
    "with zeros among its values": (lambda a: a.row(csr([1, 2], [1.0, 0.0])), ReplyStatus.MALFORMED),
}
AFTER: dict[str, Make] = {  # with the victim's number, after its own upload
    "replayed": lambda a: a.uploads[VICTIM],
    "second, and different": lambda a: a.upload(a.plaintext()),
}


@dataclass
class TwoRounds:
    """Two rounds, the second one tampered with."""

    tamper: Callable[[Attacker], Iterator[Delivery]] | None = None
    federation: Federation = field(default_factory=lambda: Federation(method(Enclave(wire=Csr()))))
    rounds: list[dict[int, bytes]] = field(default_factory=list)  # honest uploads

    def run(self) -> EnclaveOutcome:
        self.federation.run_round(messages(rows(0)), 0, self._record)
        return self.federation.run_round(messages(rows(1)), 1, self._attack)

    def _record(self, replies: list[Delivery]) -> list[Delivery]:
        self.rounds.append({client: bytes(data[HEADER:]) for client, data in replies})
        return replies

    def _attack(self, replies: list[Delivery]) -> list[Delivery]:
        self._record(replies)
        current = self.federation.service._round
        if self.tamper is None or current is None:
            return replies
        attacker = Attacker(current.session, self.rounds[1], self.rounds[0])
        return [(who, enclave_messages.pack(MessageType.UPLOAD, data)) for who, data in self.tamper(attacker)]


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    outcome = TwoRounds().run()
    assert not outcome.result.rejected
    return outcome.result.release.total.total


def rejected(undisturbed: torch.Tensor, tamper: Callable[[Attacker], Iterator[Delivery]]) -> Mapping[ReplyStatus, int]:
    """The reasons, after checking that the aggregate is as without the invalid uploads."""
    result = TwoRounds(tamper).run().result
    assert result.release.contributors == COHORT
    assert torch.equal(result.release.total.total, undisturbed)
    return result.rejected


@pytest.mark.parametrize("kind", BEFORE)
def test_invalid_uploads_are_rejected_without_a_trace(kind: str, undisturbed: torch.Tensor) -> None:
    make, reason = BEFORE[kind]

    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield VICTIM, make(attacker)
        yield from attacker.uploads.items()

    assert rejected(undisturbed, tamper) == {reason: 1}


@pytest.mark.parametrize("kind", AFTER)
def test_the_first_upload_counts(kind: str, undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield from attacker.uploads.items()
        yield VICTIM, AFTER[kind](attacker)

    assert rejected(undisturbed, tamper) == {ReplyStatus.DUPLICATE: 1}


def test_a_client_outside_the_cohort_is_an_unexpected_sender(undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield 1, attacker.upload(attacker.plaintext(), signer=1, client=1)
        yield 4_000_000_000, attacker.uploads[VICTIM]
        yield from attacker.uploads.items()

    assert rejected(undisturbed, tamper) == {ReplyStatus.UNEXPECTED_SENDER: 2}


def test_after_the_end_of_the_round_every_upload_is_late() -> None:
    over = TwoRounds()
    over.run()
    body = VICTIM.to_bytes(4, "little") + over.rounds[1][VICTIM]
    reply = over.federation.service.answer(enclave_messages.pack(MessageType.FORWARD_UPLOAD, body))
    assert reply == enclave_messages.pack(MessageType.RECEIPT, bytes([ReplyStatus.LATE]))


def test_all_of_them_in_one_round(undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield from ((VICTIM, make(attacker)) for make, _ in BEFORE.values())
        yield from attacker.uploads.items()
        yield from ((VICTIM, make(attacker)) for make in AFTER.values())

    assert sum(rejected(undisturbed, tamper).values()) == len(BEFORE) + len(AFTER) >= 20


def test_the_order_of_arrival_makes_no_difference(undisturbed: torch.Tensor) -> None:
    assert not rejected(undisturbed, lambda attacker: iter(sorted(attacker.uploads.items(), reverse=True)))


def test_dense_rows_must_be_finite_too() -> None:
    values = rows(0)
    values[2, 7] = float("nan")
    federation = Federation(method(Enclave()))
    outcome = federation.run_round(messages(values))
    assert outcome.result.rejected == {ReplyStatus.NOT_FINITE: 1}
    assert outcome.result.release.contributors == tuple(c for c in COHORT if c != COHORT[2])
    assert outcome.transcript.unresponsive == {COHORT[2]}


@pytest.mark.parametrize("samples", [0, -19, 10**12])
def test_weights_must_be_plausible(samples: int) -> None:
    federation = Federation(method(Enclave(), aggregator=WeightedMean()))
    sent = messages(rows(0), weighted=True)
    assert sent.samples is not None
    weights = sent.samples.clone()
    weights[1] = samples
    outcome = federation.run_round(Messages(sent.clients, sent.rows, weights))
    assert outcome.result.rejected == {ReplyStatus.MALFORMED: 1}
