"""The enclave as a process of its own: it outlives garbage, and its death is a clean failed round."""

import os
import signal
import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protocols.enclave.federation import COHORT, DIM, LAYERS, SEED, Federation, messages, method, now, rows
from tacit import cli
from tacit.core import Method, State
from tacit.errors import ProtocolError, UserError
from tacit.pieces.mechanisms import CentralGaussian, FixedClip
from tacit.protocols.enclave import (
    Enclave,
    EnclaveGoneError,
    Form,
    Journal,
    Link,
    RefusedError,
    Stage,
    Verb,
    aggregate,
    frames,
    launch,
    serve,
    simulated,
)
from tacit.wire.packing import number
from tacit.wire.sparse import Compact

POPULATION = 12
NOISY = method(Enclave(wire=Compact()), CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.5))
STATE = State(0, torch.arange(float(DIM)), layers=LAYERS)
FORM = Form(Compact())


def test_a_separate_process_gives_what_the_fast_path_gives_and_its_death_is_clean() -> None:
    with Stage(NOISY, FORM, POPULATION, SEED) as stage:
        assert stage.process.pid != os.getpid()
        for index in range(2):
            sent = messages(rows(index))
            real = stage.carry(STATE, sent, now(index))
            fast = aggregate(NOISY, STATE, sent, now(index))
            assert torch.equal(real.total.total, fast.total.total)
            assert real.delivered == COHORT
            parts = {"attestation", "encryption", "transfer", "load", "aggregate", "publish"}
            assert parts - ({"attestation"} if index else set()) <= set(stage.seconds)
            assert all(seconds > 0 for seconds in stage.seconds.values())
        _garbage(stage)
        assert stage.carry(STATE, messages(rows(3)), now(3)).delivered == COHORT
        os.kill(stage.process.pid, signal.SIGKILL)
        with pytest.raises(EnclaveGoneError, match="this round is lost, and the model stays as it was"):
            stage.carry(STATE, messages(rows(4)), now(4))
    assert stage.process.returncode == -signal.SIGKILL


def _garbage(stage: Stage) -> None:
    """What clients send through the host; the process answers each with a refusal."""
    for data in (b"", b"\xff" * 1000, os.urandom(5000), b"TUPL" + bytes(500)):
        reply = stage.link.ask(frames.pack(Verb.DELIVERY, number(3) + data))
        assert frames.unpack(reply).verb is Verb.RECEIPT
    for body in (b"", os.urandom(100), bytes(10_000)):
        for verb in (Verb.OPEN, Verb.ATTEST, Verb.CLOSE, Verb.DELIVERY, Verb.PROVE):
            assert frames.unpack(stage.link.ask(frames.pack(verb, body))).verb in (
                Verb.REFUSED,
                Verb.RECEIPT,
                Verb.EVIDENCE,
            )


@pytest.fixture
def listening():
    """A keeper behind a socket, in a thread; connections come one after the other."""
    federation = Federation(method())
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while not serve(listener.accept()[0], federation.keeper.answer):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield listener.getsockname()
    Link(socket.create_connection(listener.getsockname())).close()
    thread.join(10)
    assert not thread.is_alive()
    listener.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        frames.pack(Verb.OPEN)[:8] + struct.pack("<Q", 1 << 63),  # a length bomb
        frames.pack(Verb.OPEN)[:8] + struct.pack("<Q", 3),
        b"\x80\x04\x95" + bytes(100),  # how a pickle begins
    ],
)
def test_bytes_that_are_no_frame_end_the_connection_and_not_the_process(listening, data: bytes) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(data)
        reply = frames.unpack(connection.recv(1000))
        with pytest.raises(RefusedError, match="Expected a frame"):
            reply.reader(Verb.OPENED)
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(b"TE")  # and silence
    with socket.create_connection(listening) as connection:
        reply = Link(connection).ask(frames.pack(Verb.ATTEST, bytes(64)))
        assert frames.unpack(reply).verb is Verb.EVIDENCE


def test_a_silent_enclave_is_not_waited_for_without_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(EnclaveGoneError):
        Link(ours, patience=0.05).ask(frames.pack(Verb.CLOSE, number(0)))
    ours.close()


def test_a_failed_round_leaves_nothing_behind(tmp_path: Path) -> None:
    """The journal has an entry for every aggregate that left, and for nothing else."""
    journal = Journal(tmp_path / "journal")
    federation = Federation(method(Enclave(least=3)), journal)
    federation.play(messages(rows(0)), 0)
    federation.play(messages(rows(1)), 1, lambda replies: replies[:1])
    assert [index for index, _ in Journal(tmp_path / "journal").entries] == [0]
    (tmp_path / "journal").write_bytes(b"torn")
    with pytest.raises(UserError, match="not a whole journal"):
        Journal(tmp_path / "journal")


@pytest.mark.parametrize("seeded", [True, False])
def test_nobody_serves_without_hardware_or_the_insecure_flag(seeded: bool, tmp_path: Path, capsys) -> None:
    configuration = simulated(method(), POPULATION, SEED)
    data = configuration.to_bytes() if seeded else configuration.to_bytes().replace(b'"seed": 7', b'"seed": null')
    file = tmp_path / "enclave.json"
    file.write_bytes(data)
    assert cli.main(["enclave", "serve", str(file), "--listen", str(tmp_path / "socket")]) == 2
    expected = "without a seed: it gives noise away" if seeded else "Expected to run inside Gramine"
    assert expected in capsys.readouterr().err


def test_frames_are_strict() -> None:
    good = frames.pack(Verb.CLOSE, b"abc")
    assert bytes(frames.unpack(good).body) == b"abc"
    for bad in (
        good[:-1],
        good + b"x",
        b"XENC" + good[4:],
        good[:4] + b"\x02" + good[5:],
        good[:5] + b"\x63" + good[6:],
    ):
        with pytest.raises(ProtocolError):
            frames.unpack(bad)
    with pytest.raises(ProtocolError, match="to 18 bytes"):
        frames.unpack(good, limit=18)


def test_the_method_in_use_is_the_one_of_the_configuration() -> None:
    from tacit.runs.expressions import build

    configuration = simulated(NOISY, POPULATION, SEED)
    assert isinstance(build(configuration.method), Method)
    assert repr(build(configuration.method)) == configuration.method


def test_an_enclave_that_cannot_start_is_a_clean_error() -> None:
    configuration = replace(simulated(method(), POPULATION, SEED), method="Sgd(lr=0.1, steps=1)")
    with pytest.raises(EnclaveGoneError):
        launch(configuration)
