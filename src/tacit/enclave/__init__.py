"""Aggregation in a trusted execution environment: an attested enclave decrypts uploads and releases only sums.

::

    server   open a round ────────────► enclave   draw the cohort
    client   nonce ───────────────────► enclave   quote over key, nonce, configuration, release-log head
    client   verify by its own policy, encrypt the update to the attested key, sign
    server   forward ciphertext ──────► enclave   decrypt, check, clip, sum, charge, add noise ──► the aggregate

A client's side is the function `answer`, the host's side the generator `converse`, the enclave's side
`EnclaveService.answer`; none of them does I/O. `SimulatedEnclave` runs all of it with a separate process; `aggregate`
is what a simulation computes without one.

Not covered: attacks on the processor or its memory traffic; access patterns of sparse updates inside (Olive, arXiv
2202.07165); what the aggregate itself reveals about its contributors, unless a mechanism adds noise; clients that
upload well-formed but false updates.
"""
