"""Channels: who sees which part of the clients' messages. The neutral one, `Plain`, is in `tacit.core`.

The enclave is imported when it is first named.
"""

import importlib
from typing import TYPE_CHECKING

from tacit.core import Plain
from tacit.pieces.channels.ideal_sum import IdealSum
from tacit.pieces.channels.secure_sum import SecureSum

if TYPE_CHECKING:
    from tacit.pieces.channels.enclave import Enclave, enclave_service

__all__ = ["Enclave", "IdealSum", "Plain", "SecureSum", "enclave_service"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tacit.pieces.channels.enclave"), name)
