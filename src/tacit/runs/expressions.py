"""A method's `repr` back to the method, without running it: names of public records, and plain values.

Text that comes from a file must not decide what code runs. It is parsed, not evaluated: calls are allowed to the
records that `tacit` exports, with keyword and positional arguments that are such calls or literals, and nothing else.
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
    """The method that an expression names.

    Raises:
        UserError: it is not such an expression, names something else, or the pieces do not fit together.

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
    found = _value(tree, _records())
    if not isinstance(found, Method):
        raise UserError(f"Expected the text of a method, got that of {type(found).__name__}.")
    return found


def _records() -> Mapping[str, type]:
    public = {name: getattr(room, name) for room in (core, wire, pieces) for name in room.__all__}
    return {name: thing for name, thing in public.items() if _is_record(thing)}


def _is_record(thing: object) -> TypeGuard[type]:
    return isinstance(thing, type) and dataclasses.is_dataclass(thing)


def _value(node: ast.expr, records: Mapping[str, type]) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {keyword.arg: _value(keyword.value, records) for keyword in keywords if keyword.arg}
            if len(named) != len(keywords):
                raise UserError("Expected named arguments in a method's text, got **.")
            return _made(choose(records, name, "a public record"), [_value(arg, records) for arg in args], named)
        case ast.Tuple(elts=parts):
            return tuple(_value(part, records) for part in parts)
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    raise UserError(f'Expected records and plain values in the text, got "{_shown(node)}".')


def _made(record: type, args: list[object], named: dict[str, object]) -> object:
    try:
        return record(*args, **named)
    except TypeError as error:
        raise UserError(f"Expected the fields of {record.__name__} in a method's text: {error}.") from error


def _shown(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)[:80]
