import pytest

from enclave.attestation.genuine import SGX
from tacit.enclave.attestation.evidence import Binding, Evidence, ReleaseLog, extend_head
from tacit.errors import ProtocolError
from tacit.wire.chain import GENESIS
from tacit.wire.packing import Reader


def test_each_part_of_a_binding_changes_the_report_data() -> None:
    parts = [bytes([i]) * 32 for i in range(4)]
    plain = Binding(*parts).report_data
    for place in range(4):
        changed = [part if i != place else b"\xff" * 32 for i, part in enumerate(parts)]
        assert Binding(*changed).report_data != plain
    assert Binding(parts[1], parts[0], parts[2], parts[3]).report_data != plain
    assert len(plain) == 64


def test_evidence_is_packed_and_read() -> None:
    sound = Evidence(SGX.kind, b"quote", b"{}", bytes(32), b"c" * 32, b"h" * 32, b"t" * 32, (GENESIS,))
    assert Evidence.read(Reader(sound.pack())) == sound
    for length in range(len(sound.pack())):
        with pytest.raises(ProtocolError):
            Evidence.read(Reader(sound.pack()[:length]))


def test_a_release_log_leads_from_every_former_head_to_the_present_one() -> None:
    entries = [bytes([i]) * 32 for i in range(5)]
    log = ReleaseLog(entries)
    for place, head in enumerate(log.heads):
        assert log.since(head) == tuple(entries[place:])
        assert extend_head(head, log.since(head)) == log.head
    with pytest.raises(ProtocolError, match="rolled back"):
        ReleaseLog(entries[:3]).since(log.head)
