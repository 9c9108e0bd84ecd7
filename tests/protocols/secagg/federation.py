"""A test federation: whole conversations with dropouts, reordered and duplicated messages, and serialised states."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tacit.protocols import crypto
from tacit.protocols.kit import Requests, play
from tacit.protocols.secagg import (
    Parameters,
    Phase,
    SecaggClientState,
    SecaggOutcome,
    SecaggPolicy,
    SecaggSession,
    ThreatModel,
    answer,
    converse,
    join_round,
    secagg_messages,
    set_vector,
)
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.secagg_messages import PREAMBLE, Direction

COHORT = (1, 2, 3, 4, 5)
VICTIM = 3
NONE = bytes(4)  # an empty table: no disputes in a request to confirm, no spares in one to open
Answers = dict[tuple[bytes, bytes], tuple[SecaggClientState, bytes]]


def entropy(seed: object) -> crypto.Entropy:
    """A source for tests only: the same bytes for the same seed."""
    return lambda count: hashlib.shake_256(repr(seed).encode()).digest(count)


IDENTITIES = {j: entropy(("identity", j))(32) for j in range(1, 200)}
DIRECTORY = {j: crypto.public_identity(secret) for j, secret in IDENTITIES.items()}


def noise_seed(client: int) -> bytes:
    """The seed of a client's surplus noise."""
    return entropy(("noise", client))(32)


def opened_seeds(p: Parameters, survivors: tuple[int, ...]) -> dict[int, bytes]:
    """The noise seeds that are opened: those of the first survivors, one for every loss that did not occur."""
    removed = max(p.surplus - (p.cohort - len(survivors)), 0)
    return {j: noise_seed(j) for j in sorted(survivors)[:removed]}


def session(p: Parameters, *, index: int = 1, model: bytes = b"m" * 32, config: bytes = b"c" * 32) -> SecaggSession:
    return SecaggSession(run=b"r" * 16, round=index, model=model, config=config, parameters=p)


def directory(p: Parameters, cohort: tuple[int, ...]) -> dict[int, bytes]:
    return {j: DIRECTORY[j] for j in cohort} if p.threat_model is ThreatModel.ACTIVE_SERVER else {}


def joined(
    s: SecaggSession,
    client: int,
    cohort: tuple[int, ...],
    vector: Vector | None = None,
    seed: object = 0,
    noise: bytes | None = None,
) -> SecaggClientState:
    """The state of a client that has joined the round and set its vector."""
    p = s.parameters
    state = join_round(
        s,
        client,
        SecaggPolicy(threat_model=p.threat_model, min_corrupt=p.corrupt),
        identity=IDENTITIES[client] if p.threat_model is ThreatModel.ACTIVE_SERVER else b"",
        directory=directory(p, cohort),
        entropy=entropy((seed, client)),
    )
    return contributed(state, np.zeros(p.dim, np.uint32) if vector is None else vector, noise)


def contributed(state: SecaggClientState, vector: Vector, noise: bytes | None = None) -> SecaggClientState:
    """The state of a client with its vector, and the seed of its noise if there is any."""
    surplus = state.session.parameters.surplus
    return set_vector(state, vector, (noise or noise_seed(state.client)) if surplus else b"")


Network = Callable[[Phase, list[tuple[int, bytes]]], list[tuple[int, bytes]]]


@dataclass
class Federation:
    """Clients with vectors.

    Attributes:
        session: the round.
        vectors: of each client.
        dropouts: who stops answering in which phase, for good.
        network: what becomes of the replies of a phase on their way.
        serialised: whether states are bytes between messages.
        seed: of the clients' entropy and the server's.
        answers: a cache of answers, which are pure functions of state and request; None: no cache.
        noise_seeds: of the surplus noise in the vectors; by default some others.
    """

    session: SecaggSession
    vectors: Mapping[int, Vector]
    dropouts: Mapping[Phase, frozenset[int]] = field(default_factory=dict)
    network: Network = lambda _, replies: replies
    serialised: bool = True
    seed: object = 0
    answers: Answers | None = None
    noise_seeds: Mapping[int, bytes] = field(default_factory=dict)

    def start(self) -> tuple[int, ...]:
        cohort = tuple(sorted(self.vectors))
        seeds = self.noise_seeds
        self.states = {j: joined(self.session, j, cohort, v, self.seed, seeds.get(j)) for j, v in self.vectors.items()}
        return cohort

    def run(self) -> SecaggOutcome:
        cohort = self.start()
        gone: set[int] = set()

        def replies(requests: Requests) -> list[tuple[int, bytes]]:
            phase = Phase(next(iter(requests.values()))[5])
            gone.update(self.dropouts.get(phase, frozenset()))
            sent = [(j, self.reply(j, request)) for j, request in requests.items() if j not in gone]
            return self.network(phase, sent)

        known, challenge = directory(self.session.parameters, cohort), entropy((self.seed, "challenge"))
        return play(converse(self.session, cohort, known, entropy=challenge), replies)

    def reply(self, client: int, request: bytes) -> bytes:
        self.states[client], reply = self._answer(self.states[client], request)
        return reply

    def _answer(self, state: SecaggClientState, request: bytes) -> tuple[SecaggClientState, bytes]:
        if self.answers is not None:
            key = state.to_bytes(), request
            if key not in self.answers:
                self.answers[key] = answer(state, request)
            return self.answers[key]
        return answer(SecaggClientState.from_bytes(state.to_bytes()) if self.serialised else state, request)


@dataclass
class RecordedFederation(Federation):
    """A federation that records each client's state and request in each phase, and its state afterwards."""

    before: dict[tuple[int, Phase], tuple[SecaggClientState, bytes]] = field(default_factory=dict)
    after: dict[tuple[int, Phase], SecaggClientState] = field(default_factory=dict)

    def reply(self, client: int, request: bytes) -> bytes:
        at = (client, Phase(request[5]))
        self.before[at] = self.states[client], request
        reply = super().reply(client, request)
        self.after[at] = self.states[client]
        return reply


def small_vectors(dim: int = 4) -> dict[int, Vector]:
    return {j: np.arange(dim, dtype=np.uint32) + np.uint32(j) for j in COHORT}


def recorded(
    threat_model: ThreatModel = ThreatModel.ACTIVE_SERVER, index: int = 1, dim: int = 4, surplus: int = 0
) -> RecordedFederation:
    """An honest conversation of five clients, of which client 5 drops out before its upload."""
    p = parameters(5, dim, threat_model=threat_model, surplus=surplus)
    federation = RecordedFederation(session(p, index=index), small_vectors(dim), {Phase.UPLOAD: frozenset({5})})
    federation.run()
    return federation


def request(s: SecaggSession, phase: Phase, binding: bytes, body: bytes, client: int = VICTIM) -> bytes:
    """A well-formed frame, as a malicious server would make it."""
    return secagg_messages.pack(phase, Direction.REQUEST, s.round, client, binding, body)


def body_of(frame: bytes) -> bytes:
    return frame[PREAMBLE:]


def parameters(count: int, dim: int = 5, **changes: Any) -> Parameters:
    """Parameters of a third lost and nobody corrupt, with these changes."""
    return replace(Parameters(cohort=count, dim=dim, corrupt=Fraction(0), dropout=Fraction(1, 3)), **changes)


def exact_sum(vectors: Mapping[int, Vector], clients: tuple[int, ...], bits: int = 32) -> Vector:
    """The sum, in integers that cannot overflow."""
    summed = np.sum([vectors[j].astype(object) for j in clients], axis=0)
    return np.array([int(value) % (1 << bits) for value in summed], np.uint32)
