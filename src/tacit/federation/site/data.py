"""A site's data: what its table or its function has, whose records are whose, and what is held out."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.core import Key, files
from tacit.core.prices import Unit
from tacit.data import Population, Samples
from tacit.data.persons import number_persons
from tacit.data.tables import parse_texts
from tacit.errors import DataError, expect
from tacit.federation.plan.plan import check_samples
from tacit.protocols import crypto

LIMIT = 1 << 31  # bytes of a table


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """All samples of a site, and for each the id of its person; None: that is not known."""

    x: Tensor
    y: Tensor
    persons: Any = None


@dataclass(frozen=True, eq=False)
class SiteData:
    """What a site trains on and what it holds out.

    Attributes:
        own: the samples to train on, as those of a population's only client, with its persons if they are known.
        held_out: the samples on which the model is evaluated; None: none are.
    """

    own: Population
    held_out: Samples | None

    @classmethod
    def of(cls, found: OwnSamples, held_out: Samples | None, what: str) -> "SiteData":
        """The data of which these samples are trained on."""
        own = Population.of([(found.x, found.y)])
        if found.persons is None:
            return cls(own, held_out)
        persons, _ = number_persons([found.persons], [what], [len(found.y)])
        return cls(replace(own, persons=persons), held_out)

    @property
    def train(self) -> Samples:
        return self.own.x, self.own.y

    @property
    def unit(self) -> Unit:
        """What is protected here by a method that protects records: persons, where they are known."""
        return self.own.unit

    @property
    def units(self) -> int:
        """How many records, or persons, the site trains on."""
        return int(self.own.unit_sizes[0])


def read_returned(found: object, what: str) -> OwnSamples | tuple[OwnSamples, Samples]:
    """What a function returned: `(x, y)` or `(x, y, persons)`, or such samples and a pair `(x, y)` that is held out."""
    match found:
        case (tuple() as train, tuple() as held_out):
            return _own(train, what), check_samples(held_out, what)
        case tuple():
            return _own(found, what)
    raise DataError(f"Expected {what} to return (x, y) or (x, y, persons), got {type(found).__name__}.")


def _own(found: tuple[Any, ...], what: str) -> OwnSamples:
    if len(found) not in (2, 3):
        raise DataError(f"Expected {what} to return (x, y) or (x, y, persons), got {len(found)} values.")
    return OwnSamples(*check_samples(found[:2], what), *found[2:])


def hold_out(found: OwnSamples, fraction: float, identity: bytes, what: str) -> SiteData:
    """Hold a fraction of the records, or of the persons with all of their records, out.

    The split is the same whenever the site starts, and unknown to everybody else: by a key that only the site has.
    """
    ids, size = found.persons, len(found.y)
    numbers = torch.arange(size) if ids is None else number_persons([ids], [what], [size])[0]
    units = int(numbers.max()) + 1 if size else 0
    count = math.floor(fraction * units)
    if count == 0:
        return SiteData.of(found, None, what)
    order = Key(crypto.derive(identity, "held out", bytes(crypto.KEY))).stream().permutation(units)
    held = torch.isin(numbers, order[:count])
    train = OwnSamples(found.x[~held], found.y[~held], None if ids is None else numbers[~held])
    return SiteData.of(train, (found.x[held], found.y[held]), what)


def read_table(path: Path, target: str, client: str = "", patient: str = "") -> OwnSamples:
    """The samples in a table of numbers; the column `target` is what is predicted, as a class number.

    `patient` is the column with the ids of persons, of any kind; `client` is not used.
    """
    expect(bool(target), f"the column to predict of {path}", 'Give it as target = "column".')
    columns = parse_texts(files.read(path, "the table", DataError, LIMIT), str(path))
    named = (target, client, patient)
    for name in filter(None, named):
        if name not in columns:
            raise DataError(f"Expected a column {name!r} in {path}, got {', '.join(list(columns)[:20])}.")
    x = torch.stack([_numbers(columns[name], name, path) for name in columns if name not in named], 1)
    return OwnSamples(x, _classes(columns[target], target, path), columns[patient] if patient else None)


def _numbers(values: list[str], name: str, path: Path) -> Tensor:
    for line, value in enumerate(values, 2):  # after the header
        if not _is_finite(value):
            raise DataError(
                f"Expected numbers in column {name!r} of {path}, got something else in row {line}. Correct it, "
                "or use a function that encodes and imputes (data)."
            )
    return torch.tensor([float(value) for value in values])


def _is_finite(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _classes(values: list[str], name: str, path: Path) -> Tensor:
    numbers = _numbers(values, name, path)
    if bool((numbers != numbers.round()).any()) or bool((numbers < 0).any()):
        raise DataError(
            f"Expected class numbers from 0 in column {name!r} of {path}, the target. Use a function for other targets."
        )
    return numbers.long()
