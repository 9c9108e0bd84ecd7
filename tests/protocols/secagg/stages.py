"""An honest conversation, stopped wherever a malicious server wants to do something else."""

from dataclasses import dataclass, field

import numpy as np

from protocols.secagg.federation import Federation, parameters, session
from tacit.protocols.secagg import Desk, Level, Phase, Session, messages
from tacit.protocols.secagg.messages import HEADER, Way

COHORT = (1, 2, 3, 4, 5)
VICTIM = 3


@dataclass
class Stages(Federation):
    """A federation that remembers each client's desk and request in each phase, and its desk afterwards."""

    before: dict[tuple[int, Phase], tuple[Desk, bytes]] = field(default_factory=dict)
    after: dict[tuple[int, Phase], Desk] = field(default_factory=dict)

    def reply(self, client: int, request: bytes) -> bytes:
        at = (client, Phase(request[5]))
        self.before[at] = self.desks[client], request
        reply = super().reply(client, request)
        self.after[at] = self.desks[client]
        return reply


def vectors(dim: int = 4) -> dict[int, np.ndarray]:
    return {j: np.arange(dim, dtype=np.uint32) + np.uint32(j) for j in COHORT}


def honest(level: Level = Level.ACTIVE_SERVER, number: int = 1, dim: int = 4) -> Stages:
    """A conversation in which 5 is lost before its upload."""
    p = parameters(5, dim, level=level)
    stages = Stages(session(p, number=number), vectors(dim), {Phase.UPLOAD: frozenset({5})})
    stages.play()
    return stages


def request(s: Session, phase: Phase, tag: bytes, body: bytes, client: int = VICTIM) -> bytes:
    """A well-formed frame, as a malicious server would make it."""
    return messages.pack(phase, Way.REQUEST, s.round, client, tag, body)


def body(frame: bytes) -> bytes:
    return frame[HEADER:]
