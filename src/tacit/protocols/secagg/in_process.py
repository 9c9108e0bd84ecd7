"""A whole conversation in one process: every message is packed, parsed and answered as in a federation."""

from collections.abc import Iterable, Mapping

from tacit.protocols import crypto
from tacit.protocols.kit import LocalClients, play
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.parameters import SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_client import answer
from tacit.protocols.secagg.secagg_messages import (
    Phase,
    SecaggClientState,
    join_round,
    new_identity,
    new_seed,
    set_vector,
)
from tacit.protocols.secagg.secagg_server import SecaggOutcome, converse


def run_locally(
    session: SecaggSession,
    vectors: Mapping[int, Vector],
    dropouts: Iterable[int] = (),
    noise_seeds: Mapping[int, bytes] | None = None,
) -> SecaggOutcome:
    """The sum of the clients' vectors, as the server learns it; client states are serialised between messages.

    Args:
        session: the round.
        vectors: contribution of each client.
        dropouts: clients that drop out before their upload.
        noise_seeds: of the surplus noise in the vectors, if they have such noise; drawn for clients without one.

    Raises:
        TooFewClientsError: as `converse` does.
    """
    p, cohort = session.parameters, [*vectors, *dropouts]
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    secrets = {client: new_identity() if active else b"" for client in cohort}
    directory = {client: crypto.public_identity(secret) for client, secret in secrets.items()} if active else {}
    known, drawn = noise_seeds or {}, {client: new_seed() if p.surplus else b"" for client in cohort}
    policy = SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt)

    def join(client: int) -> SecaggClientState:
        seed = known.get(client, drawn[client])
        return join_round(session, client, policy, identity=secrets[client], directory=directory, noise_seed=seed)

    def prepare(state: SecaggClientState) -> SecaggClientState | None:
        if state.phase is not Phase.UPLOAD:
            return state
        return set_vector(state, vectors[state.client]) if state.client in vectors else None

    clients = LocalClients(SecaggClientState, join, prepare, answer)
    return play(converse(session, cohort, directory), clients.replies)
