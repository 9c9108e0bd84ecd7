"""Files as typed records: a dataclass or `msgspec.Struct` is the schema of the JSON or TOML document it is read from.

Every error is one sentence that names the file, the key, what was expected and what was found; for an unknown key or
choice it suggests the closest known one. What is expected is named by the type of the field or, in better words, by its
annotation, `Annotated[..., Meta(description="a list of quantities")]`.
"""

import functools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from tacit.core import files
from tacit.core.schema import TYPES_IN_WORDS, listed, suggestion
from tacit.errors import UserError

_T = TypeVar("_T")
MAX_JSON_BYTES = 1 << 24  # bytes of a JSON document, which needs about 20 times as many when it is parsed
MAX_TOML_BYTES = 1 << 17  # bytes of a TOML document, whose parser is slow
MAX_DEPTH = 32  # of values in a document
_MAX_SHOWN = 300  # characters of a value in an error message
MAX_KEY = 8  # dots in a key of a TOML document
HexBytes = Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$", description="bytes in hex")]
Step = str | int  # a key of a table, or the place of an item in a list
Steps = tuple[Step, ...]
_TOML_TEXT = re.compile(
    r"#[^\n]*|\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'", re.DOTALL
)  # comments and strings
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_KEY}}}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a record is read from, for error messages.

    Attributes:
        label: its name, usually the file.
        error: the class of its errors.
        advice: what to do about an error, as a sentence; empty: the error itself says it.
        closed: whether unknown keys are errors, as in a file that a person writes. Otherwise they are ignored, as in a
            file that another version of Tacit may have written.
    """

    label: str
    error: type[UserError] = UserError
    advice: str = ""
    closed: bool = True

    def problem(self, sentence: str) -> UserError:
        """The error with this sentence, and the advice."""
        return self.error(f"{sentence} {self.advice}".rstrip())


def read_json(content: bytes, kind: type[_T], source: Source, *, version: int | None = None, strict: bool = True) -> _T:
    """The record in a JSON document.

    Args:
        content: the document.
        kind: the type of the record.
        source: what the document is, for error messages.
        version: what its key `format` must be; None: it is not checked.
        strict: whether strings are only strings, and not also numbers such as `inf`, which JSON does not have.
    """
    if len(content) > MAX_JSON_BYTES:
        raise source.problem(f"Expected {source.label} to have at most {MAX_JSON_BYTES} bytes, got {len(content)}.")
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise source.problem(f"Expected {source.label} to be JSON, but it is not.") from None
    if not _is_shallow(table):
        raise source.problem(f"Expected {source.label} to have at most {MAX_DEPTH} nested values.")
    found = table.get("format") if type(table) is dict else None
    if version is not None and found != version:
        writer = "" if found is None else ", of another version of Tacit"
        raise source.problem(f"Expected {source.label} to have format {version}, got {found}{writer}.")
    return convert(table, kind, source, strict=strict)


def read_toml(path: Path, kind: type[_T]) -> _T:
    """The record in a TOML file; an unknown key is an error."""
    return convert(load_toml(path), kind, Source(label=str(path)))


def load_toml(path: Path) -> Mapping[str, Any]:
    """The plain values in a TOML file; a file that cannot be read or parsed is a `UserError`."""
    content = files.read(path, limit=MAX_TOML_BYTES)
    try:
        table = _parsed(content.decode("utf-8"))
    except RecursionError as error:
        raise UserError(f"Expected {path} to have at most {MAX_DEPTH} nested values.") from error
    except ValueError as error:  # of the syntax, the encoding, or a number with too many digits
        raise UserError(f"Expected {path} to be TOML: {error}.") from error
    if not _is_shallow(table):
        raise UserError(f"Expected {path} to have at most {MAX_DEPTH} nested values.")
    return table


def _is_shallow(value: object) -> bool:
    """Whether tables and lists are nested at most `MAX_DEPTH` times, so that what reads them may recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [item for part in parts for item in part if isinstance(item, (dict, list))]
        if not level:
            return True
    return False


@functools.lru_cache(maxsize=16)
def _parsed(content: str) -> Mapping[str, Any]:
    """Rows of a study refer to the same few files again and again."""
    plain = _TOML_TEXT.sub(lambda found: "" if found[0].startswith("#") else "s", content)
    if _LONG_KEY.search(plain):  # memory and time of tomllib grow with the square of its length
        raise ValueError(f"a key has more than {MAX_KEY} parts")
    return tomllib.loads(content)


def convert(value: object, kind: type[_T], source: Source, *, strict: bool = True) -> _T:
    """The record in a table of plain values.

    Args:
        value: the table.
        kind: the type of the record.
        source: what the table is, for error messages.
        strict: whether strings are only strings, and not also numbers.

    Example:
        >>> @dataclass(frozen=True)
        ... class Point:
        ...     x: float
        >>> convert({"x": 3}, Point, Source(label="here.toml"))
        Point(x=3.0)
        >>> convert({"x": []}, Point, Source(label="here.toml"))
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected x of here.toml to be a number, got [].
    """
    try:
        return _converted(value, kind, source, strict=strict)
    except UnicodeEncodeError:
        raise source.problem(f"Expected the texts of {source.label} to be Unicode, got half a character.") from None


def _converted(value: object, kind: type[_T], source: Source, *, strict: bool) -> _T:
    schema = _schema(kind)  # type: ignore[arg-type]  # a type is hashable
    if source.closed:
        for path, key, known in _unknown_keys(value, schema):
            hint = suggestion(str(key), known)
            raise source.problem(f"Expected keys of {_of(path, source)} in {listed(known)}, got {_shown(key)}.{hint}")
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        own = error.__cause__
        if isinstance(own, UserError):  # of the record's own validation
            raise source.problem(f"{source.label}: {own}") from None
        fault = next(_faults(value, schema, strict), Fault((), "to be valid, but it is not"))
        raise source.problem(f"Expected {fault.keys}{_of(fault.path, source)} {fault.problem}") from None


def write_json(table: Mapping[str, Any], indent: int | None = None) -> bytes:
    """JSON and a newline; infinite numbers and NaN, which JSON does not have, become strings."""
    return (json.dumps(_finite(table), indent=indent, allow_nan=False) + "\n").encode()


def _to_path(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value


def _finite(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case float() if not math.isfinite(value):
            return str(value)
    return value


@functools.lru_cache(maxsize=64)
def _schema(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _unknown_keys(value: Any, kind: inspect.Type, path: Steps = ()) -> Iterator[tuple[Steps, Step, list[str]]]:
    """Every key that no field has: where it is, the key, and the keys that exist there."""
    kind = _arm(value, kind)
    for step, item, inner in _children(value, kind):
        if inner is None:
            yield path, step, _keys(kind)
        else:
            yield from _unknown_keys(item, inner, (*path, step))


def _children(value: Any, kind: inspect.Type) -> Iterator[tuple[Step, Any, inspect.Type | None]]:
    """The items of a table or list with their types; None for a key that does not exist."""
    if _has_parts(value, kind):
        tag = getattr(kind, "tag_field", None)
        items = value.items() if type(value) is dict else enumerate(value)
        yield from ((step, item, _item_type(kind, step)) for step, item in items if step != tag)


def _item_type(kind: inspect.Type, step: Step) -> inspect.Type | None:
    """The type of an item of a record, mapping or list; None if there is none."""
    if type(kind) in _RECORDS:
        return next((each.type for each in _fields(kind) if each.encode_name == step), None)
    if type(kind) is inspect.TupleType:
        return kind.item_types[int(step)] if int(step) < len(kind.item_types) else None
    inner: inspect.Type | None = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
    return inner


def _has_parts(value: Any, kind: inspect.Type) -> bool:
    """Whether a table or list is one of this type, as far as its tag shows."""
    tag = getattr(kind, "tag_field", None)
    if type(value) is dict and tag:
        return bool(value.get(tag) == getattr(kind, "tag", None))
    return type(value) in (dict, list) and type(kind) in _PLAIN and type(value) in _PLAIN[type(kind)][1]


def _arm(value: Any, kind: inspect.Type) -> inspect.Type:
    """The type of a union that a value belongs to; of tagged records, the one with its tag."""
    kind = getattr(kind, "type", kind)  # without its description
    arms = [getattr(arm, "type", arm) for arm in getattr(kind, "types", ())]
    return next((arm for arm in arms if _has_parts(value, arm)), kind)


def _fields(kind: inspect.Type) -> tuple[inspect.Field, ...]:
    found: tuple[inspect.Field, ...] = getattr(kind, "fields", ())
    return found


def _keys(kind: inspect.Type) -> list[str]:
    tag = getattr(kind, "tag_field", None)
    return [*([tag] if tag else []), *(each.encode_name for each in _fields(kind))]


_RECORDS = (inspect.StructType, inspect.DataclassType)
_PLAIN: dict[type[inspect.Type], tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys((*_RECORDS, inspect.DictType), ("a table", (dict,))),
    **dict.fromkeys((inspect.ListType, inspect.VarTupleType, inspect.TupleType), ("a list", (list, tuple))),
    **dict.fromkeys((inspect.StrType, inspect.CustomType), (TYPES_IN_WORDS["str"], (str,))),  # custom: a path
    inspect.IntType: (TYPES_IN_WORDS["int"], (int,)),
    inspect.FloatType: (TYPES_IN_WORDS["float"], (float, int)),
    inspect.BoolType: (TYPES_IN_WORDS["bool"], (bool,)),
    inspect.NoneType: (TYPES_IN_WORDS["NoneType"], (type(None),)),
}  # the words for a type, and the types of plain values that are read as it
_NUMBERS: dict[type[inspect.Type], Callable[[str], float]] = {inspect.IntType: int, inspect.FloatType: float}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a document: where, and what is expected there; `keys` names those of a table."""

    path: Steps
    problem: str
    keys: str = ""


def _faults(value: Any, kind: inspect.Type, strict: bool, path: Steps = ()) -> Iterator[Fault]:
    """What is wrong with a value of this type, from the outside in."""
    words, kind = _described(kind), _arm(value, kind)
    choices, tag = _choices(kind), _tag_field(kind)
    if tag and type(value) is dict:
        yield Fault((*path, tag), _not_among(choices, value.get(tag)))
    elif choices and not tag:
        if value not in choices:
            yield Fault(path, _not_among(choices, value))
    elif not _has_type(value, kind, strict):
        yield Fault(path, f"to be {words or _named(kind)}, got {_shown(value)}.")
    elif limit := _exceeded(value, kind):
        yield Fault(path, f"to be {words or _named(kind) + limit}, got {_shown(value)}.")
    else:
        yield from _faults_within(value, kind, strict, path)


def _faults_within(value: Any, kind: inspect.Type, strict: bool, path: Steps) -> Iterator[Fault]:
    """What is wrong with the keys and items of a table or list."""
    for each in _fields(kind):
        if each.required and each.encode_name not in value:
            words = _described(each.type)
            yield Fault(path, f"to have the key {each.encode_name!r}{f', {words}' if words else ''}.")
    keys = getattr(kind, "key_type", None)
    for step, item, inner in _children(value, kind):
        if keys is not None:
            yield from (Fault(path, each.problem, "keys of ") for each in _faults(step, keys, strict=False))
        if inner is not None:
            yield from _faults(item, inner, strict, (*path, step))


def _has_type(value: Any, kind: inspect.Type, strict: bool) -> bool:
    """Whether a plain value is of the type, whatever its limits; true and false are no numbers."""
    kind = getattr(kind, "type", kind)
    arms, choices = getattr(kind, "types", ()), _choices(kind)
    if arms:
        return any(_has_type(value, arm, strict) and not _exceeded(value, arm) for arm in arms)
    if choices:
        return value in choices
    if type(kind) is inspect.CustomType and kind.cls is not Path:  # any object
        return True
    if not strict and type(value) is str and type(kind) in _NUMBERS:
        return not math.isnan(_number(value, kind)) or value == "nan"
    return type(kind) not in _PLAIN or type(value) in _PLAIN[type(kind)][1]


def _number(value: Any, kind: inspect.Type) -> float:
    """A number, or the one that a string is read as; NaN if it is none."""
    try:
        return _NUMBERS[type(kind)](value) if type(value) is str else value
    except ValueError:
        return math.nan


def _exceeded(value: Any, kind: inspect.Type) -> str:
    """The limit of the type that a value of it exceeds, in words; empty if none."""
    kind, size = getattr(kind, "type", kind), len(value) if hasattr(value, "__len__") else 0
    number = _number(value, kind) if type(kind) in _NUMBERS else math.nan
    length = len(getattr(kind, "item_types", ())) or None
    broken: dict[str, tuple[object, Callable[[Any], bool]]] = {
        " >= {}": (getattr(kind, "ge", None), lambda limit: number < limit),
        " > {}": (getattr(kind, "gt", None), lambda limit: number <= limit),
        " <= {}": (getattr(kind, "le", None), lambda limit: number > limit),
        " < {}": (getattr(kind, "lt", None), lambda limit: number >= limit),
        " of length >= {}": (getattr(kind, "min_length", None), lambda limit: size < limit),
        " of length <= {}": (getattr(kind, "max_length", None), lambda limit: size > limit),
        " of length {}": (length, lambda limit: size != limit),
        " matching {!r}": (getattr(kind, "pattern", None), lambda limit: re.search(limit, value) is None),
    }
    return next(
        (words.format(limit) for words, (limit, test) in broken.items() if limit is not None and test(limit)), ""
    )


def _tag_field(kind: inspect.Type) -> str:
    """The name of the tag that tells the records of a union apart; empty if there is none."""
    return next((tag for each in getattr(kind, "types", ()) if (tag := getattr(each, "tag_field", None))), "")


def _choices(kind: inspect.Type) -> list[Any]:
    """The values that are allowed: of a literal or an enumeration, or as tags of a union of records."""
    if type(kind) is inspect.EnumType:
        return [each.value for each in kind.cls]
    tags = [tag for each in getattr(kind, "types", ()) if (tag := getattr(each, "tag", None))]
    return tags or list(getattr(kind, "values", ()))


def _not_among(choices: list[Any], value: Any) -> str:
    names = [str(each) for each in choices]
    return f"in {listed(names)}, got {_shown(value)}.{suggestion(str(value), names)}"


def _named(kind: inspect.Type) -> str:
    """A type in words; of a union, all of its types."""
    arms = [getattr(arm, "type", arm) for arm in getattr(kind, "types", (kind,))]
    names = (_PLAIN[type(arm)][0] if type(arm) in _PLAIN else listed(map(str, _choices(arm))) for arm in arms)
    return " or ".join(dict.fromkeys(names))


def _described(kind: inspect.Type) -> str:
    """What the annotation of a field expects, `Annotated[..., Meta(description=...)]`; empty if it does not say."""
    return str((getattr(kind, "extra_json_schema", None) or {}).get("description", ""))


def _shown(value: object) -> str:
    """A value in an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _of(path: Steps, source: Source) -> str:
    """A place in a document, for people: the first item of a list is number 1."""
    steps = [str(step + 1) if type(step) is int else str(step) for step in path]
    return f"{'.'.join(steps)} of {source.label}" if steps else source.label
