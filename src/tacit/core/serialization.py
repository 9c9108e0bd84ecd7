"""Files as typed values: a dataclass or `msgspec.Struct` is the schema of the JSON or TOML document it is read from.

Every error is one sentence that names the file, the key, the expected value and the actual one; for an unknown key or
choice it suggests the closest known one. The type of the field describes the expected value or, in better words, its
annotation: `Annotated[..., Meta(description="a list of quantities")]`.
"""

import functools
import json
import math
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from tacit.core import files
from tacit.core.schema import TYPES_IN_WORDS, arms, item_types, list_names, suggestion
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
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_LIMIT = re.compile(r"Expected `[^`]*`(.*?)(?:, got .*)?$")  # as msgspec words it, such as ` >= 1`
_WORDS: dict[Any, str] = {dict: "a table", list: "a list", Path: TYPES_IN_WORDS["str"]}
_WORDS |= {kind: TYPES_IN_WORDS[kind.__name__] for kind in (int, float, str, bool, NoneType)}
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_KEY}}}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a value, for error messages.

    Attributes:
        label: its name, usually the file.
        error: the class of its errors.
        advice: what to do about an error, as a sentence; empty: the error itself does.
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
    """Read a value from a JSON document.

    Args:
        content: the document.
        kind: the type of the value.
        source: what the document is, for error messages.
        version: what its key `format` must be; None: it is not checked.
        strict: whether strings are only strings, and not also numbers such as `inf`, which JSON does not have.
    """
    if len(content) > MAX_JSON_BYTES:
        raise source.problem(f"Expected {source.label} to have at most {MAX_JSON_BYTES} bytes, got {len(content)}.")
    try:
        table = json.loads(content, object_pairs_hook=_table)
    except KeyError as error:
        raise source.problem(f"Expected different keys in {source.label}, got {_show(error.args[0])} twice.") from None
    except (ValueError, RecursionError):
        raise source.problem(f"Expected {source.label} to be JSON, got other content.") from None
    if not _is_shallow(table):
        raise source.problem(f"Expected {source.label} to have at most {MAX_DEPTH} nested values.")
    actual = table.get("format") if type(table) is dict else None
    if version is not None and actual != version:
        writer = "" if actual is None else ", of another version of Tacit"
        raise source.problem(f"Expected {source.label} to have format {version}, got {actual}{writer}.")
    return convert(table, kind, source, strict=strict)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of these keys; raises `KeyError` for a key that occurs twice, of which one value would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise KeyError(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return table


def read_toml(path: Path, kind: type[_T]) -> _T:
    """Read a value from a TOML file; an unknown key is an error."""
    return convert(load_toml(path), kind, Source(label=str(path)))


def load_toml(path: Path) -> Mapping[str, Any]:
    """The plain values in a TOML file; a file that cannot be read or parsed is a `UserError`."""
    content = files.read(path, limit=MAX_TOML_BYTES)
    try:
        table = _parse(content.decode("utf-8"))
    except RecursionError as error:
        raise UserError(f"Expected {path} to have at most {MAX_DEPTH} nested values.") from error
    except ValueError as error:  # of the syntax, the encoding, or a number with too many digits
        raise UserError(f"Expected {path} to be TOML: {error}.") from error
    if not _is_shallow(table):
        raise UserError(f"Expected {path} to have at most {MAX_DEPTH} nested values.")
    return table


def _is_shallow(value: object) -> bool:
    """Whether tables and lists are nested at most `MAX_DEPTH` times, so that readers may recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [item for part in parts for item in part if isinstance(item, (dict, list))]
        if not level:
            return True
    return False


@functools.lru_cache(maxsize=16)
def _parse(content: str) -> Mapping[str, Any]:
    """Parse TOML; cached, because the rows of a study refer to the same few files."""
    plain = _TOML_TEXT.sub(lambda match: "" if match[0].startswith("#") else "s", content)
    if _LONG_KEY.search(plain):  # memory and time of tomllib grow with the square of its length
        raise ValueError(f"a key has more than {MAX_KEY} parts")
    return tomllib.loads(content)


def convert(value: object, kind: type[_T], source: Source, *, strict: bool = True) -> _T:
    """Convert a table of plain values.

    Args:
        value: the table.
        kind: the type of the value.
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
        return _convert(value, kind, source, strict=strict)
    except UnicodeEncodeError:
        raise source.problem(f"Expected the texts of {source.label} to be Unicode, got half a character.") from None


def _convert(value: object, kind: type[_T], source: Source, *, strict: bool) -> _T:
    if source.closed:
        for path, key, keys in _unknown_keys(value, kind):
            hint = suggestion(str(key), keys)
            raise source.problem(f"Expected keys of {_of(path, source)} in {list_names(keys)}, got {_show(key)}.{hint}")
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        own = error.__cause__
        if isinstance(own, UserError):  # of the class's own validation
            raise source.problem(f"{source.label}: {own}") from None
        fault = _fault(value, kind, strict)
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


def _unknown_keys(value: Any, kind: Any, path: Steps = ()) -> Iterator[tuple[Steps, Step, list[str]]]:
    """Every unknown key: its place, the key, and the known keys there."""
    if _form(value) is None:
        return
    kind = _arm(value, kind)
    for step, item, inner in _children(value, kind):
        if inner is None:
            yield path, step, [*_tag(kind), *_fields(kind)]
        else:
            yield from _unknown_keys(item, inner, (*path, step))


def _children(value: Any, kind: Any) -> Iterator[tuple[Step, Any, Any]]:
    """The items of a table or list with their types; None for a key that does not exist."""
    args = typing.get_args(kind)
    if not _has_parts(value, kind):
        return
    if _shape(kind) is list:
        types = item_types(args, len(value)) if typing.get_origin(kind) is tuple else args * len(value)
        yield from zip(range(len(value)), value, types, strict=False)
    elif args:
        yield from ((key, item, args[1]) for key, item in value.items())
    else:
        yield from ((key, item, _fields(kind).get(key)) for key, item in value.items() if key not in _tag(kind))


def _has_parts(value: Any, kind: Any) -> bool:
    """Whether a table or list is one of this type, as far as its tag shows."""
    same = _form(value) is not None and _shape(kind) is _form(value)
    return same and all(value.get(key) == tag for key, tag in _tag(kind).items())


def _form(value: Any) -> type | None:
    """`dict` for a table, `list` for a list; None for any other value."""
    kind: Any = type(value)
    return _shape(kind)


@functools.lru_cache(maxsize=1024)
def _shape(kind: Any) -> type | None:
    """`dict` for a type that is written as a table, `list` for one that is written as a list; None for any other."""
    origin = typing.get_origin(kind) or kind
    if not isinstance(origin, type) or issubclass(origin, (str, bytes)):
        return None
    if is_dataclass(origin) or issubclass(origin, (Struct, Mapping)):
        return dict
    return list if issubclass(origin, Collection) else None


def _bare(kind: Any) -> Any:
    """A type without its annotations, such as a description."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


@functools.lru_cache(maxsize=1024)
def _arms(kind: Any) -> Sequence[Any]:
    return [_bare(arm) for arm in arms(_bare(kind))]


def _arm(value: Any, kind: Any) -> Any:
    """The type of a union that a value belongs to; of tagged classes, the one with its tag."""
    return next((arm for arm in _arms(kind) if _has_parts(value, arm)), _bare(kind))


@functools.lru_cache(maxsize=64)
def _fields(kind: Any) -> Mapping[str, Any]:
    """The annotations of a class's fields, by their keys."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {each.encode_name: hints[each.name] for each in getattr(inspect.type_info(kind), "fields", ())}


def _tag(kind: Any) -> dict[str, Any]:
    """The key and the value that distinguish a class from the others of its union; empty if there are none."""
    config = getattr(kind, "__struct_config__", None)
    return {config.tag_field: config.tag} if config is not None and config.tag_field else {}


@dataclass(frozen=True)
class Fault:
    """An error in a document: its place, and what is expected there; `keys` names those of a table."""

    path: Steps
    problem: str
    keys: str = ""


def _refusal(value: Any, kind: Any, strict: bool) -> str:
    """Why a value cannot be read as this type; empty if it can."""
    try:
        msgspec.convert(value, kind, strict=strict, str_keys=True, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _fault(value: Any, kind: Any, strict: bool, path: Steps = ()) -> Fault:
    """The error of the first innermost value that is refused; msgspec names no place for it."""
    arm = _arm(value, kind)
    key_type = typing.get_args(arm)[0] if _shape(arm) is dict and typing.get_args(arm) else Any
    for step, item, inner in _children(value, arm):
        if _refusal(step, key_type, strict=False):
            return replace(_fault(step, key_type, strict=False, path=path), keys="keys of ")
        if inner is not None and _refusal(item, inner, strict):
            return _fault(item, inner, strict, (*path, step))
    refusal = _refusal(value, kind, strict)
    tags = [item for each in _arms(kind) for item in _tag(each).items()]
    if type(value) is dict and tags and not _has_parts(value, arm):
        key, expected = tags[0][0], [tag for _, tag in tags]
        return Fault((*path, key), _not_among(expected, value.get(key)))
    if missing := _MISSING.match(refusal):
        words = _description(_fields(arm)[missing[1]])
        return Fault(path, f"to have the key {missing[1]!r}{f', {words}' if words else ''}.")
    if choices := _choices(arm):
        return Fault(path, _not_among(choices, value))
    limit = _LIMIT.match(refusal)
    words = _description(kind) or _type_name(kind) + (limit[1] if limit else "")
    return Fault(path, f"to be {words}, got {_show(value)}.")


def _choices(kind: Any) -> list[Any]:
    """The values of a literal or an enumeration."""
    if typing.get_origin(kind) is Literal:
        return list(typing.get_args(kind))
    return [each.value for each in getattr(kind, "__members__", {}).values()]


def _not_among(choices: list[Any], value: Any) -> str:
    names = [str(each) for each in choices]
    return f"in {list_names(names)}, got {_show(value)}.{suggestion(str(value), names)}"


def _type_name(kind: Any) -> str:
    """A type in words; of a union, all of its types."""
    names = (_WORDS.get(arm) or _WORDS.get(_shape(arm)) or list_names(map(str, _choices(arm))) for arm in _arms(kind))
    return " or ".join(dict.fromkeys(names))


def _description(kind: Any) -> str:
    """The description in a field's annotation, `Annotated[..., Meta(description=...)]`; empty without one."""
    descriptions = (each.description for each in getattr(kind, "__metadata__", ()) if isinstance(each, Meta))
    return next(filter(None, descriptions), None) or ""


def _show(value: object) -> str:
    """A value in an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _of(path: Steps, source: Source) -> str:
    """A place in a document, for people: the first item of a list is number 1."""
    steps = [str(step + 1) if type(step) is int else str(step) for step in path]
    return f"{'.'.join(steps)} of {source.label}" if steps else source.label
