"""A whole conversation in one process: every message is packed, parsed and answered as in a federation."""

from collections.abc import Iterable, Iterator, Mapping

from tacit.protocols import crypto
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
    conversation = converse(session, cohort, directory)

    def replies(requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for client, request in requests.items():
            state = SecaggClientState.from_bytes(states[client])
            if state.phase is Phase.UPLOAD:
                if client not in vectors:
                    continue
                state = set_vector(state, vectors[client])
            after, reply = answer(state, request)
            states[client] = after.to_bytes()
            yield client, reply

    requests = next(conversation)
    while True:
        try:
            requests = conversation.send(replies(requests))
        except StopIteration as end:
            outcome: SecaggOutcome = end.value
            return outcome


def _join(session: SecaggSession, clients: Iterable[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The state of every client, and a directory of identities created for this round."""
    p = session.parameters
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    secrets = {client: new_identity() if active else b"" for client in clients}
    directory = {client: crypto.public_identity(secret) for client, secret in secrets.items()} if active else {}
    policy = SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt)
    states = {
        client: join_round(session, client, policy, identity=secret, directory=directory).to_bytes()
        for client, secret in secrets.items()
    }
    return states, directory
