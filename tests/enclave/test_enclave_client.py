"""What a client requires before it sends its update."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from enclave.federation import COHORT, MODEL, NOW, POLICY, SEED, Federation, messages, method, rows
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.evidence import Evidence
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.enclave.configuration import EnclaveSession, Journal
from tacit.enclave.enclave_client import EnclaveClientState, PendingUpload, answer, join_run, set_time, set_upload
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.simulated_enclave import simulated_identity
from tacit.enclave.uploads import Upload, seal
from tacit.errors import ProtocolError, UserError
from tacit.protocols.crypto import KEY
from tacit.wire.chain import GENESIS
from tacit.wire.packing import Reader, pack_number

CLIENT = COHORT[0]
CHANGES: dict[str, Callable[[Evidence], Evidence]] = {
    "key": lambda evidence: replace(evidence, key=b"\xff" * 32),
    "config": lambda evidence: replace(evidence, config=b"\xff" * 32),
    "head": lambda evidence: replace(evidence, head=b"\xff" * 32),
    "channel": lambda evidence: replace(evidence, channel=b"\xff" * 32),
}
OTHER_REQUESTS = [
    b"",
    b"TACP",
    enclave_messages.pack(MessageType.CLOSE_ROUND),
    enclave_messages.pack(MessageType.CHALLENGE, b"x"),
]


def challenged(federation: Federation, state: EnclaveClientState) -> tuple[EnclaveClientState, Evidence]:
    """The client's challenge and the enclave's evidence."""
    state, reply = answer(state, enclave_messages.pack(MessageType.CHALLENGE))
    nonce = bytes(enclave_messages.read_reply(reply, MessageType.NONCE).rest())
    reply = federation.service.answer(enclave_messages.pack(MessageType.ATTEST, nonce))
    return state, Evidence.read(enclave_messages.read_reply(reply, MessageType.EVIDENCE))


def accepted(state: EnclaveClientState, evidence: Evidence) -> EnclaveClientState:
    return answer(state, enclave_messages.pack(MessageType.PRESENT_EVIDENCE, evidence.pack()))[0]


def test_an_enclave_that_answers_is_accepted() -> None:
    federation = Federation(method())
    state, evidence = challenged(federation, federation.state(CLIENT))
    after = accepted(state, evidence)
    assert (after.key, after.nonce, after.head) == (evidence.key, b"", GENESIS)


def test_evidence_for_another_challenge_is_refused() -> None:
    federation = Federation(method())
    state, evidence = challenged(federation, federation.state(CLIENT))
    state = accepted(state, evidence)
    with pytest.raises(ProtocolError, match="no open challenge"):
        accepted(state, evidence)
    again, _ = challenged(federation, state)
    with pytest.raises(ProtocolError, match="bind a different key, nonce"):
        accepted(again, evidence)
    other, _ = challenged(federation, federation.state(COHORT[1]))
    with pytest.raises(ProtocolError, match="bind a different key, nonce"):
        accepted(other, evidence)


def test_a_restored_state_verifies_no_evidence_before_the_time_is_set() -> None:
    federation = Federation(method())
    state, evidence = challenged(federation, federation.state(CLIENT))
    restored = EnclaveClientState.from_bytes(state.to_bytes())
    with pytest.raises(ProtocolError, match="does not know the time"):
        accepted(restored, evidence)
    assert accepted(set_time(restored, NOW), evidence).key == evidence.key


def test_no_nonce_is_drawn_twice() -> None:
    state, nonces = Federation(method()).state(CLIENT), set()
    for _ in range(50):
        state, reply = answer(
            EnclaveClientState.from_bytes(state.to_bytes()), enclave_messages.pack(MessageType.CHALLENGE)
        )
        nonces.add(enclave_messages.read_reply(reply, MessageType.NONCE).take(KEY))
    assert len(nonces) == 50


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_evidence_with_another_key_configuration_or_head_is_refused(
    change: Callable[[Evidence], Evidence],
) -> None:
    federation = Federation(method())
    state, evidence = challenged(federation, federation.state(CLIENT))
    with pytest.raises(ProtocolError, match="bind a different key, nonce"):
        accepted(state, change(evidence))


def test_another_configuration_is_refused_though_it_is_attested() -> None:
    """The client detects a host that starts the same code with less noise, or with other clients."""
    federation = Federation(method())
    state, evidence = challenged(federation, replace(federation.state(CLIENT), config=bytes(32)))
    with pytest.raises(ProtocolError, match="configuration is not the one that this client agreed to"):
        accepted(state, evidence)


def test_a_simulation_is_refused_unless_the_client_allows_it() -> None:
    federation = Federation(method())
    for policy, why in (
        (replace(POLICY, simulation=False), "without any isolation"),
        (AttestationPolicy(simulation=True), "the policy lists none"),
    ):
        state, evidence = challenged(federation, replace(federation.state(CLIENT), policy=policy))
        with pytest.raises(ProtocolError, match=why):
            accepted(state, evidence)


def test_a_rolled_back_release_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    federation = Federation(method(), Journal(file))
    federation.run_round(messages(rows(0)), 0)
    early = file.read_bytes()
    federation.run_round(messages(rows(1)), 1)
    federation.run_round(messages(rows(2)), 2)
    seen = federation.state(CLIENT)
    assert (
        seen.head == federation.service.release_log.heads[-2]
    )  # with the opening of the last round, before its release

    federation.journal = Journal(file)
    federation.restart()
    state, evidence = challenged(federation, seen)
    assert accepted(state, evidence).head == federation.service.release_log.head

    file.write_bytes(early)
    federation.journal = Journal(file)
    federation.restart()
    with pytest.raises(ProtocolError, match="rolled back"):
        challenged(federation, seen)
    fresh, stale = challenged(federation, replace(seen, head=GENESIS))  # a request that this enclave can answer
    with pytest.raises(ProtocolError, match="rolled back"):
        accepted(replace(fresh, head=seen.head), stale)


def test_nothing_is_sent_before_an_enclave_is_accepted() -> None:
    federation = Federation(method())
    state = set_upload(federation.state(CLIENT), PendingUpload(0, MODEL, 3, False, b"secret"))
    with pytest.raises(ProtocolError, match="accepted no enclave"):
        answer(state, enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(0) + GENESIS))


def test_a_client_uploads_once_per_round() -> None:
    federation = Federation(method())
    federation.run_round(messages(rows(0)), 0)
    state = federation.state(CLIENT)
    with pytest.raises(ProtocolError, match="no upload for round 0"):
        answer(state, enclave_messages.pack(MessageType.REQUEST_UPLOAD, pack_number(0) + GENESIS))
    with pytest.raises(UserError, match="A client uploads once per round"):
        set_upload(state, PendingUpload(0, MODEL, 3, False, b"again"))


@pytest.mark.parametrize(
    "request_",
    OTHER_REQUESTS,
)
def test_other_requests_are_refused(request_: bytes) -> None:
    with pytest.raises(ProtocolError):
        answer(Federation(method()).state(CLIENT), request_)


def test_states_survive_serialisation() -> None:
    state = join_run(bytes(16), 5, bytes(32), POLICY, simulated_identity(SEED, 5), limit=11)
    state = replace(state, last_round=3, participations=2, nonce=b"n" * 32, key=b"k" * 32, nonces=9)
    state = set_upload(state, PendingUpload(4, MODEL, 77, True, b"plain"))
    again = EnclaveClientState.from_bytes(state.to_bytes())
    assert again.to_bytes() == state.to_bytes()
    assert again.pending is not None
    assert (again.last_round, again.nonces, again.policy, again.pending.plaintext) == (3, 9, POLICY, b"plain")
    assert (again.limit, again.participations) == (11, 2)
    assert "plain" not in repr(state)
    for length in range(len(state.to_bytes())):
        with pytest.raises(ProtocolError):
            EnclaveClientState.from_bytes(state.to_bytes()[:length])


def test_two_plaintexts_never_share_a_key() -> None:
    """A state restored from a copy may encrypt another update in the same session."""
    session = EnclaveSession(
        run=bytes(16), round=0, model=MODEL, dim=3, weighted=False, config=MODEL, head=MODEL, key=b"\x09" + bytes(31)
    )
    sealed = [
        Upload.read(seal(session, 1, simulated_identity(SEED, 1), b"r" * 32, text)) for text in (b"one", b"two", b"one")
    ]
    assert sealed[0].ephemeral != sealed[1].ephemeral
    assert sealed[0] == sealed[2]


def test_evidence_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ProtocolError, match="known kind of quote"):
        Evidence.read(Reader(b"\x07" + bytes(200)))
