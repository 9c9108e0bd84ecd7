"""Secure aggregation: the server learns the sum of the clients' vectors and nothing about a single one.

Pairwise pads and own pads, whose secrets are shared among clients (Bonawitz et al., CCS 2017), on a complete graph up
to 64 clients and on a random expander above (in place of the Harary graph of Bell et al., CCS 2020, which a server that
chooses whom to drop could cut). Clients set up once for an epoch of several rounds, and each round opens secrets of its
own. A client's side is the function `answer`, the server's side are the generators `set_up` and `Epoch.converse`;
vectors are uint32 arrays modulo 2^bits. If vectors contain surplus noise, the seeds of what is too much are opened
together with the pads (after XNoise: Jiang et al., EuroSys 2024).

Up to the declared fraction of clients may lie about shares, in any role: the sum is exact, and nobody honest is named
(`secagg_server`). Not covered: a client may send any vector, because its norm is invisible. More liars than declared
can make a round fail; they cannot reveal another client's vector.
"""

from tacit.protocols.secagg.graph import GraphParameters, ThreatModel
from tacit.protocols.secagg.in_process import LocalEpoch, run_locally
from tacit.protocols.secagg.pad_removal import Misbehaviour
from tacit.protocols.secagg.pads import Vector, pack_vector, unpack_vector
from tacit.protocols.secagg.parameters import MAX_EPOCH, MIN_COHORT, Parameters, SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_client import answer
from tacit.protocols.secagg.secagg_messages import (
    Phase,
    SecaggClientState,
    by_part,
    cohort_bytes,
    join_round,
    next_round,
    phase_bytes,
    set_vector,
)
from tacit.protocols.secagg.secagg_server import Epoch, SecaggOutcome, converse, set_up

__all__ = [
    "MAX_EPOCH",
    "MIN_COHORT",
    "Epoch",
    "GraphParameters",
    "LocalEpoch",
    "Misbehaviour",
    "Parameters",
    "Phase",
    "SecaggClientState",
    "SecaggOutcome",
    "SecaggPolicy",
    "SecaggSession",
    "ThreatModel",
    "Vector",
    "answer",
    "by_part",
    "cohort_bytes",
    "converse",
    "join_round",
    "next_round",
    "pack_vector",
    "phase_bytes",
    "run_locally",
    "set_up",
    "set_vector",
    "unpack_vector",
]
