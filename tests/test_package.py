"""The shape of the package: few entries at its root, and names that stand for one thing."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import tacit.errors

PACKAGE = Path(tacit.errors.__file__).parent
MODULES = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
MAX_ENTRIES = 20
DECLARED = {"METHODS", "SHORT_NAMES", "DEFAULT_TASKS"}  # what every file in `methods` may declare, by these names


def twice(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def test_few_entries_at_the_root() -> None:
    """The packages of the architecture and three modules; what Python demands by name is none of them."""
    demanded = ("py.typed", "__pycache__", "__main__.py")
    entries = [path.name for path in PACKAGE.iterdir() if path.name not in demanded]
    assert len(entries) <= MAX_ENTRIES, sorted(entries)


def test_no_module_name_stands_for_two_things_in_a_package() -> None:
    """What a command takes and what it does both have the command's name: a module of parsers, and one of commands."""
    rooms = [room for path in MODULES if (room := path.relative_to(PACKAGE)).parts[:2] != ("cli", "parsers")]
    assert twice(["/".join((room.parts[0], room.stem)) for room in rooms]) == []


def test_no_public_class_name_stands_for_two_things() -> None:
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert twice([name for name in classes if not name.startswith("_")]) == []


def test_files_that_are_not_python_are_installed() -> None:
    """An installed package has only those that pyproject.toml lists."""
    listed = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {PACKAGE.parent.joinpath(*package.split(".")): patterns for package, patterns in listed.items()}
    installed = {path for folder, patterns in folders.items() for pattern in patterns for path in folder.glob(pattern)}
    found = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert sorted(map(str, found - installed)) == []


def test_no_public_constant_or_alias_stands_for_two_things() -> None:
    """Constants, type aliases and type variables: a name of two meanings is two names, one meaning has one place."""
    names = [name for path in PACKAGE.rglob("*.py") for name in assigned(ast.parse(path.read_text()))]
    assert sorted(set(twice(names)) - DECLARED) == []


def assigned(tree: ast.Module) -> set[str]:
    """The public names in capitals or with a capital that a module assigns, each once."""
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    return {name for name in names if name[0].isupper()}
