"""Numbers in text files: with marks for thousands and decimals, which differ by country, and percent signs.

A column is read in the one way in which all its values are numbers. Where two ways are left (`1,003` is a thousand or
one), the file's other columns decide; otherwise the column stays text, with the error message for its use as input.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

THOUSANDS = {".": ",", ",": "."}  # by the decimal mark
PERCENT = "%"
EXACT = 1 << 53  # whole numbers up to this one are distinct as float64
_GAPS = r"\s'’"  # other marks for thousands, with either decimal mark
_WRITTEN = {
    mark: re.compile(rf"[+-]?(?:\d*|[1-9]\d{{0,2}}(?:[{_GAPS}{other}]\d{{3}})+)(?:[{mark}]\d*)?(?:[eE][+-]?\d+)?")
    for mark, other in THOUSANDS.items()
}
Ways = dict[str, list[float]]  # the numbers of a column, by the decimal mark with which all its texts are numbers


def read_numbers(
    columns: Mapping[str, Sequence[str]], name: str, *, semicolons: bool
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The columns that are numbers, and for ambiguous ones the reason why they are not.

    Args:
        columns: the texts of every column, without missing values.
        name: of the file, for error messages.
        semicolons: whether they separate the file's columns; commas are then decimal marks.

    Example:
        >>> read_numbers({"cost": ["1,200,000", "900"], "share": ["12%", "7.5 %"]}, "t.csv", semicolons=False)[0]
        {'cost': [1200000.0, 900.0], 'share': [12.0, 7.5]}
        >>> read_numbers({"gravity": ["1,003", "1,030"], "age": ["40", "71"]}, "t.csv", semicolons=False)[0]
        {'age': [40.0, 71.0]}
    """
    plain = {title: readings for title, texts in columns.items() if (readings := plain_column(texts)) is not None}
    others = {title: _strip_percent(texts) for title, texts in columns.items() if title not in plain}
    others = {title: texts for title, texts in others.items() if all(map(_is_written, texts))}
    if not others:
        return plain, {}
    points = {title: list(columns[title]) for title in plain if any("." in text for text in columns[title])}
    ways = {title: _ways(texts) for title, texts in (points | others).items()}
    evident = {title: next(iter(readings)) for title, readings in ways.items() if len(readings) == 1}
    numbers, ambiguous_columns = dict(plain), {}
    counts = Counter(evident.values())
    for title, texts in (points | others).items():
        marks = {mark for mark, count in counts.items() if count > (evident.get(title) == mark)}  # of other columns
        readings = _choose(ways[title], texts, marks, semicolons=semicolons)
        if readings is not None and _agree_on_percent(columns[title]):
            numbers[title] = readings
        elif title in others or ways[title]:
            numbers.pop(title, None)
            ambiguous_columns[title] = _ambiguity(title, columns[title], ways[title], name)
    return {title: numbers[title] for title in columns if title in numbers}, ambiguous_columns


def plain_number(text: str) -> float | None:
    """The number in a text with a decimal point and no other mark, as in programs.

    Whole numbers that a float64 cannot distinguish are not numbers, but identifiers.
    """
    try:
        number = None if "_" in text else float(text)  # Python would read 1_000
    except ValueError:
        return None
    return None if number is not None and abs(number) > EXACT and text.lstrip("+-").isdigit() else number


def plain_column(texts: Sequence[str]) -> list[float] | None:
    """Such numbers, if all texts are such."""
    try:
        numbers = [*map(float, texts)]
    except ValueError:
        return None
    if all(-EXACT <= number <= EXACT for number in numbers) and "_" not in "".join(texts):
        return numbers
    return None if None in map(plain_number, texts) else numbers


def _strip_percent(texts: Sequence[str]) -> list[str]:
    return [text.removesuffix(PERCENT).rstrip() for text in texts]


def _agree_on_percent(texts: Sequence[str]) -> bool:
    return len({text.endswith(PERCENT) for text in texts}) < 2


def _is_written(text: str) -> bool:
    return any(_number(text, mark) is not None for mark in THOUSANDS)


def _number(text: str, mark: str) -> float | None:
    """The number in a text with this decimal mark."""
    if not _WRITTEN[mark].fullmatch(text):
        return None
    return plain_number(re.sub(rf"[{_GAPS}{THOUSANDS[mark]}]", "", text).replace(mark, "."))


def _ways(texts: Sequence[str]) -> Ways:
    readings = {mark: [_number(text, mark) for text in texts] for mark in THOUSANDS}
    return {mark: [n for n in numbers if n is not None] for mark, numbers in readings.items() if None not in numbers}


def _choose(ways: Ways, texts: Sequence[str], others: Collection[str], *, semicolons: bool) -> list[float] | None:
    """The numbers of a column; None: there are several ways to read it, or none."""
    if len(ways) < 2 or ways["."] == ways[","]:
        return next(iter(ways.values()), None)
    usual = _usual_mark(texts, semicolons=semicolons)
    marks = {*others} | ({usual} if usual else set())
    return ways[marks.pop()] if len(marks) == 1 else None


def _usual_mark(texts: Sequence[str], *, semicolons: bool) -> str | None:
    """The usual decimal mark: a point, and a comma where semicolons separate the columns."""
    marks = {mark for mark in THOUSANDS for text in texts if mark in text}
    if marks == {"."}:
        return "."
    return "," if marks == {","} and semicolons else None


def _ambiguity(title: str, texts: Sequence[str], ways: Ways, name: str) -> str:
    where = f"in column {title!r} of {name}"
    advice = (
        "Write all values with a decimal point and without a mark for thousands, and all or none with %. Or list the "
        f"column as categories=[{title!r}], or leave it out: drop=[{title!r}] (on the command line --drop {title})."
    )
    if not _agree_on_percent(texts):
        some, rest = (next(text for text in texts if text.endswith(PERCENT) == each) for each in (True, False))
        return f"Expected all numbers {where} with % or none, got {some!r} and {rest!r}. {advice}"
    if len(ways) == 2:
        rows = zip(texts, ways["."], ways[","], strict=True)
        text, one, other = next(row for row in rows if row[1] != row[2])
        return f"Expected numbers {where}, but {text!r} may be {one:.12g} or {other:.12g}. {advice}"
    examples = (next(t for t in texts if _number(_strip_percent([t])[0], mark) is None) for mark in THOUSANDS)
    return f"Expected one decimal mark {where}, got {' and '.join(map(repr, examples))}. {advice}"
