"""Fuzzed frames for the enclave: it answers each of them, and an honest round succeeds afterwards.

The suite sends 3,000 frames. A campaign sends a million, and prints its seed, with which it can be repeated:
`TACIT_SEED=1 python -m pytest -s --scale campaign tests/enclave/test_campaign.py`.
"""

import os
import random
import resource
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from enclave.federation import COHORT, DIM, Federation, messages, method, rows
from enclave.listening import ATTEST, Listening
from scale import scaled
from tacit.core.interfaces import Mechanism
from tacit.core.neutral import NoNoise
from tacit.core.prices import MAX_ROUNDS
from tacit.enclave import enclave_messages
from tacit.enclave.configuration import NO_MEMORY
from tacit.enclave.connection import EnclaveConnection
from tacit.enclave.enclave_messages import MessageType, RoundResult
from tacit.errors import EnclaveRefusedError, ProtocolError
from tacit.pieces.channels import Enclave
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip, QuantileClip
from tacit.protocols import kit
from tacit.protocols.kit import HEADER, ProtocolId
from tacit.wire.packing import Reader
from tacit.wire.sparse import Compact, Csr

FRAMES = scaled(3000, campaign=1_000_000)
SEED = int(os.environ.get("TACIT_SEED", "1"))
ROUNDS = MAX_ROUNDS  # so many that no campaign ends for lack of rounds: a round takes several frames
SECONDS, MEMORY = 1.0, 1 << 30  # for one frame, and for all of them
ANSWERS = {
    MessageType.EVIDENCE,
    MessageType.ROUND_OPENED,
    MessageType.RECEIPT,
    MessageType.RELEASE,
    MessageType.REFUSED,
    MessageType.LOG_ENTRIES,
}
CASES: dict[str, tuple[Enclave, Mechanism]] = {
    "plain": (Enclave(wire=Csr()), NoNoise()),
    "central": (Enclave(), CentralGaussian(clip=FixedClip(0.3, per_layer=True), noise_multiplier=0.5)),
    "quantile": (
        Enclave(wire=Compact(), padding=64),
        CentralGaussian(clip=QuantileClip(start=0.1, count_noise=1.0), noise_multiplier=0.5),
    ),
    "shares": (Enclave(), DistributedGaussian(clip=FixedClip(9.0), noise_multiplier=0.5)),
}


@dataclass
class Recorder:
    """An enclave, and all frames that an honest host has sent to it."""

    channel: Enclave
    mechanism: Mechanism
    frames: list[bytes] = field(default_factory=list)
    index: int = 0
    half: bool = False

    def __post_init__(self) -> None:
        used = replace(method(self.channel, self.mechanism), rounds=ROUNDS)
        self.federation = Federation(used)
        self.federation.configuration = replace(self.federation.configuration, memory=NO_MEMORY, parameters=1 << 16)
        self.federation.restart()
        self.answer = self.federation.service.answer
        self.federation.service.answer = self._record  # type: ignore[method-assign]

    def _record(self, request: bytes) -> bytes:
        self.frames.append(request)
        if self.half and enclave_messages.unpack(request).kind is MessageType.CLOSE_ROUND:
            return enclave_messages.pack(MessageType.REFUSED)  # withheld, as is one upload
        if self.half and sum(frame[5] == MessageType.FORWARD_UPLOAD for frame in self.frames) == len(COHORT):
            return enclave_messages.pack(MessageType.RECEIPT, b"\0")
        return self.answer(request)

    def keep(self, result: RoundResult) -> None:
        """The host stores the mechanism's memory, also of a round that a changed frame has closed."""
        self.federation.memory = {**self.federation.memory, **result.release.memory}

    def play(self, *, half: bool = False) -> None:
        """An honest round, which must succeed; half of one ends before it is closed."""
        self.frames.clear()
        self.half, self.index = half, max(self.index, self.federation.service._last_released) + 1
        self.federation.heads = {}
        sent = messages(rows(self.index % 7))
        if half:
            with pytest.raises(EnclaveRefusedError):
                self.federation.run_round(sent, self.index)
            return
        assert self.federation.run_round(sent, self.index).result.release.contributors == COHORT


def mutated(draw: random.Random, frames: list[bytes]) -> bytes:
    """A frame of the present round with a few changes; most have a valid header, so that the body is read."""
    kinds = {frame[5]: frame for frame in draw.sample(frames, len(frames))}
    frame = bytearray(draw.choice(list(kinds.values())))  # of any kind, with equal probability
    body = frame[HEADER:]
    for _ in range(draw.choice((0, 1, 1, 2, 4, 16))):
        _change(draw, body)
    if draw.random() < 0.02:  # the header, too
        for _ in range(3):
            frame[draw.randrange(HEADER)] = draw.randrange(256)
        return bytes(frame[:HEADER] + body)[: draw.choice((3, HEADER, HEADER + 5, 1 << 20))]
    kind = frame[5] if draw.random() < 0.9 else draw.randrange(256)
    return kit.pack_frame(ProtocolId.ENCLAVE, kind, bytes(body))


def _change(draw: random.Random, body: bytearray) -> None:
    """Another byte, a number at the edge of its range, or bytes that are missing, repeated or new."""
    at = draw.randrange(len(body) + 1)
    match draw.randrange(6):
        case 0 if at < len(body):
            body[at] ^= 1 << draw.randrange(8)
        case 1:
            edge = draw.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            body[at : at + 8] = struct.pack("<Q", edge)[: draw.choice((4, 8))]
        case 2:
            del body[at : at + draw.choice((1, 4, 8, 32, 1000))]
        case 3:
            body[at:at] = body[at : at + draw.choice((1, 4, 8, 32))]
        case 4:
            body[at:at] = draw.randbytes(draw.choice((1, 4, 8, 32, 500)))
        case _:
            body[at : at + 4] = struct.pack("<f", draw.choice((float("nan"), float("inf"), -1.0, 3e38, 1e-45)))


@pytest.mark.parametrize("case", CASES)
def test_the_service_answers_fuzzed_frames(case: str) -> None:
    draw, count = random.Random(f"{SEED} {case}"), max(FRAMES // len(CASES), 1)
    sys.stdout.write(f"\n{case}: {count} frames, seed {SEED}\n")
    recorder, replies, slowest = Recorder(*CASES[case]), Counter[MessageType](), 0.0
    recorder.play()
    recorder.play(half=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        frame = mutated(draw, recorder.frames)
        began = time.perf_counter()
        reply = enclave_messages.unpack(recorder.answer(frame))
        slowest = max(slowest, time.perf_counter() - began)
        replies[reply.kind] += 1
        assert reply.kind in ANSWERS, (SEED, number, frame)
        assert b"could not be processed" not in bytes(reply.body), (SEED, number, frame, bytes(reply.body))
        if reply.kind is MessageType.RELEASE:
            with suppress(ProtocolError):  # an empty round of updates of another length
                recorder.keep(RoundResult.read(Reader(reply.body), DIM))
        if number % 100 == 99:
            recorder.play(half=number % 1000 != 999)
    recorder.play()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    counts = ", ".join(f"{number} {kind.label}" for kind, number in replies.most_common())
    sys.stdout.write(f"{case}: {counts}; slowest {1000 * slowest:.1f} ms, memory {grown / 2**20:+.0f} MiB\n")
    assert set(replies) == ANSWERS
    assert slowest < SECONDS
    assert grown < MEMORY


def test_the_socket_survives_fuzzed_bytes() -> None:
    """The same over TLS: whole frames, and bytes after which the connection ends."""
    draw, count = random.Random(f"{SEED} socket"), max(FRAMES // 10, 100)
    recorder, enclave, sent = Recorder(*CASES["central"]), Listening(), 0
    enclave.service = recorder.federation.service
    recorder.play()
    recorder.play(half=True)
    enclave.service.answer = recorder.answer  # type: ignore[method-assign]
    try:
        while sent < count:
            with enclave.secured() as host, suppress(OSError, EOFError):
                for _ in range(draw.randrange(1, 30)):
                    sent += 1
                    frame = mutated(draw, recorder.frames)
                    host.sendall(frame if draw.random() < 0.97 else frame[: draw.randrange(len(frame))] + bytes(HEADER))
                    host.settimeout(0.5)
                    if not host.recv(1 << 20):  # the enclave has ended this connection, and no other
                        break
        with enclave.secured() as host:
            evidence = enclave_messages.unpack(EnclaveConnection(host, 10).ask(ATTEST))
        assert evidence.kind is MessageType.EVIDENCE
    finally:
        enclave.server.close()
        enclave.thread.join(10)
    assert not enclave.thread.is_alive()
