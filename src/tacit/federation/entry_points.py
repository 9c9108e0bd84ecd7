"""Code by name: `package.module:function` of an installed package, and the digest by which it is pinned.

A site runs only code that is installed there. A pin is the digest of all files of the function's top-level package (or
of its module, if that is a single file), so that a changed helper changes the pin too. Nothing is imported to compute
it.
"""

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.errors import TacitError, UserError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
PIN = re.compile(r"sha256:[0-9a-f]{64}")


def check_name(name: str, what: str) -> None:
    """Raise `UserError` unless this is the name of a function, `package.module:function`."""
    if not _NAME.fullmatch(name):
        raise UserError(f"Expected {what} as package.module:function of an installed package, got {name!r}.")


def load(name: str, what: str) -> Callable[..., Any]:
    """The function with this name; its module is imported."""
    check_name(name, what)
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"Could not load {what} {name}: {error}. Install its package here, or correct the name."
        ) from error
    if not callable(found):
        raise UserError(f"Expected {what} {name} to be a function, got {type(found).__name__}.")
    function_found: Callable[..., Any] = found
    return function_found


def call(name: str, what: str) -> Any:
    """What the function with this name returns; an error of its own is a `UserError` that says so."""
    function = load(name, what)
    try:
        return function()
    except TacitError:
        raise
    except Exception as error:
        raise UserError(f"{name} raised {type(error).__name__}: {error}. Call it in Python to see where.") from error


def pin(name: str, what: str) -> str:
    """The digest of the installed code of this function, as `sha256:…`."""
    check_name(name, what)
    package = name.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(package)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise UserError(f"Could not find the package {package} of {what} {name}. Install it here.")
    total = hashlib.sha256()
    for label, path in sorted(_files(spec.submodule_search_locations, spec.origin)):
        total.update(f"{label}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _files(folders: list[str] | None, origin: str | None) -> Iterator[tuple[str, Path]]:
    """The files of a package by their paths in it; of a single module, that file."""
    if not folders:
        assert origin is not None
        yield Path(origin).name, Path(origin)
        return
    for folder in map(Path, folders):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(folder).as_posix(), path
