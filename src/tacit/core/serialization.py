"""Files as typed records: a dataclass or `msgspec.Struct` is the schema of the JSON or TOML document it is read from.

Every error is one sentence that names the file, the key, what was expected and what was found; for an unknown key or
choice it suggests the closest known one.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tacit.core.schema import listed, suggestion
from tacit.errors import UserError

T = TypeVar("T")
_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at `(?:key in `)?(?P<path>\$[^`]*)`)?", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<kind>[^`]*)`(?P<limit>[^,]*)(?:, got `(?P<found>.*)`)?")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "none",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a record is read from, for error messages.

    Attributes:
        label: its name, usually the file.
        error: the class of its errors.
        advice: what to do about an error, as a sentence; empty: the error itself says it.
        closed: whether unknown keys are errors, as in a file that a person writes. Otherwise they are ignored, as in a
            file that another version of Tacit may have written.
        renamed: keys of records in earlier versions, and their present names.
    """

    label: str
    error: type[UserError] = UserError
    advice: str = ""
    closed: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)

    def problem(self, sentence: str) -> UserError:
        """The error with this sentence, and the advice."""
        return self.error(f"{sentence} {self.advice}".rstrip())


def read_json(content: bytes, kind: type[T], source: Source, *, version: int | None = None, strict: bool = True) -> T:
    """The record in a JSON document.

    Args:
        content: the document.
        kind: the type of the record.
        source: what the document is, for error messages.
        version: what its key `format` must be; None: it is not checked.
        strict: whether strings are only strings, and not also numbers such as `inf`, which JSON does not have.
    """
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise source.problem(f"Expected {source.label} to be JSON, but it is not.") from None
    found = table.get("format") if type(table) is dict else None
    if version is not None and found != version:
        writer = "" if found is None else ", of another version of Tacit"
        raise source.problem(f"Expected {source.label} to have format {version}, got {found}{writer}.")
    return convert(table, kind, source, strict=strict)


def read_toml(path: Path, kind: type[T]) -> T:
    """The record in a TOML file; an unknown key is an error."""
    return convert(load_toml(path), kind, Source(label=str(path)))


def load_toml(path: Path) -> Mapping[str, Any]:
    """The plain values in a TOML file; a file that cannot be read or parsed is a `UserError`."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"Expected {path} to be TOML: {error}.") from error


@lru_cache(maxsize=16)
def _parsed(content: str) -> Mapping[str, Any]:
    """Rows of a study refer to the same few files again and again."""
    return tomllib.loads(content)


def convert(value: object, kind: type[T], source: Source, *, strict: bool = True) -> T:
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
    schema = _schema(kind)  # type: ignore[arg-type]  # a type is hashable
    if source.renamed:
        value = _with_present_names(value, schema, source.renamed)
    if source.closed:
        for place, key, known in _unknown_keys(value, schema, ""):
            hint = suggestion(key, known)
            raise source.problem(f"Expected keys of {_of(place, source)} in {listed(known)}, got {key!r}.{hint}")
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UserError):  # of the record's own validation
            raise source.problem(f"{source.label}: {error.__cause__}") from None
        raise source.problem(_sentence(str(error), value, schema, source)) from None


def write_json(table: Mapping[str, Any], indent: int | None = None) -> bytes:
    """JSON and a newline; infinite numbers and NaN, which JSON does not have, become strings."""
    return (json.dumps(_finite(table), indent=indent, allow_nan=False) + "\n").encode()


def _to_path(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@lru_cache(maxsize=64)
def _schema(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _with_present_names(value: Any, kind: inspect.Type, names: Mapping[str, str]) -> Any:
    kind = _arm(value, kind)
    if type(value) is dict and hasattr(kind, "fields"):
        value = {names.get(key, key): item for key, item in value.items()}
    changed = {key: _with_present_names(item, inner, names) for key, item, inner in _children(value, kind) if inner}
    if type(value) is dict:
        return {**value, **changed}
    return [*changed.values()] if changed else value


def _unknown_keys(value: Any, kind: inspect.Type, place: str) -> Iterator[tuple[str, str, list[str]]]:
    """Every key that no field has: where it is, the key, and the keys that exist there."""
    kind = _arm(value, kind)
    for step, item, inner in _children(value, kind):
        if inner is None:
            yield place, step, _keys(kind)
        else:
            yield from _unknown_keys(item, inner, f"{place}.{step}".lstrip("."))


def _children(value: Any, kind: inspect.Type) -> Iterator[tuple[str, Any, inspect.Type | None]]:
    """The items of a table or list with their types; None for a key that does not exist."""
    match kind, value:
        case inspect.DataclassType() | inspect.StructType(), dict():
            fields = {each.encode_name: each.type for each in kind.fields}
            tag = getattr(kind, "tag_field", None)
            yield from ((key, item, fields.get(key)) for key, item in value.items() if key != tag)
        case inspect.DictType(), dict():
            yield from ((key, item, kind.value_type) for key, item in value.items())
        case inspect.ListType() | inspect.VarTupleType(), list():
            yield from ((str(place), item, kind.item_type) for place, item in enumerate(value, start=1))


def _arm(value: Any, kind: inspect.Type) -> inspect.Type:
    """The type of a union that a value belongs to; of tagged records, the one with its tag."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    records = [arm for arm in kind.types if isinstance(arm, inspect.StructType | inspect.DataclassType)]
    tags = {arm.tag: arm for arm in records if isinstance(arm, inspect.StructType)}
    if len(tags) > 1 and type(value) is dict:
        return tags.get(value.get(records[0].tag_field), kind)  # type: ignore[union-attr]
    lists = [arm for arm in kind.types if isinstance(arm, inspect.ListType | inspect.VarTupleType)]
    return next(iter(records or lists), kind)


def _keys(kind: inspect.Type) -> list[str]:
    tag = getattr(kind, "tag_field", None)
    return [*([tag] if tag else []), *(each.encode_name for each in kind.fields)]  # type: ignore[attr-defined]


def _sentence(problem: str, value: Any, kind: inspect.Type, source: Source) -> str:
    """What msgspec reports, in one wording for all files."""
    found = _PROBLEM.fullmatch(problem)
    assert found is not None, "the expression matches every text"
    what, path = found["what"], found["path"] or "$"
    steps = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path)
    known = True
    for key, index in steps:
        if index == "..." or not known:
            known = False
            continue
        value, kind = _step(value, _arm(value, kind), key, index)
    place = _of(".".join(key or ("*" if index == "..." else str(int(index) + 1)) for key, index in steps), source)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"Expected {place} to have the key {missing[1]!r}."
    choices = _choices(kind) if known else []
    if choices and what.startswith("Invalid"):
        return f"Expected {place} in {listed(choices)}, got {value!r}.{suggestion(str(value), choices)}"
    if wrong := _WRONG_TYPE.fullmatch(what):
        words = " or ".join(_KINDS.get(name, name) for name in wrong["kind"].split(" | "))
        got = repr(value) if known else _KINDS.get(wrong["found"] or "", "another value")
        return f"Expected {place} to be {words}{wrong['limit']}, got {got}."
    return f"Expected {place} to be valid: {what}."


def _step(value: Any, kind: inspect.Type, key: str, index: str) -> tuple[Any, inspect.Type]:
    """One step along the path of an error. The step to a record's tag stays at its union."""
    if index:
        items = kind.item_types[int(index)] if isinstance(kind, inspect.TupleType) else getattr(kind, "item_type", kind)
        return value[int(index)], items
    types = {each.encode_name: each.type for each in getattr(kind, "fields", ())}
    return value.get(key), types.get(key, kind)


def _choices(kind: inspect.Type) -> list[str]:
    match kind:
        case inspect.LiteralType(values=values):
            return [str(each) for each in values]
        case inspect.EnumType(cls=cls):
            return [str(each.value) for each in cls]
        case inspect.UnionType(types=types):
            return [str(each.tag) for each in types if isinstance(each, inspect.StructType)]
    return []


def _of(place: str, source: Source) -> str:
    return f"{place} of {source.label}" if place else source.label
