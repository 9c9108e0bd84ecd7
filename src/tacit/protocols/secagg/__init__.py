"""Secure aggregation: the server learns the sum of the clients' vectors and nothing about a single one.

Pairwise pads and own pads, whose secrets are shared among clients (Bonawitz et al., CCS 2017), on a complete graph up
to 64 clients and on a random Harary graph above (Bell et al., CCS 2020). A client's side is the function `answer`, the
server's side the generator `converse`; vectors are uint32 arrays modulo 2^bits. If vectors contain surplus noise, the
seeds of what is too much are opened together with the pads (XNoise: Jiang et al., EuroSys 2024).

Not covered: a client may send any vector (its norm is invisible), drop out, or send wrong shares. That can make a round
fail; it cannot reveal another client's vector.
"""

from tacit.protocols.secagg.graph import GraphParameters, ThreatModel
from tacit.protocols.secagg.in_process import run_locally
from tacit.protocols.secagg.pads import Vector, pack_vector, unpack_vector
from tacit.protocols.secagg.parameters import MIN_COHORT, Parameters, SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_client import SecaggClientState, answer, join_round, set_vector
from tacit.protocols.secagg.secagg_messages import Phase, phase_bytes
from tacit.protocols.secagg.secagg_server import SecaggOutcome, converse

__all__ = [
    "MIN_COHORT",
    "GraphParameters",
    "Parameters",
    "Phase",
    "SecaggClientState",
    "SecaggOutcome",
    "SecaggPolicy",
    "SecaggSession",
    "ThreatModel",
    "Vector",
    "answer",
    "converse",
    "join_round",
    "pack_vector",
    "phase_bytes",
    "run_locally",
    "set_vector",
    "unpack_vector",
]
