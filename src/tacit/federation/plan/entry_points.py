"""Code by name: `package.module:function` of an installed package, and the digest by which it is pinned.

A site runs only installed code. A pin is the digest of all files of the function's top-level package (or of its
module, if that is a single file), so a changed helper changes the pin too. Computing a pin imports nothing, and a
pinned function runs from the files that were read for it (`PinnedPackage`).

A plan's author chooses its names, and importing a module executes it. So a plan's reader first declares which code it
runs (`AllowedCode`): a site by its policy, the server's operator by trusting the plan.
"""

import ast
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tacit import methods
from tacit.errors import TacitError, UserError
from tacit.federation.plan.pinned_code import ModuleSource, PinnedPackage

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
PIN = re.compile(r"sha256:[0-9a-f]{64}")


def is_name(text: str) -> bool:
    """Whether this is the name of a function, `package.module:function`."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, what: str) -> None:
    """Raise `UserError` unless this is the name of a function, `package.module:function`."""
    if not is_name(name):
        raise UserError(f"Expected {what} as package.module:function of an installed package, got {name!r}.")


@dataclass(frozen=True)
class AllowedCode:
    """The third-party code that a party runs for a plan; by default none.

    Attributes:
        functions: `package.module:function`, each with the pin of its installed code; an empty pin accepts any.
        methods: names of methods from third-party packages. Tacit's own are always allowed.
    """

    functions: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()

    def method_problem(self, name: str) -> str:
        """Why this registered method must not be imported, a sentence; empty: it may. Imports nothing."""
        if methods.is_ours(name) or name in self.methods:
            return ""
        return f"The method {name} is code of another package, which was not allowed. Nothing of it was run."

    def function_problem(self, name: str, what: str) -> str:
        """Why this function must not be imported, a sentence; empty: it may. Imports nothing."""
        try:
            self._package(name, what)
        except UserError as error:
            return str(error)
        return ""

    def load(self, name: str, what: str) -> Callable[..., Any]:
        """The function with this name, imported only if it is allowed, from the very files that the pin covers."""
        package = self._package(name, what)
        return load(name, what, importlib.import_module if package is None else package.load)

    def _package(self, name: str, what: str) -> PinnedPackage | None:
        """The package of an allowed function, as it is installed; None: it is not pinned. Raises `UserError`."""
        pinned = self.functions.get(name)
        if pinned is None:
            allowed = ", ".join(self.functions) or "none"
            raise UserError(f"{what.capitalize()} {name} is not among those that are allowed here: {allowed}.")
        if not pinned:
            return None
        check_name(name, what)
        package = PinnedPackage.read(name, what)
        if package.digest != pinned:
            raise UserError(f"The installed code of {name} is {package.digest}, not {pinned} as allowed.")
        return package


NO_CODE = AllowedCode()


def load(
    name: str, what: str, import_module: Callable[[str], ModuleType] = importlib.import_module
) -> Callable[..., Any]:
    """Import the function with this name; only for names that the party itself wrote, or that it allows."""
    check_name(name, what)
    module, _, function = name.partition(":")
    try:
        value = getattr(import_module(module), function)
    except Exception as error:  # of whatever runs when it is imported
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise UserError(
            f"Could not load {what} {name}: {kind}{error}. Install its package here, or correct the name."
        ) from error
    if not callable(value):
        raise UserError(f"Expected {what} {name} to be a function, got {type(value).__name__}.")
    loaded: Callable[..., Any] = value
    return loaded


def call(name: str, what: str) -> Any:
    """Call the function with this name; raises `UserError` for an error inside it."""
    return try_call(load(name, what), name)


def try_call(function: Callable[[], Any], name: str) -> Any:
    """Call a function; raises `UserError`, which names it, for an error inside it."""
    try:
        return function()
    except TacitError:
        raise
    except Exception as error:
        raise UserError(f"{name} raised {type(error).__name__}: {error}. Call it in Python to see where.") from error


def pin(name: str, what: str) -> str:
    """The digest of the installed code of this function, as `sha256:…`."""
    check_name(name, what)
    return PinnedPackage.read(name, what).digest


def check_defined(name: str, what: str) -> None:
    """Raise `UserError` unless the installed source of this function's module mentions it. Imports nothing."""
    check_name(name, what)
    module, _, function = name.partition(":")
    source = PinnedPackage.read(name, what).sources.get(module)
    if source is None:
        raise UserError(
            f"Could not load {what} {name}: there is no source of {module}. Install it here, or correct the name."
        )
    if function not in _names_in(source):
        raise UserError(
            f"Could not load {what} {name}: there is no {function} in {source.path}. Install it, or correct the name."
        )


def _names_in(source: ModuleSource) -> set[str]:
    """The names that a module defines, imports or assigns, as far as its text shows."""
    try:
        tree = ast.parse(source.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"Expected Python in {source.path}, but it cannot be read: {error}.") from error
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
