"""Whatever comes, the enclave answers; nothing is raised, nothing is taken."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.enclave.federation import COHORT, SEED, Federation, messages, method, rows
from tacit.errors import UserError
from tacit.pieces.channels import Enclave
from tacit.protocols import attestation, enclave
from tacit.protocols.enclave import Configuration, Refusal, Verb, frames, identity_of
from tacit.protocols.enclave.parcel import seal
from tacit.wire.packing import number
from tacit.wire.sparse import Compact, Csr

TRIES = int(os.environ.get("TACIT_FUZZ", "150"))
CHANNELS = {"dense": Enclave(), "csr": Enclave(wire=Csr()), "compact": Enclave(wire=Compact(), padding=64)}


def opened(channel: Enclave) -> Federation:
    federation = Federation(method(channel))
    sent = messages(rows(0))
    federation.hold(sent, 0)
    federation.keeper.answer(frames.pack(Verb.OPEN, federation.opening(sent, 0).pack()))
    return federation


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_any_bytes_as_an_upload(channel: Enclave) -> None:
    federation = opened(channel)

    @settings(max_examples=TRIES, deadline=None)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        reply = federation.keeper.answer(frames.pack(Verb.DELIVERY, number(COHORT[0]) + data))
        assert frames.unpack(reply).reader(Verb.RECEIPT).number(1) != Refusal.NONE

    check()
    assert not federation.keeper._room.rows


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_any_bytes_as_a_plaintext_that_is_sealed_and_signed_as_it_should_be(channel: Enclave) -> None:
    """The worst client there is: everything about its upload is right but what is in it."""
    federation = opened(channel)
    honest = channel.form.pack(messages(rows(0)), 0, 0)

    @settings(max_examples=TRIES, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        plain = bytearray(honest)
        for _ in range(data.draw(st.integers(1, 4))):
            plain[data.draw(st.integers(0, len(plain) - 1))] ^= data.draw(st.integers(1, 255))
        changed = bytes(plain[: data.draw(st.integers(0, len(plain)))]) if data.draw(st.booleans()) else bytes(plain)
        if changed == honest:
            return
        session = federation.keeper._room.session
        upload = seal(session, COHORT[0], identity_of(SEED, COHORT[0]), bytes(32), changed)
        reply = federation.keeper.answer(frames.pack(Verb.DELIVERY, number(COHORT[0]) + upload))
        assert frames.unpack(reply).reader(Verb.RECEIPT).number(1) == Refusal.MALFORMED

    check()
    assert not federation.keeper._room.rows


def test_any_frame_for_the_enclave() -> None:
    federation = Federation(method())

    @settings(max_examples=TRIES, deadline=None)
    @given(st.sampled_from([v for v in Verb if v is not Verb.END]), st.binary(max_size=300))
    def check(verb: Verb, body: bytes) -> None:
        assert frames.unpack(federation.keeper.answer(frames.pack(verb, body))).verb in {
            Verb.REFUSED,
            Verb.RECEIPT,
            Verb.EVIDENCE,
            Verb.OPENED,
        }

    check()


@settings(max_examples=TRIES, deadline=None)
@given(st.binary(max_size=200) | st.sampled_from([b"[]", b"{}", b"3", b"null", b'{"format": 1}', b"[" * 10_000]))
def test_any_document_as_a_configuration(data: bytes) -> None:
    with pytest.raises(UserError):
        Configuration.from_bytes(data)


@pytest.mark.parametrize("package", [enclave, attestation], ids=["enclave", "attestation"])
def test_nothing_from_outside_chooses_code(package: object) -> None:
    for path in Path(package.__file__).parent.glob("*.py"):
        text = path.read_text()
        for word in ("pickle", "marshal", "eval(", "exec(", "import_module", " torch.load(", "yaml", "numpy.random"):
            assert word not in text, f"{path.name}: {word}"
