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
from contextlib import suppress
from fractions import Fraction
from types import NoneType
from typing import Any, Literal, TypeVar

from tacit.errors import UserError

_T = TypeVar("_T")
Options = Mapping[str, object]  # of a factory: plain values by name
MAX_INT = 2**63 - 1
MAX_DENOMINATOR = 1_000_000  # of fractions that a decimal number stands for
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
SETTINGS = ("budget", "patience", "max_row_norm", "report_delta")  # of a method, beside its pieces


def call(factory: Callable[..., _T], label: str, options: Mapping[str, object]) -> _T:
    """Call a factory with options from a file or a command line.

    Args:
        factory: a function with named parameters only.
        label: its name in error messages.
        options: values as in TOML or on a command line; strings are converted to the annotated type. Dots name
            the fields of a parameter whose default is a dataclass.

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
    declared = inspect.signature(factory, eval_str=True).parameters
    grouped = _by_name(options)
    check_names(grouped, declared, label)
    missing = [key for key, p in declared.items() if p.default is p.empty and key not in options]
    if missing:
        raise UserError(f"Expected {label} to be given {list_names(missing)}: there is no default.")
    parameters = {key: declared[key] for key in grouped}
    return factory(
        **{key: _field_value(p.default, grouped[key], p.annotation, key, label) for key, p in parameters.items()}
    )


def annotation_of(factory: Callable[..., object], path: str) -> Any:
    """The annotated type of a parameter or, with dots, of a field of its default; `Any` for every other name.

    Example:
        >>> annotation_of(lambda rounds: rounds, "server.rate")
        typing.Any
    """
    name, *rest = path.split(".")
    parameter = inspect.signature(factory, eval_str=True).parameters.get(name)
    if parameter is None:
        return Any
    annotation, default = parameter.annotation, parameter.default
    for field in rest:
        annotation = typing.get_type_hints(type(default)).get(field, Any)
        default = getattr(default, field, None)
    return annotation


def check_names(options: Iterable[str], known: Iterable[str], label: str) -> None:
    """Raise `UserError` for the first unknown option; the message suggests the closest known one."""
    table = dict.fromkeys(known)
    for key in options:
        choose(table, key, f"options of {label}")


def change_fields(value: _T, changes: Mapping[str, object], label: str) -> _T:
    """Copy a dataclass with some fields changed, its own or those of dataclasses in its fields.

    Args:
        value: a dataclass; the copy is validated like a new one.
        changes: values as in TOML or on a command line, by field name; dots separate nested fields.
        label: the name of the value in error messages.

    Example:
        >>> from dataclasses import make_dataclass
        >>> Ring = make_dataclass("Ring", [("bits", int)], frozen=True)
        >>> change_fields(Ring(32), {"bits": "16"}, "ring").bits
        16
    """
    if not changes:
        return value
    names = sorted(f.name for f in dataclasses.fields(value) if f.init) if dataclasses.is_dataclass(value) else ()
    grouped = _by_name(changes)
    for name in grouped:
        choose(dict.fromkeys(names), name, f"fields of {label}")
    hints = typing.get_type_hints(type(value))
    new = {name: _field_value(getattr(value, name), inner, hints[name], name, label) for name, inner in grouped.items()}
    return dataclasses.replace(value, **_reset_alternatives(value, new), **new)  # type: ignore[type-var]


def _by_name(options: Options) -> dict[str, dict[str, object]]:
    """Options by the name before the first dot, and then by the path after it, which is empty without dots."""
    grouped: dict[str, dict[str, object]] = {}
    for key, value in options.items():
        name, _, path = key.partition(".")
        grouped.setdefault(name, {})[path] = value
    return grouped


def _field_value(value: object, options: Options, annotation: Any, name: str, label: str) -> object:
    """A value, or its replacement under the empty path, with the fields that other paths set."""
    if "" in options:
        value = convert(options[""], annotation, name, label)
    return change_fields(value, {path: each for path, each in options.items() if path}, f"{name} of {label}")


def simplest_fraction(value: float) -> Fraction:
    """The fraction that a decimal number stands for: 1/3 for 0.3333333333333333, and never 0 for a number above it.

    Example:
        >>> [str(simplest_fraction(value)) for value in (0.1, 1 / 3, 0.0004, 1e-9)]
        ['1/10', '1/3', '1/2500', '1/1000000000']
    """
    near = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    return near if near or not value else Fraction(str(value))


def instead_of(other: str, default: Any = None) -> Any:
    """A field of a dataclass that replaces another; `change_fields` resets the other one to its default.

    Example:
        >>> either = [("steps", int | None, instead_of("epochs")), ("epochs", int | None, instead_of("steps"))]
        >>> Length = dataclasses.make_dataclass("Length", either, frozen=True)
        >>> change_fields(Length(epochs=5), {"steps": 3}, "length")
        Length(steps=3, epochs=None)
    """
    return dataclasses.field(default=default, metadata={"instead_of": other})


def convert(value: object, annotation: Any, key: str, label: str) -> object:
    """Convert a plain value to an annotated type; dataclasses must be of that type, and other values are unchanged."""
    if typing.get_origin(annotation) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(annotation)}
        return choose(choices, str(value), f"{key} of {label}")
    return _read_field(value, annotation, _READERS, key, label)


def build_piece(kind: type[_T], args: Sequence[object], named: Mapping[str, object]) -> _T:
    """Build a dataclass from untrusted values, without conversion.

    Raises `UserError` unless they have the types of its fields and are valid.

    Example:
        >>> from tacit.core import Budget
        >>> build_piece(Budget, (), {"epsilon": "2", "delta": 0.1})
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected epsilon of Budget to be a number, got '2' (str).
    """
    try:
        hints = typing.get_type_hints(kind)
        for key, value in inspect.signature(kind).bind(*args, **named).arguments.items():
            _read_field(value, hints[key], _EXACT, key, kind.__name__)
        return kind(*args, **named)
    except UserError:
        raise
    except Exception as error:  # a class's own validation may fail in any way on a value of another type
        raise UserError(f"Expected the fields of {kind.__name__}: {error}.") from error


def arms(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; of any other annotation, itself."""
    return typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)


def choose(table: Mapping[str, _T], name: str, what: str) -> _T:
    """The entry with this name; for an unknown name, an error that lists all names and suggests the closest.

    Example:
        >>> choose({"iid": 1, "shards": 2}, "shard", "partition")
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected partition in iid, shards, got 'shard'. Did you mean 'shards'?
    """
    if name not in table:
        raise UserError(f"Expected {what} in {list_names(table)}, got {name!r}.{suggestion(name, table)}")
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
    return f" Did you mean one of {list_names(c for c in choices if c.startswith(f'{near[0]}/'))}?" if near else ""


def list_names(names: Iterable[str]) -> str:
    """The names, separated by commas; `none` if there are none."""
    return ", ".join(names) or "none"


def _reset_alternatives(instance: Any, new: Mapping[str, object]) -> dict[str, object]:
    """Fields that others replace, with their defaults."""
    fields = {field.name: field for field in dataclasses.fields(instance)}
    explicit = [fields[name] for name, value in new.items() if value != fields[name].default]
    others = [field.metadata["instead_of"] for field in explicit if "instead_of" in field.metadata]
    return {other: fields[other].default for other in others if other not in new}


def _read_field(value: object, annotation: Any, readers: "_Readers", key: str, label: str) -> object:
    try:
        return _read(value, annotation, readers)
    except _MISFITS:
        actual = f"{value!r} ({type(value).__name__})"
        raise UserError(f"Expected {key} of {label} to be {_name(annotation)}, got {actual}.") from None


def _read(value: object, annotation: Any, readers: "_Readers") -> object:
    """The value as the annotated type; raises one of `_MISFITS` if it cannot be read so."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return _read_union(value, args, readers)
    if origin is tuple:
        items = readers[tuple](value)
        return tuple(_read(item, kind, readers) for item, kind in zip(items, item_types(args, len(items)), strict=True))
    if annotation in readers:
        return readers[annotation](value)
    if value not in args if origin is Literal else not _fits(value, annotation):
        raise TypeError(value)
    return value


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value is a dataclass or function as annotated, or has the members of an annotated Protocol."""
    if typing.get_origin(annotation) is Callable:
        return callable(value)
    if getattr(annotation, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(annotation) if not name.startswith("_"))
    return not dataclasses.is_dataclass(annotation) or isinstance(value, typing.cast(type, annotation))


def _read_union(value: object, arms: tuple[Any, ...], readers: "_Readers") -> object:
    """The value as the first type of the union that accepts it, narrow ones first: `3` is an int before a string."""
    for arm in sorted(arms, key=lambda arm: _WIDTHS.get(arm, 1)):
        with suppress(*_MISFITS):
            return _read(value, arm, readers)
    raise ValueError(value)


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
    """The type of each of this many items: all the same, or those that the annotation lists."""
    return arms[:1] * count if arms[1:] == (Ellipsis,) else arms


def _exactly(*kinds: type) -> Callable[[object], Any]:
    """A reader of values of exactly these types: true and false are no numbers, and integers have 64 bits."""

    def read(value: object) -> object:
        if type(value) not in kinds and (type(value) is bool or not isinstance(value, kinds)):
            raise TypeError(value)
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ValueError(value)
        return value

    return read


def _to_none(value: object) -> object:
    return _EXACT[NoneType](None if isinstance(value, str) and value.lower() == "none" else value)


def _to_bool(value: object) -> object:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    return words[value.lower()] if isinstance(value, str) and value.lower() in words else _EXACT[bool](value)


def _to_int(value: object) -> object:
    whole = isinstance(value, str) or (isinstance(value, float) and value.is_integer())
    return _EXACT[int](int(value) if whole else value)  # type: ignore[call-overload]


def _to_float(value: object) -> float:
    """A number from a number or a string, which may be a fraction such as `1/60`."""
    if isinstance(value, str):
        return float(Fraction(value.replace(" ", "")) if "/" in value else value)
    return float(_EXACT[float](value))


_Readers = Mapping[Any, Callable[[object], Any]]
_UNIONS = (types.UnionType, typing.Union)
_MISFITS = (ValueError, TypeError, ArithmeticError)
_WIDTHS = {NoneType: 0, bool: 2, int: 3, float: 4, str: 5}  # of types in a union; 1: of all others
_EXACT: _Readers = {  # of values from Python
    float: _exactly(int, float),
    **{kind: _exactly(kind) for kind in (NoneType, bool, int, str, tuple)},
}
_READERS: _Readers = {  # of values from a file or a command line
    NoneType: _to_none,
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _EXACT[str],
    tuple: _items,
}


def _name(annotation: Any) -> str:
    """An annotation in words, for error messages."""
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return " or ".join(map(_name, arms))
    if origin is Literal:
        return " or ".join(map(str, arms))
    if origin is tuple:
        same = arms[1:] == (Ellipsis,)
        return f"a list, each item {_name(arms[0])}" if same else f"({', '.join(map(_name, arms))})"
    name = getattr(annotation, "__name__", str(annotation))
    return TYPES_IN_WORDS.get(name, name)
