"""How many bytes each phase takes when nobody is lost, without a conversation."""

from dataclasses import dataclass

from tacit.protocols.crypto import KEY, SIGNATURE
from tacit.protocols.secagg import messages, ring
from tacit.protocols.secagg.messages import HEADER, OPENED, SEALED, Phase
from tacit.protocols.secagg.parameters import Level, Parameters
from tacit.wire.packing import size_table


@dataclass(frozen=True)
class Bytes:
    """Of one client in one phase."""

    up: int
    down: int


def expected(p: Parameters) -> dict[Phase, Bytes]:
    """Bytes of each client by phase; all clients have equally many neighbours.

    Example:
        >>> sizes = expected(Parameters(cohort=100, dim=8316))
        >>> sizes[Phase.UPLOAD].up - 4 * 8316, sum(each.up + each.down for each in sizes.values())
        (56, 56904)
    """
    n, wiring = p.cohort, p.wiring(p.cohort)
    degree, sets = wiring.degree, (n + 7) // 8
    active = p.level is Level.ACTIVE_SERVER
    width = messages.announcement_width(p.level)
    consent = size_table(wiring.threshold - 1, SIGNATURE) if active else 0
    bodies = {
        Phase.ANNOUNCE: (width, 0),
        Phase.SHARE: (
            KEY + size_table(degree, SEALED),
            size_table(degree + 1, width) + size_table(n - degree - 1, KEY),
        ),
        Phase.UPLOAD: (ring.size(p.dim, p.bits), size_table(degree, SEALED)),
        Phase.AGREE: (SIGNATURE, sets),
        Phase.OPEN: (size_table(degree + 1, OPENED), sets + consent + size_table(degree + 1, 1)),
    }
    return {phase: Bytes(HEADER + bodies[phase][0], HEADER + bodies[phase][1]) for phase in messages.phases(p.level)}
