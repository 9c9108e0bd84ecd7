"""A whole conversation in one process: every message is packed, parsed and answered as in a federation."""

from collections.abc import Iterable, Mapping

from tacit.protocols import crypto
from tacit.protocols.kit import LocalClients, play
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.parameters import SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_client import answer
from tacit.protocols.secagg.secagg_messages import Phase, SecaggClientState, join_round, new_secret, set_vector
from tacit.protocols.secagg.secagg_server import SecaggOutcome, converse


def run_locally(
    session: SecaggSession,
    vectors: Mapping[int, Vector],
    dropouts: Iterable[int] = (),
    noise_seeds: Mapping[int, bytes] | None = None,
) -> SecaggOutcome:
    """The sum of the clients' vectors, as the server learns it; client states are serialised between messages.

    Clients that are `dropouts` drop out before their upload. `noise_seeds` are those of the surplus noise in the
    vectors, if they have such noise; they are drawn for clients without one. Raises what `converse` does.
    """
    p, cohort = session.parameters, [*vectors, *dropouts]
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    secrets = {client: new_secret() if active else b"" for client in cohort}
    directory = {client: crypto.public_identity(secret) for client, secret in secrets.items()} if active else {}
    drawn = {client: new_secret() if p.surplus else b"" for client in cohort}
    seeds = {**drawn, **(noise_seeds or {})}
    policy = SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt)

    def join(client: int) -> SecaggClientState:
        identity, seed = secrets[client], seeds[client]
        return join_round(session, client, policy, identity=identity, directory=directory, noise_seed=seed)

    def prepare(state: SecaggClientState) -> SecaggClientState | None:
        if state.phase is not Phase.UPLOAD:
            return state
        return set_vector(state, vectors[state.client]) if state.client in vectors else None

    clients = LocalClients(SecaggClientState, join, prepare, answer)
    return play(converse(session, cohort, directory), clients.replies)
