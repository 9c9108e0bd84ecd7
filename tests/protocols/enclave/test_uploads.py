"""Bad uploads: each is refused with its reason, and the round ends as if it had never come."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from protocols.enclave.federation import COHORT, DIM, SEED, Federation, messages, method, rows
from tacit.core import Messages
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave
from tacit.protocols import crypto
from tacit.protocols.enclave import Refusal, Session, frames, identity_of
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.parcel import Upload, seal
from tacit.wire import frames as wire_frames
from tacit.wire.frames import Kind, Part
from tacit.wire.packing import pack_chunk
from tacit.wire.sparse import Csr

VICTIM = 3  # whose place an attacker would like to take
ROW = 9.0 * (torch.arange(DIM) % 8 == 0)
Delivery = tuple[int, bytes]


@dataclass(frozen=True)
class Attacker:
    """What somebody can make who has the victim's identity, or another client's, and sees everything that travels."""

    federation: Federation
    honest: dict[int, bytes]  # uploads of this round
    index: int = 1

    @property
    def session(self) -> Session:
        room = self.federation.keeper._room
        assert room is not None
        return room.session

    def upload(self, plain: bytes, signer: int = VICTIM, client: int = VICTIM, **changes: object) -> bytes:
        session = replace(self.session, **changes)
        return seal(session, client, identity_of(SEED, signer), bytes(32), plain)

    def plain(self, parts: dict[Part, torch.Tensor] | None = None) -> bytes:
        parts = {Part.ROW: encoded(ROW)} if parts is None else parts
        return pack_chunk(wire_frames.pack(Kind.MESSAGE, self.index, parts))

    def row(self, data: bytes) -> bytes:
        return self.upload(self.plain({Part.ROW: raw(data)}))

    def changed(self, **changes: object) -> bytes:
        return replace(Upload.read(self.honest[VICTIM]), **changes).pack()


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


Make = Callable[[Attacker], bytes]
BEFORE: dict[str, tuple[Make, Refusal]] = {  # in the victim's name, before its own upload
    "of nothing": (lambda _: b"", Refusal.MALFORMED),
    "of other bytes": (lambda _: bytes(range(256)), Refusal.MALFORMED),
    "truncated": (lambda a: a.honest[VICTIM][:-1], Refusal.MALFORMED),
    "extended": (lambda a: a.honest[VICTIM] + b"\0", Refusal.MALFORMED),
    "cut inside its header": (lambda a: a.honest[VICTIM][:60], Refusal.MALFORMED),
    "of another version": (lambda a: flip(a.honest[VICTIM], 4), Refusal.MALFORMED),
    "with a flipped bit of ciphertext": (lambda a: flip(a.honest[VICTIM], 200), Refusal.FORGED),
    "with a flipped bit of its fresh key": (lambda a: a.changed(ephemeral=bytes([9]) * 32), Refusal.FORGED),
    "with a fresh key of low order": (lambda a: a.changed(ephemeral=bytes(32)), Refusal.FORGED),
    "with another signature": (lambda a: a.changed(signature=bytes(64)), Refusal.FORGED),
    "signed with another client's key": (lambda a: a.upload(a.plain(), signer=5), Refusal.FORGED),
    "of another client, renamed": (
        lambda a: replace(Upload.read(a.honest[5]), client=VICTIM).pack(),
        Refusal.FORGED,
    ),
    "in another client's name": (lambda a: a.honest[5], Refusal.STRANGER),
    "replayed from an earlier round": (lambda a: a.federation.old[VICTIM], Refusal.LATE),
    "of an earlier round, renumbered": (
        lambda a: replace(Upload.read(a.federation.old[VICTIM]), round=1).pack(),
        Refusal.FOREIGN,
    ),
    "for a later round": (lambda a: a.upload(a.plain(), round=2), Refusal.FOREIGN),
    "for another run": (lambda a: a.upload(a.plain(), run=bytes(16)), Refusal.FOREIGN),
    "for another model": (lambda a: a.upload(a.plain(), model=bytes(32)), Refusal.FOREIGN),
    "for another schema": (lambda a: a.upload(a.plain(), dim=DIM + 1), Refusal.FOREIGN),
    "for another configuration": (lambda a: a.upload(a.plain(), config=bytes(32)), Refusal.FOREIGN),
    "for another ledger head": (lambda a: a.upload(a.plain(), head=bytes(32)), Refusal.FOREIGN),
    "for another enclave's key": (
        lambda a: a.upload(a.plain(), key=crypto.public(crypto.load(bytes([1]) * 32))),
        Refusal.FOREIGN,
    ),
    "for another key under this round's context": (lambda a: other_key(a), Refusal.FORGED),
    "oversize": (lambda a: a.upload(bytes(100_000)), Refusal.OVERSIZE),
    "with a length bomb inside": (lambda a: a.upload(b"\xff" * 8 + bytes(64)), Refusal.MALFORMED),
    "with an empty plaintext": (lambda a: a.upload(b""), Refusal.MALFORMED),
    "padded although there is no padding": (lambda a: a.upload(a.plain() + bytes(8)), Refusal.MALFORMED),
    "with a frame of another round inside": (
        lambda a: a.upload(pack_chunk(wire_frames.pack(Kind.MESSAGE, 0, {Part.ROW: encoded(ROW)}))),
        Refusal.MALFORMED,
    ),
    "with a view inside": (
        lambda a: a.upload(pack_chunk(wire_frames.pack(Kind.VIEW, 1, {Part.ROW: encoded(ROW)}))),
        Refusal.MALFORMED,
    ),
    "with whole numbers": (lambda a: a.upload(a.plain({Part.ROW: ROW.int()})), Refusal.MALFORMED),
    "with a number too few, one by one": (lambda a: a.upload(a.plain({Part.ROW: ROW[1:]})), Refusal.MALFORMED),
    "with NaN, one by one": (lambda a: a.upload(a.plain({Part.ROW: ROW * torch.nan})), Refusal.NOT_FINITE),
    "with float64 numbers": (lambda a: a.upload(a.plain({Part.ROW: ROW[::2].double()})), Refusal.MALFORMED),
    "without a row": (lambda a: a.upload(a.plain({})), Refusal.MALFORMED),
    "with a weight that nobody asked for": (
        lambda a: a.upload(a.plain({Part.ROW: encoded(ROW), Part.SAMPLES: torch.tensor(10**9)})),
        Refusal.MALFORMED,
    ),
    "with too few numbers": (lambda a: a.row(Csr().encode(ROW[:-1])), Refusal.MALFORMED),
    "with too many numbers": (lambda a: a.row(Csr().encode(ROW.repeat(2))), Refusal.MALFORMED),
    "with one number to be spread": (lambda a: a.row(Csr().encode(ROW[:1])), Refusal.MALFORMED),
    "with NaN": (lambda a: a.row(csr([1, 2], [float("nan"), 1.0])), Refusal.MALFORMED),
    "with infinity": (lambda a: a.row(csr([1, 2], [float("inf"), 1.0])), Refusal.MALFORMED),
    "with indices out of range": (lambda a: a.row(csr([1, DIM], [1.0, 1.0])), Refusal.MALFORMED),
    "with huge indices": (lambda a: a.row(csr([1, 2**32 - 1], [1.0, 1.0])), Refusal.MALFORMED),
    "with indices unsorted": (lambda a: a.row(csr([2, 1], [1.0, 1.0])), Refusal.MALFORMED),
    "with indices duplicated": (lambda a: a.row(csr([2, 2], [1.0, 1.0])), Refusal.MALFORMED),
    "with fewer values than indices": (lambda a: a.row(csr([1, 2], [1.0])), Refusal.MALFORMED),
    "with zeros among its values": (lambda a: a.row(csr([1, 2], [1.0, 0.0])), Refusal.MALFORMED),
}
AFTER: dict[str, Make] = {  # in the victim's name, after its own upload
    "replayed": lambda a: a.honest[VICTIM],
    "second, and different": lambda a: a.upload(a.plain()),
}


def other_key(a: Attacker) -> bytes:
    """Sealed to a key that is not the enclave's, but under its context, and signed by the victim."""
    foreign = seal(
        replace(a.session, key=crypto.public(crypto.load(bytes([1]) * 32))), VICTIM, bytes(32), bytes(32), b""
    )
    upload = replace(Upload.read(foreign), context=a.session.context)
    statement = crypto.digest("uploaded", upload.context, VICTIM.to_bytes(4, "little"), upload.ephemeral, upload.sealed)
    return replace(upload, signature=crypto.sign(identity_of(SEED, VICTIM), statement)).pack()


def played(tamper: Callable[[Attacker], Iterator[Delivery]] | None) -> tuple[torch.Tensor, Federation, Attacker | None]:
    """Two rounds, the second one tampered with."""
    federation = Federation(method(Enclave(wire=Csr())))
    attackers: list[Attacker] = []

    def keep(replies: list[Delivery]) -> list[Delivery]:
        federation.old = {client: bytes(data[frames.HEADER :]) for client, data in replies}
        return replies

    def attack(replies: list[Delivery]) -> list[Delivery]:
        attacker = Attacker(federation, {client: bytes(data[frames.HEADER :]) for client, data in replies})
        attackers.append(attacker)
        return [(who, frames.pack(Verb.UPLOAD, data)) for who, data in tamper(attacker)] if tamper else replies

    federation.play(messages(rows(0)), 0, keep)
    outcome = federation.play(messages(rows(1)), 1, attack)
    federation.outcome = outcome
    return outcome.closing.released.total.total, federation, attackers[0]


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    total, federation, _ = played(None)
    assert not federation.outcome.closing.refusals
    return total


@pytest.mark.parametrize("kind", BEFORE)
def test_bad_uploads_are_refused_and_leave_no_trace(kind: str, undisturbed: torch.Tensor) -> None:
    make, reason = BEFORE[kind]

    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield VICTIM, make(attacker)
        yield from attacker.honest.items()

    total, federation, _ = played(tamper)
    assert federation.outcome.closing.refusals == {reason: 1}
    assert federation.outcome.closing.released.delivered == COHORT
    assert torch.equal(total, undisturbed)


@pytest.mark.parametrize("kind", AFTER)
def test_the_first_upload_wins(kind: str, undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield from attacker.honest.items()
        yield VICTIM, AFTER[kind](attacker)

    total, federation, _ = played(tamper)
    assert federation.outcome.closing.refusals == {Refusal.DUPLICATE: 1}
    assert torch.equal(total, undisturbed)


def test_who_was_not_asked_is_a_stranger(undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield 1, attacker.upload(attacker.plain(), signer=1, client=1)
        yield 4_000_000_000, attacker.honest[VICTIM]
        yield from attacker.honest.items()

    total, federation, _ = played(tamper)
    assert federation.outcome.closing.refusals == {Refusal.STRANGER: 2}
    assert torch.equal(total, undisturbed)


def test_after_the_end_everything_is_late(undisturbed: torch.Tensor) -> None:
    _, federation, attacker = played(None)
    body = VICTIM.to_bytes(4, "little") + attacker.honest[VICTIM]
    assert federation.keeper.answer(frames.pack(Verb.DELIVERY, body)) == frames.pack(
        Verb.RECEIPT, bytes([Refusal.LATE])
    )


def test_all_of_them_in_one_round(undisturbed: torch.Tensor) -> None:
    def tamper(attacker: Attacker) -> Iterator[Delivery]:
        yield from ((VICTIM, make(attacker)) for make, _ in BEFORE.values())
        yield from attacker.honest.items()
        yield from ((VICTIM, make(attacker)) for make in AFTER.values())

    total, federation, _ = played(tamper)
    assert sum(federation.outcome.closing.refusals.values()) == len(BEFORE) + len(AFTER) >= 20
    assert torch.equal(total, undisturbed)


def test_the_order_of_arrival_makes_no_difference(undisturbed: torch.Tensor) -> None:
    total, _, _ = played(lambda attacker: iter(sorted(attacker.honest.items(), reverse=True)))
    assert torch.equal(total, undisturbed)


def test_dense_rows_must_be_finite_too() -> None:
    values = rows(0)
    values[2, 7] = float("nan")
    federation = Federation(method(Enclave()))
    outcome = federation.play(messages(values))
    assert outcome.closing.refusals == {Refusal.NOT_FINITE: 1}
    assert outcome.closing.released.delivered == tuple(c for c in COHORT if c != COHORT[2])
    assert outcome.minutes.silent == {COHORT[2]}


@pytest.mark.parametrize("samples", [0, -19, 10**12])
def test_weights_must_be_within_reason(samples: int) -> None:
    federation = Federation(method(Enclave(), aggregator=WeightedMean()))
    sent = messages(rows(0), weighed=True)
    assert sent.samples is not None
    weights = sent.samples.clone()
    weights[1] = samples
    outcome = federation.play(Messages(sent.clients, sent.rows, weights))
    assert outcome.closing.refusals == {Refusal.MALFORMED: 1}
