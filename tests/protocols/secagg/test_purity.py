"""What secure aggregation must not contain: floats, weak randomness, pickles, I/O."""

import ast
from pathlib import Path

import pytest

from tacit.protocols import crypto, kit, secagg
from tacit.wire import packing

FILES = [Path(crypto.__file__), Path(kit.__file__), Path(packing.__file__)]
FILES += sorted(Path(secagg.__path__[0]).glob("*.py"))
ALLOWED = {
    "collections",
    "cryptography",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "hmac",
    "math",
    "numpy",
}
ALLOWED |= {"os", "struct", "tacit", "typing", "zlib"}


def flaws(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=float()):
                found.append(f"float {node.value!r}")
            case ast.BinOp(op=ast.Div()):
                found.append("division")
            case ast.Attribute(attr="random" | "float32" | "float64" | "default_rng"):
                found.append(node.attr)
            case ast.Name(id="float" | "open" | "print" | "eval" | "exec"):
                found.append(node.id)
            case ast.Import(names=names):
                found += [name.name for name in names if name.name.split(".")[0] not in ALLOWED]
            case ast.ImportFrom(module=str() as module) if module.split(".")[0] not in ALLOWED:
                found.append(module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_protocol_uses_only_integers_and_bytes(path: Path) -> None:
    assert flaws(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    ["x = 0.5", "x = a / b", "import random", "import pickle", "np.random.x()", "open(y)", "float(x)"],
)
def test_each_flaw_would_be_found(line: str) -> None:
    assert flaws(ast.parse(line))


def test_entropy_has_one_source() -> None:
    assert len(FILES) == 13
    texts = {path.stem: path.read_text() for path in FILES}
    assert [name for name, text in texts.items() if "urandom" in text] == ["crypto"]
    assert [name for name, text in texts.items() if "entropy(" in text] == ["secagg_messages", "secagg_server"]
