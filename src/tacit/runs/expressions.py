"""Parse the `repr` of a method without executing it.

Text from a file must not decide which code runs. It is parsed, not evaluated: the only calls allowed are to the records
that `tacit` exports, with arguments that are such calls or literals.
"""

import ast
import dataclasses
from collections.abc import Mapping
from typing import TypeGuard

from tacit import core, pieces, wire
from tacit.core import Method
from tacit.core.schema import choose
from tacit.errors import UserError


def build(text: str) -> Method:
    """The method that an expression describes.

    Raises:
        UserError: the text is no such expression, describes something else, or its pieces do not fit together.

    Example:
        >>> build("Method(name='mine', rounds=2, sampler=FixedSize(size=3), trainer=Sgd(lr=0.1, steps=1))").rounds
        2
        >>> build("__import__('os').system('true')")
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected records and plain values in the text, got "__import__('os').system".
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError("Expected the text of a method, got something else.") from error
    value = _value(tree, _records())
    if not isinstance(value, Method):
        raise UserError(f"Expected the text of a method, got that of {type(value).__name__}.")
    return value


def _records() -> Mapping[str, type]:
    public = {name: getattr(package, name) for package in (core, wire, pieces) for name in package.__all__}
    return {name: value for name, value in public.items() if _is_record(value)}


def _is_record(value: object) -> TypeGuard[type]:
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def _value(node: ast.expr, records: Mapping[str, type]) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            kwargs = {keyword.arg: _value(keyword.value, records) for keyword in keywords if keyword.arg}
            if len(kwargs) != len(keywords):
                raise UserError("Expected named arguments in a method's text, got **.")
            return _make(choose(records, name, "a public record"), [_value(arg, records) for arg in args], kwargs)
        case ast.Tuple(elts=parts):
            return tuple(_value(part, records) for part in parts)
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    raise UserError(f'Expected records and plain values in the text, got "{_excerpt(node)}".')


def _make(record: type, args: list[object], kwargs: dict[str, object]) -> object:
    try:
        return record(*args, **kwargs)
    except TypeError as error:
        raise UserError(f"Expected the fields of {record.__name__} in a method's text: {error}.") from error


def _excerpt(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)[:80]
