"""What the server notes during a conversation: bytes of every phase, and what it had to drop."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tacit.protocols.secagg import messages
from tacit.protocols.secagg.errors import ProtocolError
from tacit.protocols.secagg.messages import Frame, Phase, Way
from tacit.protocols.secagg.session import Session


class Drop(StrEnum):
    """Why a reply was not used."""

    STRANGER = "stranger"  # from a client that was not asked, or in another's name
    DUPLICATE = "duplicate"  # the first one counts
    LATE = "late"  # for a phase that is over
    FOREIGN = "foreign"  # of another round or roster
    MALFORMED = "malformed"  # not what the schema wants, or not signed by its sender


@dataclass(frozen=True, eq=False)
class Minutes:
    """Bytes by phase and client, both ways, as they were packed; replies dropped, by reason."""

    down: Mapping[Phase, dict[int, int]] = field(default_factory=lambda: {phase: {} for phase in Phase})
    up: Mapping[Phase, dict[int, int]] = field(default_factory=lambda: {phase: {} for phase in Phase})
    dropped: Counter[Drop] = field(default_factory=Counter)


def judge(session: Session, phase: Phase, tag: bytes, sender: int, data: bytes) -> Frame | Drop:
    """A reply that may be read, or why not."""
    try:
        frame = messages.unpack(data, messages.longest(session.parameters))
    except ProtocolError:
        return Drop.MALFORMED
    if frame.client != sender:
        return Drop.STRANGER
    if frame.way is not Way.REPLY or frame.phase > phase:
        return Drop.MALFORMED
    if frame.phase < phase:
        return Drop.LATE
    return Drop.FOREIGN if (frame.round, frame.tag) != (session.round, tag) else frame
