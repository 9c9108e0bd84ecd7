"""Remote attestation: which code runs in an enclave, on which processor, and with which key and configuration.

A quote is a statement that a processor signs about the code it has loaded (the measurement) and 64 bytes that this code
chose (the report data). `verify_evidence` accepts it only if the signature leads to the vendor, an `AttestationPolicy`
allows all its claims, and the report data bind the enclave's key, the verifier's own nonce, the configuration and the
head of the enclave's release log.

Not covered: physical access to the machine. A memory interposer for less than 1000 US dollars extracts attestation keys
of current SGX, TDX and SEV-SNP processors (WireTap, Battering RAM, TEE.fail, 2025); vendors consider it out of scope.
"""

from tacit.core.code_digest import code_measurement
from tacit.enclave.attestation.evidence import (
    NO_CHANNEL,
    Binding,
    Evidence,
    QuoteKind,
    ReleaseLog,
    extend_head,
)
from tacit.enclave.attestation.gramine import GramineAttestor, render_manifest
from tacit.enclave.attestation.simulated_quotes import SIMULATED, SimulatedAttestor
from tacit.enclave.attestation.verification import (
    AttestationPolicy,
    AttestationResult,
    Attestor,
    check_claims,
    quote_kind,
    verify_evidence,
    verify_quote,
)

__all__ = [
    "NO_CHANNEL",
    "SIMULATED",
    "AttestationPolicy",
    "AttestationResult",
    "Attestor",
    "Binding",
    "Evidence",
    "GramineAttestor",
    "QuoteKind",
    "ReleaseLog",
    "SimulatedAttestor",
    "check_claims",
    "code_measurement",
    "extend_head",
    "quote_kind",
    "render_manifest",
    "verify_evidence",
    "verify_quote",
]
