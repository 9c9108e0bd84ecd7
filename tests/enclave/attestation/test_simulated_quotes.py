"""Simulated evidence follows the same rules, and is rejected wherever it is not explicitly allowed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from enclave.attestation.genuine import JULY
from tacit.core.code_digest import code_measurement
from tacit.enclave.attestation.evidence import Binding, Evidence, QuoteKind
from tacit.enclave.attestation.simulated_quotes import SIMULATED, SimulatedAttestor
from tacit.enclave.attestation.verification import AttestationPolicy, quote_kind, verify_evidence
from tacit.errors import UserError
from tacit.wire.chain import GENESIS

KEY, NONCE, CONFIG, HEAD, CHANNEL = (bytes([i]) * 32 for i in range(1, 6))
ALLOWED = AttestationPolicy(measurements=(code_measurement(),), simulation=True)


def evidence(nonce: bytes = NONCE) -> Evidence:
    quote = SimulatedAttestor(insecure=True).quote(Binding(KEY, nonce, CONFIG, HEAD, CHANNEL).report_data)
    return Evidence(QuoteKind.SIMULATION, quote, b"", KEY, CONFIG, HEAD, CHANNEL, (GENESIS,))


CHANGES: dict[str, Callable[[Evidence], Evidence]] = {
    "key": lambda evidence: replace(evidence, key=b"\xff" * 32),
    "config": lambda evidence: replace(evidence, config=b"\xff" * 32),
    "head": lambda evidence: replace(evidence, head=b"\xff" * 32),
    "channel": lambda evidence: replace(evidence, channel=b"\xff" * 32),
}


def test_it_is_accepted_where_it_is_allowed_and_labelled() -> None:
    result = verify_evidence(evidence(), NONCE, ALLOWED, JULY)
    assert result.accepted
    assert list(result.lines())[-1] == SIMULATED
    assert quote_kind(evidence().quote) is QuoteKind.SIMULATION


def test_the_warning_is_clear() -> None:
    assert SIMULATED == (
        "Simulated enclave (insecure): nothing is isolated, so the operator of this machine can read every update."
    )


def test_a_strict_policy_rejects_it() -> None:
    result = verify_evidence(evidence(), NONCE, replace(ALLOWED, simulation=False), JULY)
    assert result.violations == (
        "It is a simulation without any isolation, and the policy does not allow simulations.",
    )


def test_it_cannot_pass_for_hardware() -> None:
    for kind in (QuoteKind.SGX, QuoteKind.TDX):
        assert not verify_evidence(replace(evidence(), kind=kind), NONCE, ALLOWED, JULY).accepted


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_key_configuration_or_head_is_rejected(change: Callable[[Evidence], Evidence]) -> None:
    result = verify_evidence(change(evidence()), NONCE, ALLOWED, JULY)
    assert "bind a different" in result.violations[0]


def test_evidence_for_another_nonce_is_rejected() -> None:
    """Replay: every challenge has its own nonce."""
    assert not verify_evidence(evidence(b"\xff" * 32), NONCE, ALLOWED, JULY).accepted


def test_every_bit_is_verified() -> None:
    sound = evidence()
    for bit in range(8 * len(sound.quote)):
        flipped = bytearray(sound.quote)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not verify_evidence(replace(sound, quote=bytes(flipped)), NONCE, ALLOWED, JULY).accepted


def test_another_measurement_is_rejected() -> None:
    assert not verify_evidence(evidence(), NONCE, replace(ALLOWED, measurements=("ab" * 32,)), JULY).accepted


def test_a_simulation_must_be_requested_explicitly() -> None:
    with pytest.raises(UserError, match="isolates nothing"):
        SimulatedAttestor(insecure=False)
