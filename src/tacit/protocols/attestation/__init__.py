"""Remote attestation: what runs over there, on which processor, and for whom it speaks.

A quote is a statement that a processor signs about the code it has loaded (the measurement) and 64 bytes that this code
chose (the report data). `verify` accepts it only if the signature leads to the vendor, a `Policy` allows everything it
says, and the report data bind the enclave's key, the verifier's own nonce, the configuration and the ledger's head.

Not covered: physical access to the machine. A memory interposer for less than 1000 US dollars extracts attestation keys
of current SGX, TDX and SEV-SNP processors (WireTap, Battering RAM, TEE.fail, 2025); vendors call it out of scope.
"""

from tacit.protocols.attestation.chain import GENESIS, Chain
from tacit.protocols.attestation.claims import Claims
from tacit.protocols.attestation.evidence import Binding, Evidence, Kind
from tacit.protocols.attestation.gramine import GramineAttestor
from tacit.protocols.attestation.policy import Policy
from tacit.protocols.attestation.simulation import SIMULATED, SimulationAttestor, code_measurement
from tacit.protocols.attestation.verdict import Attestor, Verdict, Verifier, judge, kind_of, verify

__all__ = [
    "GENESIS",
    "SIMULATED",
    "Attestor",
    "Binding",
    "Chain",
    "Claims",
    "Evidence",
    "GramineAttestor",
    "Kind",
    "Policy",
    "SimulationAttestor",
    "Verdict",
    "Verifier",
    "code_measurement",
    "judge",
    "kind_of",
    "verify",
]
