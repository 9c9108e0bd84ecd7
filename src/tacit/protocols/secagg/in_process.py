"""A whole conversation in one process: every message is packed, parsed and answered as in a federation."""

from collections.abc import Iterable, Iterator, Mapping

from tacit.protocols import crypto
from tacit.protocols.kit import Requests, StoredStates, play
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.parameters import SecaggPolicy, SecaggSession
from tacit.protocols.secagg.secagg_client import SecaggClientState, answer, join_round, new_identity, set_vector
from tacit.protocols.secagg.secagg_messages import Phase
from tacit.protocols.secagg.secagg_server import SecaggOutcome, converse


def run_locally(session: SecaggSession, vectors: Mapping[int, Vector], dropouts: Iterable[int] = ()) -> SecaggOutcome:
    """The sum of the clients' vectors, as the server learns it; client states are serialised between messages.

    Args:
        session: the round.
        vectors: contribution of each client.
        dropouts: clients that drop out before their upload.

    Raises:
        TooFewClientsError: as `converse` does.
    """
    cohort = [*vectors, *dropouts]
    states, directory = _join(session, cohort)

    def replies(requests: Requests) -> Iterator[tuple[int, bytes]]:
        for client, request in requests.items():
            state = states.load(client)
            if state.phase is Phase.UPLOAD:
                if client not in vectors:
                    continue
                state = set_vector(state, vectors[client])
            after, reply = answer(state, request)
            states.store(client, after)
            yield client, reply

    return play(converse(session, cohort, directory), replies)


def _join(session: SecaggSession, clients: Iterable[int]) -> tuple[StoredStates[SecaggClientState], dict[int, bytes]]:
    """The states of all clients, and a directory of identities created for this round."""
    p = session.parameters
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    secrets = {client: new_identity() if active else b"" for client in clients}
    directory = {client: crypto.public_identity(secret) for client, secret in secrets.items()} if active else {}
    policy = SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt)

    def join(client: int) -> SecaggClientState:
        return join_round(session, client, policy, identity=secrets[client], directory=directory)

    return StoredStates(join, SecaggClientState.from_bytes), directory
