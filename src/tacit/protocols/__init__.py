"""Cryptographic protocols that do no I/O: secure aggregation, aggregation in an enclave, remote attestation."""
