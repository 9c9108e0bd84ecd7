"""TOML files and what they must hold; whatever is wrong is said in one sentence."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.core.schema import listed, suggestion
from tacit.errors import UserError

Table = Mapping[str, Any]


def read(file: Path) -> dict[str, Any]:
    """What a file says."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Could not read {file}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"Expected {file} to be TOML: {error}.") from error


def entries(table: Table, key: str, label: str) -> list[dict[str, Any]]:
    """The tables under [[key]], at least one."""
    found = table.get(key.rpartition(".")[2])
    if not isinstance(found, list) or not found or not all(isinstance(entry, dict) for entry in found):
        raise UserError(f"Expected {label} to have {key}, each under [[{key}]].")
    return found


def text(table: Table, key: str, label: str) -> str:
    """Words, at least one."""
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"Expected {label} to have a {key}, in words.")
    return value


def texts(table: Table, key: str, label: str, example: str) -> tuple[str, ...]:
    """A list of names, at least one, no two the same."""
    value = table.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise UserError(f"Expected {key} of {label} to be a list of {example}.")
    check_different(value, f"{key} of {label}")
    return tuple(value)


def count(table: Table, key: str, default: int, label: str) -> int:
    """A whole number, at least 1."""
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"Expected {key} of {label} to be a whole number, at least 1, got {value!r}.")
    return value


def check_keys(table: Any, known: Sequence[str], label: str) -> None:
    """Raise `UserError` unless this is a table with no other keys than these."""
    if not isinstance(table, Mapping):
        raise UserError(f"Expected {label} to be a table, got {table!r}.")
    for key in table:
        if key not in known:
            raise UserError(f"Expected keys of {label} in {listed(known)}, got {key!r}.{suggestion(key, known)}")


def check_different(names: Sequence[str], label: str) -> None:
    """Raise `UserError` if a name stands there twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Expected {label} to have different names, got {name!r} twice.")
