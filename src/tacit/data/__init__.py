"""Data of your own on their way into a run: tensors, tables, frames and files become a population and a task."""

from tacit.data.encoding import Encoding, Preprocessing
from tacit.data.population import Population, Samples
from tacit.data.task import Task

__all__ = ["Encoding", "Population", "Preprocessing", "Samples", "Task"]
