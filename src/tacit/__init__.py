"""Private, communication-efficient federated learning.

The public names are those of `tacit.api`. They are imported when one of them is first used, so that the command line
answers `--help` without loading PyTorch.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tacit.api import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    api = importlib.import_module("tacit.api")
    if not hasattr(api, name) and name in api.pieces.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. Use tacit.pieces.{name}.")
    return getattr(api, name)


def __dir__() -> list[str]:
    return list(importlib.import_module("tacit.api").__all__)
