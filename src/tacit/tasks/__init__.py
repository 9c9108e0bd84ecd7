"""Named tasks: data sets with checksums, ways to split them over clients, and the papers' models."""

import importlib
from typing import TYPE_CHECKING

from tacit.tasks.catalog import TASKS, check, make_task

if TYPE_CHECKING:
    from tacit.tasks.models import MODELS, find_model
    from tacit.tasks.normalisation import with_group_norm, with_local_batch_norm

__all__ = ["MODELS", "TASKS", "check", "find_model", "make_task", "with_group_norm", "with_local_batch_norm"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import models when one is first used: names of tasks are listed and checked without PyTorch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "normalisation" if name.startswith("with_") else "models"
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
