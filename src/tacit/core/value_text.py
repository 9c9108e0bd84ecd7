"""Parse values in Python's notation without executing the text.

Text from a file must not choose the code. It is parsed, not evaluated: the only calls allowed are to dataclasses
that the caller permits, with such calls or literals as arguments.
"""

import ast
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType

from tacit.core.schema import build_piece, choose
from tacit.errors import UserError

MAX_TEXT_BYTES = 1 << 16  # characters


def parse(text: str, classes: Mapping[str, type], what: str) -> object:
    """Return the value of an expression; `what` names it in error messages.

    Raises:
        UserError: the text is not such an expression.

    Example:
        >>> from tacit.core import Budget
        >>> parse("Budget(2.0, delta=1e-5)", {"Budget": Budget}, "a budget")
        Budget(epsilon=2.0, delta=1e-05)
    """
    if len(text) > MAX_TEXT_BYTES:
        raise UserError(f"Expected the text of {what} to have at most {MAX_TEXT_BYTES} characters, got {len(text)}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escapes
            tree = ast.parse(text, mode="eval").body
        return _value(tree, classes)
    except UserError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"Expected the text of {what}, got something else.") from error


def dataclasses_of(*packages: ModuleType) -> Mapping[str, type]:
    """Return the dataclasses that packages export, by name."""
    return _Dataclasses({name: package for package in packages for name in package.__all__})


class _Dataclasses(Mapping[str, type]):
    """The dataclasses among public names, looked up on demand."""

    def __init__(self, places: Mapping[str, ModuleType]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> type:
        value: object = getattr(self._places[name], name)
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._places if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _value(node: ast.expr, classes: Mapping[str, type]) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            kwargs = {keyword.arg: _value(keyword.value, classes) for keyword in keywords if keyword.arg}
            if len(kwargs) != len(keywords):
                raise UserError("Expected named arguments in a method's text, got **.")
            return build_piece(choose(classes, name, "a public class"), [_value(arg, classes) for arg in args], kwargs)
        case ast.Tuple(elts=parts):
            return tuple(_value(part, classes) for part in parts)
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    excerpt = ast.unparse(node.func if isinstance(node, ast.Call) else node)[:80]
    raise UserError(f'Expected public classes and literals in the text, got "{excerpt}".')
