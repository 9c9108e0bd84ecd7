"""Named tasks: data sets with checksums, ways to split them among clients, and the papers' models.

The catalogue can be read without importing PyTorch; models are imported when one is first used.
"""

import importlib
from typing import TYPE_CHECKING

from tacit.tasks.catalog import TASKS, make_task, validate

if TYPE_CHECKING:
    from tacit.tasks.models import MODELS, find_model, with_group_norm, with_local_batch_norm
    from tacit.tasks.partition import split_samples

__all__ = [
    "MODELS",
    "TASKS",
    "find_model",
    "make_task",
    "split_samples",
    "validate",
    "with_group_norm",
    "with_local_batch_norm",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "partition" if name == "split_samples" else "models"
    return getattr(importlib.import_module(f"tacit.tasks.{place}"), name)
