"""Remote attestation: which code runs in an enclave, on which processor, and with which key and configuration.

A quote is a statement that a processor signs about the code it has loaded (the measurement) and 64 bytes that this code
chose (the report data). `verify_evidence` accepts it only if the signature leads to the vendor, an `AttestationPolicy`
allows all its claims, and the report data bind the enclave's key, the verifier's own nonce, the configuration and the
head of the enclave's release log.

Not covered: physical access to the machine. A memory interposer for less than 1000 US dollars extracts attestation keys
of current SGX, TDX and SEV-SNP processors (WireTap, Battering RAM, TEE.fail, 2025); vendors consider it out of scope.
"""
