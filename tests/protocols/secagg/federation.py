"""Plays whole conversations, with clients lost, messages shuffled and doubled, and desks kept as bytes in between."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from tacit.protocols import crypto
from tacit.protocols.secagg import (
    Desk,
    Level,
    Outcome,
    Parameters,
    Phase,
    Policy,
    Session,
    answer,
    converse,
    hold,
    invite,
)


def entropy(seed: object) -> crypto.Entropy:
    """A source for tests only: the same bytes for the same seed."""
    return lambda count: hashlib.shake_256(repr(seed).encode()).digest(count)


IDENTITIES = {j: entropy(("identity", j))(32) for j in range(1, 200)}
DIRECTORY = {j: crypto.identity(secret) for j, secret in IDENTITIES.items()}


def session(p: Parameters, *, number: int = 1, model: bytes = b"m" * 32, config: bytes = b"c" * 32) -> Session:
    return Session(run=b"r" * 16, round=number, model=model, config=config, parameters=p)


def policy(p: Parameters, **floors: int) -> Policy:
    return Policy(level=p.level, corrupt=p.corrupt, **floors)


def known(p: Parameters, cohort: tuple[int, ...]) -> dict[int, bytes]:
    return {j: DIRECTORY[j] for j in cohort} if p.level is Level.ACTIVE_SERVER else {}


def seat(s: Session, client: int, cohort: tuple[int, ...], vector: np.ndarray | None = None, seed: object = 0) -> Desk:
    """A client's desk, holding its vector."""
    active = s.parameters.level is Level.ACTIVE_SERVER
    desk = invite(
        s,
        client,
        policy(s.parameters),
        identity=IDENTITIES[client] if active else b"",
        directory=known(s.parameters, cohort),
        entropy=entropy((seed, client)),
    )
    return hold(desk, np.zeros(s.parameters.dim, np.uint32) if vector is None else vector)


Network = Callable[[Phase, list[tuple[int, bytes]]], list[tuple[int, bytes]]]


@dataclass
class Federation:
    """Clients with vectors; `lost[phase]` says who falls silent when asked in that phase, for good."""

    session: Session
    vectors: Mapping[int, np.ndarray]
    lost: Mapping[Phase, frozenset[int]] = field(default_factory=dict)
    network: Network = lambda _, replies: replies
    kept: bool = True  # desks as bytes between messages
    seed: object = 0

    def start(self) -> tuple[int, ...]:
        cohort = tuple(sorted(self.vectors))
        self.desks = {j: seat(self.session, j, cohort, v, self.seed) for j, v in self.vectors.items()}
        return cohort

    def play(self) -> Outcome:
        cohort = self.start()
        conversation = converse(self.session, cohort, known(self.session.parameters, cohort))
        replies: list[tuple[int, bytes]] | None = None
        gone: set[int] = set()
        try:
            while True:
                requests = next(conversation) if replies is None else conversation.send(replies)
                phase = Phase(next(iter(requests.values()))[5])
                gone |= self.lost.get(phase, frozenset())
                said = [(j, self.reply(j, request)) for j, request in requests.items() if j not in gone]
                replies = self.network(phase, said)
        except StopIteration as end:
            return end.value

    def reply(self, client: int, request: bytes) -> bytes:
        desk = self.desks[client]
        desk, reply = answer(Desk.from_bytes(desk.to_bytes()) if self.kept else desk, request)
        self.desks[client] = desk
        return reply


def parameters(count: int, dim: int = 5, **others: object) -> Parameters:
    defaults: dict[str, object] = {"corrupt": Fraction(0), "dropout": Fraction(1, 3)}
    return Parameters(cohort=count, dim=dim, **{**defaults, **others})  # type: ignore[arg-type]


def total(vectors: Mapping[int, np.ndarray], clients: tuple[int, ...], bits: int = 32) -> np.ndarray:
    """The exact sum, in integers that cannot overflow."""
    summed = sum(vectors[j].astype(object) for j in clients)
    return np.array([int(value) % (1 << bits) for value in summed], np.uint32)


__all__ = [
    "DIRECTORY",
    "IDENTITIES",
    "Federation",
    "entropy",
    "known",
    "parameters",
    "seat",
    "session",
    "total",
]
