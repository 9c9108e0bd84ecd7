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
    new_secret,
    next_round,
    set_vector,
)
from tacit.protocols.secagg.secagg_server import SecaggOutcome, set_up


def run_locally(
    session: SecaggSession,
    vectors: Mapping[int, Vector],
    dropouts: Iterable[int] = (),
    noise_seeds: Mapping[int, bytes] | None = None,
) -> SecaggOutcome:
    """The sum of the clients' vectors in an epoch's first round; `dropouts` drop out before their upload.

    `noise_seeds` and errors: as `LocalEpoch.sum`.
    """
    return LocalEpoch(session, [*vectors, *dropouts]).sum(session, vectors, noise_seeds)


class LocalEpoch:
    """A server and clients that have set up an epoch, with client states serialised between messages."""

    def __init__(self, session: SecaggSession, cohort: Iterable[int]) -> None:
        """Set up; raises what `set_up` does."""
        p, clients = session.parameters, sorted(cohort)
        active = p.threat_model is ThreatModel.ACTIVE_SERVER
        secrets = {client: new_secret() if active else b"" for client in clients}
        directory = {client: crypto.public_identity(secret) for client, secret in secrets.items()} if active else {}
        policy = SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt)

        def join(client: int) -> SecaggClientState:
            return join_round(session, client, policy, identity=secrets[client], directory=directory)

        self._clients = LocalClients(SecaggClientState, join, lambda state: state, answer)
        self._server = play(set_up(session, clients, directory), self._clients.replies)

    def sum(
        self,
        session: SecaggSession,
        vectors: Mapping[int, Vector],
        noise_seeds: Mapping[int, bytes] | None = None,
        turn: int = 0,
    ) -> SecaggOutcome:
        """The sum of these clients' vectors in round number `turn`, as the server learns it; the others are lost.

        `noise_seeds` are those of the surplus noise in the vectors, if they have such noise; they are drawn for clients
        without one. Raises what `Epoch.converse` does.
        """
        seeds = {client: new_secret() for client in vectors} if session.parameters.surplus else {}
        seeds |= {client: seed for client, seed in (noise_seeds or {}).items() if client in seeds}

        def prepare(state: SecaggClientState) -> SecaggClientState | None:
            if state.client not in vectors:
                return None
            if state.turn < turn:
                state = next_round(state, session, turn)
            if state.phase is not Phase.UPLOAD:
                return state
            return set_vector(state, vectors[state.client], seeds.get(state.client, b""))

        clients = LocalClients(SecaggClientState, self._clients.join, prepare, answer, self._clients.stored)
        return play(self._server.converse(session, turn), clients.replies)
