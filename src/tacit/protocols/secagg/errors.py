"""What ends a conversation: a message that cannot be right, or too few clients."""

from tacit.errors import ProtocolError

__all__ = ["ProtocolError", "TooFewError"]


class TooFewError(ProtocolError):
    """The server stops a round without a sum: too few clients, or too few good shares, are left."""
