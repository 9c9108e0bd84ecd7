"""The tasks by name. Adding one is adding a factory and a record here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core.discovery import Definition, Outline, read_outline
from tacit.core.schema import call, check_names, choose
from tacit.tasks import sources
from tacit.tasks.datasets import DataSet, data_folders, locate

if TYPE_CHECKING:
    from tacit.core.task import Task


@dataclass(frozen=True)
class Entry:
    """A named task: the module with its factory, and the data it needs. The module is imported to make the task."""

    name: str
    module: str
    data: tuple[DataSet, ...] = ()
    natural: str = ""  # the clients that the data define, where these are the default
    folder: str = ""  # of files without checksum, which every user generates

    @property
    def definition(self) -> Definition:
        """The factory as its source declares it."""
        return _outline(self.module).factories[self.name.replace("-", "_")]

    @property
    def factory(self) -> "Callable[..., Task]":
        """The function that makes the task."""
        factory: Callable[..., Task] = self.definition.load()
        return factory

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return self.definition.summary

    @property
    def clients(self) -> str:
        """The number or kind of clients by default."""
        return self.natural or self.definition.parameters["clients"]

    @property
    def ready(self) -> bool:
        """Whether all files that the task needs are present."""
        if self.folder and not any(any((folder / self.folder).rglob("*.json")) for folder in data_folders()):
            return False
        return all(
            locate(file) is not None for data in self.data for file in data.files if file.path not in data.optional
        )


@cache
def _outline(module: str) -> Outline:
    return read_outline(Path(__file__).with_name(f"{module}.py"), f"tacit.tasks.{module}")


TASKS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("digits", "images"),
        Entry("synthetic", "synthetic"),
        Entry("mnist", "images", (sources.MNIST,)),
        Entry("mnist-writers", "images", (sources.MNIST, sources.QMNIST_WRITERS), "539 writers"),
        Entry("femnist", "handwriting", natural="LEAF's writers", folder="femnist"),
        Entry("fashion-mnist", "images", (sources.FASHION_MNIST,)),
        Entry("cifar-10", "images", (sources.CIFAR_10,)),
        Entry("hospital-charges", "hospital", (sources.CMS_IPPS, sources.ZIP_LATLON), "2206 hospitals"),
        Entry("covid-mx", "medical", (sources.COVID_MX,)),
        Entry("ist", "medical", (sources.IST,), "463 hospitals"),
        Entry("diabetes-130", "medical", (sources.DIABETES,)),
        Entry("gusto", "medical", (sources.GUSTO,), "16 regions"),
        Entry("support2", "medical", (sources.SUPPORT2,)),
    )
}


def check(name: str, options: Mapping[str, object]) -> None:
    """Raise `UserError` if the task or one of its options does not exist. Imports no task."""
    check_names(options, choose(TASKS, name, "task").definition.parameters, f"task {name}")


def make_task(name: str, **options: object) -> "Task":
    """Make a task by its name.

    Args:
        name: one of `TASKS`.
        options: parameters of its factory; strings are read as the annotated type.

    Raises:
        UserError: the name or an option is unknown or has the wrong type; the message points to the nearest.
        DataError: data is missing; the message says how to get it.

    Example:
        >>> task = make_task("digits", clients="50")
        >>> len(task.population), task.name
        (50, 'digits')
    """
    return call(choose(TASKS, name, "task").factory, f"task {name}", options)
