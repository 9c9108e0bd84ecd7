"""Data as people have them: each kind works, or is refused with the sentence that helps."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tacit
from tacit.data import client_samples, data_sets
from tacit.data.tensors import MappedTensor

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


class Streamed:
    """As much of a streamed data set of Hugging Face as intake relies on."""

    column_names, features = ["x", "label"], {"x": None, "label": None}

    def __iter__(self) -> Iterator[Any]:
        return ({"x": x.tolist(), "label": int(y)} for x, y in zip(X, Y, strict=True))


class Broken(Samples):
    def __getitem__(self, number: int) -> Any:
        raise OSError("the disk is gone")


class Ragged(Samples):
    def __getitem__(self, number: int) -> Any:
        return torch.ones(1 + number // 4), 0


def padded(batch: list[Any]) -> Any:
    xs, ys = zip(*batch, strict=True)
    return nn.utils.rnn.pad_sequence(list(xs), batch_first=True), torch.tensor(ys)


def endless() -> Iterator[Any]:
    while True:
        yield X[0], 0


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
    "objects that are numbers": lambda _: {"clients": parts(X.astype(object), Y.astype(object))},
    "exact numbers": lambda _: {"clients": [([[Fraction(1, 3), Decimal("2.5"), 1]] * 12, Y)]},
    "objects that are arrays": lambda _: {"clients": [(objects(list(X)), Y)]},
    "records of NumPy": lambda _: {"clients": [frame().to_records(index=False)], "target": "died"},
    "a masked array without masked values": lambda _: {"clients": parts(np.ma.masked_array(X, mask=False), Y)},
    "archives": lambda folder: {"clients": [archive(folder)], "target": "died"},
    "records": lambda _: {"clients": [[{"x": x, "label": y} for x, y in zip(X, Y, strict=True)]]},
    "data sets one after the other": lambda _: {"clients": [ConcatDataset([Samples(0, 5), Samples(5, 12)])]},
    "a loader of single samples": lambda _: {"clients": [DataLoader(Samples(0, 12), batch_size=None)]},
    "a loader of a stream": lambda _: {"clients": [DataLoader(Stream(), batch_size=5)]},
    "a loader with a sampler": lambda _: {
        "clients": [DataLoader(Samples(0, 12), 4, sampler=SubsetRandomSampler(range(*half))) for half in HALVES]
    },
    "a stream of Hugging Face": lambda _: {"clients": [Streamed()]},
    "memory-mapped float64": lambda folder: {"clients": parts(mapped(folder, kind="f8"), Y)},
    "an array of clients": lambda _: {"clients": objects(parts())},
}


def objects(values: list[Any]) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        found[number] = value
    return found


def archive(folder: Path) -> Any:
    np.savez(folder / "client.npz", x=X, died=Y)
    return np.load(folder / "client.npz")


def mapped(folder: Path, name: str = "x", kind: str = "f4") -> np.ndarray:
    np.save(folder / f"{name}.npy", X.astype(kind))
    found: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r")
    return found


@pytest.mark.parametrize("kind", WORKS)
def test_works(kind: str, tmp_path: Path) -> None:
    task = tacit.Task(model=lambda: nn.Linear(3, 2), test=(X + 1, Y), **WORKS[kind](tmp_path))
    assert task.population.x.dtype == (torch.float64 if kind == "memory-mapped float64" else torch.float32)
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
    assert isinstance(halves.population.x, MappedTensor)
    assert isinstance(files.population.x, MappedTensor)
    assert torch.equal(files.population.x, torch.tensor(np.concatenate([X, X])).float())
    assert isinstance(tacit.Task(model=nn.Linear(3, 2), clients=pool).population.x, MappedTensor)


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
    "one sample": (lambda: [(X[0], Y[0])], r"For one sample write \(x\[None\], \[y\]\)"),
    "masked values": (lambda: [(np.ma.masked_array(X, X > 0), Y)], r"inputs of client 0, got .* masked .*filled\(0\)"),
    "masked targets": (lambda: [(X, np.ma.masked_array(Y, Y > 0))], "targets of client 0, got 6 masked values of 12"),
    "nested tensors": (
        lambda: [(torch.nested.as_nested_tensor([torch.zeros(2)], layout=torch.jagged), [0])],
        "to_padded_tensor",
    ),
    "tensors without data": (lambda: [(torch.empty(2, 3, device="meta"), [0, 1])], "device='meta'"),
    "objects of other shapes": (lambda: [(objects([X[0], X[0, :2]]), [0, 1])], r"got \(2,\), \(3,\). Pad"),
    "a set": (lambda: [({1, 2}, [0, 1])], "an array of set. Give a list"),
    "texts": (lambda: [(["good", "bad"], [0, 1])], "strings such as 'good'. .*tokenizer"),
    "inputs, then targets": (lambda: ([X, X], [Y, Y]), r"Write clients=list\(zip\(xs, ys\)\)"),
    "several inputs in a list": (
        lambda: [([X, X, X], Y)],
        r"3 samples but 12 targets. .*\(\(a, b\), y\), with a tuple",
    ),
    "an empty client of lists": (lambda: {"Rome": (X, Y), "Oslo": ([], [])}, "client 'Oslo' has none"),
    "NaN as a target": (lambda: [(X, np.where(Y > 0, np.nan, 0.0))], "client 0, but 6 of 12 have none: NaN.*sample 1"),
    "a sampler that repeats": (
        lambda: [DataLoader(Samples(0, 12), sampler=WeightedRandomSampler([1.0] * 12, 40))],
        "each sample of client 0 once, got WeightedRandomSampler",
    ),
    "a data set that fails": (
        lambda: [Broken(0, 3)],
        "samples of client 0 could not be read: OSError: the disk is gone",
    ),
    "a padded loader": (
        lambda: [DataLoader(Ragged(0, 12), 2, collate_fn=padded)],
        r"got \(1,\), \(2,\), .*Pad or crop",
    ),
    "an empty loader": (lambda: [DataLoader(Samples(0, 0))], "client 0 to have samples, got none"),
    "columns without a target": (lambda: [{"a": X, "b": X}], "a column to predict in client 0, which has a, b"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    data, words = REFUSED[kind]
    with pytest.raises(tacit.UserError, match=words):
        tacit.Task(model=nn.Linear(3, 2), clients=data())


@pytest.mark.parametrize("what", ["samples", "clients", "a loader"])
def test_what_does_not_end_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return endless()

    monkeypatch.setattr(data_sets, "MAX_STREAMED_SAMPLES", 50)
    monkeypatch.setattr(client_samples, "MAX_CLIENTS", 50)
    data: Any = {"samples": [endless()], "a loader": [DataLoader(Endless(), 5)]}.get(
        what, ((X, Y) for _ in itertools.count())
    )
    with pytest.raises(tacit.DataError, match=r"to end, got 50 and no end. Take some: itertools.islice"):
        tacit.Task(model=nn.Linear(3, 2), clients=data)


def test_columns_are_matched_by_their_names() -> None:
    turned = frame()[["died", "c", "a", "b"]]
    halves = [frame()[:7], turned[7:]]
    task = tacit.Task(
        model=nn.Linear(3, 2), clients=halves, test=turned, target="died", public=turned, test_overlap="intended"
    )
    expected = torch.tensor(X).float()
    for found in (task.population.x, task.test[0], task.public[0]):
        assert torch.equal(found, expected)
    again = replace(task, test=turned)
    assert torch.equal(again.test[0], expected)
    with pytest.raises(tacit.DataError, match=r"the columns a, b, c for client 1, .* but it lacks b"):
        tacit.Task(model=nn.Linear(3, 2), clients=[frame(), frame().rename(columns={"b": "z"})], target="died")
    with pytest.raises(tacit.DataError, match=r"for the held-out data, .* but it also has d"):
        tacit.Task(model=nn.Linear(3, 2), clients=[frame()], test=frame(d=1.0), target="died")


def test_a_loader_gives_only_what_its_sampler_chooses() -> None:
    loaders = WORKS["a loader with a sampler"](Path())["clients"]
    task = tacit.Task(model=nn.Linear(3, 2), clients=loaders)
    assert task.population.sizes.tolist() == [7, 5]
    assert torch.equal(task.population.x, torch.tensor(X).float())


FRAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "categories": (lambda: frame(sex=["f", "m"] * 6), "column 'sex' of client 0, got str such as 'f'.*from_table"),
    "dates": (lambda: frame(day=pandas.Timestamp("2020-01-01", tz="UTC")), "column 'day' of client 0, got dates"),
    "a missing number": (lambda: frame(d=[None, *range(11)]), r"column 'd' of client 0, but 1 of 12 .*row 1.*fillna"),
    "a missing target": (lambda: frame(died=[None, *Y[1:]]), "a target for every sample of client 0, but 1 of 12"),
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


@pytest.mark.parametrize("form", ["a frame", "records of NumPy"])
def test_the_column_of_persons_is_no_input_of_held_out_data(form: str) -> None:
    data = frame(person=np.arange(12) // 2)
    given = data if form == "a frame" else data.to_records(index=False)
    task = tacit.Task(
        model=nn.Linear(3, 2), clients=[given], test=given, target="died", person="person", test_overlap="intended"
    )
    assert torch.equal(task.test[0], torch.tensor(X).float())
    assert task.population.persons is not None
