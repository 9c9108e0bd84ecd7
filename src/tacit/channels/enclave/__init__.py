"""Aggregation in an attested enclave: a separate process that keeps the key, opens uploads, and lets only sums out.

::

    client   nonce ─────────────► enclave   quote over key, nonce, configuration, ledger head
    client   verify by its own policy, seal the message to the attested key, sign
    server   carry ciphertext ──► enclave   open, check, bound, sum, blur ──► the aggregate

Clients `answer`, the server's side is the generator `converse`, the enclave's is `Keeper.answer`: none of them opens a
connection. `Stage` plays all of it with a process of its own; `aggregate` is what a simulation computes without one.

Not covered: whoever breaks the processor or reads memory traffic; the access pattern of sparse rows inside (Olive,
arXiv 2202.07165); what the aggregate itself says about its contributors, unless a mechanism blurs it; clients that
upload well-formed nonsense.
"""

from tacit.channels.enclave.aggregate import Released, aggregate
from tacit.channels.enclave.channel import Enclave
from tacit.channels.enclave.client import Desk, Held, answer, hold, join
from tacit.channels.enclave.configuration import Configuration
from tacit.channels.enclave.errors import EnclaveGoneError, Refusal, RefusedError
from tacit.channels.enclave.frames import Verb
from tacit.channels.enclave.host import ENCLAVE, Minutes, Outcome, converse
from tacit.channels.enclave.journal import Journal
from tacit.channels.enclave.keeper import Keeper
from tacit.channels.enclave.link import Link, serve
from tacit.channels.enclave.opening import Closing, Opening
from tacit.channels.enclave.parcel import Form
from tacit.channels.enclave.session import Session
from tacit.channels.enclave.stage import Stage, identity_of, launch, simulated

__all__ = [
    "ENCLAVE",
    "Closing",
    "Configuration",
    "Desk",
    "Enclave",
    "EnclaveGoneError",
    "Form",
    "Held",
    "Journal",
    "Keeper",
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
