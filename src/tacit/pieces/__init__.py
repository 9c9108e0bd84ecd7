"""The pieces that methods are made of, one family per slot, with the neutral ones and the wire formats."""

import sys
from typing import TYPE_CHECKING

from tacit.core.plain_form import allow
from tacit.pieces import aggregators, channels, codecs, mechanisms, samplers, servers, trainers
from tacit.pieces.aggregators import *
from tacit.pieces.channels import IdealSum, Plain, SecureSum
from tacit.pieces.codecs import *
from tacit.pieces.mechanisms import *
from tacit.pieces.samplers import *
from tacit.pieces.servers import *
from tacit.pieces.trainers import *
from tacit.wire.sparse import Compact, Csr

if TYPE_CHECKING:
    from tacit.pieces.channels import Enclave

__all__ = ["Compact", "Csr", "Enclave", "IdealSum", "Plain", "SecureSum"]
__all__ += aggregators.__all__
__all__ += codecs.__all__
__all__ += mechanisms.__all__
__all__ += samplers.__all__
__all__ += servers.__all__
__all__ += trainers.__all__
__all__.sort()

allow(sys.modules[__name__])  # methods in their canonical form may name these


def __getattr__(name: str) -> object:
    if name != "Enclave":  # the only piece that is imported when it is first named
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return channels.Enclave


def __dir__() -> list[str]:
    return __all__
