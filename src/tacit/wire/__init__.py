"""Numbers to bytes and back: frames of named parts, sets of indices, sparse rows, and small fields of a protocol."""

from tacit.wire.frames import Part, Parts
from tacit.wire.sparse import Compact, Csr, WireFormat

__all__ = ["Compact", "Csr", "Part", "Parts", "Wire"]
