"""The encoding of a table's rows as inputs and targets: a value with a file form, for runs, plans and sites.

Numbers are scaled to [0, 1] between a minimum and a maximum, a missing one becomes 0, and an indicator column marks it;
dates are numbers of days. Categories get a column for each value, and a missing category is a value like any other; a
value that is not listed sets no column. These constants come from the clients' own rows (then no guarantee covers them,
and every guarantee states so), from public rows, or from a file that declares them. That file, written by a person in
TOML, has the form of the `encoding.json` beside a model::

    [numbers]
    age = [0, 110]                            # minimum and maximum; what is outside is clipped
    admitted = ["2020-01-01", "2024-12-31"]   # dates
    [categories]
    sex = ["f", "m"]                          # any other value sets no column
    [target]                                  # may be left out, and with it what follows
    name = "readmitted"
    classes = ["0", "1"]                      # or limits = [0, 30], for a number
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core import files
from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy, MeanSquared
from tacit.core.schema import list_names
from tacit.core.serialization import Source, convert, load_toml, read_json, write_json
from tacit.data.population import Samples
from tacit.data.tables import Table, as_texts, factorize, read_table
from tacit.data.written_numbers import plain_number
from tacit.errors import DataError, UserError, expect

ENCODING_FORMAT = 1
MAX_INPUTS = 1 << 17  # of an encoding: many encoded rows must fit into memory
ENCODING = "encoding.json"  # the name of its file
_MAX_SHOWN = 5  # values in an error message
Limit = float | str  # a number, or a date as YYYY-MM-DD
Limits = tuple[Limit, Limit]


@dataclass(frozen=True)
class Preprocessing:
    """The source of the constants in a task's inputs, such as ranges and categories.

    Attributes:
        source: `row`: none were computed, since each input is a function of its own row; `public`: from public data, or
            they are declared to be public; `private`: from the clients' rows, which no guarantee covers; `undeclared`:
            the task does not say.
        detail: which constants they are, as a sentence.

    Example:
        >>> print(Preprocessing("private", "ages are scaled by their mean.").not_covered)
        Preprocessing used the clients' rows: ages are scaled by their mean.
    """

    source: Literal["row", "public", "private", "undeclared"] = "undeclared"
    detail: str = ""

    def __post_init__(self) -> None:
        choices = ("row", "public", "private", "undeclared")
        expect(
            self.source in choices, f"the source of preprocessing to be one of {', '.join(choices)}, got {self.source}"
        )
        if self.source == "private":
            expect(
                bool(self.detail), "detail of private preprocessing: a sentence that says what was computed from rows"
            )

    def with_target(self, target: str) -> "Preprocessing":
        """The same, with the values of the target taken from the clients' rows, too."""
        more = f"the values of {target!r} are those of all rows (classes=... declares them)."
        return Preprocessing("private", f"{self.detail} T{more[1:]}" if self.source == "private" else more)

    @property
    def not_covered(self) -> str:
        """A sentence on what a guarantee does not cover; empty if it covers everything."""
        if self.source == "private":
            return f"Preprocessing used the clients' rows: {self.detail}"
        if self.source == "undeclared":
            return (
                "Whatever was computed from the clients' rows before the run, such as ranges or categories; the task "
                "does not declare its preprocessing."
            )
        return ""


@dataclass(frozen=True)
class Scale:
    """A minimum and a maximum, between which numbers are scaled to [0, 1]; those of dates are days since 1970."""

    low: float
    high: float
    dates: bool

    @classmethod
    def of(cls, limits: Limits, what: str) -> "Scale":
        """The scale between two numbers, or two dates; raises `UserError` for anything else."""
        low, high = map(_number, limits)
        dates = [isinstance(limit, str) for limit in limits]
        expect(
            math.isfinite(high - low) and low <= high and len({*dates}) == 1,
            f"minimum <= maximum of {what}, two finite numbers or dates YYYY-MM-DD, got {limits[0]} and {limits[1]}",
        )
        return cls(low, high, dates[0])

    def to_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers as fractions of the range; numbers outside are not clipped."""
        return (values - self.low) / max(self.high - self.low, 1e-12)

    def from_unit(self, values: NDArray[np.float64]) -> list[Limit]:
        """The numbers, or dates, at these fractions of the range."""
        numbers = self.low + values * (self.high - self.low)
        return [_format_day(day) for day in np.round(numbers)] if self.dates else numbers.tolist()


@dataclass(frozen=True)
class TargetColumn:
    """The column that is predicted: one of several classes, or a number.

    Attributes:
        name: the column.
        classes: its values, in the order of their numbers; empty: it is a number.
        limits: minimum and maximum of a number, which are scaled to 0 and 1; None: it is a class.
    """

    name: str
    classes: tuple[str, ...] = ()
    limits: Limits | None = None

    def __post_init__(self) -> None:
        expect(bool(self.classes) != (self.limits is not None), f"either classes or limits of the target {self.name!r}")
        _expect_different(self.classes, f"classes of {self.name!r}")
        if self.limits is None:
            expect(len(self.classes) > 1, f"at least 2 classes of {self.name!r}, got {len(self.classes)}")
        else:
            Scale.of(self.limits, f"the target {self.name!r}")

    def to_plain(self) -> dict[str, Any]:
        """The target as plain values, without empty ones."""
        return {key: value for key, value in asdict(self).items() if value}

    @property
    def scale(self) -> Scale:
        """The range of a target that is a number."""
        return Scale.of(self.limits or (0.0, 1.0), f"the target {self.name!r}")

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @property
    def loss(self) -> Any:
        """The default loss for this target."""
        if not self.classes:
            return MeanSquared()
        return BinaryCrossEntropy() if len(self.classes) == 2 else CrossEntropy()

    def read(self, outputs: Tensor) -> dict[str, list[Any]]:
        """The predictions in a model's outputs, by column: the target, and for classes the probability of each.

        Example:
            >>> TargetColumn("ill", ("no", "yes")).read(torch.tensor([[0.0], [3.0]]))["predicted ill"]
            ['no', 'yes']
            >>> TargetColumn("days", limits=(0, 30)).read(torch.tensor([[0.5]]))
            {'predicted days': [15.0]}
        """
        width = outputs.shape[-1] if outputs.dim() == 2 else 0
        if not self.classes:
            expect(width == 1, f"one output for {self.name!r}, got outputs of shape {tuple(outputs.shape)}")
            return {f"predicted {self.name}": self.scale.from_unit(outputs[:, 0].double().numpy())}
        two = len(self.classes) == 2 and width == 1
        expect(two or width == len(self.classes), f"{len(self.classes)} outputs for {self.name!r}, got {width}")
        one = torch.sigmoid(outputs.double())
        chances = torch.cat([1 - one, one], 1) if two else outputs.double().softmax(1)
        best = [self.classes[place] for place in chances.argmax(1).tolist()]
        return {f"predicted {self.name}": best} | {
            f"probability {self.name}={value}": chances[:, place].tolist() for place, value in enumerate(self.classes)
        }


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The encoding of a table's rows as inputs and targets.

    The order of columns is that of the inputs.

    Attributes:
        numbers: minimum and maximum of each column of numbers or dates.
        categories: the values of each categorical column that get an input of their own.
        indicators: the columns of numbers with an input that marks missing values; None: all of them.
        target: what is predicted; None: that is not known.
        client: the column that names the client; empty: there is none.
        person: the column of person ids; empty: each row is a person of its own.
        dropped: columns that are left out.
        preprocessing: what all these constants were computed from.
        format: the version of the file form.

    Example:
        >>> ages = Encoding(numbers={"age": (0, 100)}, categories={"sex": ("f", "m")}, indicators=())
        >>> ages.names, ages.inputs({"age": [40, 120], "sex": ["m", None]}).tolist()[1]
        (('age', 'sex=f', 'sex=m'), [1.0, 0.0, 0.0])
        >>> ages.problems({"age": ["old", "young"], "sex": ["f", "m"]})
        ["Expected numbers in column 'age' of the table, got texts such as 'old'."]
    """

    numbers: Mapping[str, Limits] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    indicators: tuple[str, ...] | None = None
    target: TargetColumn | None = None
    client: str = ""
    person: str = ""
    dropped: tuple[str, ...] = ()
    preprocessing: Preprocessing = Preprocessing("public")
    format: int = ENCODING_FORMAT

    def __post_init__(self) -> None:
        expect(self.format == ENCODING_FORMAT, f"format {ENCODING_FORMAT} of an encoding, got {self.format}")
        if self.indicators is None:
            object.__setattr__(self, "indicators", tuple(self.numbers))
        named = [self.client, self.person, "" if self.target is None else self.target.name]
        _expect_different([*self.columns, *self.dropped, *filter(None, named)], "columns, each with one role")
        unknown = [name for name in self._indicators if name not in self.numbers]
        expect(not unknown, f"indicators of columns of numbers, got {list_names(unknown[:_MAX_SHOWN])}")
        _expect_different(self._indicators, "indicators")
        for name, limits in self.numbers.items():
            Scale.of(limits, repr(name))
        for name, values in self.categories.items():
            _expect_different(values, f"categories of {name!r}")
        count = len(self.numbers) + len(self._indicators) + sum(map(len, self.categories.values()))
        expect(count <= MAX_INPUTS, f"at most {MAX_INPUTS} inputs of an encoding, got {count}")

    @classmethod
    def of(
        cls,
        table: Table,
        numbers: Sequence[str],
        categories: Sequence[str],
        rows: NDArray[np.int64],
        rare: int = 0,
    ) -> "Encoding":
        """The constants of these rows, with indicators where a number is missing.

        Args:
            table: the table.
            numbers: its columns of numbers or dates.
            categories: its categorical columns.
            rows: those whose values count.
            rare: values in fewer rows get no input, nor does a value of all rows; 0: all values get one.
        """
        columns = {name: table.numbers(name)[rows] for name in numbers}
        return cls(
            numbers={name: limits_of(values, dates=table.has_dates(name)) for name, values in columns.items()},
            categories={name: _frequent_values(table.columns[name][rows], rare) for name in categories},
            indicators=tuple(name for name, values in columns.items() if np.isnan(values).any()),
        )

    @classmethod
    def read(cls, path: Path | str) -> "Encoding":
        """The encoding in a file, TOML or, by its name, JSON; raises `UserError` if it is not one."""
        file = Path(path)
        if file.suffix == ".json":
            source = Source(label=str(file), error=DataError)
            return read_json(files.read(file, "the encoding", DataError), cls, source, version=ENCODING_FORMAT)
        return cls.from_plain(load_toml(file), str(file))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], label: str) -> "Encoding":
        """The encoding in a table of plain values, as of TOML or JSON; `label` names it in error messages."""
        return convert(plain, cls, Source(label=label, error=DataError))

    def to_plain(self) -> dict[str, Any]:
        """The encoding as plain values for TOML or JSON, without empty ones: its canonical form."""
        plain = {
            "format": self.format,
            **asdict(self),
            "target": None if self.target is None else self.target.to_plain(),
        }
        return {key: value for key, value in plain.items() if value or key == "indicators"}

    def to_bytes(self) -> bytes:
        """The canonical form as JSON."""
        return write_json(self.to_plain(), indent=2)

    @property
    def digest(self) -> str:
        """A digest of 256 bits, in hex, of the canonical form; it depends on the order of columns."""
        return hashlib.blake2b(write_json(self.to_plain()), digest_size=32).hexdigest()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that are inputs."""
        return (*self.numbers, *self.categories)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each input."""
        numbers = ((name, f"{name} missing")[: 1 + (name in self._indicators)] for name in self.numbers)
        categories = (f"{name}={value}" for name, values in self.categories.items() for value in values)
        return (*(each for pair in numbers for each in pair), *categories)

    @property
    def known_target(self) -> TargetColumn:
        """The target; raises `DataError` if there is none."""
        if self.target is None:
            raise DataError("Expected an encoding that names the target, got one without. Add [target] to its file.")
        return self.target

    def inputs(self, source: Any) -> Tensor:
        """One row of numbers per row of a table, in any form that `Task.from_table` reads."""
        table = read_table(source)
        inputs: list[NDArray[np.float32]] = []
        for name, limits in self.numbers.items():
            numbers = self._numbers(table, name)
            scaled = np.clip(Scale.of(limits, name).to_unit(numbers), 0, 1)
            inputs.append(np.nan_to_num(scaled).astype(np.float32))
            if name in self._indicators:
                inputs.append(np.isnan(numbers).astype(np.float32))
        for name, values in self.categories.items():
            places = _places(table.column(name, "input"), values)
            inputs += [(places == place).astype(np.float32) for place in range(len(values))]
        return torch.from_numpy(np.stack(inputs)).T.contiguous()

    def targets(self, source: Any, loss: object = None) -> Tensor:
        """Class numbers (as 0.0 and 1.0 where one output decides between two), or scaled numbers.

        Args:
            source: a table.
            loss: of the model's training; None: the default loss of the target.
        """
        table, target = read_table(source), self.known_target
        table.check_known(target.name, "target")
        if not target.classes:
            values = _numbers_or_dates(table, target.name, dates=target.scale.dates)
            return torch.tensor(target.scale.to_unit(values)).float()[:, None]
        places = _places(table.columns[target.name], target.classes)
        if (places < 0).any():
            unknown = sorted({text for text, place in zip(table.texts(target.name), places, strict=True) if place < 0})
            raise DataError(
                f"Expected {target.name!r} of {table.name} in {list_names(target.classes)}, got "
                f"{list_names(unknown[:_MAX_SHOWN])}."
            )
        codes = torch.from_numpy(places)
        return codes.float()[:, None] if self._one_output(loss) else codes

    def samples(self, source: Any, loss: object = None) -> Samples:
        """Inputs and targets; zeros where the encoding has no target, as for an analysis."""
        table = read_table(source)
        x = self.inputs(table)
        return x, torch.zeros(len(x), 1) if self.target is None else self.targets(table, loss)

    def problems(self, source: Any, *, training: bool = True) -> list[str]:
        """All problems of a table, as sentences.

        Args:
            source: a table.
            training: whether target and person are needed, as for training.
        """
        table = read_table(source)
        checks: list[Callable[[], object]] = [partial(self._numbers, table, name) for name in self.numbers]
        checks += [partial(table.column, name, "input") for name in self.categories]
        if training and self.target is not None:
            checks.append(partial(self.targets, table))
        if training and self.person:
            checks.append(partial(table.check_known, self.person, "person"))
        return [sentence for check in checks if (sentence := _refusal(check))]

    def remarks(self, source: Any, unlisted: str = "set no input") -> Iterator[str]:
        """The information that encoding removes from a valid table, as sentences.

        Args:
            source: a table.
            unlisted: what values do that are not listed.
        """
        table = read_table(source)
        of_rows = f"of {table.rows} values are"
        for name, limits in self.numbers.items():
            values, scale, (low, high) = self._numbers(table, name), Scale.of(limits, name), map(show_limit, limits)
            outside = int(((values < scale.low) | (values > scale.high)).sum())
            if outside:
                yield f"{name}: {outside} {of_rows} outside {low} to {high} and encoded as the nearer of the two."
            absent = int(np.isnan(values).sum())
            if absent and name not in self._indicators:
                yield f"{name}: {absent} {of_rows} missing and encoded as {low}: none was in training."
        for name, categories in self.categories.items():
            rows = np.flatnonzero(_places(table.column(name, "input"), categories) < 0)
            if len(rows):
                others = dict.fromkeys(text or "missing" for text in as_texts(table.columns[name][rows[:1000]]))
                yield (
                    f"{name}: {len(rows)} {of_rows} none of those that the encoding has "
                    f"({list_names(list(others)[:_MAX_SHOWN])}) and {unlisted}."
                )

    def random(self, rows: int, key: Key, loss: object = None) -> Samples:
        """Random rows within the limits and categories, which depend on no data."""
        generator, target = key.public_generator(), self.known_target
        columns: list[Tensor] = []
        for name in self.numbers:
            columns.append(torch.rand(rows, 1, generator=generator))
            if name in self._indicators:
                columns.append(torch.zeros(rows, 1))
        for values in self.categories.values():
            chosen = torch.randint(max(len(values), 1), (rows,), generator=generator)
            columns.append(nn.functional.one_hot(chosen, max(len(values), 1))[:, : len(values)].float())
        classes = torch.randint(max(len(target.classes), 2), (rows,), generator=generator)
        y = classes.float()[:, None] if self._one_output(loss) else classes
        return torch.cat(columns, 1), y if target.classes else torch.rand(rows, 1, generator=generator)

    def for_inputs(self, inputs: Sequence[str], who: str, file: Path) -> Self:
        """The encoding that `file` declares for these inputs; public, unless it declares another source.

        Raises `UserError` unless these are the inputs, and numbers have ranges.
        """
        lacking = [name for name in inputs if name not in self.columns]
        unknown = [name for name in self.columns if name not in inputs]
        if lacking or unknown:
            wrong = f"lacks {list_names(lacking)}" if lacking else f"has {list_names(unknown)}, which are not inputs"
            raise UserError(f"Expected {file} to declare the inputs of {who}, {list_names(inputs)}, but it {wrong}.")
        for name, (low, high) in self.numbers.items():
            expect(low != high, f"minimum < maximum of {name} in {file}, got {show_limit(low)} and {show_limit(high)}")
        if self.preprocessing.source != "public":
            return self  # such as the encoding of another run, with constants from its clients' rows
        detail = f"Minima, maxima and categories are declared to be public in {file.name}."
        return replace(self, preprocessing=Preprocessing("public", detail))

    def _one_output(self, loss: object) -> bool:
        """Whether one output of a model decides between two classes."""
        target = self.known_target
        return len(target.classes) == 2 and isinstance(target.loss if loss is None else loss, BinaryCrossEntropy)

    @property
    def _indicators(self) -> tuple[str, ...]:
        return self.indicators or ()

    def _numbers(self, table: Table, name: str) -> NDArray[np.float64]:
        return _numbers_or_dates(table, name, dates=Scale.of(self.numbers[name], name).dates)


def _numbers_or_dates(table: Table, name: str, *, dates: bool) -> NDArray[np.float64]:
    """A column of numbers, or of dates; raises `DataError` for the other kind. All values may be missing."""
    source = table.with_dates(name) if dates else table
    values = source.numbers(name)
    if dates != source.has_dates(name) and not np.isnan(values).all():
        words = ("numbers", "dates")
        raise DataError(f"Expected {words[dates]} in column {name!r} of {table.name}, got {words[not dates]}.")
    return values


def _places(column: NDArray[Any], values: Sequence[str]) -> NDArray[np.int64]:
    """For each row the index of its text among these values; -1: it is none of them.

    Texts that differ are compared by number: `01` is a text where other rows of its file have texts, and 1 elsewhere.
    """
    distinct, codes = factorize(column)
    places = {value: place for place, value in enumerate(values)}
    by_number = {plain_number(value): place for place, value in enumerate(values)}
    by_number.pop(None, None)
    indices = [places.get(text, by_number.get(plain_number(text), -1)) for text in distinct]
    return np.array(indices, dtype=np.int64)[codes]


def _frequent_values(column: NDArray[Any], rare: int) -> tuple[str, ...]:
    """The values that are not rare; none if all rows have the same value."""
    values, codes = factorize(column)
    if not rare:
        return tuple(values)
    counts = np.bincount(codes, minlength=len(values))
    return tuple(value for value, count in zip(values, counts, strict=True) if rare <= count < len(column))


def limits_of(values: NDArray[np.float64], *, dates: bool) -> Limits:
    """Minimum and maximum of the values, without missing ones; 0 and 1 if all are missing."""
    present = values[~np.isnan(values)]
    low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 1.0)
    return (_format_day(low), _format_day(high)) if dates else (low, high)


def _format_day(days: float) -> str:
    """A day as YYYY-MM-DD."""
    return str(np.datetime64(int(days), "D"))


def show_limit(limit: Limit) -> str:
    """A limit as text."""
    return limit if isinstance(limit, str) else f"{limit:g}"


def _number(limit: Limit) -> float:
    """A number, or the number of a day written as YYYY-MM-DD; NaN for any other text."""
    if not isinstance(limit, str):
        return limit
    try:
        return float((date.fromisoformat(limit) - date(1970, 1, 1)).days)
    except ValueError:
        return math.nan


def _expect_different(names: Iterable[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    expect(not repeated, f"different {what}, got {list_names(repeated[:_MAX_SHOWN])} more than once")


def _refusal(check: Callable[[], object]) -> str:
    """The message of the error that a call raises; empty if it raises none."""
    try:
        check()
    except DataError as error:
        return str(error)
    return ""
