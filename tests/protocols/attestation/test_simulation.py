"""Simulated evidence follows the same rules, and is refused wherever it is not asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from protocols.attestation.genuine import JULY
from tacit.errors import ProtocolError, UserError
from tacit.protocols.attestation import (
    GENESIS,
    Binding,
    Chain,
    Evidence,
    GramineAttestor,
    Kind,
    Policy,
    SimulationAttestor,
    code_measurement,
    kind_of,
    verify,
)
from tacit.protocols.attestation.chain import follow
from tacit.wire.packing import Reader

KEY, NONCE, CONFIG, HEAD = (bytes([i]) * 32 for i in range(1, 5))
ALLOWED = Policy(measurements=(code_measurement(),), simulation=True)


def evidence(nonce: bytes = NONCE) -> Evidence:
    quote = SimulationAttestor(insecure=True).quote(Binding(KEY, nonce, CONFIG, HEAD).report_data)
    return Evidence(Kind.SIMULATION, quote, b"", KEY, CONFIG, HEAD, (GENESIS,))


def test_it_is_accepted_where_it_is_asked_for_and_says_what_it_is() -> None:
    verdict = verify(evidence(), NONCE, ALLOWED, JULY)
    assert verdict.accepted
    assert list(verdict.lines())[-1] == "enclave: simulated (insecure)"
    assert kind_of(evidence().quote) is Kind.SIMULATION


def test_a_strict_policy_refuses_it() -> None:
    verdict = verify(evidence(), NONCE, replace(ALLOWED, simulation=False), JULY)
    assert verdict.against == ("It is a simulation without any isolation, and the policy does not allow simulations.",)


def test_it_cannot_pass_for_hardware() -> None:
    for kind in (Kind.SGX, Kind.TDX):
        assert not verify(replace(evidence(), kind=kind), NONCE, ALLOWED, JULY).accepted


@pytest.mark.parametrize("field", ["key", "config", "head"])
def test_another_key_configuration_or_head_is_refused(field: str) -> None:
    verdict = verify(replace(evidence(), **{field: b"\xff" * 32}), NONCE, ALLOWED, JULY)
    assert "bind another" in verdict.against[0]


def test_evidence_for_another_nonce_is_refused() -> None:
    """Which is what a replay is: every question has a nonce of its own."""
    assert not verify(evidence(b"\xff" * 32), NONCE, ALLOWED, JULY).accepted


def test_every_bit_counts() -> None:
    sound = evidence()
    for bit in range(8 * len(sound.quote)):
        flipped = bytearray(sound.quote)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not verify(replace(sound, quote=bytes(flipped)), NONCE, ALLOWED, JULY).accepted


def test_another_measurement_is_refused() -> None:
    assert not verify(evidence(), NONCE, replace(ALLOWED, measurements=("ab" * 32,)), JULY).accepted


def test_nobody_simulates_by_accident() -> None:
    with pytest.raises(UserError, match="isolates nothing"):
        SimulationAttestor(insecure=False)


def test_evidence_travels_as_bytes() -> None:
    sound = evidence()
    assert Evidence.read(Reader(sound.pack())) == sound
    for length in range(len(sound.pack())):
        with pytest.raises(ProtocolError):
            Evidence.read(Reader(sound.pack()[:length]))


def test_a_chain_leads_from_every_head_it_had_to_the_present_one() -> None:
    links = [bytes([i]) * 32 for i in range(5)]
    chain = Chain.of(links)
    for place, head in enumerate(chain.heads):
        assert chain.since(head) == tuple(links[place:])
        assert follow(head, chain.since(head)) == chain.head
    with pytest.raises(ProtocolError, match="rolled back"):
        Chain.of(links[:3]).since(chain.head)


def test_gramine_is_asked_through_its_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected to run inside Gramine"):
        GramineAttestor(device=tmp_path)
    (tmp_path / "quote").write_bytes(b"a quote")
    attestor = GramineAttestor(b"{}", device=tmp_path)
    assert attestor.quote(bytes(range(64))) == b"a quote"
    assert (tmp_path / "user_report_data").read_bytes() == bytes(range(64))
    with pytest.raises(UserError, match="64 bytes of report data, got 3"):
        attestor.quote(b"abc")
