"""The signature of a factory is its schema.

Methods and tasks are built by ordinary functions. Options from a file or a command line are checked against the
parameters of the function: unknown and missing options are reported with the closest match, and plain values are
converted to the annotated type.
"""

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar

from tacit.errors import UserError

_T = TypeVar("_T")
Options = Mapping[str, object]  # of a factory: plain values by name
MAX_INT = 2**63 - 1
MAX_DENOMINATOR = 1_000_000  # of fractions that people mean by a decimal number
MAX_WORD = 200  # characters of a name that is compared with others
TYPES_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "NoneType": "none",
    "Callable": "a function",
}

SLOTS = ("sampler", "trainer", "codec", "mechanism", "channel", "aggregator", "server")  # of a method
SETTINGS = ("budget", "patience", "reach", "report_delta")  # of a method, beside its pieces


def call(factory: Callable[..., _T], label: str, options: Mapping[str, object]) -> _T:
    """Call a factory with options from a file or a command line.

    Args:
        factory: a function with named parameters only.
        label: its name in error messages.
        options: values as in TOML or on a command line; strings are converted to the annotated type. Dots reach into
            the fields of a parameter whose default is a record.

    Raises:
        UserError: an option is unknown, missing, or of the wrong type.

    Example:
        >>> def noisy(clip: float, rounds: int = 100) -> str:
        ...     return f"{clip} {rounds}"
        >>> call(noisy, "noisy", {"clip": "1/4"})
        '0.25 100'
        >>> call(noisy, "noisy", {"clip": 1, "clp": 3})
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected options of noisy in clip, rounds, got 'clp'. Did you mean 'clip'?
    """
    known = inspect.signature(factory, eval_str=True).parameters
    plain, nested = split_dots(options)
    check_names([*plain, *nested], known, label)
    missing = [key for key, p in known.items() if p.default is p.empty and key not in plain]
    if missing:
        raise UserError(f"Expected {label} to be given {listed(missing)}: there is no default.")
    arguments = {key: convert(value, known[key].annotation, key, label) for key, value in plain.items()}
    for key, changes in nested.items():
        arguments[key] = changed(arguments.get(key, known[key].default), changes, f"{key} of {label}")
    return factory(**arguments)


def annotation_of(factory: Callable[..., object], path: str) -> Any:
    """The annotated type of a parameter or, with dots, of a field of its record; `Any` for every other name.

    Example:
        >>> annotation_of(lambda rounds: rounds, "server.rate")
        typing.Any
    """
    name, *rest = path.split(".")
    parameter = inspect.signature(factory, eval_str=True).parameters.get(name)
    if parameter is None:
        return Any
    annotation, record = parameter.annotation, parameter.default
    for field in rest:
        annotation = typing.get_type_hints(type(record)).get(field, Any)
        record = getattr(record, field, None)
    return annotation


def split_dots(options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Options without dots, and those with dots by the name before the first.

    Example:
        >>> split_dots({"rounds": 3, "descent.lr": 0.1, "descent.steps": 2})
        ({'rounds': 3}, {'descent': {'lr': 0.1, 'steps': 2}})
    """
    nested: dict[str, dict[str, object]] = {}
    for key, value in options.items():
        if "." in key:
            name, _, rest = key.partition(".")
            nested.setdefault(name, {})[rest] = value
    return {key: value for key, value in options.items() if "." not in key}, nested


def check_names(options: Iterable[str], known: Iterable[str], label: str) -> None:
    """Raise `UserError` for the first unknown option; the message suggests the closest known one."""
    table = dict.fromkeys(known)
    for key in options:
        choose(table, key, f"options of {label}")


def changed(record: _T, changes: Mapping[str, object], label: str) -> _T:
    """A copy of a frozen record with some fields changed, its own or those of nested records.

    Args:
        record: a dataclass; the copy is validated like a new record.
        changes: values as in TOML or on a command line, by field name; dots separate nested fields.
        label: the name of the record in error messages.

    Example:
        >>> from dataclasses import make_dataclass
        >>> Ring = make_dataclass("Ring", [("bits", int)], frozen=True)
        >>> changed(Ring(32), {"bits": "16"}, "ring").bits
        16
    """
    if not changes:
        return record
    known = {f.name for f in dataclasses.fields(record) if f.init} if dataclasses.is_dataclass(record) else set()
    nested: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if name not in known:
            hint = suggestion(name, known)
            raise UserError(f"Expected fields of {label} in {listed(sorted(known))}, got {name!r}.{hint}")
        nested.setdefault(name, {})[rest] = value
    hints = typing.get_type_hints(type(record))
    new = {
        name: convert(inner[""], hints[name], name, label)
        if "" in inner
        else changed(getattr(record, name), inner, f"{name} of {label}")
        for name, inner in nested.items()
    }
    return dataclasses.replace(record, **_replaced(record, new), **new)  # type: ignore[type-var]


def simplest_fraction(value: float) -> Fraction:
    """The fraction that a decimal number stands for: 1/3 for 0.3333333333333333, and never 0 for a number above it.

    Example:
        >>> [str(simplest_fraction(value)) for value in (0.1, 1 / 3, 0.0004, 1e-9)]
        ['1/10', '1/3', '1/2500', '1/1000000000']
    """
    near = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    return near if near or not value else Fraction(str(value))


def instead_of(other: str, default: Any = None) -> Any:
    """A field of a record that is given instead of another; `changed` resets the other one to its default.

    Example:
        >>> either = [("steps", int | None, instead_of("epochs")), ("epochs", int | None, instead_of("steps"))]
        >>> Length = dataclasses.make_dataclass("Length", either, frozen=True)
        >>> changed(Length(epochs=5), {"steps": 3}, "length")
        Length(steps=3, epochs=None)
    """
    return dataclasses.field(default=default, metadata={"instead_of": other})


def convert(value: object, annotation: Any, key: str, label: str) -> object:
    """Convert a plain value to an annotated type; records must be of that type, and other values are unchanged."""
    if typing.get_origin(annotation) is Literal:
        return _literal(value, typing.get_args(annotation), key, label)
    try:
        return _read(value, annotation)
    except (ValueError, TypeError, ZeroDivisionError):
        raise _wrong_type(value, annotation, key, label) from None


def check_fields(record: type, given: Mapping[str, object]) -> None:
    """Raise `UserError` unless values have the types of the record's fields; nothing is converted.

    Example:
        >>> from tacit.core import Budget
        >>> check_fields(Budget, {"epsilon": "2"})
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected epsilon of Budget to be a number, got '2' (str).
    """
    hints = typing.get_type_hints(record)
    for key, value in given.items():
        if not _has_type(value, hints[key]):
            raise _wrong_type(value, hints[key], key, record.__name__)


def made(record: type[_T], args: Sequence[object], named: Mapping[str, object]) -> _T:
    """A record of values from outside; raises `UserError` unless they have the types of its fields, and fit."""
    try:
        check_fields(record, inspect.signature(record).bind(*args, **named).arguments)
        return record(*args, **named)
    except UserError:
        raise
    except Exception as error:  # a record's own checks may fail in any way on a value of another type
        raise UserError(f"Expected the fields of {record.__name__}: {error}.") from error


def arms(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; of any other annotation, itself."""
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if union else (annotation,)


def _wrong_type(value: object, annotation: Any, key: str, label: str) -> UserError:
    return UserError(f"Expected {key} of {label} to be {_name(annotation)}, got {value!r} ({type(value).__name__}).")


def choose(table: Mapping[str, _T], name: str, what: str) -> _T:
    """The entry with this name; for an unknown name, an error that lists all names and suggests the closest.

    Example:
        >>> choose({"iid": 1, "shards": 2}, "shard", "partition")
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected partition in iid, shards, got 'shard'. Did you mean 'shards'?
    """
    if name not in table:
        raise UserError(f"Expected {what} in {listed(table)}, got {name!r}.{suggestion(name, table)}")
    return table[name]


def suggestion(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'rounds'?`, or the empty string if no choice is similar, or the word is far too long for one."""
    if len(word) > MAX_WORD:
        return ""
    folded = {choice.lower().replace("_", "-"): choice for choice in choices}
    near = difflib.get_close_matches(word.lower().replace("_", "-"), folded, n=1, cutoff=0.5)
    return f" Did you mean {folded[near[0]]!r}?" if near else _family(word, list(folded.values()))


def _family(word: str, choices: list[str]) -> str:
    """The choices `FAMILY/NAME` whose family is similar, as those of a paper."""
    families = {choice.partition("/")[0] for choice in choices if "/" in choice}
    near = difflib.get_close_matches(word.lower(), families, n=1, cutoff=0.7)
    return f" Did you mean one of {listed(c for c in choices if c.startswith(f'{near[0]}/'))}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """The names, separated by commas; `none` if there are none."""
    return ", ".join(names) or "none"


def _replaced(record: Any, new: Mapping[str, object]) -> dict[str, object]:
    """Fields that others are given instead of, with their defaults."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    given = [fields[name] for name, value in new.items() if value != fields[name].default]
    others = [field.metadata["instead_of"] for field in given if "instead_of" in field.metadata]
    return {other: fields[other].default for other in others if other not in new}


def _literal(value: object, choices: tuple[object, ...], key: str, label: str) -> object:
    if value in choices:
        return value
    names = {str(choice): choice for choice in choices}
    return choose(names, str(value), f"{key} of {label}")


def _read(value: object, annotation: Any) -> object:
    """Convert one value, or raise `ValueError` or `TypeError`."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return _read_union(value, typing.get_args(annotation))
    if origin is tuple:
        items = _items(value)
        kinds = item_types(typing.get_args(annotation), len(items))
        return tuple(_read(item, kind) for item, kind in zip(items, kinds, strict=True))
    reader = _READERS.get(annotation)
    if reader is None and not _fits(value, annotation):
        raise TypeError(value)
    return reader(value) if reader else value


def _has_type(value: object, annotation: Any) -> bool:
    """Whether a value has the annotated type; a whole number is a number, and true and false are none."""
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, arm) for arm in arms)
    if origin is Literal:
        return value in arms
    if origin is tuple:
        return isinstance(value, tuple) and _have_types(value, item_types(arms, len(value)))
    if annotation in (int, float):
        return isinstance(value, (int, annotation)) and not isinstance(value, bool) and not _huge(value)
    if annotation in (bool, str, type(None)):
        return isinstance(value, annotation)
    return _fits(value, annotation)


def _huge(value: object) -> bool:
    return isinstance(value, int) and abs(value) > MAX_INT


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value is a record or function as annotated, or has the members of an annotated Protocol."""
    if typing.get_origin(annotation) is Callable:
        return callable(value)
    if getattr(annotation, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(annotation) if not name.startswith("_"))
    return not dataclasses.is_dataclass(annotation) or isinstance(value, typing.cast(type, annotation))


def _read_union(value: object, arms: tuple[Any, ...]) -> object:
    """The value as the first type of the union that accepts it; the string `none` is `None` where that is allowed."""
    if type(None) in arms and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    for arm in sorted((arm for arm in arms if arm is not type(None)), key=_width):
        try:
            return _read(value, arm)
        except (ValueError, TypeError, ZeroDivisionError):
            continue
    raise ValueError(value)


def _have_types(values: tuple[object, ...], kinds: tuple[Any, ...]) -> bool:
    return len(values) == len(kinds) and all(map(_has_type, values, kinds))


def _items(value: object) -> Sequence[object]:
    """The items of a list, which is written with commas on a command line: `330,4250`, also in brackets."""
    match value:
        case list() | tuple():
            return value
        case str():
            text = value.strip()
            inner = text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()") else text
            return [word.strip() for word in inner.removesuffix(",").split(",")] if inner else []
    raise TypeError(value)


def item_types(arms: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The type of each of so many items: all the same, or those that the annotation lists."""
    return arms[:1] * count if arms[1:] == (Ellipsis,) else arms


def _width(annotation: Any) -> int:
    """The order in which types are tried, narrow ones first: `3` is an int before it is a float or a string."""
    order = [bool, int, float, str]
    return order.index(annotation) if annotation in order else -1


def _to_bool(value: object) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    match value:
        case bool():
            return value
        case str() if value.lower() in words:
            return words[value.lower()]
    raise ValueError(value)


def _to_int(value: object) -> int:
    match value:
        case bool():
            raise TypeError(value)
        case float() if not value.is_integer():
            raise ValueError(value)
        case int() | float() | str() if not _huge(whole := int(value)):
            return whole
    raise TypeError(value)


def _to_float(value: object) -> float:
    """A number from a number or a string, which may be a fraction such as `1/60`."""
    match value:
        case bool():
            raise TypeError(value)
        case str() if "/" in value:
            return float(Fraction(value.replace(" ", "")))
        case int() | float() | str():
            return float(value)
    raise TypeError(value)


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_READERS: dict[Any, Callable[[object], object]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
}


def _name(annotation: Any) -> str:
    """An annotation in words, for error messages."""
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_name(arm) for arm in arms)
    if origin is tuple:
        same = arms[1:] == (Ellipsis,)
        return f"a list, each item {_name(arms[0])}" if same else f"({', '.join(map(_name, arms))})"
    name = getattr(annotation, "__name__", str(annotation))
    return TYPES_IN_WORDS.get(name, name)
