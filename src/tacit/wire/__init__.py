"""Serialisation: frames of named parts, sets of indices, sparse rows, the fields of messages, and the hash chain."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.wire.sparse import Compact, Csr

__all__ = ["Compact", "Csr"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The records that a method may name, imported when they are used: the hash chain needs no PyTorch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("tacit.wire.sparse"), name)
