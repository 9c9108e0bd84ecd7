"""Populations on disk train like those in memory, and take no memory."""

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from tacit import methods
from tacit.core import Method
from tacit.core.prices import Unit
from tacit.data import Population, Task
from tacit.data.population_files import PopulationWriter, StoredTensor, open_population, read_ahead, release_pages
from tacit.engine import rounds
from tacit.errors import DataError, UserError
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import Sgd

SIZES = [4, 9, 7, 7, 5, 3, 8, 6]
METHOD = Method(name="m", rounds=2, sampler=FixedSize(6), trainer=Sgd(lr=0.1, epochs=1, batch_size=4))


@pytest.mark.parametrize("workers", [1, 2])
def test_training_from_disk_gives_the_same_bits(tmp_path: Path, workers: int) -> None:
    memory = zoo.population(SIZES)
    disk = Population.write(tmp_path / "p", memory)
    assert isinstance(Task(model=zoo.mlp, clients=disk).population.x, StoredTensor)
    finals = []
    for clients in (memory, Population.open(tmp_path / "p")):
        *_, (state, _) = rounds(
            METHOD, Task(model=zoo.mlp, clients=clients), seed=1, workers=workers, randomness="seeded"
        )
        finals.append(state.weights)
    assert torch.equal(*finals)


def visited() -> Population:
    """Clients whose samples are those of two persons in turn, and in the last one of as many as it has samples."""
    population = zoo.population(SIZES)
    ids = [[f"P{sample % (2 if size != 6 else 6)}" for sample in range(size)] for size in SIZES]
    return population.with_persons(ids)


def test_training_persons_from_disk_gives_the_same_bits(tmp_path: Path) -> None:
    disk, finals = Population.write(tmp_path / "p", visited()), []
    assert isinstance(disk.persons, StoredTensor)
    method = methods.dp_sgd(rounds=2, epsilon=None, noise=1.0)
    for clients in (visited(), disk, zoo.population(SIZES)):
        *_, (state, _) = rounds(method, Task(model=zoo.mlp, clients=clients), seed=1, workers=1, randomness="seeded")
        finals.append(state.weights)
    assert torch.equal(finals[0], finals[1])
    assert not torch.equal(finals[0], finals[2])


def test_persons_are_written_with_their_clients(tmp_path: Path) -> None:
    whole, ids = visited(), np.array(["b", "a", "a", "b", *"abcdefghi"])
    with PopulationWriter(tmp_path / "p") as writer:
        writer.add(whole.x[:13], whole.y[:13], SIZES[:2], persons=ids)
        writer.add(whole.x[13:20], whole.y[13:20], [7], torch.tensor([5, 5, 5, 4, 4, 5, 0]))
        with pytest.raises(UserError, match="the persons of all clients or of none"):
            writer.add(whole.x[20:27], whole.y[20:27], [7])
        with pytest.raises(UserError, match="the id of a person for each of 7 samples, got 3"):
            writer.add(whole.x[20:27], whole.y[20:27], [7], [1, 2, 3])
        with pytest.raises(DataError, match="every record of client 3, but record 1 has none"):
            writer.add(whole.x[20:22], whole.y[20:22], [2], [1, None])
    found = open_population(tmp_path / "p")
    assert (found.unit, found.unit_sizes.tolist()) == (Unit.PERSON, [2, 9, 3])
    assert found.persons is not None
    assert found.persons.tolist() == [0, 1, 1, 0, *range(9), 0, 0, 0, 1, 1, 0, 2]
    release_pages(found)
    again = Population.write(tmp_path / "q", found)
    assert again.persons is not None
    assert torch.equal(again.persons, found.persons)


def test_a_stream_of_clients_can_have_persons(tmp_path: Path) -> None:
    stream = ((torch.zeros(n, 2), torch.zeros(n).long(), ["a"] * n) for n in (3, 1))
    assert Population.write(tmp_path / "p", stream).unit_sizes.tolist() == [1, 1]


@pytest.mark.parametrize("wrong", [-1, 1, 4, 1 << 40])
def test_persons_that_are_not_numbered_from_0_are_refused(tmp_path: Path, wrong: int) -> None:
    disk = Population.write(tmp_path / "p", [(torch.zeros(n, 3), torch.zeros(n).long(), [7] * n) for n in (2, 4)])
    assert Task(model=zoo.mlp, clients=disk).population.unit is Unit.PERSON
    numbers = np.fromfile(tmp_path / "p" / "persons", np.int64)
    numbers[2:] = wrong
    numbers.tofile(tmp_path / "p" / "persons")
    with pytest.raises(DataError, match="Expected the persons of every client to be numbered from 0"):
        Task(model=zoo.mlp, clients=Population.open(tmp_path / "p"))


def test_clients_can_be_written_many_at_a_time(tmp_path: Path) -> None:
    whole = zoo.population(SIZES)
    with PopulationWriter(tmp_path / "p") as writer:
        writer.add(whole.x[:13], whole.y[:13], SIZES[:2])
        writer.add(whole.x[13:].numpy(), whole.y[13:].numpy(), np.array(SIZES[2:]))
    found = open_population(tmp_path / "p")
    for client in range(len(SIZES)):
        assert all(torch.equal(one, other) for one, other in zip(found[client], whole[client], strict=True))


def test_what_was_let_go_is_read_again(tmp_path: Path) -> None:
    whole = zoo.population(SIZES)
    disk = Population.write(tmp_path / "p", whole)
    read_ahead(disk, torch.tensor([1, 7]))
    release_pages(disk)
    assert torch.equal(disk.x, whole.x)
    release_pages(whole)  # in memory: nothing happens
    assert torch.equal(disk.sizes_of(torch.tensor([7, 0])), torch.tensor([6, 4]))


def test_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected a new folder for a population"):
        PopulationWriter(tmp_path)


@pytest.mark.parametrize("name", ["x", "y", "offsets", "indices", "persons"])
def test_files_of_another_length_are_refused(tmp_path: Path, name: str) -> None:
    Population.write(tmp_path / "p", visited())
    with (tmp_path / "p" / name).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DataError, match=rf"{name} to have \d+ bytes, got \d+\. Write the population again"):
        Population.open(tmp_path / "p")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b'"float32"', b'"object"', "does not fit"),
        (b'"clients": 8', b'"clients": -1', "does not fit"),
        (b'"samples": 49', b'"samples": 48', "bytes"),
        (b"[1, 8, 8]", b"[1, -8, -8]", "does not fit"),
        (b"{", b"[", "population.json"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(tmp_path: Path, before: bytes, after: bytes, words: str) -> None:
    Population.write(tmp_path / "p", zoo.population(SIZES))
    file = tmp_path / "p" / "population.json"
    assert before in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(before, after, 1))
    with pytest.raises(DataError, match=words):
        Population.open(tmp_path / "p")


def test_offsets_that_go_back_are_refused(tmp_path: Path) -> None:
    Population.write(tmp_path / "p", zoo.population(SIZES))
    offsets = np.fromfile(tmp_path / "p" / "offsets", np.int64)
    offsets[3] = 0
    offsets.tofile(tmp_path / "p" / "offsets")
    with pytest.raises(DataError, match="client 2 has none"):
        Task(model=zoo.mlp, clients=Population.open(tmp_path / "p"))


def test_samples_of_different_forms_are_refused(tmp_path: Path) -> None:
    with PopulationWriter(tmp_path / "p") as writer:
        writer.add(torch.zeros(2, 3), torch.zeros(2).long(), [2])
        with pytest.raises(UserError, match="samples of one form"):
            writer.add(torch.zeros(2, 4), torch.zeros(2).long(), [2])
        with pytest.raises(UserError, match="as many samples as the clients have together"):
            writer.add(torch.zeros(2, 3), torch.zeros(2).long(), [1])


MEMORY = """
import sys, torch
from pathlib import Path
from tacit.core import Method
from tacit.data import Population, Task
from tacit.data.population_files import PopulationWriter
from tacit.engine import rounds
from tacit.pieces.samplers import Poisson
from tacit.pieces.trainers import Sgd
x, y = torch.rand(2 * 50_000, 8), torch.randint(0, 2, (2 * 50_000,))
method = Method(name="m", rounds=2, sampler=Poisson(200), trainer=Sgd(lr=0.1, steps=1))
for count in map(int, sys.argv[2:]):
    folder = Path(sys.argv[1], str(count))
    with PopulationWriter(folder) as writer:
        for _ in range(count // 50_000):
            writer.add(x, y, [2] * 50_000)
    list(rounds(method, Task(model=lambda: torch.nn.Linear(8, 2), clients=Population.open(folder)), workers=1))
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    print(fields["RssAnon"].split()[0])
"""


@pytest.mark.law("memory and time")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_population(tmp_path: Path) -> None:
    """A million clients take as much as a hundred thousand; their samples and indices would take 100 MB."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path), "100000", "1000000"]
    used = [int(line) for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
    assert len(used) == 2
    assert used[1] < used[0] + 24_000  # kB


def test_a_population_on_disk_is_not_copied_by_a_task(tmp_path: Path) -> None:
    disk = Population.write(tmp_path / "p", zoo.population(SIZES))
    task = Task(model=zoo.mlp, clients=disk)
    assert task.population.x is disk.x
    assert task.population.y is disk.y
    assert replace(task, name="other").population.x is disk.x


def test_files_are_opened_again_and_not_sent(tmp_path: Path) -> None:
    """Wherever a population goes, its numbers stay in the files; what is computed of them is an ordinary tensor."""
    disk = Population.write(tmp_path / "p", [(torch.randn(5, 3), torch.zeros(5)) for _ in range(40)])
    packed = pickle.dumps(disk)
    assert len(packed) < 1000
    for copied in (pickle.loads(packed), copy.deepcopy(disk)):
        assert isinstance(copied.x, StoredTensor)
        assert torch.equal(copied.x, disk.x)
    assert type(disk.x[:2]) is type(disk.x + 1) is type(disk[1][0]) is Tensor
