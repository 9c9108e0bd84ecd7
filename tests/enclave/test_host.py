"""The host: which replies of clients it uses during attestation, and what its transcript says about the others."""

import pytest

from enclave.federation import COHORT, Delivery, Federation, messages, method, rows
from tacit.enclave import enclave_messages
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.host import ENCLAVE, EnclaveOutcome, converse
from tacit.protocols.kit import Replies, ReplyStatus, Requests, play

CLIENT = COHORT[0]
INVALID = {
    "of other bytes": b"x" * 80,
    "of another kind": enclave_messages.pack(MessageType.UPLOAD, bytes(64)),
    "too short": enclave_messages.pack(MessageType.NONCE, bytes(63)),
    "too long": enclave_messages.pack(MessageType.NONCE, bytes(65)),
    "a refusal": enclave_messages.pack(MessageType.REFUSED, b"no"),
}


def attested(before: list[Delivery], silent: frozenset[int] = frozenset()) -> EnclaveOutcome:
    """A round in which these replies arrive before the nonces, and some clients send no nonce."""
    federation, sent = Federation(method()), messages(rows(0))
    federation.encode(sent, 0)
    federation.choose(COHORT)

    def transport(requests: Requests) -> Replies:
        if ENCLAVE in requests:
            return [(ENCLAVE, federation.service.answer(requests[ENCLAVE]))]
        replies = list(federation.clients.replies(requests))
        if enclave_messages.unpack(next(iter(requests.values()))).kind is not MessageType.CHALLENGE:
            return replies
        return before + [reply for reply in replies if reply[0] not in silent]

    return play(converse(federation.request(sent, 0)), transport)


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_an_invalid_nonce_is_rejected_and_the_valid_one_still_used(data: bytes) -> None:
    outcome = attested([(CLIENT, data)])
    assert outcome.transcript.rejected == {ReplyStatus.MALFORMED: 1}
    assert outcome.clients == outcome.result.release.contributors == COHORT


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_a_client_without_a_valid_nonce_is_left_out(data: bytes) -> None:
    outcome = attested([(CLIENT, data)], silent=frozenset({CLIENT}))
    assert outcome.transcript.unresponsive == {CLIENT}
    assert outcome.clients == outcome.result.release.contributors == COHORT[1:]


def test_nonces_of_clients_that_were_not_asked_are_rejected() -> None:
    outcome = attested([(77, enclave_messages.pack(MessageType.NONCE, bytes(64)))])
    assert outcome.transcript.rejected == {ReplyStatus.UNEXPECTED_SENDER: 1}
    assert outcome.clients == COHORT


def test_without_any_attested_client_no_upload_is_requested() -> None:
    outcome = attested([], silent=frozenset(COHORT))
    assert outcome.clients == outcome.result.release.contributors == ()
    assert MessageType.REQUEST_UPLOAD not in outcome.transcript.down


def test_a_client_whose_upload_was_lost_attests_again() -> None:
    """The host does not know whether it saw the head of that round; its nonce says which one it remembers."""
    federation = Federation(method())
    federation.run_round(messages(rows(0)), 0)
    lost = federation.run_round(messages(rows(1)), 1, lambda replies: replies[1:])
    assert CLIENT not in lost.heads
    assert lost.clients == COHORT[1:]
    again = federation.run_round(messages(rows(2)), 2)
    assert set(again.transcript.down[MessageType.CHALLENGE]) == {CLIENT}
    assert again.result.release.contributors == COHORT
