"""The enclave under fuzzing: it answers every request; nothing is raised, nothing invalid is accepted.

The suite tries 150 inputs per test. A campaign tries more:
`python -m pytest --scale campaign tests/enclave/test_fuzz.py`.
"""

from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enclave.federation import COHORT, SEED, Federation, messages, method, now, rows
from scale import scaled
from tacit import enclave as tee
from tacit.enclave import attestation, enclave_messages
from tacit.enclave.configuration import Configuration
from tacit.enclave.enclave_client import EnclaveClientState
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.service import _OpenRound
from tacit.enclave.simulated_enclave import simulated_identity
from tacit.enclave.uploads import seal
from tacit.errors import ProtocolError, UserError
from tacit.pieces.channels import Enclave
from tacit.protocols.kit import ReplyStatus
from tacit.wire.packing import pack_number
from tacit.wire.sparse import Compact, Csr

TRIES = scaled(150, campaign=100_000)
CHANNELS = {"dense": Enclave(), "csr": Enclave(wire=Csr()), "compact": Enclave(wire=Compact(), padding=64)}


def current(federation: Federation) -> _OpenRound:
    assert federation.service._round is not None
    return federation.service._round


def forward(federation: Federation, upload: bytes) -> int:
    request = enclave_messages.pack(MessageType.FORWARD_UPLOAD, pack_number(COHORT[0]) + upload)
    return enclave_messages.read_reply(federation.service.answer(request), MessageType.RECEIPT).number(1)


def opened(channel: Enclave) -> Federation:
    federation = Federation(method(channel))
    sent = messages(rows(0))
    federation.encode(sent, 0)
    federation.choose(COHORT)
    federation.service.answer(enclave_messages.pack(MessageType.OPEN_ROUND, federation.request(sent, 0).pack()))
    return federation


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_any_bytes_as_an_upload(channel: Enclave) -> None:
    federation = opened(channel)

    @settings(max_examples=TRIES, deadline=None)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        assert forward(federation, data) != ReplyStatus.ACCEPTED

    check()
    assert not current(federation).received


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_any_bytes_as_a_plaintext_that_is_encrypted_and_signed_correctly(channel: Enclave) -> None:
    """The strongest malicious client: its upload is valid except for the content."""
    federation = opened(channel)
    honest = channel.message_format.pack(messages(rows(0)), 0, now())

    @settings(max_examples=TRIES, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        plaintext = bytearray(honest)
        for _ in range(data.draw(st.integers(1, 4))):
            plaintext[data.draw(st.integers(0, len(plaintext) - 1))] ^= data.draw(st.integers(1, 255))
        length = data.draw(st.integers(0, len(plaintext))) if data.draw(st.booleans()) else len(plaintext)
        changed = bytes(plaintext[:length])
        if changed == honest:
            return
        session = current(federation).session
        upload = seal(session, COHORT[0], simulated_identity(SEED, COHORT[0]), bytes(32), changed)
        assert forward(federation, upload) == ReplyStatus.MALFORMED

    check()
    assert not current(federation).received


def test_any_frame_for_the_enclave() -> None:
    federation = Federation(method())

    @settings(max_examples=TRIES, deadline=None)
    @given(st.sampled_from(list(MessageType)), st.binary(max_size=300))
    def check(kind: MessageType, body: bytes) -> None:
        assert enclave_messages.unpack(federation.service.answer(enclave_messages.pack(kind, body))).kind in {
            MessageType.REFUSED,
            MessageType.RECEIPT,
            MessageType.EVIDENCE,
            MessageType.ROUND_OPENED,
            MessageType.LOG_ENTRIES,
        }

    check()


def test_any_change_of_a_stored_state() -> None:
    """A state is read as it was stored, or refused with `ProtocolError`."""
    federation = Federation(method())
    federation.run_round(messages(rows(0)))
    federation.encode(messages(rows(1)), 1)
    stored = federation.clients.stored[COHORT[0]]
    assert EnclaveClientState.from_bytes(stored).to_bytes() == stored

    @settings(max_examples=TRIES, deadline=None)
    @given(st.integers(0, len(stored) - 1), st.integers(0, len(stored)), st.binary(max_size=20))
    def check(start: int, end: int, put: bytes) -> None:
        with suppress(ProtocolError):
            EnclaveClientState.from_bytes(stored[:start] + put + stored[end:])

    check()


@settings(max_examples=TRIES, deadline=None)
@given(st.binary(max_size=200) | st.sampled_from([b"[]", b"{}", b"3", b"null", b'{"format": 1}', b"[" * 10_000]))
def test_any_document_as_a_configuration(data: bytes) -> None:
    with pytest.raises(UserError):
        Configuration.from_bytes(data)


@pytest.mark.parametrize("package", [tee, attestation], ids=["tee", "attestation"])
def test_nothing_from_outside_chooses_code(package: ModuleType) -> None:
    for path in Path(package.__path__[0]).glob("*.py"):
        text = path.read_text()
        for word in ("pickle", "marshal", "eval(", "exec(", "import_module", " torch.load(", "yaml", "numpy.random"):
            assert word not in text, f"{path.name}: {word}"
