"""Populations on disk: the samples of all clients, one after the other, in files that are mapped into memory.

A folder has `x`, `y`, `offsets`, `indices` and, if samples are assigned to persons, `persons`: plain numbers in the
machine's byte order, and `population.json` with their types and shapes. Ten million clients take no memory: a wave
reads its samples ahead of time, and releases them. The lengths of the files are checked against the description; the
files are data, not code.
"""

import math
import mmap
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import files
from tacit.core.serialization import Source, read_json, write_json
from tacit.data.persons import number_persons
from tacit.data.population import Population
from tacit.data.tables import DESCRIPTION
from tacit.data.tensors import MappedTensor, to_tensor
from tacit.errors import DataError, expect

PERSON_IDS = "persons"
_KINDS = ("float32", "float64", "int64", "uint8")
_FORMAT = 1


@dataclass(frozen=True)
class ArrayForm:
    """The type of an array's numbers, and the shape of one sample."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def octets(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class StoredTensor(MappedTensor):
    """A file of a population on disk. Another process, on any machine, opens it under the same path.

    Attributes:
        file: the arguments of `open_array`.
    """

    file: tuple[Path, ArrayForm, int]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return open_array, self.file

    @property
    def mapping(self) -> mmap.mmap:
        """The mapped memory."""
        mapping: mmap.mmap = self.array._mmap  # type: ignore[attr-defined]  # of numpy.memmap, which has no stub for it
        return mapping


@dataclass(frozen=True)
class PopulationForm:
    """The contents of a folder."""

    clients: int
    samples: int
    x: ArrayForm
    y: ArrayForm
    persons: bool = False
    format: int = _FORMAT


class PopulationWriter:
    """Writes a population to a new folder, some clients at a time.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp()) / "mine"
        >>> with PopulationWriter(folder) as writer:
        ...     writer.add(torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0]), sizes=[3, 2])
        >>> open_population(folder).sizes.tolist()
        [3, 2]
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        expect(not self.folder.exists(), f"a new folder for a population, but {folder} exists", "Choose another one.")
        self.folder.mkdir(parents=True)
        self._forms: tuple[ArrayForm, ArrayForm] | None = None
        self._clients = self._samples = 0
        self._persons = False
        with ExitStack() as stack:
            names = ("x", "y", "offsets", "indices", PERSON_IDS)
            self._files = {name: stack.enter_context((self.folder / name).open("wb")) for name in names}
            self._stack = stack.pop_all()
        self._files["offsets"].write(np.zeros(1, np.int64).tobytes())

    def add(self, x: Any, y: Any, sizes: Iterable[int], persons: Any = None) -> None:
        """Append clients of these sizes, whose samples follow one another in x and y.

        Args:
            x: the inputs.
            y: the targets.
            sizes: how many samples each client has.
            persons: for every sample the id of its person, a number or a string, so that methods that protect records
                protect persons; equal ids at two clients are two persons. None: unknown, for all clients.
        """
        inputs, targets = to_tensor(x, "the inputs").numpy(), to_tensor(y, "the targets").numpy()
        counts = np.asarray(list(sizes) if not isinstance(sizes, np.ndarray) else sizes, np.int64)
        expect(
            bool(len(inputs) == len(targets) == counts.sum() and (counts > 0).all()),
            f"as many samples as the clients have together, and at least one each, got {len(inputs)} inputs, "
            f"{len(targets)} targets and {int(counts.sum())} samples of {len(counts)} clients",
        )
        self._check_form(form_of(inputs), form_of(targets))
        numbers = None if persons is None else self._number(persons, counts.tolist())
        expect(
            self._clients == 0 or self._persons == (numbers is not None),
            "the persons of all clients or of none",
            "Give persons= with every add.",
        )
        self._persons = numbers is not None
        self._files[PERSON_IDS].write(b"" if numbers is None else numbers.numpy().data)
        self._files["x"].write(np.ascontiguousarray(inputs).data)
        self._files["y"].write(np.ascontiguousarray(targets).data)
        self._files["offsets"].write((self._samples + counts.cumsum()).tobytes())
        self._files["indices"].write(np.arange(self._samples, self._samples + len(inputs)).tobytes())
        self._clients, self._samples = self._clients + len(counts), self._samples + len(inputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()
        if kind is None:
            expect(self._forms is not None, "at least one client, got none")
            assert self._forms is not None
            form = PopulationForm(self._clients, self._samples, *self._forms, persons=self._persons)
            files.write(self.folder / DESCRIPTION, write_json(asdict(form)))
            if not self._persons:
                (self.folder / PERSON_IDS).unlink()

    def _number(self, ids: Any, sizes: Sequence[int]) -> Tensor:
        """The number of every sample's person among those of its client."""
        values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        expect(len(values) == sum(sizes), f"the id of a person for each of {sum(sizes)} samples, got {len(values)}")
        rest = iter(values)
        vectors = [list(islice(rest, size)) for size in sizes]
        return number_persons(vectors, [f"client {self._clients + each}" for each in range(len(sizes))], sizes)[0]

    def _check_form(self, *forms: ArrayForm) -> None:
        x, y = forms
        if self._forms is None:
            expect({x.dtype, y.dtype} <= {*_KINDS}, f"numbers of type {', '.join(_KINDS)}, got {x.dtype} and {y.dtype}")
            self._forms = x, y
        expect(self._forms == (x, y), f"samples of one form, {self._forms}, got {(x, y)}")


def write_population(folder: Path | str, clients: Iterable[Sequence[Any]]) -> Population:
    """Write clients' samples, `(x, y)` or `(x, y, persons)`, to a new folder, one client after another, and open it."""
    with PopulationWriter(folder) as writer:
        for x, y, *persons in _with_persons(clients):
            writer.add(x, y, [len(x)], *persons)
    return open_population(folder)


def _with_persons(clients: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
    """The clients; a population's with persons, which its pairs lack."""
    if not isinstance(clients, Population) or clients.persons is None:
        return clients
    persons = torch.split(clients.persons, clients.sizes.tolist())
    return ((*each, own) for each, own in zip(clients, persons, strict=True))


def open_population(folder: Path | str) -> Population:
    """The population in a folder; its numbers stay on disk until they are used.

    Raises:
        DataError: the folder is not one that `PopulationWriter` wrote, or is incomplete.
    """
    place = Path(folder).absolute()
    source = Source(label=str(place / DESCRIPTION), error=DataError, advice="Write the population again.")
    form = read_json(files.read(place / DESCRIPTION, error=DataError), PopulationForm, source)
    index = ArrayForm("int64", ())
    parts = {"x": (form.x, form.samples), "y": (form.y, form.samples)}
    parts |= {"indices": (index, form.samples), "offsets": (index, form.clients + 1)}
    x, y, indices, offsets = (open_array(place / name, each, count) for name, (each, count) in parts.items())
    persons = open_array(place / PERSON_IDS, index, form.samples) if form.persons else None
    return Population(x, y, indices, offsets, persons=persons)


def open_array(path: Path, form: ArrayForm, count: int) -> Tensor:
    """The numbers of a file, mapped into memory; raises `DataError` if there are more or fewer."""
    if form.dtype not in _KINDS or min(form.shape, default=1) < 1 or count < 1:
        raise DataError(f"Expected {count} samples of {form} in {path}: the description does not fit.")
    expected = count * form.octets
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"Expected {path} of a population, but it cannot be read ({error.strerror}).") from error
    if size != expected:
        raise DataError(f"Expected {path} to have {expected} bytes, got {size}. Write the population again.")
    array: NDArray[Any] = np.memmap(path, dtype=form.dtype, mode="r", shape=(count, *form.shape))
    tensor = to_tensor(array, str(path)).as_subclass(StoredTensor)
    tensor.array, tensor.file = array, (path, form, count)
    return tensor


def read_ahead(population: Population, clients: Tensor) -> None:
    """Ask the system to read these clients' samples from the disk; it returns at once."""
    if not is_stored(population):
        return
    starts, ends = population.offsets[clients].tolist(), population.offsets[clients + 1].tolist()
    for tensor in (population.x, population.y):
        if isinstance(tensor, StoredTensor):
            octets = tensor[0].numel() * tensor.element_size()
            for start, end in zip(starts, ends, strict=True):
                begin = start * octets // mmap.PAGESIZE * mmap.PAGESIZE
                tensor.mapping.madvise(mmap.MADV_WILLNEED, begin, end * octets - begin)


def release_pages(population: Population) -> None:
    """Release the pages that this process has read: the system caches them while it has room."""
    if is_stored(population):
        parts = (population.x, population.y, population.sample_indices, population.offsets, population.persons)
        for tensor in parts:
            if isinstance(tensor, StoredTensor):
                tensor.mapping.madvise(mmap.MADV_DONTNEED)


def is_stored(population: Population) -> bool:
    """Whether the inputs are in a file of a population on disk."""
    return isinstance(population.x, StoredTensor) and hasattr(mmap, "MADV_WILLNEED")


def form_of(array: NDArray[Any]) -> ArrayForm:
    """The form of the samples of an array."""
    return ArrayForm(array.dtype.name, array.shape[1:])
