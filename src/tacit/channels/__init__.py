"""Who sees which part of what clients send. Sending it in plain is neutral and lives in `tacit.core`."""

from tacit.channels.enclave import Enclave
from tacit.channels.ideal import IdealSum
from tacit.channels.secure_sum import SecureSum
from tacit.core import Plain

__all__ = ["Enclave", "IdealSum", "Plain", "SecureSum"]
