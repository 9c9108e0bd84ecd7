"""Validation of a task's data: finite, of one form, and no held-out sample that a client owns.

Metrics on a client's own samples are too optimistic, and reveal more about that client than the guarantee allows. All
rows get a 64-bit fingerprint, a multilinear hash: about a tenth of a second for 60,000 images. Rows whose fingerprints
agree are then compared byte by byte.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.population import Population, Samples, check_not_empty
from tacit.errors import DataError

CHECKED_AT_ONCE = 1 << 20  # numbers: data on disk must not be copied into memory as a whole


def check_population(population: Population) -> None:
    """Raise `DataError` unless every client has samples, and all numbers are finite."""
    if population.is_remote:
        return
    if not _all_have_samples(population.offsets):
        check_not_empty(population.sizes.tolist(), population.label)
    if len(population.x) != len(population.y):
        raise DataError(f"Expected one target per sample, got {len(population.x)} and {len(population.y)}.")
    if int(population.sample_indices.min()) < 0 or int(population.sample_indices.max()) >= len(population.x):
        raise DataError(f"Expected the clients' sample indices in [0, {len(population.x)}), the size of the pool.")
    if population.persons is not None and not _persons_fit(population.persons, population.offsets):
        raise DataError(
            "Expected the persons of every client to be numbered from 0, one number per sample. Give ids of any kind "
            "as person=, or write the population again."
        )
    if not _finite(population.x):
        raise DataError(
            f"Expected finite data, but {_non_finite_client(population)} has NaN or infinite values as "
            f"{population.x.dtype}. Remove or fill them, for example with torch.nan_to_num(x)."
        )


def _all_have_samples(offsets: Tensor) -> bool:
    """Whether every client has samples; a part at a time, because they may be on disk."""
    parts = range(0, len(offsets) - 1, CHECKED_AT_ONCE)
    return all(bool((offsets[begin : begin + CHECKED_AT_ONCE + 1].diff() > 0).all()) for begin in parts)


def _persons_fit(persons: Tensor, offsets: Tensor) -> bool:
    """Whether every client's persons are 0, 1, … without a gap; some clients at a time, because they may be on disk."""
    if persons.shape != (int(offsets[-1]),) or persons.dtype != torch.int64:
        return False
    first = 0
    while first < len(offsets) - 1:
        most = int(torch.searchsorted(offsets, offsets[first] + CHECKED_AT_ONCE, right=True)) - 1
        last = max(first + 1, most)
        numbers = persons[int(offsets[first]) : int(offsets[last])]
        if not _is_gapless(numbers.numpy(), offsets[first : last + 1].diff().numpy()):
            return False
        first = last
    return True


def _is_gapless(numbers: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether the numbers of each of a few clients of these sizes are all those from 0 to the largest."""
    if (numbers < 0).any() or (numbers >= np.repeat(sizes, sizes)).any():
        return False
    begins = sizes.cumsum() - sizes
    occurs = np.zeros(len(numbers), np.int64)
    occurs[np.repeat(begins, sizes) + numbers] = 1
    return bool((np.add.reduceat(occurs, begins) == np.maximum.reduceat(numbers, begins) + 1).all())


def _finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a part at a time, because they may be on disk."""
    if not x.is_floating_point():
        return True
    rows = max(1, CHECKED_AT_ONCE // max(1, x[:1].numel()))
    return all(bool(torch.isfinite(part).all()) for part in torch.split(x, rows))


def _non_finite_client(population: Population) -> str:
    non_finite = ~torch.isfinite(population.x).flatten(1).all(1)
    where = non_finite[population.sample_indices].nonzero().flatten()
    if len(where) == 0:
        return "a sample that no client owns"
    client = int(torch.searchsorted(population.offsets, where[0], right=True)) - 1
    return f"{population.label(client)} (its sample {int(where[0] - population.offsets[client])})"


def check_owners(owners: Tensor | None, test: Samples | None) -> None:
    """Raise `DataError` unless every held-out sample has an owner."""
    if owners is None:
        return
    count = 0 if test is None else len(test[1])
    if owners.dtype != torch.int64 or owners.shape != (count,) or int(owners.min()) < 0:
        raise DataError(
            f"Expected owners as one int64 >= 0 for each of {count} held-out samples, got {owners.dtype} of shape "
            f"{tuple(owners.shape)}."
        )


def check_overlap(test: Samples, population: Population) -> None:
    """Raise `DataError` if a client owns held-out samples."""
    if test[1].dtype != population.y.dtype or test[1].shape[1:] != population.y.shape[1:]:
        return  # no target can be equal, and the loss checks their form
    owned = torch.unique(population.sample_indices)
    overlap = find_overlap(test, (population.x, population.y), owned)
    if overlap is None:
        return
    where = int((population.sample_indices == overlap.owned).nonzero()[0])
    client = int(torch.searchsorted(population.offsets, where, right=True)) - 1
    example = (
        f"held-out sample {overlap.held_out} is sample {where - int(population.offsets[client])} of client {client}"
    )
    raise DataError(
        f"Expected held-out samples that no client owns, but {overlap.shared} of {len(test[1])} are owned by clients "
        f"({example}). "
        "Remove them from the held-out data or from the clients. If different people may have equal samples, give the "
        "task test_overlap='coincidental'; if it is on purpose, test_overlap='intended'."
    )


def check_samples(name: str, samples: Samples, population: Population) -> None:
    """Raise `DataError` unless held-out or public data have the form of the clients'."""
    x, y = samples
    if len(x) != len(y) or len(x) == 0:
        raise DataError(f"Expected the {name} data as non-empty (x, y) of equal length, got {len(x)} and {len(y)}.")
    expected = population.x
    if x.shape[1:] != expected.shape[1:] or x.dtype != expected.dtype:
        raise DataError(
            f"Expected the {name} data like the clients' ({expected.dtype}, shape {tuple(expected.shape[1:])}), "
            f"got {x.dtype}, shape {tuple(x.shape[1:])}."
        )
    if not _finite(x):
        raise DataError(f"Expected finite {name} data, got NaN or infinite values. Remove or fill them.")


@dataclass(frozen=True)
class Overlap:
    """Held-out samples that are also samples of clients.

    Attributes:
        shared: how many held-out samples equal a client's sample, in input and target.
        held_out: the first of them.
        owned: the sample of the pool that it equals.
    """

    shared: int
    held_out: int
    owned: int


def find_overlap(held_out: tuple[Tensor, Tensor], pool: tuple[Tensor, Tensor], owned: Tensor) -> Overlap | None:
    """The held-out samples that equal one of the `owned` samples of the pool; None if there is none.

    Example:
        >>> x, y = torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 0, 1])
        >>> find_overlap((x[2:], y[2:]), (x, y), torch.tensor([0, 1, 2]))
        Overlap(shared=1, held_out=0, owned=2)
    """
    mine, theirs = ([_bytes(part) for part in samples] for samples in (held_out, pool))
    marks, pool_marks = _fingerprints(mine), _fingerprints(theirs)
    candidates = owned.numpy()[np.isin(pool_marks[owned.numpy()], marks)]
    sample_of = {_content(theirs, int(index)): int(index) for index in reversed(candidates)}
    rows = np.flatnonzero(np.isin(marks, pool_marks[candidates]))
    shared = [(int(row), index) for row in rows if (index := sample_of.get(_content(mine, int(row)))) is not None]
    return Overlap(len(shared), *shared[0]) if shared else None


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    """The rows of a tensor as bytes."""
    return values.detach().cpu().reshape(len(values), -1).contiguous().view(torch.uint8).numpy()


def _fingerprints(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint64]:
    """One number per row: a random linear function of its words modulo 2^64."""
    generator = np.random.default_rng(0)
    total = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in parts:
        width = next(width for width in (8, 4, 2, 1) if part.shape[1] % width == 0)
        words = part.view(f"u{width}")
        total += np.einsum("ij,j->i", words, generator.integers(2**64, size=words.shape[1], dtype=np.uint64))
    return total


def _content(parts: list[NDArray[np.uint8]], row: int) -> bytes:
    return b"".join(part[row].tobytes() for part in parts)
