"""The tasks by name. Adding one is adding a factory and a record here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from tacit.core.schema import call, choose
from tacit.core.task import Task
from tacit.tasks import handwriting, hospital, images, medical, sources, synthetic
from tacit.tasks.datasets import DataSet, folders, locate


@dataclass(frozen=True)
class Entry:
    """A named task: how it is made, and from which data."""

    name: str
    factory: Callable[..., Task]
    data: tuple[DataSet, ...] = ()
    natural: str = ""  # the clients that the data bring along, where those are the default
    folder: str = ""  # of files that have no checksum, because everybody makes their own

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory) or "").split("\n")[0]

    @property
    def clients(self) -> str:
        """The clients by default, in words."""
        return self.natural or str(inspect.signature(self.factory).parameters["clients"].default)

    @property
    def ready(self) -> bool:
        """Whether all files that the task needs are present."""
        if self.folder and not any(any((place / self.folder).rglob("*.json")) for place in folders()):
            return False
        return all(
            locate(file) is not None for data in self.data for file in data.files if file.path not in data.optional
        )


TASKS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("digits", images.digits),
        Entry("synthetic", synthetic.synthetic),
        Entry("mnist", images.mnist, (sources.MNIST,)),
        Entry("mnist-writers", images.mnist_writers, (sources.MNIST, sources.QMNIST_WRITERS), "539 writers"),
        Entry("femnist", handwriting.femnist, natural="LEAF's writers", folder="femnist"),
        Entry("fashion-mnist", images.fashion_mnist, (sources.FASHION_MNIST,)),
        Entry("cifar-10", images.cifar_10, (sources.CIFAR_10,)),
        Entry("hospital-charges", hospital.hospital_charges, (sources.CMS_IPPS, sources.ZIP_LATLON), "2206 hospitals"),
        Entry("covid-mx", medical.covid_mx, (sources.COVID_MX,)),
        Entry("ist", medical.ist, (sources.IST,), "463 hospitals"),
        Entry("diabetes-130", medical.diabetes_130, (sources.DIABETES,)),
        Entry("gusto", medical.gusto, (sources.GUSTO,), "16 regions"),
        Entry("support2", medical.support2, (sources.SUPPORT2,)),
    )
}


def make_task(name: str, **options: object) -> Task:
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
