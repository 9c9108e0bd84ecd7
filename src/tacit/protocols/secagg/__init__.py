"""Secure aggregation: the server learns the sum of those who delivered, and of no single client anything.

Double padding with shared seeds (Bonawitz et al., CCS 2017) on a complete graph up to 64 clients, on a random Harary
graph above (Bell et al., CCS 2020). Clients `answer`, the server's side is the generator `converse`; vectors are uint32
arrays modulo 2^bits.

Not covered: a client may send any vector (its norm cannot be seen), refuse to go on, or garble the shares it
sends. That can ruin a round; it cannot open anybody else's vector.
"""

from tacit.protocols.secagg.client import answer
from tacit.protocols.secagg.desk import Desk, hold, invite
from tacit.protocols.secagg.errors import ProtocolError, TooFewError
from tacit.protocols.secagg.messages import Phase
from tacit.protocols.secagg.minutes import Drop, Minutes
from tacit.protocols.secagg.parameters import Level, Parameters, Policy, Wiring
from tacit.protocols.secagg.server import Outcome, converse
from tacit.protocols.secagg.session import Session
from tacit.protocols.secagg.traffic import Bytes, expected

__all__ = [
    "Bytes",
    "Desk",
    "Drop",
    "Level",
    "Minutes",
    "Outcome",
    "Parameters",
    "Phase",
    "Policy",
    "ProtocolError",
    "Session",
    "TooFewError",
    "Wiring",
    "answer",
    "converse",
    "expected",
    "hold",
    "invite",
]
