"""What a client insists on before anything leaves it."""

from dataclasses import replace

import pytest

from protocols.enclave.federation import COHORT, MODEL, NOW, POLICY, SEED, Federation, messages, method, rows
from tacit.errors import ProtocolError, UserError
from tacit.protocols.attestation import GENESIS, Evidence, Policy
from tacit.protocols.crypto import KEY
from tacit.protocols.enclave import Desk, Held, Journal, answer, frames, hold, identity_of, join
from tacit.protocols.enclave.frames import Verb
from tacit.wire.packing import Reader, number

CLIENT = COHORT[0]


def asked(federation: Federation, desk: Desk) -> tuple[Desk, Evidence]:
    """The client asks, the enclave answers."""
    desk, reply = answer(desk, frames.pack(Verb.CHALLENGE), NOW)
    question = bytes(frames.unpack(reply).reader(Verb.NONCE).rest())
    proof = federation.keeper.answer(frames.pack(Verb.ATTEST, question))
    return desk, Evidence.read(frames.unpack(proof).reader(Verb.EVIDENCE))


def proved(desk: Desk, evidence: Evidence) -> Desk:
    return answer(desk, frames.pack(Verb.PROVE, evidence.pack()), NOW)[0]


def test_an_enclave_that_answers_is_accepted() -> None:
    federation = Federation(method())
    desk, evidence = asked(federation, federation.desk(CLIENT))
    after = proved(desk, evidence)
    assert (after.key, after.nonce, after.head) == (evidence.key, b"", GENESIS)


def test_an_old_answer_to_another_question_is_refused() -> None:
    federation = Federation(method())
    desk, evidence = asked(federation, federation.desk(CLIENT))
    admitted = proved(desk, evidence)
    with pytest.raises(ProtocolError, match="no question open"):
        proved(admitted, evidence)
    again, _ = asked(federation, admitted)
    with pytest.raises(ProtocolError, match="bind another key, nonce"):
        proved(again, evidence)
    other, _ = asked(federation, federation.desk(COHORT[1]))
    with pytest.raises(ProtocolError, match="bind another key, nonce"):
        proved(other, evidence)


def test_no_nonce_is_drawn_twice() -> None:
    desk, nonces = Federation(method()).desk(CLIENT), set()
    for _ in range(50):
        desk, reply = answer(Desk.from_bytes(desk.to_bytes()), frames.pack(Verb.CHALLENGE), NOW)
        nonces.add(frames.unpack(reply).reader(Verb.NONCE).take(KEY))
    assert len(nonces) == 50


@pytest.mark.parametrize("field", ["key", "config", "head"])
def test_evidence_about_something_else_is_refused(field: str) -> None:
    federation = Federation(method())
    desk, evidence = asked(federation, federation.desk(CLIENT))
    with pytest.raises(ProtocolError, match="bind another key, nonce"):
        proved(desk, replace(evidence, **{field: b"\xff" * 32}))


def test_another_configuration_is_refused_though_it_is_attested() -> None:
    """A host that starts the very same code with less noise, or with other clients, is found out."""
    federation = Federation(method())
    desk, evidence = asked(federation, replace(federation.desk(CLIENT), config=bytes(32)))
    with pytest.raises(ProtocolError, match="configuration is not the one that was agreed to"):
        proved(desk, evidence)


def test_a_simulation_is_refused_unless_the_client_allows_it() -> None:
    federation = Federation(method())
    for policy, why in (
        (replace(POLICY, simulation=False), "without any isolation"),
        (Policy(simulation=True), "the policy names none"),
    ):
        desk, evidence = asked(federation, replace(federation.desk(CLIENT), policy=policy))
        with pytest.raises(ProtocolError, match=why):
            proved(desk, evidence)


def test_a_rolled_back_ledger_is_refused(tmp_path) -> None:
    file = tmp_path / "journal"
    federation = Federation(method(), Journal(file))
    federation.play(messages(rows(0)), 0)
    early = file.read_bytes()
    federation.play(messages(rows(1)), 1)
    federation.play(messages(rows(2)), 2)
    seen = federation.desk(CLIENT)
    assert seen.head == federation.keeper.chain.heads[2]  # of the round before the last

    federation.journal = Journal(file)
    federation.restart()
    desk, evidence = asked(federation, seen)
    assert proved(desk, evidence).head == federation.keeper.chain.head

    file.write_bytes(early)
    federation.journal = Journal(file)
    federation.restart()
    with pytest.raises(ProtocolError, match="rolled back"):
        asked(federation, seen)
    fresh, stale = asked(federation, replace(seen, head=GENESIS))  # what the enclave would like to be asked
    with pytest.raises(ProtocolError, match="rolled back"):
        proved(replace(fresh, head=seen.head), stale)


def test_nothing_leaves_before_an_enclave_is_accepted() -> None:
    federation = Federation(method())
    desk = hold(federation.desk(CLIENT), Held(0, MODEL, 3, False, b"secret"))
    with pytest.raises(ProtocolError, match="accepted no enclave"):
        answer(desk, frames.pack(Verb.DELIVER, number(0) + GENESIS), NOW)


def test_a_round_is_uploaded_for_once() -> None:
    federation = Federation(method())
    federation.play(messages(rows(0)), 0)
    desk = federation.desk(CLIENT)
    with pytest.raises(ProtocolError, match="holds nothing for round 0"):
        answer(desk, frames.pack(Verb.DELIVER, number(0) + GENESIS), NOW)
    with pytest.raises(UserError, match="A round is uploaded for once"):
        hold(desk, Held(0, MODEL, 3, False, b"again"))


@pytest.mark.parametrize("request_", [b"", b"TENC", frames.pack(Verb.CLOSE), frames.pack(Verb.CHALLENGE, b"x")])
def test_other_requests_are_refused(request_: bytes) -> None:
    with pytest.raises(ProtocolError):
        answer(Federation(method()).desk(CLIENT), request_, NOW)


def test_a_desk_is_bytes_between_messages() -> None:
    desk = join(bytes(16), 5, bytes(32), POLICY, identity_of(SEED, 5))
    desk = replace(desk, last=3, nonce=b"n" * 32, key=b"k" * 32, asked=9)
    desk = hold(desk, Held(4, MODEL, 77, True, b"plain"))
    again = Desk.from_bytes(desk.to_bytes())
    assert again.to_bytes() == desk.to_bytes()
    assert (again.last, again.asked, again.policy, again.held.plain) == (3, 9, POLICY, b"plain")
    assert "plain" not in repr(desk)
    for length in range(len(desk.to_bytes())):
        with pytest.raises(ProtocolError):
            Desk.from_bytes(desk.to_bytes()[:length])


def test_two_plaintexts_never_share_a_key() -> None:
    """A desk restored from a copy may seal another row under the same session."""
    from tacit.protocols.enclave import Session
    from tacit.protocols.enclave.parcel import Upload, seal

    session = Session(
        run=bytes(16), round=0, model=MODEL, dim=3, weighed=False, config=MODEL, head=MODEL, key=b"\x09" + bytes(31)
    )
    sealed = [Upload.read(seal(session, 1, identity_of(SEED, 1), b"r" * 32, text)) for text in (b"one", b"two", b"one")]
    assert sealed[0].ephemeral != sealed[1].ephemeral
    assert sealed[0] == sealed[2]


def test_the_reader_of_evidence_stops_at_its_limits() -> None:
    with pytest.raises(ProtocolError, match="known kind of quote"):
        Evidence.read(Reader(b"\x07" + bytes(200)))
