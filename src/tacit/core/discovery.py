"""Factories as their source declares them: name, summary and parameters, without importing the module.

The command line lists methods and tasks, and checks names, before PyTorch is imported. The syntax tree of a module is
enough for that. A factory is a plain function.
"""

import ast
import importlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Definition:
    """A factory that has not been imported.

    Attributes:
        module: the module's full name.
        name: the factory's name in it.
        summary: the first line of its docstring.
        parameters: the source text of each parameter's default, by name; empty where there is none.
        meanings: what the section *Args* of its docstring says about parameters, by name.
    """

    module: str
    name: str
    summary: str
    parameters: Mapping[str, str]
    meanings: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Any:
        """Import the module and return the factory."""
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True)
class Outline:
    """What a module defines at its top level.

    Attributes:
        factories: its functions, by name.
        tuples: its tuples of names, such as `METHODS = (fedavg, ...)`, by the name of the tuple.
        tables: its literal dictionaries, by name.
    """

    factories: Mapping[str, Definition]
    tuples: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, Mapping[str, Any]]


def read_outline(path: Path, module: str) -> Outline:
    """The outline of a module's source file."""
    factories: dict[str, Definition] = {}
    tuples: dict[str, tuple[str, ...]] = {}
    tables: dict[str, Mapping[str, Any]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef():
                text = ast.get_docstring(node) or ""
                summary, parameters = text.partition("\n")[0], _parameters(node.args)
                factories[node.name] = Definition(module, node.name, summary, parameters, _meanings(text))
            case ast.Assign(targets=[ast.Name(id=name), *_], value=ast.Tuple(elts=items)):
                tuples[name] = tuple(item.id for item in items if isinstance(item, ast.Name))
            case ast.Assign(targets=[ast.Name(id=name), *_], value=ast.Dict() as table):
                with suppress(ValueError):  # not a literal
                    tables[name] = ast.literal_eval(table)
    return Outline(factories, tuples, tables)


def _meanings(docstring: str) -> dict[str, str]:
    """The entries of the section *Args*, each as one line."""
    _, _, section = docstring.partition("\nArgs:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if not line.startswith("    "):
            break
        if start:
            name = start[1]
        found[name] = f"{found.get(name, '')} {start[2] if start else line.strip()}".strip()
    return found


def _parameters(args: ast.arguments) -> dict[str, str]:
    positional = [*args.posonlyargs, *args.args]
    missing = [None] * (len(positional) - len(args.defaults))
    pairs = [
        *zip(positional, [*missing, *args.defaults], strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    return {parameter.arg: ast.unparse(default) if default else "" for parameter, default in pairs}
