"""Cryptographic protocols as conversations that do no I/O: secure aggregation, the enclave, remote attestation."""
