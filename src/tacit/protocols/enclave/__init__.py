"""Aggregation in an attested enclave: a separate process that keeps the key, opens uploads, and lets only sums out.

::

    client   nonce ─────────────► enclave   quote over key, nonce, configuration, ledger head
    client   verify by its own policy, seal the message to the attested key, sign
    server   carry ciphertext ──► enclave   open, check, bound, sum, blur ──► the aggregate

Clients `answer`, the server's side is the generator `converse`, the enclave's is `EnclaveService.answer`: none of them opens a
connection. `Stage` plays all of it with a process of its own; `aggregate` is what a simulation computes without one.

Not covered: whoever breaks the processor or reads memory traffic; the access pattern of sparse rows inside (Olive,
arXiv 2202.07165); what the aggregate itself says about its contributors, unless a mechanism blurs it; clients that
upload well-formed nonsense.
"""

from tacit.protocols.enclave.aggregate import Released, aggregate
from tacit.protocols.enclave.client import Desk, Held, answer, hold, join
from tacit.protocols.enclave.configuration import Configuration
from tacit.protocols.enclave.errors import EnclaveGoneError, Refusal, RefusedError
from tacit.protocols.enclave.frames import Verb
from tacit.protocols.enclave.host import ENCLAVE, Minutes, Outcome, converse
from tacit.protocols.enclave.journal import Journal
from tacit.protocols.enclave.keeper import EnclaveService
from tacit.protocols.enclave.link import Link, serve
from tacit.protocols.enclave.opening import Closing, Opening
from tacit.protocols.enclave.parcel import Form
from tacit.protocols.enclave.session import Session
from tacit.protocols.enclave.stage import Stage, identity_of, launch, simulated

__all__ = [
    "ENCLAVE",
    "Closing",
    "Configuration",
    "Desk",
    "EnclaveGoneError",
    "EnclaveService",
    "Form",
    "Held",
    "Journal",
    "Link",
    "Minutes",
    "Opening",
    "Outcome",
    "Refusal",
    "RefusedError",
    "Released",
    "Session",
    "Stage",
    "Verb",
    "aggregate",
    "answer",
    "converse",
    "hold",
    "identity_of",
    "join",
    "launch",
    "serve",
    "simulated",
]
