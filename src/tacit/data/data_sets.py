"""Samples of PyTorch's data sets and loaders, and of other iterables, in batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from tacit.data.tensors import check_one_shape, to_tensor
from tacit.errors import DataError, UserError

MAX_STREAMED_SAMPLES = 1 << 18  # of a client, from an iterable without a length


def loader_batches(loader: "DataLoader[Any]", who: str) -> Iterator[Any]:
    """The loader's batches, in the data set's order; its batch size plays no role in training."""
    data, size = loader.dataset, loader.batch_size
    if loader.batch_sampler is None:  # the data set makes batches itself, or there are none
        yield from (batch_of_one(item, who) if _is_sample(item) else item for item in limit_count(loader, who))
        return
    if size is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        yield from limit_count(loader, who, size or 1)
        return
    chosen = _choose_samples(loader, len(data), who)
    for begin in range(0, len(chosen), size):
        yield loader.collate_fn([data[i] for i in chosen[begin : begin + size]])


def dataset_samples(data: Any, who: str) -> Iterator[Any]:
    """Every sample of a data set as a batch of one."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        samples: Iterable[Any] = limit_count(data, who)
    elif hasattr(data, "__len__"):
        samples = (data[i] for i in range(len(data)))
    else:
        raise DataError(f"Expected {who} to know its length: give {type(data).__name__} a __len__.")
    for sample in samples:
        yield batch_of_one(sample, who)


def batch_of_one(sample: Any, who: str) -> Any:
    """A sample as a batch: a pair, or a dictionary of columns."""
    if isinstance(sample, Mapping):
        return _one(sample, who)
    if isinstance(sample, tuple | list) and len(sample) > 1:
        x, y = as_pair(sample)
        return _one(x, who), stack((y,), who)
    raise DataError(f"Expected samples (x, y) in the data set of {who}, got {describe(sample)}.")


def as_pair(batch: Any) -> Any:
    """Several inputs and the targets as a pair; anything else is unchanged."""
    return (tuple(batch[:-1]), batch[-1]) if isinstance(batch, tuple | list) and len(batch) > 2 else batch


def readable(items: Iterable[Any], what: str) -> Iterator[Any]:
    """The same items; an error in their code is reported with their client."""
    try:
        yield from items
    except UserError:
        raise
    except Exception as error:  # a user's data set may fail in any way
        raise DataError(f"{capitalize(what)} could not be read: {type(error).__name__}: {error}") from error


def limit_count(items: Iterable[Any], who: str, each: int = 1) -> Iterator[Any]:
    """The same items, of `each` samples; raises `DataError` if there are too many."""
    for number, item in enumerate(items):
        if number * each >= MAX_STREAMED_SAMPLES:
            raise DataError(
                f"Expected the samples of {who} to end, got {number * each} and no end. Take some: "
                "itertools.islice(data, n); for more samples use memory-mapped arrays: numpy.load(..., mmap_mode='r')."
            )
        yield item


def _is_sample(item: Any) -> bool:
    """Whether this is one sample and not a batch: its target is a single number."""
    if not isinstance(item, tuple | list) or len(item) < 2:
        return False
    return not isinstance(item[-1], tuple | list) and np.ndim(item[-1]) == 0


def _choose_samples(loader: "DataLoader[Any]", count: int, who: str) -> Sequence[int]:
    """The samples that the loader's sampler chooses, each once, in the data set's order."""
    sampler: Any = loader.sampler
    shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement
    if (shuffles or isinstance(sampler, SequentialSampler)) and len(sampler) == count:
        return range(count)
    chosen = sorted(limit_count(sampler, who))
    if len(set(chosen)) < len(chosen):
        raise DataError(
            f"Expected each sample of {who} once, got {type(sampler).__name__}, which repeats some. Batches are drawn "
            "by the method: give the data set itself, or class weights as loss=tacit.CrossEntropy(weight=...)."
        )
    return chosen


def _one(x: Any, who: str) -> Any:
    if isinstance(x, Mapping):
        return {name: stack((value,), who) for name, value in x.items()}
    return tuple(stack((value,), who) for value in x) if isinstance(x, tuple) else stack((x,), who)


def stack(values: Sequence[Any], who: str) -> Tensor:
    """Samples in one tensor."""
    tensors = [to_tensor(value, who) for value in values]
    check_one_shape(tensors, who, "Pad or crop them.")
    return torch.stack(tensors)


def capitalize(who: str) -> str:
    """At the beginning of a sentence."""
    return who[:1].upper() + who[1:]


def describe(data: object) -> str:
    """A short description of data, for error messages."""
    match data:
        case None:
            return "None"
        case str() | bytes() | int() | float():
            return f"{data!r}"[:80]
        case Tensor() | np.ndarray():
            return f"a {type(data).__name__} of shape {tuple(data.shape)}"
        case tuple() | list():
            return f"a {type(data).__name__} of {len(data)}"
    return f"a {type(data).__name__}"
