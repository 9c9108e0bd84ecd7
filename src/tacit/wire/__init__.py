"""Serialisation: frames of named parts, sets of indices, sparse rows, and the fields of protocol messages."""

from tacit.wire.frames import Part, Parts
from tacit.wire.sparse import Compact, Csr, WireFormat

__all__ = ["Compact", "Csr", "Part", "Parts", "WireFormat"]
