"""A whole conversation in one process: every message is packed, read and answered as in a federation."""

from collections.abc import Iterable, Iterator, Mapping

from tacit.protocols import crypto
from tacit.protocols.secagg.client import answer
from tacit.protocols.secagg.desk import Desk, hold, invite, new_identity
from tacit.protocols.secagg.messages import Phase
from tacit.protocols.secagg.parameters import Level, Policy
from tacit.protocols.secagg.ring import Vector
from tacit.protocols.secagg.server import Outcome, converse
from tacit.protocols.secagg.session import Session


def play(session: Session, vectors: Mapping[int, Vector], lost: Iterable[int] = ()) -> Outcome:
    """The sum of these clients' vectors, learnt as the server learns it; desks are bytes between two messages.

    Args:
        session: the round.
        vectors: what each client adds.
        lost: clients that take part until a vector is asked for, and have none.

    Raises:
        TooFewError: as `converse` does.
    """
    cohort = [*vectors, *lost]
    desks, directory = _seats(session, cohort)
    conversation = converse(session, cohort, directory)

    def replies(requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for client, request in requests.items():
            desk = Desk.from_bytes(desks[client])
            if desk.phase is Phase.UPLOAD:
                if client not in vectors:
                    continue
                desk = hold(desk, vectors[client])
            after, reply = answer(desk, request)
            desks[client] = after.to_bytes()
            yield client, reply

    requests = next(conversation)
    while True:
        try:
            requests = conversation.send(replies(requests))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def _seats(session: Session, clients: Iterable[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Everybody's desk, and the directory of identities, which are made up for the occasion."""
    active = session.parameters.level is Level.ACTIVE_SERVER
    secrets = {client: new_identity() if active else b"" for client in clients}
    directory = {client: crypto.identity(secret) for client, secret in secrets.items()} if active else {}
    policy = Policy(level=session.parameters.level, corrupt=session.parameters.corrupt)
    desks = {
        client: invite(session, client, policy, identity=secret, directory=directory).to_bytes()
        for client, secret in secrets.items()
    }
    return desks, directory
