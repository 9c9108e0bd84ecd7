"""A site's data: a table for a plan's encoding, or samples from a function; their persons, and the held-out part.

The simulation's reader reads a table and the plan's encoding encodes it, so a site has bitwise the samples of the
simulation's client. Sentences about problems quote data: they are for the site's operator and are never sent.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core import Key
from tacit.core.prices import Unit
from tacit.core.schema import list_names
from tacit.data import Population, Samples
from tacit.data.data_frames import is_frame
from tacit.data.encoding import Encoding
from tacit.data.persons import number_persons
from tacit.data.tables import Table, read_table
from tacit.errors import DataError
from tacit.federation.plan import entry_points
from tacit.federation.plan.analysis import remarks_of
from tacit.federation.plan.encoded_columns import read_columns
from tacit.federation.plan.plan import FederationPlan, check_samples
from tacit.protocols import crypto

MAX_ENCODED = 1 << 30  # that an encoding may make of a site's rows: 4 GiB
_RARE = 10  # rows: a category with fewer can single out a person
_MAX_SHOWN = 5  # values in a sentence


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """All samples of a site, and the id of each one's person; None: unknown."""

    x: Tensor
    y: Tensor
    persons: Any = None


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's training data and held-out data.

    Attributes:
        own: the samples to train on, as a population's only client, with persons if known.
        held_out: the samples on which to evaluate the model; None: no evaluation.
    """

    own: Population
    held_out: Samples | None

    @classmethod
    def of(cls, samples: OwnSamples, held_out: Samples | None, what: str) -> "SiteData":
        """The data of a site that trains on these samples."""
        own = Population.of([(samples.x, samples.y)])
        if samples.persons is None:
            return cls(own, held_out)
        persons, _ = number_persons([samples.persons], [what], [len(samples.y)])
        return cls(replace(own, persons=persons), held_out)

    @property
    def train(self) -> Samples:
        return self.own.x, self.own.y

    @property
    def unit(self) -> Unit:
        """The unit that a method that protects records protects here: persons, if known."""
        return self.own.unit

    @cached_property
    def units(self) -> int:
        """The number of records, or persons, in training."""
        return int(self.own.unit_sizes[0])


@dataclass(frozen=True, eq=False)
class TableSource:
    """A table, from which a plan's encoding makes samples.

    Attributes:
        table: the table.
        person: the column of person ids, which only the site can name; empty: none.
    """

    table: Table
    person: str

    @property
    def summary(self) -> str:
        """A summary in words."""
        persons = f" of {len(set(self.table.texts(self.person)))} persons" if self.person else ""
        return f"{self.table.rows} rows{persons} with the columns {list_names(self.table.columns)}"

    def problems(self, plan: FederationPlan) -> Iterator[str]:
        """Why the data do not suit this plan, as sentences; empty if they do."""
        if plan.encoding is None:
            yield (
                "This site's data are a table, and the plan does not say how its columns become numbers. Ask for one "
                "with an encoding, as tacit federation plan writes it."
            )
            return
        if self.person in read_columns(plan.encoding):
            yield (
                f"The plan reads the column {self.person!r}, which says whose rows are whose here (person): the id "
                "of a person is neither an input nor a target."
            )
            return
        encoding = self._encoding(plan)
        yield from encoding.problems(self.table)
        count = self.table.rows * len(encoding.names)
        if count > MAX_ENCODED:
            yield f"The plan makes {count} numbers of this site's rows; at most {MAX_ENCODED} are computed."

    def remarks(self, plan: FederationPlan) -> Iterator[str]:
        """Remarks on the data for the site's operator, as sentences, if there is no problem."""
        encoding = self._encoding(plan)
        yield from remarks_of(plan, encoding, self.table)
        for name, values in encoding.categories.items():
            texts = self.table.texts(name)
            few = [repr(value) for value in values if 0 < texts.count(value) < _RARE]
            if few:
                yield (
                    f"{name}: fewer than {_RARE} rows have {list_names(few[:_MAX_SHOWN])}. An input of its own can "
                    "single out a person where no noise protects them."
                )

    def load(self, plan: FederationPlan) -> tuple[OwnSamples, Samples | None]:
        """All samples, and held-out ones if the source chose any."""
        x, y = self._encoding(plan).samples(self.table, plan.loss_record)
        persons = np.array(self.table.texts(self.person)) if self.person else None
        return OwnSamples(x, y, persons), None

    def _encoding(self, plan: FederationPlan) -> Encoding:
        """The plan's encoding, with this site's roles of columns."""
        assert plan.encoding is not None  # else `problems` reports it
        return replace(plan.encoding, client="", person=self.person, dropped=())


@dataclass(frozen=True, eq=False)
class SampleSource:
    """All samples from a function of the site, and held-out ones if it chose any."""

    own: OwnSamples
    held_out: Samples | None = None

    @property
    def summary(self) -> str:
        return f"{len(self.own.y)} samples; inputs of shape {tuple(self.own.x.shape[1:])}"

    def problems(self, plan: FederationPlan) -> Iterator[str]:
        if plan.encoding is not None:
            yield (
                "The plan reads columns of a table, and this site's function returns samples. Let it return the table, "
                'or name the file: data = "patients.csv".'
            )

    def remarks(self, plan: FederationPlan) -> Iterator[str]:
        return iter(())

    def load(self, plan: FederationPlan) -> tuple[OwnSamples, Samples | None]:
        return self.own, self.held_out


SiteSource = TableSource | SampleSource  # where a site's samples come from


def read_source(data: str, folder: Path, person: str) -> SiteSource:
    """The source in a site's file: a function of an installed package, or a table in its folder."""
    if not entry_points.is_name(data):
        return TableSource(read_table(folder / data), person)
    result = entry_points.call(data, "the data")
    if is_frame(result) or isinstance(result, Mapping):
        return TableSource(read_table(result, data), person)
    if person:
        raise DataError(
            f"Expected person only with a table, whose column it names, got {person!r} with the function {data}, "
            "which returns samples. Let it return (x, y, persons), and leave person out."
        )
    return read_returned(result, data)


def read_returned(returned: object, what: str) -> SampleSource:
    """The source from a function's result: `(x, y)` or `(x, y, persons)`, or such samples and a held-out `(x, y)`."""
    match returned:
        case (tuple() as train, tuple() as held_out):
            return SampleSource(_own(train, what), check_samples(held_out, what))
        case tuple():
            return SampleSource(_own(returned, what))
    raise DataError(f"Expected {what} to return a table, (x, y) or (x, y, persons), got {type(returned).__name__}.")


def _own(returned: tuple[Any, ...], what: str) -> OwnSamples:
    if len(returned) not in (2, 3):
        raise DataError(f"Expected {what} to return (x, y) or (x, y, persons), got {len(returned)} values.")
    return OwnSamples(*check_samples(returned[:2], what), *returned[2:])


def hold_out(samples: OwnSamples, fraction: float, identity: bytes, what: str) -> SiteData:
    """Hold out a fraction of the records, or of the persons with all of their records.

    The split follows from the site's secret key: the same at each start, and unknown to everybody else.
    """
    ids, size = samples.persons, len(samples.y)
    numbers = torch.arange(size) if ids is None else number_persons([ids], [what], [size])[0]
    units = int(numbers.max()) + 1 if size else 0
    count = math.floor(fraction * units)
    if count == 0:
        return SiteData.of(samples, None, what)
    order = Key(crypto.derive(identity, "held out", bytes(crypto.KEY))).stream().permutation(units)
    held = torch.isin(numbers, order[:count])
    train = OwnSamples(samples.x[~held], samples.y[~held], None if ids is None else numbers[~held])
    return SiteData.of(train, (samples.x[held], samples.y[held]), what)
