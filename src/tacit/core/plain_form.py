"""The canonical form of a method and its pieces: nested dictionaries, lists, strings and numbers.

A dataclass becomes a dictionary of its fields, tagged with the name of its class (`type`). Numbers are exact: a field
declared as a number is a float even where an integer was given, so equal values have equal forms. A class that no
package registered is tagged with its module, and a function with a digest of its code.

Reading runs only the code of classes that Tacit's packages export (`allow`) or the caller names: a form comes from a
file or from another party, and must not choose the code.
"""

import functools
import hashlib
import json
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import count
from numbers import Integral, Real
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import Any

from torch import Tensor

from tacit import core
from tacit.core.schema import arms, build_piece, check_names, choose, item_types
from tacit.core.value_text import dataclasses_of
from tacit.errors import UserError

PLAIN_VERSION = 1
TYPE_TAG = "type"
_MAX_DEPTH = 16
MAX_VALUES = 10_000
MAX_CHARACTERS = 1 << 20  # of a form as text
_DIGESTS = ("function", "name", "partial", "tensor")  # types of which a form has a name or digest only
Form = Any  # None, a bool, an int, a finite float, a str, or a list or dictionary of these by name
_packages: list[ModuleType] = [core]


def allow(package: ModuleType) -> None:
    """Let forms name the dataclasses that this package exports; it must be one of Tacit's own."""
    if package not in _packages:
        _packages.append(package)


def canonical(plain: Form) -> str:
    """The one text of a form: JSON with sorted keys, without spaces.

    Example:
        >>> canonical({"b": 0.1, "a": [True, None]})
        '{"a":[true,null],"b":0.1}'
    """
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(plain: Form) -> str:
    """The SHA-256 of a form's text, in hexadecimal."""
    return hashlib.sha256(canonical(plain).encode()).hexdigest()


def parse(text: str) -> Form:
    """The form in a canonical text; raises `UserError` for any other text."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"Expected a form of at most {MAX_CHARACTERS} characters, got {len(text)}.")
    try:
        plain = json.loads(text)
        same = canonical(plain) == text
    except (ValueError, RecursionError) as error:
        raise UserError(f"Expected the canonical form of a method as JSON: {error}.") from None
    if not same:
        raise UserError("Expected the canonical form of a method: sorted names, no spaces, and every name once.")
    return plain


@functools.singledispatch
def to_plain(value: object) -> Form:
    """Return the form of a dataclass, of the values in its fields, or of any plain value.

    Raises `UserError` for a value without a form, such as NaN or a dictionary.

    Example:
        >>> from tacit.core import Budget
        >>> to_plain(Budget(2, delta=1e-5))
        {'type': 'Budget', 'epsilon': 2.0, 'delta': 1e-05}
    """
    kind = type(value)
    if is_dataclass(kind):
        values = {each.name: getattr(value, each.name) for each in fields(kind) if each.init and each.compare}
    elif kind.__reduce__ is object.__reduce__ and hasattr(value, "__dict__"):  # all of its state is there
        values = dict(vars(value))
    else:
        raise UserError(f"Expected numbers, texts, tuples and dataclasses in a method, got {kind.__name__}.")
    hints = _hints(kind)
    forms = {name: to_plain(_as_declared(each, hints.get(name, Any))) for name, each in values.items()}
    return {TYPE_TAG: _tag(kind), **forms}


@to_plain.register(NoneType)
@to_plain.register(bool)
@to_plain.register(str)
def _itself(value: Form) -> Form:
    return value


@to_plain.register
def _whole(value: Integral) -> Form:
    return int(value)


@to_plain.register
def _number(value: Real) -> Form:
    number = float(value)
    if math.isnan(number):
        raise UserError("Expected numbers in a method, got NaN.")
    return number if math.isfinite(number) else {TYPE_TAG: "float", "value": str(number)}


@to_plain.register(tuple)
@to_plain.register(list)
def _items(value: Iterable[object]) -> Form:
    return [to_plain(each) for each in value]


@to_plain.register
def _tensor(value: Tensor) -> Form:
    data = value.detach().cpu().contiguous()
    content = hashlib.sha256(data.numpy().tobytes()).hexdigest()
    return {TYPE_TAG: "tensor", "dtype": str(data.dtype), "shape": list(data.shape), "digest": content}


@to_plain.register
def _function(value: FunctionType) -> Form:
    """Name, code, defaults and enclosed values, without the module's globals."""
    cells = [_inner_form(cell.cell_contents) for cell in value.__closure__ or ()]
    defaults = [_inner_form(each) for each in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())]
    content = digest([_code(value.__code__), cells, defaults])
    return {TYPE_TAG: "function", "name": f"{value.__module__}:{value.__qualname__}", "digest": content}


@to_plain.register(type)
@to_plain.register(BuiltinFunctionType)
def _name_form(value: type | BuiltinFunctionType) -> Form:
    return {TYPE_TAG: "name", "name": f"{value.__module__}:{value.__qualname__}"}


@to_plain.register
def _partial(value: functools.partial) -> Form:  # type: ignore[type-arg]
    parts = [to_plain(each) for each in (value.func, value.args, sorted(value.keywords.items()))]
    return {TYPE_TAG: "partial", "digest": digest(parts)}


def from_plain(plain: Form, own: Iterable[type] = ()) -> object:
    """The value of a form; `own`: the caller's classes that it may name, beside those of Tacit.

    Raises:
        UserError: the form names an unknown class or field, lacks one, is too large or too deep, or has wrong values.
    """
    return _Reader({_tag(kind): kind for kind in own}).value(plain, 0)


class _Reader:
    """Reads one form, and counts its values."""

    def __init__(self, own: Mapping[str, type]) -> None:
        self._own, self._counter = own, count(1)

    def value(self, plain: Form, depth: int) -> object:
        if depth > _MAX_DEPTH or next(self._counter) > MAX_VALUES:
            raise UserError(f"Expected a form of at most {MAX_VALUES} values, {_MAX_DEPTH} deep.")
        match plain:
            case None | bool() | int() | str():
                return plain
            case float() if math.isfinite(plain):
                return plain
            case list():
                return tuple(self.value(each, depth + 1) for each in plain)
            case {"type": "float", "value": "inf" | "-inf" as infinite, **rest} if not rest:
                return float(infinite)
            case {"type": str(name), **given}:
                return self._record(name, typing.cast(dict[str, Form], given), depth)
        raise UserError(f"Expected plain values and objects with a {TYPE_TAG} in a form, got {str(plain)[:80]!r}.")

    def _record(self, name: str, given: Mapping[str, Form], depth: int) -> object:
        if name in _DIGESTS:
            raise UserError(f"Expected a form that can be read, got one with a {name}, of which it has a digest only.")
        kind = self._own.get(name) or choose(dataclasses_of(*_packages), name, "a type that a form may name")
        names = [each.name for each in fields(kind) if each.init and each.compare]
        check_names(given, names, name)
        missing = [each for each in names if each not in given]
        if missing:
            raise UserError(f"Expected {name} with all of its fields, got none for {', '.join(missing)}.")
        return build_piece(kind, (), {key: self.value(each, depth + 1) for key, each in given.items()})


def _tag(kind: type) -> str:
    """The name by which a form names a class: alone if a package of Tacit exports it, otherwise with its module."""
    exported = dataclasses_of(*_packages).get(kind.__name__)
    return kind.__name__ if exported is kind else f"{kind.__module__}:{kind.__qualname__}"


def _hints(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError:  # of a class of your own, whose annotations name what is not imported
        return {}


def _as_declared(value: object, annotation: Any) -> object:
    """A whole number as a float where a number is declared, also in tuples."""
    kinds = arms(annotation)
    match value:
        case bool():
            return value
        case int() if float in kinds and int not in kinds:
            return float(value)
        case tuple():
            items = next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple), (Any, ...))
            return tuple(map(_as_declared, value, item_types(items, len(value))))
    return value


def _inner_form(value: object) -> Form:
    """The form of an enclosed value; without one, that of its class."""
    try:
        return to_plain(value)
    except UserError:
        return to_plain(type(value))


def _code(code: CodeType) -> Form:
    """A function's code, the same in every process: sets of constants have no order."""
    constants = [_code(each) if type(each) is CodeType else _constant(each) for each in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if type(value) is frozenset else repr(value)
