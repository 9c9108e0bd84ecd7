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

from tacit.enclave.configuration import (
    NO_MEMORY,
    PARAMETERS,
    Configuration,
    EnclaveSession,
    Journal,
    JournalEntry,
    read_directory,
)
from tacit.enclave.connection import EnclaveConnection, EnclaveServer, reach, serve
from tacit.enclave.enclave_client import (
    UPLOAD_REQUEST,
    EnclaveClientState,
    PendingUpload,
    answer,
    join_run,
    set_time,
    set_upload,
)
from tacit.enclave.enclave_messages import EnclaveRelease, MessageType, RoundRequest, mechanism_memory, memory_digest
from tacit.enclave.host import ENCLAVE, EnclaveOutcome, converse
from tacit.enclave.secure_channel import ChannelIdentity, connect, enclave_context
from tacit.enclave.service import Charge, EnclaveService, aggregate
from tacit.enclave.simulated_enclave import (
    SimulatedEnclave,
    launch,
    simulated_configuration,
    simulated_host,
    simulated_identity,
)
from tacit.enclave.uploads import OVERHEAD, Upload, UploadFormat, seal

__all__ = [
    "ENCLAVE",
    "NO_MEMORY",
    "OVERHEAD",
    "PARAMETERS",
    "UPLOAD_REQUEST",
    "ChannelIdentity",
    "Charge",
    "Configuration",
    "EnclaveClientState",
    "EnclaveConnection",
    "EnclaveOutcome",
    "EnclaveRelease",
    "EnclaveServer",
    "EnclaveService",
    "EnclaveSession",
    "Journal",
    "JournalEntry",
    "MessageType",
    "PendingUpload",
    "RoundRequest",
    "SimulatedEnclave",
    "Upload",
    "UploadFormat",
    "aggregate",
    "answer",
    "connect",
    "converse",
    "enclave_context",
    "join_run",
    "launch",
    "mechanism_memory",
    "memory_digest",
    "reach",
    "read_directory",
    "seal",
    "serve",
    "set_time",
    "set_upload",
    "simulated_configuration",
    "simulated_host",
    "simulated_identity",
]
