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
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from tacit.core import files
from tacit.core.schema import TYPES_IN_WORDS, listed, suggestion
from tacit.errors import UserError

T = TypeVar("T")
LIMIT = 1 << 24  # bytes of a JSON document, which needs about 20 times as many when it is parsed
TOML_LIMIT = 1 << 17  # bytes of a TOML document, whose parser is slow
MAX_DEPTH = 32  # of values in a document
MAX_SHOWN = 300  # characters of a value in an error message
MAX_KEY = 8  # dots in a key of a TOML document
MAX_TRIALS = 100  # keys of a mapping that are tried, to find the one that an error is about
HexBytes = Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$", description="bytes in hex")]
Step = str | int  # a key of a table, or the place of an item in a list
Steps = tuple[Step, ...]
_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<kind>[^`]*)`(?P<limit>[^,]*)(?:, got .*)?")
_TOML_TEXT = re.compile(
    r"#[^\n]*|\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'", re.DOTALL
)  # comments and strings
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_KEY}}}")
_KINDS = {**TYPES_IN_WORDS, "array": "a list", "object": "a table", "null": "none"}


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


def read_json(content: bytes, kind: type[T], source: Source, *, version: int | None = None, strict: bool = True) -> T:
    """The record in a JSON document.

    Args:
        content: the document.
        kind: the type of the record.
        source: what the document is, for error messages.
        version: what its key `format` must be; None: it is not checked.
        strict: whether strings are only strings, and not also numbers such as `inf`, which JSON does not have.
    """
    if len(content) > LIMIT:
        raise source.problem(f"Expected {source.label} to have at most {LIMIT} bytes, got {len(content)}.")
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


def read_toml(path: Path, kind: type[T]) -> T:
    """The record in a TOML file; an unknown key is an error."""
    return convert(load_toml(path), kind, Source(label=str(path)))


def load_toml(path: Path) -> Mapping[str, Any]:
    """The plain values in a TOML file; a file that cannot be read or parsed is a `UserError`."""
    content = files.read(path, limit=TOML_LIMIT)
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
    try:
        return _converted(value, kind, source, strict=strict)
    except UnicodeEncodeError:
        raise source.problem(f"Expected the texts of {source.label} to be Unicode, got half a character.") from None


def _converted(value: object, kind: type[T], source: Source, *, strict: bool) -> T:
    schema = _schema(kind)  # type: ignore[arg-type]  # a type is hashable
    if source.closed:
        for path, key, known in _unknown_keys(value, schema):
            hint = suggestion(str(key), known)
            raise source.problem(f"Expected keys of {_of(path, source)} in {listed(known)}, got {_shown(key)}.{hint}")
    read: Callable[[Any], T] = functools.partial(
        msgspec.convert, type=kind, strict=strict, str_keys=True, dec_hook=_to_path
    )
    try:
        return read(value)
    except msgspec.ValidationError as error:
        match error.__cause__:
            case UserError() as own:  # of the record's own validation
                raise source.problem(f"{source.label}: {own}") from None
        raise source.problem(_sentence(str(error), value, schema, source, read)) from None


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
    match kind:
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            return next((each.type for each in fields if each.encode_name == step), None)
        case inspect.DictType(value_type=inner):
            return inner
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return inner
        case inspect.TupleType(item_types=kinds):
            return kinds[int(step)]
    return None


def _has_parts(value: Any, kind: inspect.Type) -> bool:
    """Whether a table or list is one of this type, as far as its tag shows."""
    match kind, value:
        case inspect.StructType(tag_field=str(field), tag=tag), dict():
            return bool(value.get(field) == tag)
        case inspect.StructType() | inspect.DataclassType() | inspect.DictType(), dict():
            return True
        case inspect.ListType() | inspect.VarTupleType(), list():
            return True
    return False


def _arm(value: Any, kind: inspect.Type) -> inspect.Type:
    """The type of a union that a value belongs to; of tagged records, the one with its tag."""
    match kind:
        case inspect.Metadata(type=inner):
            return _arm(value, inner)
        case inspect.UnionType(types=arms):
            return next((arm for arm in arms if _has_parts(value, arm)), kind)
    return kind


def _keys(kind: inspect.Type) -> list[str]:
    tag = getattr(kind, "tag_field", None)
    return [*([tag] if tag else []), *(each.encode_name for each in kind.fields)]  # type: ignore[attr-defined]


def _sentence(problem: str, document: Any, schema: inspect.Type, source: Source, read: Callable[[Any], object]) -> str:
    """What msgspec reports, in one wording for all files."""
    found = _PROBLEM.fullmatch(problem)
    assert found is not None, "the expression matches every text"
    value, path = document, tuple[Step, ...]()

    def culprit() -> str:
        """The key in the present mapping that causes the problem: msgspec reports only the mapping."""
        few = islice(value, MAX_TRIALS)
        return next(
            (key for key in few if _problem(read, _replaced(document, path, {key: value[key]})) == problem), "*"
        )

    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", found["path"] or ""):
        step = int(index) if index.isdigit() else key or culprit()
        schema = _item_type(_arm(value, schema), step) or schema  # the step to a record's tag stays at its union
        value = value.get(step) if type(value) is dict else value[step]
        path = (*path, step)
    if found["key"]:
        kind = _arm(value, schema).key_type  # type: ignore[attr-defined]
        return _explanation(found["what"], f"keys of {_of(path, source)}", culprit(), kind)
    return _explanation(found["what"], _of(path, source), value, schema)


def _explanation(what: str, place: str, value: Any, kind: inspect.Type) -> str:
    """One sentence on what is wrong with a value of this type."""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        words = _described(_item_type(_arm(value, kind), missing[1]))
        return f"Expected {place} to have the key {missing[1]!r}{f', {words}' if words else ''}."
    choices = _choices(kind)
    if choices and what.startswith("Invalid"):
        return f"Expected {place} in {listed(choices)}, got {_shown(value)}.{suggestion(str(value), choices)}"
    if wrong := _WRONG_TYPE.fullmatch(what):
        words = " or ".join(_KINDS.get(name, name) for name in wrong["kind"].split(" | ")) + wrong["limit"]
        return f"Expected {place} to be {_described(kind) or words}, got {_shown(value)}."
    return f"Expected {place} to be valid: {what}."


def _shown(value: object) -> str:
    """A value in an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _problem(read: Callable[[Any], object], document: Any) -> str:
    """What msgspec reports for a document; empty if it is valid."""
    try:
        read(document)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _replaced(document: Any, path: Steps, new: object) -> Any:
    """A copy with another value at this path."""
    if not path:
        return new
    copy = document.copy()
    copy[path[0]] = _replaced(document[path[0]], path[1:], new)
    return copy


def _described(kind: inspect.Type | None) -> str:
    """What the annotation of a field expects, `Annotated[..., Meta(description=...)]`; empty if it does not say."""
    match kind:
        case inspect.Metadata(extra_json_schema={"description": description}):
            return str(description)
    return ""


def _choices(kind: inspect.Type) -> list[str]:
    match kind:
        case inspect.LiteralType(values=values):
            return [str(each) for each in values]
        case inspect.EnumType(cls=cls):
            return [str(each.value) for each in cls]
        case inspect.UnionType(types=types):
            return [str(tag) for each in types if (tag := getattr(each, "tag", None))]
    return []


def _of(path: Steps, source: Source) -> str:
    """A place in a document, for people: the first item of a list is number 1."""
    steps = [str(step + 1) if type(step) is int else str(step) for step in path]
    return f"{'.'.join(steps)} of {source.label}" if steps else source.label
