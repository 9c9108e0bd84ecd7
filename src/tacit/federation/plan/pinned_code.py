"""An installed package, its digest, and imports of exactly what the digest covers.

Python does not run the files of a package. It runs bytecode from `__pycache__`, which may be of another source, and
from where the path of imports finds it at that moment. So the files are read once: their digest is compared with the
pin, and modules are compiled from the same bytes. Bytecode, compiled extensions, modules in linked folders and whatever
is written into the package later are never run.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core import files
from tacit.errors import UserError

MAX_SOURCE = 1 << 24  # bytes of one file of source
_BLOCK = 1 << 20
_INIT = "__init__"
_CACHE = "__pycache__"


@dataclass(frozen=True)
class ModuleSource:
    """The source of a module, as it was read once."""

    path: Path
    content: bytes


@dataclass(frozen=True, eq=False)
class PinnedPackage:
    """A package as it is installed, or a single module.

    Attributes:
        name: the package.
        digest: that of all of its files but `__pycache__`, as `sha256:…`.
        sources: the source of every module, by its full name.
    """

    name: str
    digest: str
    sources: Mapping[str, ModuleSource]

    @classmethod
    def read(cls, function: str, what: str) -> "PinnedPackage":
        """Read the package of `package.module:function`, which messages call `what`. Imports nothing."""
        package = function.partition(":")[0].partition(".")[0]
        total, sources = hashlib.sha256(), dict[str, ModuleSource]()
        for label, path, module in sorted(_files(package, f"{what} {function}")):
            digest = ""
            if module:
                sources[module] = ModuleSource(path, files.read(path, "the source", limit=MAX_SOURCE))
                digest = hashlib.sha256(sources[module].content).hexdigest()
            total.update(f"{label}\n{digest or _digest(path)}\n".encode("utf-8", "surrogateescape"))
        if package not in sources:
            raise UserError(
                f"Expected {package}, the package of {what} {function}, to have Python source that can be pinned. "
                "Install it as a folder with __init__.py: archives, namespace packages and bytecode are not run."
            )
        return cls(package, f"sha256:{total.hexdigest()}", sources)

    def load(self, module: str) -> ModuleType:
        """Import a module of the package from these sources, and with it whatever it imports of the package.

        What was imported of the package in another way, or from other sources, is left to who holds it.
        """
        finder = _FINDERS.get(self.name)
        if finder is None or finder.package.digest != self.digest:
            if finder is not None:
                sys.meta_path.remove(finder)
            finder = _FINDERS[self.name] = _Finder(self)
            sys.meta_path.insert(0, finder)
        imported = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == self.name}
        if any(getattr(each.__spec__, "loader", None) is not finder for each in imported.values()):
            for name in imported:
                del sys.modules[name]
        return importlib.import_module(module)


class _Finder:
    """Finds and runs the modules of a package: the first that Python asks, and for these modules the only one."""

    def __init__(self, package: PinnedPackage) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package.name:
            return None
        source = self.package.sources.get(name)
        if source is not None:
            folder = [str(source.path.parent)] if source.path.stem == _INIT else None
            return importlib.util.spec_from_file_location(
                name,
                source.path,
                loader=self,  # type: ignore[arg-type]
                submodule_search_locations=folder,
            )
        if any(each.startswith(f"{name}.") for each in self.package.sources):  # a folder without __init__.py
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        raise ModuleNotFoundError(f"the pinned package {self.package.name} has no source of {name}", name=name)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create it."""

    def exec_module(self, module: ModuleType) -> None:
        source = self.package.sources.get(module.__name__)
        if source is not None:
            exec(compile(source.content, str(source.path), "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name: str) -> str:
        """For tracebacks."""
        return importlib.util.decode_source(self.package.sources[name].content)


_FINDERS: dict[str, _Finder] = {}  # by package


def _files(package: str, what: str) -> Iterator[tuple[str, Path, str]]:
    """The files of a package by their paths in it, each with the name of its module, which may be empty.

    Files in linked folders are left out. Of a single module, it is its file.
    """
    spec = None
    with suppress(ImportError, ValueError):  # a module without a specification, such as __main__
        spec = importlib.util.find_spec(package)
    if spec is None or not spec.has_location or not spec.origin:  # missing, built-in or a namespace
        raise UserError(f"Could not find the files of the package {package} of {what}. Install it here.")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin.name, origin, package if origin.suffix == ".py" else ""
        return
    for folder, below, names in os.walk(origin.parent):
        below[:] = [name for name in below if name != _CACHE]
        for path in (Path(folder, name) for name in names):
            if path.is_file():
                label = path.relative_to(origin.parent)
                yield label.as_posix(), path, _module(package, label)


def _module(package: str, label: Path) -> str:
    """The full name of the module in a file of a package; empty: it is none that can be imported."""
    parts = [package, *label.parent.parts, *[label.stem] * (label.stem != _INIT)]
    return ".".join(parts) if label.suffix == ".py" and all(part.isidentifier() for part in parts) else ""


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                total.update(block)
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}.") from error
    return total.hexdigest()
