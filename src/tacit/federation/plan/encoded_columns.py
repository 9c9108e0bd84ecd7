"""The columns that a plan reads of the sites' tables: its encoding and its built-in model, from an untrusted author.

An encoding cannot extract more than a site's rows contain: inputs are clipped to [0, 1], however narrow a range is. But
only the method's noise, if there is any, protects a person whom a category singles out. So a site sees each column with
its range or categories, and misleading encodings are refused here.
"""

from collections.abc import Iterator, Mapping

from tacit.data.encoding import Encoding, Limit
from tacit.data.table_task import TableModel
from tacit.errors import UserError, expect

_MAX_TEXT = 200  # characters of a column's name or of a category
_MAX_SHOWN = 20  # categories of a column in a sentence


def check_encoding(encoding: Encoding, *, target: bool = True) -> None:
    """Raise `UserError` for an encoding without a target, if it needs one, or with misleading texts or limits."""
    predicted = encoding.known_target if target else encoding.target
    classes = () if predicted is None else predicted.classes
    values = (value for column in (*encoding.categories.values(), classes) for value in column)
    for text in (*read_columns(encoding), *values):
        expect(
            len(text) <= _MAX_TEXT and (text.isprintable() or not text),
            f"at most {_MAX_TEXT} printable characters of a column or a category of the encoding, got {text[:50]!r}",
        )
    if predicted is not None and not classes:  # a numeric target is not clipped
        low, high = predicted.scale.low, predicted.scale.high
        expect(low < high, f"minimum < maximum of the target {predicted.name!r}, got {low:g} and {high:g}")


def table_model(name: str, args: Mapping[str, int], encoding: Encoding | None) -> TableModel:
    """The built-in model of this name, sized by the encoding; raises `UserError` if that is impossible."""
    if encoding is None:
        raise UserError(f'Expected encoding = "encoding.json" for the model {name}, whose size follows from it.')
    unknown = [key for key in args if key != "hidden"]
    expect(not unknown, f"model_args of {name} to be hidden, got {', '.join(unknown)}")
    sizes = {"inputs": len(encoding.names), "outputs": encoding.known_target.outputs, **args}
    return TableModel(name=name, **sizes)  # type: ignore[arg-type]  # one of TABLE_MODELS


def read_columns(encoding: Encoding) -> tuple[str, ...]:
    """The table's input columns and target column."""
    return encoding.columns if encoding.target is None else (*encoding.columns, encoding.target.name)


def columns_read(encoding: Encoding | None) -> Iterator[str]:
    """How each column is encoded, a line each."""
    if encoding is None:
        return
    for name, (low, high) in encoding.numbers.items():
        yield f"{name!r}: {_plain(low)} to {_plain(high)} as 0 to 1, and what is outside as the nearer of the two"
    for name, values in encoding.categories.items():
        yield f"{name!r}: an input for each of {_show(values)}"
    target = encoding.target
    if target is None:
        return
    if target.classes:
        yield f"{target.name!r}: predicted, one of {_show(target.classes)}"
    else:
        low, high = map(_plain, target.limits or ())
        yield f"{target.name!r}: predicted, a number, of which {low} to {high} are scaled to 0 to 1"


def describe_public(encoding: Encoding) -> str:
    """What the encoding reveals of clients' rows to every reader of the plan, a sentence; empty: nothing."""
    sentence = encoding.preprocessing.not_covered
    return f"{sentence} The plan shows these constants to the server and to all sites." if sentence else ""


def _plain(limit: Limit) -> str:
    """A date unchanged, a number without a zero fraction."""
    return str(limit).removesuffix(".0")


def _show(values: tuple[str, ...]) -> str:
    more = f" and {len(values) - _MAX_SHOWN} more" if len(values) > _MAX_SHOWN else ""
    return f"{', '.join(map(repr, values[:_MAX_SHOWN]))}{more}"
