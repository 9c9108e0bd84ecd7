"""The enclave as a separate process: it survives garbage, and its end is a clean failed round."""

import os
import signal
import sys
from contextlib import closing

import pytest
import torch

from enclave.federation import COHORT, DIM, LAYERS, POPULATION, SEED, messages, method, now, rows
from tacit.core import Messages, RunKeys, SimulatedRound, State
from tacit.enclave import enclave_messages
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.service import aggregate
from tacit.enclave.simulated_enclave import SimulatedEnclave, launch, simulated_configuration
from tacit.enclave.uploads import UploadFormat
from tacit.engine.simulation import draw
from tacit.errors import EnclaveUnavailableError, ProtocolError
from tacit.pieces.channels import Enclave
from tacit.pieces.mechanisms import CentralGaussian, FixedClip
from tacit.wire.packing import pack_number
from tacit.wire.sparse import Compact

NOISY = method(Enclave(wire=Compact()), CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.5))
STATE = State(0, torch.arange(float(DIM)), layers=LAYERS)
PARTS = {"attestation", "encryption", "transfer", "load", "aggregate", "publish"}


def drawn(index: int) -> tuple[Messages, SimulatedRound]:
    """The messages of the cohort that the sampler draws, and the round."""
    cohort, current = draw(NOISY, POPULATION, RunKeys.from_seed(SEED), index)
    return messages(rows(index), tuple(cohort.tolist())), current


@pytest.mark.law("processes of an enclave")
def test_a_separate_process_gives_the_result_of_the_simulation_and_its_end_is_clean() -> None:
    """Only here is the enclave a process that `tacit enclave serve` starts: it would catch a broken command line."""
    with closing(SimulatedEnclave(NOISY, UploadFormat(Compact()), POPULATION, SEED)) as enclave:
        assert enclave.process.pid != os.getpid()
        for index in range(2):
            sent, current = drawn(index)
            real = enclave.run_round(STATE, sent, current)
            fast = aggregate(NOISY, STATE, sent, current)
            assert torch.equal(real.total.total, fast.total.total)
            assert real.contributors == fast.contributors
            assert PARTS - ({"attestation"} if index else set()) <= set(enclave.seconds)
            assert all(seconds > 0 for seconds in enclave.seconds.values())
        _send_garbage(enclave)
        assert len(enclave.run_round(STATE, *drawn(3)).contributors) == len(COHORT)
        with pytest.raises(ProtocolError, match="drew another cohort than the simulation"):
            enclave.run_round(STATE, messages(rows(4)), now(4))
        os.kill(enclave.process.pid, signal.SIGKILL)
        with pytest.raises(EnclaveUnavailableError, match="this round failed, and the model is unchanged"):
            enclave.run_round(STATE, *drawn(5))
    assert enclave.process.returncode == -signal.SIGKILL


def _send_garbage(enclave: SimulatedEnclave) -> None:
    """The process answers each request with a refusal or a receipt."""
    for data in (b"", b"\xff" * 1000, os.urandom(5000), b"TUPL" + bytes(500)):
        request = enclave_messages.pack(MessageType.FORWARD_UPLOAD, pack_number(3) + data)
        assert enclave_messages.unpack(enclave.connection.ask(request)).kind is MessageType.RECEIPT
    requests = (MessageType.OPEN_ROUND, MessageType.ATTEST, MessageType.CLOSE_ROUND, MessageType.FORWARD_UPLOAD)
    for body in (b"", os.urandom(100), bytes(10_000)):
        for kind in (*requests, MessageType.PRESENT_EVIDENCE):
            reply = enclave.connection.ask(enclave_messages.pack(kind, body))
            answers = (MessageType.REFUSED, MessageType.RECEIPT, MessageType.EVIDENCE)
            assert enclave_messages.unpack(reply).kind in answers


def test_an_enclave_that_cannot_start_is_a_clean_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnclaveUnavailableError):
        launch(simulated_configuration(method(), POPULATION, SEED))
