"""Factories without importing their modules: name, summary and parameters.

The command line lists methods and tasks, and checks names, before PyTorch is imported. For tasks, and for
files and packages of others, the syntax tree of a module suffices; Tacit's methods are in a catalogue of definitions
(`Definition.of`). A factory is a plain function.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tacit.core.schema import choose
from tacit.errors import UserError

FILE_MODULE = "tacit_file_"  # prefix of the modules of users' files, and of no package


@dataclass(frozen=True)
class Definition:
    """A factory that has not been imported.

    Attributes:
        module: the module's full name.
        name: the factory's name in it.
        summary: the first line of its docstring.
        parameters: the source text of each parameter's default, by name; empty where there is none.
        meanings: the description of each parameter in the section *Args* of its docstring, by name.
        returns: the source text of its return annotation; empty if there is none.
        short_names: the short name of each field of its dataclasses that has one, as its module lists them.
        default_task: a method's default task and that task's arguments; empty: the usual one.
    """

    module: str
    name: str
    summary: str
    parameters: Mapping[str, str]
    meanings: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    short_names: Mapping[str, str] = field(default_factory=dict)
    default_task: Sequence[Any] = ()

    @classmethod
    def of(cls, factory: Callable[..., object], short_names: Mapping[str, str], default_task: Sequence[Any]) -> Self:
        """The definition of an imported factory; defaults are as Python prints them."""
        summary, _, _ = (inspect.getdoc(factory) or "").partition("\n")
        parameters = inspect.signature(factory).parameters.values()
        defaults = {each.name: "" if each.default is each.empty else repr(each.default) for each in parameters}
        names = factory.__module__, factory.__name__
        return cls(*names, summary, defaults, short_names=short_names, default_task=default_task)

    def load(self) -> Any:
        """Import the module and return the factory."""
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True)
class FileReference:
    """A function in a user's Python file, named by `FILE.py:FUNCTION`.

    Attributes:
        file: the file.
        function: the function's name.
        role: what the function returns, a task or a method, for error messages.
    """

    file: Path
    function: str
    role: str

    @property
    def label(self) -> str:
        return f"{self.file}:{self.function}" if self.function else str(self.file)

    def definition(self) -> Definition:
        """The function as its source declares it. The file is not executed."""
        return choose(self.definitions(), self.function, f"a function of {self.file}")

    def definitions(self) -> Mapping[str, Definition]:
        """The functions of the file by name. It is not executed."""
        self._check_exists()
        try:
            return read_definitions(self.file, self.file.stem)
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            raise UserError(f"Expected Python in {self.file}: {error}. Correct the file.") from error

    def load(self) -> Any:
        """Execute the file and return its function."""
        self._check_exists()
        try:
            module = run_file(self.file)
        except Exception as error:  # a user's file may fail in any way
            raise UserError(
                f"Could not run {self.file} for its {self.role}: {type(error).__name__}: {error}"
            ) from error
        functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
        return choose(functions, self.function, f"a function of {self.file}")

    def refuse(self, named_in: str) -> None:
        """Raise `UserError`: only a file names this code."""
        raise UserError(
            f"{named_in} names code: its {self.role} would run the Python file {self.file.absolute()}. "
            "Nothing was run. Read that file, and if you trust it, add --trust."
        )

    def _check_exists(self) -> None:
        if not self.file.is_file():
            raise UserError(
                f"Expected the {self.role} {self.label} in a Python file, got {self.file}, which does not exist."
            )


def file_reference(name: str, role: str) -> FileReference | None:
    """The function that `FILE.py:FUNCTION` names; None for any other name. A file alone is refused."""
    if name.endswith(".py"):
        raise UserError(f"Expected a function of {name}, got the file. Name one: {name}:FUNCTION.")
    file, colon, function = name.rpartition(":")
    return FileReference(Path(file), function, role) if colon and file.endswith(".py") else None


def run_file(path: Path) -> ModuleType:
    """Execute a Python file and return its module."""
    name = f"{FILE_MODULE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the file is there, and ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def read_definitions(path: Path, module: str) -> Mapping[str, Definition]:
    """The functions of a module's source file by name, with the short names of its literal table `SHORT_NAMES`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    short_names: Mapping[str, str] = {}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="SHORT_NAMES")], value=ast.Dict() as table):
                with suppress(ValueError):  # not a literal
                    short_names = ast.literal_eval(table)
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {node.name: _definition(node, module, short_names) for node in functions}


def _definition(node: ast.FunctionDef, module: str, short_names: Mapping[str, str]) -> Definition:
    text = ast.get_docstring(node) or ""
    summary, _, _ = text.partition("\n")
    returns = ast.unparse(node.returns).strip("'\"") if node.returns else ""
    return Definition(module, node.name, summary, _parameters(node.args), _meanings(text), returns, short_names)


def _meanings(docstring: str) -> dict[str, str]:
    """The entries of the section *Args*, each as one line."""
    _, _, section = docstring.partition("\nArgs:\n")
    meanings: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if not line.startswith("    "):
            break
        if start:
            name = start[1]
        meanings[name] = f"{meanings.get(name, '')} {start[2] if start else line.strip()}".strip()
    return meanings


def _parameters(args: ast.arguments) -> dict[str, str]:
    positional = [*args.posonlyargs, *args.args]
    missing = [None] * (len(positional) - len(args.defaults))
    pairs = [
        *zip(positional, [*missing, *args.defaults], strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    return {parameter.arg: ast.unparse(default) if default else "" for parameter, default in pairs}


def need(packages: Sequence[str], extra: str, label: str) -> None:
    """Raise `UserError`, with the command that installs them, if packages are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Expected {' and '.join(missing)} to be installed, which {label} needs. "
            f"Install it with: pip install 'tacit-fl[{extra}]'"
        )
