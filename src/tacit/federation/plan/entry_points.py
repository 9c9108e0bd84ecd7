"""Code by name: `package.module:function` of an installed package, and the digest by which it is pinned.

A site runs only installed code. A pin is the digest of all files of the function's top-level package (or of its
module, if that is a single file), so a changed helper changes the pin too. Computing a pin imports nothing.

A plan's author chooses its names, and importing a module executes it. So a plan's reader first declares which code it
runs (`AllowedCode`): a site by its policy, the server's operator by trusting the plan.
"""

import ast
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit import methods
from tacit.errors import TacitError, UserError

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
        pinned = self.functions.get(name)
        if pinned is None:
            allowed = ", ".join(self.functions) or "none"
            return f"{what.capitalize()} {name} is not among those that are allowed here: {allowed}."
        try:
            installed = pin(name, what) if pinned else ""
        except UserError as error:
            return str(error)
        return "" if installed == pinned else f"The installed code of {name} is {installed}, not {pinned} as allowed."

    def load(self, name: str, what: str) -> Callable[..., Any]:
        """The function with this name, imported only if it is allowed."""
        if problem := self.function_problem(name, what):
            raise UserError(problem)
        return load(name, what)


NO_CODE = AllowedCode()


def load(name: str, what: str) -> Callable[..., Any]:
    """Import the function with this name; only for names that the party itself wrote."""
    check_name(name, what)
    module, _, function = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"Could not load {what} {name}: {error}. Install its package here, or correct the name."
        ) from error
    if not callable(value):
        raise UserError(f"Expected {what} {name} to be a function, got {type(value).__name__}.")
    loaded: Callable[..., Any] = value
    return loaded


def call(name: str, what: str) -> Any:
    """Call the function with this name; raises `UserError` for an error inside it."""
    return called(load(name, what), name)


def called(function: Callable[[], Any], name: str) -> Any:
    """Call a function; raises `UserError`, which names it, for an error inside it."""
    try:
        return function()
    except TacitError:
        raise
    except Exception as error:
        raise UserError(f"{name} raised {type(error).__name__}: {error}. Call it in Python to see where.") from error


def pin(name: str, what: str) -> str:
    """The digest of the installed code of this function, as `sha256:…`."""
    total = hashlib.sha256()
    for label, path in sorted(_files(name, what)):
        total.update(f"{label}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def check_defined(name: str, what: str) -> None:
    """Raise `UserError` unless the installed source of this function's module mentions it. Imports nothing."""
    module, _, function = name.partition(":")
    _, *rest = module.split(".")
    inside = "/".join(rest)
    sources = dict(_files(name, what))
    places = (f"{inside}.py", f"{inside}/__init__.py") if rest else ("__init__.py", f"{module}.py")
    source = next((sources[place] for place in places if place in sources), None)
    if source is None:
        raise UserError(
            f"Could not load {what} {name}: there is no source of {module}. Install it here, or correct the name."
        )
    if function not in _mentioned(source):
        raise UserError(
            f"Could not load {what} {name}: there is no {function} in {source}. Install it, or correct the name."
        )


def _mentioned(source: Path) -> set[str]:
    """The names that a module defines, imports or assigns, as far as its text shows."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"Expected Python in {source}, but it cannot be read: {error}.") from error
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}


def _files(name: str, what: str) -> Iterator[tuple[str, Path]]:
    """The files of a function's top-level package by their paths in it; of a single module, that file."""
    check_name(name, what)
    package, spec = name.partition(":")[0].partition(".")[0], None
    with suppress(ValueError):  # a module without a specification, such as __main__
        spec = importlib.util.find_spec(package)
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        raise UserError(f"Could not find the files of the package {package} of {what} {name}. Install it here.")
    if not spec.submodule_search_locations:
        yield Path(str(spec.origin)).name, Path(str(spec.origin))
        return
    for folder in map(Path, spec.submodule_search_locations):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(folder).as_posix(), path
