"""The conversation kit: strict frames, sessions, stored states, exchanges, and the loop that connects both sides."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from enclave import federation as tee_federation
from protocols.secagg import federation as secagg_federation
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.host import ENCLAVE, converse
from tacit.errors import ProtocolError, UserError
from tacit.protocols import kit, secagg
from tacit.protocols.kit import (
    HEADER,
    Exchange,
    LocalClients,
    Outcome,
    ProtocolFrame,
    ProtocolId,
    Replies,
    ReplyStatus,
    Requests,
    ServerSide,
    Session,
    Transcript,
    Transport,
    frame_length,
    pack_frame,
    pack_state,
    play,
    read_optional_key,
    read_state,
    unpack_frame,
)
from tacit.protocols.secagg import Phase, SecaggClientState
from tacit.wire.packing import Reader, pack_chunk, pack_number


@pytest.mark.parametrize("protocol", ProtocolId)
@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
def test_frames_are_read_as_they_were_packed(protocol: ProtocolId, body: bytes) -> None:
    data = pack_frame(protocol, 7, body)
    frame = unpack_frame(protocol, data, limit=1 << 20)
    assert (frame.kind, bytes(frame.body)) == (7, body)
    assert len(data) == HEADER + len(body) == frame_length(protocol, data[:HEADER], 1 << 20)


def test_any_changed_missing_or_added_byte_is_refused() -> None:
    good = pack_frame(ProtocolId.SECAGG, 3, b"some body")
    wrong = [good[:-1], good + b"x", good[: HEADER - 1], b""]
    wrong += [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(len(good))]
    for data in wrong:
        with pytest.raises(ProtocolError):
            unpack_frame(ProtocolId.SECAGG, data, limit=100)


def test_a_frame_of_one_protocol_is_none_of_the_other() -> None:
    with pytest.raises(ProtocolError, match="Expected a frame of version 1, got other bytes"):
        unpack_frame(ProtocolId.ENCLAVE, pack_frame(ProtocolId.SECAGG, 1), limit=100)


def test_the_limit_is_checked_on_what_a_header_declares() -> None:
    data = pack_frame(ProtocolId.ENCLAVE, 1, bytes(50))
    with pytest.raises(ProtocolError, match="to 40 bytes, got one that declares 66"):
        frame_length(ProtocolId.ENCLAVE, data[:HEADER], limit=40)
    with pytest.raises(ProtocolError, match="to 40 bytes, got 66"):
        unpack_frame(ProtocolId.ENCLAVE, data, limit=40)


@pytest.mark.parametrize(
    "wrong", [{"run": b"short"}, {"round": -1}, {"round": 1 << 32}, {"model": b""}, {"config": b"x"}]
)
def test_sessions_have_digests_of_fixed_length(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"run": bytes(16), "round": 0, "model": bytes(32), "config": bytes(32)}
    Session(**fields)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        Session(**(fields | wrong))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Counting:
    """The state of a client that counts the requests it answered."""

    answered: int = 0

    def to_bytes(self) -> bytes:
        return pack_state(ProtocolId.SECAGG, pack_number(self.answered))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Counting":
        return read_state(ProtocolId.SECAGG, data, lambda reader: cls(reader.number()))


def count(state: Counting, request: bytes) -> tuple[Counting, bytes]:
    assert request == b"next"
    return Counting(state.answered + 1), pack_number(state.answered)


def test_a_server_is_played_against_clients_whose_states_are_bytes_between_messages() -> None:
    clients = LocalClients(Counting, lambda _: Counting(), lambda state: state, count)
    transcript = Transcript[str]()

    def server() -> ServerSide[list[int]]:
        received = []
        for _ in range(3):
            requests = dict.fromkeys((4, 9), b"next")
            transcript.count_requests("count", requests)
            replies = yield requests
            received += [int.from_bytes(reply, "little") for _, reply in replies]
        return received

    assert play(server(), clients.replies) == [0, 0, 1, 1, 2, 2]
    assert clients.stored == dict.fromkeys((4, 9), Counting(3).to_bytes())
    assert transcript.down == {"count": Counter({4: 12, 9: 12})}
    assert not transcript.rejected


def test_a_client_that_drops_out_sends_no_reply_and_keeps_its_state() -> None:
    def prepare(state: Counting) -> Counting | None:
        return state if state.answered < 2 else None

    clients = LocalClients(Counting, lambda client: Counting(client), prepare, count)
    assert [client for client, _ in clients.replies(dict.fromkeys((1, 2), b"next"))] == [1]
    assert list(clients.replies({1: b"next"})) == []
    assert clients.stored == {1: Counting(2).to_bytes()}


REPLY = pack_frame(ProtocolId.SECAGG, 7, b"fine")


def exchange(*clients: int) -> Exchange[int, ProtocolFrame[int], bytes]:
    """A request to these clients; replies of kind 5 are late, and those of kind 6 of another session."""
    statuses = {5: ReplyStatus.LATE, 6: ReplyStatus.WRONG_SESSION, 7: ReplyStatus.ACCEPTED}
    return Exchange(
        3,
        dict.fromkeys(clients, b"ask"),
        lambda data: unpack_frame(ProtocolId.SECAGG, data, limit=100),
        lambda _, frame: statuses[frame.kind],
        lambda _, reader: reader.take(4),
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (REPLY[:-1], ReplyStatus.MALFORMED),
        (pack_frame(ProtocolId.SECAGG, 7, b"bad"), ReplyStatus.MALFORMED),
        (pack_frame(ProtocolId.ENCLAVE, 7, b"fine"), ReplyStatus.MALFORMED),
        (pack_frame(ProtocolId.SECAGG, 5, b"fine"), ReplyStatus.LATE),
        (pack_frame(ProtocolId.SECAGG, 6, b"fine"), ReplyStatus.WRONG_SESSION),
    ],
)
def test_an_invalid_reply_is_counted_and_a_valid_one_still_accepted(data: bytes, status: ReplyStatus) -> None:
    transcript = Transcript[int]()
    assert play(exchange(1, 2).run(transcript), lambda _: [(1, data), (1, REPLY)]) == {1: b"fine"}
    assert transcript.rejected == {status: 1}
    assert transcript.unresponsive == {2}
    assert (transcript.down, transcript.up) == ({3: Counter({1: 3, 2: 3})}, {7: Counter({1: len(REPLY)})})


def test_the_first_reply_counts_and_only_of_clients_that_were_asked() -> None:
    second, transcript = pack_frame(ProtocolId.SECAGG, 7, b"more"), Transcript[int]()
    replies = [(9, REPLY), (2, REPLY), (1, second), (2, second)]
    assert play(exchange(1, 2).run(transcript), lambda _: replies) == {1: b"more", 2: b"fine"}
    assert transcript.rejected == {ReplyStatus.UNEXPECTED_SENDER: 1, ReplyStatus.DUPLICATE: 1}
    assert not transcript.unresponsive


def test_without_clients_nothing_is_asked() -> None:
    transcript = Transcript[int]()
    assert list(exchange().run(transcript)) == []
    assert not transcript.down


def secure_sum() -> tuple[ServerSide[Outcome[Any, Phase]], Transport]:
    vectors = secagg_federation.small_vectors()
    session, cohort = secagg_federation.session(secagg_federation.parameters(5, 4)), secagg_federation.COHORT

    def join(client: int) -> SecaggClientState:
        return secagg_federation.joined(session, client, cohort, vectors[client])

    clients = LocalClients(SecaggClientState, join, lambda state: state, secagg.answer)
    server = secagg.converse(session, cohort, secagg_federation.DIRECTORY)
    return server, clients.replies


def enclave_round() -> tuple[ServerSide[Outcome[Any, MessageType]], Transport]:
    sent = tee_federation.messages(tee_federation.rows())
    federation = tee_federation.Federation(tee_federation.method())
    federation.encode(sent, 0)
    federation.choose(tee_federation.COHORT)

    def transport(requests: Requests) -> Replies:
        if ENCLAVE in requests:
            return [(ENCLAVE, federation.service.answer(requests[ENCLAVE]))]
        return federation.clients.replies(requests)

    return converse(federation.request(sent, 0)), transport


@pytest.mark.parametrize(
    ("conversation", "cohort"),
    [(secure_sum, secagg_federation.COHORT), (enclave_round, tee_federation.COHORT)],
    ids=["secagg", "tee"],
)
def test_one_loop_drives_every_protocol(
    conversation: Callable[[], tuple[ServerSide[Outcome[Any, Any]], Transport]], cohort: tuple[int, ...]
) -> None:
    """Replies may be computed when they are read, or arrive together and in another order."""
    server, transport = conversation()
    lazy = play(server, transport)
    server, again = conversation()
    reordered = play(server, lambda requests: sorted(again(requests), reverse=True))
    assert lazy.clients == reordered.clients == cohort
    assert lazy.transcript.up == reordered.transcript.up
    for end in (lazy, reordered):
        assert not end.transcript.rejected
        assert not end.transcript.unresponsive


def test_a_failure_of_a_client_ends_the_conversation() -> None:
    def server() -> ServerSide[None]:
        yield {1: b""}

    def refuse(_: Requests) -> list[tuple[int, bytes]]:
        raise ProtocolError("refused")

    with pytest.raises(ProtocolError, match="refused"):
        play(server(), refuse)


def test_a_stored_state_of_another_protocol_is_refused() -> None:
    for data in (b"", b"TACS", pack_state(ProtocolId.ENCLAVE, pack_number(1)), bytes(20)):
        with pytest.raises(ProtocolError):
            read_state(ProtocolId.SECAGG, data, lambda reader: Counting(reader.number()))
    assert kit.MAGIC not in pack_state(ProtocolId.SECAGG)


def test_a_stored_state_is_read_to_its_end() -> None:
    stored = Counting(3).to_bytes()
    assert Counting.from_bytes(stored) == Counting(3)
    for data in (stored[:-1], stored + b"x"):
        with pytest.raises(ProtocolError):
            Counting.from_bytes(data)


@pytest.mark.parametrize(("length", "valid"), [(0, True), (1, False), (31, False), (32, True), (33, False)])
def test_a_stored_key_is_whole_or_absent(length: int, valid: bool) -> None:
    data = pack_chunk(bytes(length))
    if valid:
        assert read_optional_key(Reader(data)) == bytes(length)
    else:
        with pytest.raises(ProtocolError):
            read_optional_key(Reader(data))
