"""Data as people have them: each kind works, or is refused with the sentence that helps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import tacit
from tacit.core.intake.tensors import is_mapped

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2
HALVES = ((0, 7), (7, 12))


def parts(x: Any = X, y: Any = Y) -> list[tuple[Any, Any]]:
    return [(x[begin:end], y[begin:end]) for begin, end in HALVES]


def frame(**others: Any) -> pandas.DataFrame:
    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "died": Y, **others})


class Samples(Dataset[Any]):
    def __init__(self, begin: int, end: int, form: str = "pair") -> None:
        self.begin, self.end, self.form = begin, end, form

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, number: int) -> Any:
        if number >= len(self):
            raise IndexError(number)
        x, y = X[self.begin + number].astype("f4"), int(Y[self.begin + number])
        return (x, y) if self.form == "pair" else {"x": x, "label": y}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X.astype("f4"), Y, strict=True))


class HuggingFace:
    """As much of a data set of Hugging Face as intake relies on."""

    def __init__(self, begin: int, end: int) -> None:
        self.column_names, self.features = ["x", "label"], {"x": None, "label": None}
        self.columns = {"x": X[begin:end].tolist(), "label": Y[begin:end].tolist()}

    def __getitem__(self, which: Any) -> Any:
        return {name: column[which] for name, column in self.columns.items()}


WORKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tensors": lambda _: {"clients": parts(torch.tensor(X).float(), torch.tensor(Y))},
    "tensors of float64": lambda _: {"clients": parts(torch.tensor(X), torch.tensor(Y))},
    "half precision": lambda _: {"clients": parts(torch.tensor(X).half(), torch.tensor(Y))},
    "with gradients": lambda _: {"clients": parts(torch.tensor(X, requires_grad=True), torch.tensor(Y))},
    "arrays": lambda _: {"clients": parts()},
    "arrays of integers": lambda _: {"clients": parts((X * 9).astype(np.int8), Y.astype(np.uint8))},
    "booleans": lambda _: {"clients": parts(X > 0, Y > 0)},
    "big-endian and reversed": lambda _: {"clients": parts(X.astype(">f4")[::-1], Y.astype(">i2"))},
    "lists": lambda _: {"clients": parts(X.tolist(), Y.tolist())},
    "lists of tensors": lambda _: {"clients": parts(list(torch.tensor(X).float()), list(torch.tensor(Y)))},
    "a dictionary of clients": lambda _: {"clients": dict(zip(("Rome", "Oslo"), parts(), strict=True))},
    "a generator of clients": lambda _: {"clients": (part for part in parts())},
    "a generator of samples": lambda _: {"clients": [zip(*part, strict=True) for part in parts()]},
    "pairs of samples": lambda _: {"clients": [list(zip(*part, strict=True)) for part in parts()]},
    "pandas": lambda _: {"clients": [frame()[:7], frame()[7:]], "target": "died"},
    "pandas with its own types": lambda _: {"clients": [frame().convert_dtypes()], "target": "died"},
    "Polars": lambda _: {"clients": [polars.DataFrame(frame())], "target": "died"},
    "lazy Polars": lambda _: {"clients": [polars.DataFrame(frame()).lazy()], "target": "died"},
    "pyarrow": lambda _: {"clients": [pyarrow.Table.from_pandas(frame())], "target": "died"},
    "inputs as a frame": lambda _: {"clients": [(frame()[["a", "b", "c"]], frame()["died"])]},
    "a data set": lambda _: {"clients": [Samples(*half) for half in HALVES]},
    "a data set of dictionaries": lambda _: {"clients": [Samples(*half, form="dict") for half in HALVES]},
    "a subset": lambda _: {"clients": [Subset(Samples(0, 12), range(*half)) for half in HALVES]},
    "a data set of tensors": lambda _: {"clients": [TensorDataset(torch.tensor(X).float(), torch.tensor(Y))]},
    "a stream": lambda _: {"clients": [Stream()]},
    "a loader": lambda _: {"clients": [DataLoader(Samples(*half), batch_size=4, shuffle=True) for half in HALVES]},
    "Hugging Face": lambda _: {"clients": [HuggingFace(*half) for half in HALVES]},
    "a dictionary of columns": lambda _: {"clients": [{"x": X, "died": Y}], "target": "died"},
    "memory-mapped": lambda folder: {"clients": parts(mapped(folder), Y)},
    "a client with one sample": lambda _: {"clients": [*parts(), (X[:1] + 2, Y[:1])]},
    "targets in a column": lambda _: {"clients": parts(X, Y[:, None])},
}


def mapped(folder: Path, name: str = "x") -> np.ndarray:
    np.save(folder / f"{name}.npy", X.astype("f4"))
    found: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r")
    return found


@pytest.mark.parametrize("kind", WORKS)
def test_works(kind: str, tmp_path: Path) -> None:
    task = tacit.Task(model=lambda: nn.Linear(3, 2), test=(X + 1, Y), **WORKS[kind](tmp_path))
    assert task.population.x.dtype == torch.float32
    assert task.population.y.dtype == torch.int64
    assert int(task.population.sizes.sum()) in (12, 13)
    everyone = len(task.population)
    run = tacit.train(tacit.methods.fedavg(rounds=1, cohort=everyone), task, workers=1)
    assert 0 <= run.metrics["accuracy"] <= 1


def test_all_kinds_give_the_same_samples(tmp_path: Path) -> None:
    exact = [kind for kind in WORKS if kind in ("arrays", "lists", "pandas", "a loader", "a stream", "memory-mapped")]
    for kind in exact:
        task = tacit.Task(model=nn.Linear(3, 2), **WORKS[kind](tmp_path))
        assert torch.equal(task.population.x, torch.tensor(X).float()), kind
        assert task.population.y.tolist() == Y.tolist()


class Named(nn.Module):
    """A model with an embedding and a number, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(20, 4), nn.Linear(7, 2)

    def forward(self, *, ids: Tensor, values: Tensor) -> Tensor:
        assert ids.dtype == torch.int64
        found: Tensor = self.linear(torch.cat([self.embedding(ids).mean(-2), values], -1))
        return found


class Positional(Named):
    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        return Named.forward(self, ids=ids, values=values)


IDS = np.arange(60).reshape(12, 5) % 20


@pytest.mark.parametrize("form", ["named", "positional", "columns"])
def test_several_inputs(form: str) -> None:
    def data(begin: int, end: int) -> Any:
        ids, values, y = IDS[begin:end], X[begin:end].astype("f4"), Y[begin:end]
        if form == "columns":
            return {"ids": ids, "values": values, "labels": y}
        return ((ids, values) if form == "positional" else {"ids": ids, "values": values}), y

    model = Positional if form == "positional" else Named
    task = tacit.Task(
        model=lambda: model(), clients=[data(*half) for half in HALVES], test=data(0, 3), test_overlap="intended"
    )
    run = tacit.train(tacit.methods.fedavg(rounds=2, cohort=2), task, workers=1)
    assert type(run.model) is model
    assert set(run.models[0].state_dict()) == {"embedding.weight", "linear.weight", "linear.bias"}
    assert run.model_for(data(0, 4)) is run.model


def test_memory_mapped_data_stay_on_disk(tmp_path: Path) -> None:
    halves = tacit.Task(model=nn.Linear(3, 2), clients=parts(mapped(tmp_path), Y))
    files = tacit.Task(model=nn.Linear(3, 2), clients=[(mapped(tmp_path, name), Y) for name in ("one", "two")])
    pool = tacit.Population.split(mapped(tmp_path), Y, [[0, 2, 4], np.array([1, 3])])
    assert is_mapped(halves.population.x)
    assert is_mapped(files.population.x)
    assert torch.equal(files.population.x, torch.tensor(np.concatenate([X, X])).float())
    assert is_mapped(tacit.Task(model=nn.Linear(3, 2), clients=pool).population.x)


def test_memory_mapped_images_of_bytes_are_converted_batch_by_batch(tmp_path: Path) -> None:
    images = np.memmap(tmp_path / "images", dtype=np.uint8, mode="w+", shape=(12, 1, 4, 4))
    task = tacit.Task(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), clients=parts(images, Y))
    assert task.population.x.dtype == torch.uint8
    tacit.train(tacit.methods.fedavg(rounds=1, cohort=2), task, workers=1)


def test_names_of_clients_are_in_messages() -> None:
    broken = X.copy()
    broken[2, 1] = np.nan
    with pytest.raises(tacit.DataError, match=r"client 'Oslo' \(its sample 2\) has NaN .* fill them"):
        tacit.Task(model=nn.Linear(3, 2), clients={"Rome": (X, Y), "Oslo": (broken, Y)})
    task = tacit.Task(model=nn.Linear(3, 2), clients={"Rome": (X, Y), "Oslo": (X, Y + 1)})
    with pytest.raises(tacit.DataError, match=r"Client 'Oslo': Expected labels in 0\.\.1"):
        tacit.train(tacit.methods.fedavg(rounds=1, cohort=2), task, workers=1)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a pair instead of clients": (lambda: (X, Y), r"client 0 as a pair \(x, y\), got a ndarray .*clients=\[\(x, y\)\]"),
    "one array": (lambda: X, r"one pair \(x, y\) per client, got a single ndarray.*clients=\[data\]"),
    "one frame": (frame, r"got one table.*tacit.Task.from_table\(table, client='...', target='...'\)"),
    "a path": (lambda: "patients.csv", r"got 'patients.csv'. For a file .* tacit.Task.from_table"),
    "nothing": (list, "at least one client, got none"),
    "None as a client": (lambda: [None], r"client 0 as a pair \(x, y\), got None"),
    "a frame without target": (lambda: [frame()], r"the column to predict in client 0, got none. Add target='...'"),
    "too few targets": (lambda: [(X, Y[:5])], "Client 0 has 12 samples but 5 targets"),
    "no samples": (lambda: [(X, Y), (X[:0], Y[:0])], "client 1 has none"),
    "NaN": (lambda: [(np.where(X > 0, X, np.nan), Y)], "client 0 .* has NaN"),
    "infinity": (
        lambda: [(X, Y), (X / 0.0 if False else np.full((2, 3), np.inf), Y[:2])],
        r"client 1 \(its sample 0\)",
    ),
    "strings": (lambda: [(X.astype(str), Y)], r"the inputs of client 0, got strings .*from_table"),
    "strings as targets": (lambda: [(X, ["yes", "no"] * 6)], r"targets of client 0, got strings such as 'yes'.*unique"),
    "missing values": (lambda: [([[1, None, 2]] * 2, [0, 1])], r"client 0, got missing values \(None\)"),
    "ragged lists": (lambda: [([[1, 2], [3]], [0, 1])], "lists of different lengths. Pad"),
    "ragged tensors": (lambda: [([torch.zeros(2), torch.zeros(3)], [0, 1])], r"got \(2,\), \(3,\). Pad .*pad_sequence"),
    "objects": (lambda: [(np.array([[{}], [{}]], dtype=object), [0, 1])], "an array of dict"),
    "dates": (lambda: [(np.array(["2020-01-01"] * 2, "M8[D]"), [0, 1])], "inputs of client 0, got dates"),
    "sparse tensors": (lambda: [(torch.tensor(X).to_sparse(), Y)], r"dense tensor, got a sparse one.*to_dense\(\)"),
    "sparse matrices": (lambda: [(__import__("scipy.sparse").sparse.csr_matrix(X), Y)], r"sparse matrix.*toarray\(\)"),
    "complex numbers": (lambda: [(X + 1j, Y)], "real numbers for the inputs of client 0, got complex128"),
    "unequal features": (lambda: [(X, Y), (X[:, :2], Y)], r"like those of client 0 .*client 1 has .*shape \(2,\)"),
    "unequal inputs": (
        lambda: [({"a": X, "b": X}, Y), ({"a": X, "c": X}, Y)],
        "inputs a, b for client 1, as for the first client, got a, c",
    ),
    "one input, then two": (lambda: [(X, Y), ((X, X), Y)], "a single tensor of inputs for client 1"),
    "a scalar": (lambda: [(3.0, 1)], "a single number"),
    "an empty loader": (lambda: [DataLoader(Samples(0, 0))], "client 0 to have samples, got none"),
    "columns without a target": (lambda: [{"a": X, "b": X}], "a column to predict in client 0, which has a, b"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    data, words = REFUSED[kind]
    with pytest.raises(tacit.UserError, match=words):
        tacit.Task(model=nn.Linear(3, 2), clients=data())


FRAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "categories": (lambda: frame(sex=["f", "m"] * 6), "column 'sex' of client 0, got str such as 'f'.*from_table"),
    "dates": (lambda: frame(day=pandas.Timestamp("2020-01-01", tz="UTC")), "column 'day' of client 0, got dates"),
    "a missing number": (lambda: frame(d=[None, *range(11)]), "client 0 .its sample 0. has NaN"),
    "no such column": (lambda: frame().rename(columns={"died": "dead"}), "column 'died', .* Did you mean 'dead'"),
    "only the target": (lambda: frame()[["died"]], "columns beside the target 'died', got none"),
    "equal names": (lambda: pandas.concat([frame(), frame()], axis=1), "a, b, c, died more than once"),
    "no rows": (lambda: frame()[:0], "client 0 has none"),
}


@pytest.mark.parametrize("library", ["pandas", "Polars"])
@pytest.mark.parametrize("kind", FRAMES)
def test_refused_frames(kind: str, library: str) -> None:
    make, words = FRAMES[kind]
    if library == "Polars" and kind == "equal names":
        return  # Polars itself refuses them
    data = make() if library == "pandas" else polars.from_pandas(make())
    with pytest.raises(tacit.UserError, match=words):
        tacit.Task(model=nn.Linear(3, 2), clients=[data], target="died")
