"""Channels: who sees which part of the clients' messages. The neutral one, `Plain`, is in `tacit.core`."""

from tacit.core import Plain
from tacit.pieces.channels.enclave_channel import Enclave, enclave_service
from tacit.pieces.channels.ideal_sum import IdealSum
from tacit.pieces.channels.secure_sum import SecureSum

__all__ = ["Enclave", "IdealSum", "Plain", "SecureSum", "enclave_service"]
