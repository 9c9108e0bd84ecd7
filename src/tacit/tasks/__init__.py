"""Named tasks: data sets with checksums, ways to split them over clients, and the papers' models."""

from tacit.tasks.catalog import TASKS, make_task
from tacit.tasks.models import MODELS, find_model
from tacit.tasks.normalisation import with_group_norm, with_local_batch_norm

__all__ = ["MODELS", "TASKS", "find_model", "make_task", "with_group_norm", "with_local_batch_norm"]
