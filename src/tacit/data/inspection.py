"""A table before it is used: what each column is taken for, what is doubtful, and a draft of its encoding.

Everything that stands in the way is reported at once. The sentences and the draft quote rows: they are for whoever has
the data, and what the draft takes from rows stays listed in every guarantee until it is declared.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.core.schema import list_names
from tacit.data.column_doubts import LEAK, RARE_ROWS, auroc_alone, is_id, rarer_outcome
from tacit.data.encoding import Limits, limits_of, show_limit
from tacit.data.table_task import MAX_CATEGORIES
from tacit.data.tables import Table, factorize, is_missing, read_table, stack_columns, table_files
from tacit.data.written_numbers import plain_number
from tacit.errors import DataError, one_line

MOSTLY = 0.8  # of the texts are numbers: the others are probably marks
_SHOWN = 3  # examples in a sentence
_DAY_FIRST = re.compile(r"\d{1,2}([./-])\d{1,2}\1(\d{4}|\d\d)")


@dataclass(frozen=True)
class ColumnLook:
    """A column as it would be used.

    Attributes:
        name: the column.
        role: `client`, `target`, `person` or `input`.
        kind: `number`, `date`, `categories` or `unclear`.
        limits: the least and the largest number or date; None: it has none.
        values: how many different values it has.
        missing: rows without a value, those of files that lack the column included.
        doubts: what to decide or to mend, as sentences.
        frequent: the categories of at least ten rows.
    """

    name: str
    role: str
    kind: str
    limits: Limits | None
    values: int
    missing: int
    doubts: tuple[str, ...] = ()
    frequent: tuple[str, ...] = field(default=(), repr=False)

    @property
    def range(self) -> str:
        """Minimum and maximum, or nothing."""
        return "" if self.limits is None else " to ".join(map(show_limit, self.limits))


@dataclass(frozen=True)
class TableLook:
    """All columns of some files, and what stands in the way of using them.

    Attributes:
        rows: of all files together.
        files: their number.
        columns: in the order in which they first occur.
        problems: what concerns files and not a column, as sentences.
    """

    rows: int
    files: int
    columns: tuple[ColumnLook, ...]
    problems: tuple[str, ...]

    @property
    def unusable(self) -> tuple[str, ...]:
        """The columns that cannot be inputs as they are."""
        return tuple(each.name for each in self.columns if each.role == "input" and each.kind == "unclear")

    def draft(self) -> str:
        """A draft of the encoding's file; what was taken from the rows is marked so."""
        inputs = [each for each in self.columns if each.role == "input"]
        taken = [each for each in inputs if each.kind in ("number", "date", "categories")]
        roles = {each.role: each.name for each in self.columns}
        lines = ["# A draft of an encoding. Replace what is marked `from the data` by what you know without them, and"]
        lines += ["# then remove [preprocessing]: until then every guarantee lists these entries as not covered."]
        lines += [f"{role} = {_text(roles[role])}" for role in ("client", "person") if role in roles]
        left_out = [each.name for each in inputs if each not in taken]
        if left_out:
            lines.append(f"dropped = [{', '.join(map(_text, left_out))}]  # not usable as they are")
        lines += ["", "[numbers]"]
        lines += [
            f"{_text(each.name)} = [{', '.join(map(_limit, each.limits))}]  # from the data"
            for each in taken
            if each.limits is not None
        ]
        lines += ["", "[categories]"]
        for each in taken:
            if each.kind == "categories":
                lines.append(f"{_text(each.name)} = [{', '.join(map(_text, each.frequent))}]  # from the data")
        target = next((each for each in self.columns if each.role == "target"), None)
        if target is not None and target.frequent:
            lines += ["", "[target]", f"name = {_text(target.name)}"]
            lines.append(f"classes = [{', '.join(map(_text, target.frequent))}]  # from the data")
        names = list_names([each.name for each in taken])
        detail = f"minima, maxima and categories of {names} were taken from the rows by tacit data look."
        lines += ["", "[preprocessing]", 'source = "private"', f"detail = {_text(detail)}", ""]
        return "\n".join(lines)


def look(
    paths: Sequence[Path], *, client: str | None = None, target: str | None = None, person: str | None = None
) -> TableLook:
    """Look at files, or at folders with one file per client, as one table.

    Args:
        paths: CSV or Parquet files, or folders of them.
        client: the column that names the client; None: every file is one.
        target: the column to predict.
        person: the column of person ids.

    Raises:
        DataError: no file can be read.
    """
    files = [file for path in paths for file in (table_files(path) if path.is_dir() else [path])]
    tables, problems = _read(files)
    if not tables:
        raise DataError(f"Expected at least one table that can be read. {' '.join(problems)}")
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    roles = {name: role for role, name in (("client", client), ("target", target), ("person", person)) if name}
    problems += [
        f"No file has the column {name!r}, given as {role}." for name, role in roles.items() if name not in names
    ]
    problems += _differences(tables, names)
    joined = {name: stack_columns([_column(table, name) for table in tables]) for name in names}
    positive = rarer_outcome(joined.get(target or ""))
    ambiguous = {name: text for table in tables for name, text in table.ambiguous_columns.items()}
    columns = [
        _look(name, roles.get(name, "input"), column, positive, ambiguous.get(name, ""))
        for name, column in joined.items()
    ]
    return TableLook(sum(table.rows for table in tables), len(tables), tuple(columns), tuple(problems))


def _read(files: Sequence[Path]) -> tuple[list[Table], list[str]]:
    """The files that can be read, and what is wrong with the others."""
    tables, problems = [], []
    for file in files:
        try:
            tables.append(read_table(file))
        except DataError as error:
            problems.append(str(error))
    return tables, problems


def _differences(tables: Sequence[Table], names: Sequence[str]) -> Iterator[str]:
    """What differs between files, a sentence for each column."""
    for name in names:
        lacking = [Path(table.name).name for table in tables if name not in table.columns]
        if lacking:
            yield f"{name!r} is not a column of {len(lacking)} of {len(tables)} files: {_few(lacking)}."
        kinds = {
            _kind_word(table.columns[name]): Path(table.name).name
            for table in tables
            if name in table.columns and not is_missing(table.columns[name]).all()
        }
        if len(kinds) > 1:
            kinds_by_file = ", ".join(f"{kind} in {file}" for kind, file in kinds.items())
            yield f"{name!r} is not the same in all files: {kinds_by_file}."


def _look(name: str, role: str, column: NDArray[Any], positive: NDArray[np.bool_] | None, why: str) -> ColumnLook:
    absent = is_missing(column)
    values, codes = factorize(column)
    counts = np.bincount(codes, minlength=len(values))
    known = [(value, int(count)) for value, count in zip(values, counts, strict=True) if value]
    limits, kind = None, "categories"
    if column.dtype.kind in "fM":
        kind = "date" if column.dtype.kind == "M" else "number"
        numbers = column.astype("M8[D]").astype(np.float64) if kind == "date" else column
        finite = np.where(absent, np.nan, numbers)
        limits = limits_of(finite, dates=kind == "date")
    doubted = [*_doubts(role, column, known, why)]
    doubts = [sentence for sentence, _ in doubted]
    if any(blocks for _, blocks in doubted):
        kind = "unclear"
    if role == "input" and positive is not None:
        leak = auroc_alone(column, codes, absent, positive)
        if leak > LEAK:
            doubts.append(f"alone predicts the target (AUROC {leak:.3f}): is it known only afterwards? Then drop it")
    frequent = tuple(value for value, count in known if count >= RARE_ROWS)
    return ColumnLook(name, role, kind, limits, len(known), int(absent.sum()), tuple(doubts), frequent)


def _doubts(role: str, column: NDArray[Any], known: Sequence[tuple[str, int]], why: str) -> Iterator[tuple[str, bool]]:
    """What to decide about a column, by its values and the rows of each, and whether it is no input until then."""
    rows, texts = sum(count for _, count in known), column.dtype.kind == "O"
    if role != "input":
        return
    if len(known) < 2:
        yield "no value in any row: drop it" if not known else "one value in every row: drop it", True
        return
    if is_id(column, len(known), rows):
        yield "an id: nearly every row has another value. Drop it, or give it as --person", True
        return
    if not texts:
        if column.dtype.kind == "f" and np.isinf(column).any():
            yield "has infinite numbers: write them as missing values", True
        return
    others = [(text, count) for text, count in known if plain_number(text) is None]
    share = 1 - sum(count for _, count in others) / rows
    if MOSTLY <= share < 1:
        marks = ", ".join(f"{text!r} ({count})" for text, count in sorted(others, key=lambda each: -each[1])[:_SHOWN])
        yield f"{100 * share:.1f} % are numbers; these are not: {marks}. Write numbers, or leave them empty", True
    elif all(_DAY_FIRST.fullmatch(text) for text, _ in known):
        yield f"dates such as {known[0][0]!r}: write them as YYYY-MM-DD", True
    elif why:
        yield one_line(why), True
    elif len(known) > MAX_CATEGORIES:
        common = sum(count >= RARE_ROWS for _, count in known)
        advice = "declare those that matter in the encoding; any other value then sets no input"
        yield f"{len(known)} categories, {common} of them in at least {RARE_ROWS} rows: {advice}", True
    different = Counter(text.casefold() for text, _ in known)
    twice = [repr(text) for text, _ in known if different[text.casefold()] > 1]
    if twice:
        yield f"values that differ in case only: {_few(twice)}", False


def _column(table: Table, name: str) -> NDArray[Any]:
    """A column of a file; missing values if the file lacks it."""
    return table.columns.get(name, np.full(table.rows, np.nan))


def _kind_word(column: NDArray[Any]) -> str:
    words: Mapping[str, str] = {"f": "numbers", "M": "dates"}
    return words.get(column.dtype.kind, "texts")


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _limit(limit: float | str) -> str:
    return _text(limit) if isinstance(limit, str) else repr(float(limit))
