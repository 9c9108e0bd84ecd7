"""The tasks by name. Adding one means writing its factory and adding a row to `TASKS`.

The table names modules and functions instead of importing them, and summaries are read from the source: listing the
tasks does not import PyTorch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core.discovery import Definition, read_definitions
from tacit.core.schema import call, check_names, choose
from tacit.tasks import sources
from tacit.tasks.datasets import DataSet, data_folders, locate

if TYPE_CHECKING:
    from tacit.data.task import Task


@dataclass(frozen=True)
class CatalogEntry:
    """A named task.

    Attributes:
        name: on the command line.
        module: of this package.
        function: the factory in that module; its signature is the schema of the task's arguments.
        data: its data sets.
        natural_clients: the clients that the data define, if they are the default.
        folder: of files without a checksum, which users generate themselves.
        preprocessing: the default source of constants in the inputs, such as ranges (`Preprocessing`).
    """

    name: str
    module: str
    function: str
    data: tuple[DataSet, ...] = ()
    natural_clients: str = ""
    folder: str = ""
    preprocessing: str = "row"

    @property
    def factory(self) -> "Callable[..., Task]":
        factory: Callable[..., Task] = self.definition.load()
        return factory

    @property
    def definition(self) -> Definition:
        """The factory as its source declares it; the module is not imported."""
        return _definitions(self.module)[self.function]

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return self.definition.summary

    @property
    def clients(self) -> str:
        """The default clients: their number, or the natural ones."""
        return self.natural_clients or self.definition.parameters["clients"]

    @property
    def ready(self) -> bool:
        """Whether all required files are present."""
        if self.folder and not any(any((place / self.folder).rglob("*.json")) for place in data_folders()):
            return False
        required = [file for data in self.data for file in data.files if file.path not in data.optional]
        return all(locate(file) is not None for file in required)


@cache
def _definitions(module: str) -> Mapping[str, Definition]:
    return read_definitions(Path(__file__).with_name(f"{module}.py"), f"tacit.tasks.{module}")


TASKS: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry("digits", "images", "digits"),
        CatalogEntry("table", "own_table", "table", natural_clients="a column", preprocessing="private"),
        CatalogEntry("synthetic", "regression", "synthetic"),
        CatalogEntry("mnist", "images", "mnist", (sources.MNIST,)),
        CatalogEntry(
            "mnist-writers", "writers", "mnist_writers", (sources.MNIST, sources.QMNIST_WRITERS), "539 writers"
        ),
        CatalogEntry("femnist", "writers", "femnist", natural_clients="LEAF's writers", folder="femnist"),
        CatalogEntry("fashion-mnist", "images", "fashion_mnist", (sources.FASHION_MNIST,)),
        CatalogEntry("cifar-10", "images", "cifar_10", (sources.CIFAR_10,)),
        CatalogEntry(
            "hospital-charges",
            "regression",
            "hospital_charges",
            (sources.CMS_IPPS, sources.ZIP_LATLON),
            "2206 hospitals",
            preprocessing="public",
        ),
        CatalogEntry("covid-mx", "medical", "covid_mx", (sources.COVID_MX,), preprocessing="private"),
        CatalogEntry("ist", "medical", "ist", (sources.IST,), "463 hospitals", preprocessing="private"),
        CatalogEntry("diabetes-130", "medical", "diabetes_130", (sources.DIABETES,), preprocessing="private"),
        CatalogEntry("gusto", "medical", "gusto", (sources.GUSTO,), "16 regions", preprocessing="private"),
        CatalogEntry("support2", "medical", "support2", (sources.SUPPORT2,), preprocessing="private"),
    )
}


def validate(name: str, options: Mapping[str, object]) -> None:
    """Raise `UserError` if the task or one of its options does not exist. Imports no task."""
    check_names(options, choose(TASKS, name, "task").definition.parameters, f"task {name}")


def make_task(name: str, **options: object) -> "Task":
    """Make a task by its name.

    Args:
        name: one of `TASKS`.
        options: parameters of its factory; strings are converted to the annotated type.

    Raises:
        UserError: the name or an option is unknown or has the wrong type; the message suggests the nearest name.
        DataError: data is missing; the message explains how to get it.

    Example:
        >>> task = make_task("digits", clients="50")
        >>> len(task.population), task.name
        (50, 'digits')
    """
    return call(choose(TASKS, name, "task").factory, f"task {name}", options)
