"""The file of a finished run's guarantees: what the run itself proved, with every charge in its ledger."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.core import files
from tacit.core.prices import Unit
from tacit.core.serialization import Source, convert, read_json, write_json
from tacit.errors import RunError
from tacit.privacy.guarantee import AnyGuarantee, Guarantee, LeakageGuarantee
from tacit.runs.manifest import NEW_RUN

_FORMAT = 2
_KINDS: Mapping[str, type[AnyGuarantee]] = {"differential privacy": Guarantee, "d-privacy": LeakageGuarantee}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: str
    guarantee: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Document:
    format: int
    guarantees: Mapping[Unit, _Entry]


def write(file: Path, guarantees: Mapping[Unit, AnyGuarantee]) -> None:
    """Write the guarantees of a run, one for each unit, for the file's owner only."""
    entries = {unit: {"kind": each.kind, "guarantee": asdict(each)} for unit, each in guarantees.items()}
    files.write(file, write_json({"format": _FORMAT, "guarantees": entries}, indent=2), private=True)


def read(file: Path) -> dict[Unit, AnyGuarantee]:
    """The guarantees in a file, by unit; none if there is no file. Raises `RunError` for anything else."""
    return parse(files.read(file, error=RunError), file) if file.exists() else {}


def parse(content: bytes, file: Path) -> dict[Unit, AnyGuarantee]:
    """The guarantees in a JSON document, by unit."""
    source = Source(label=f"the guarantee {file}", error=RunError, advice=NEW_RUN)
    document = read_json(content, _Document, source, version=_FORMAT, strict=False)
    return {unit: _guarantee(entry, source) for unit, entry in document.guarantees.items()}


def _guarantee(entry: _Entry, source: Source) -> AnyGuarantee:
    if entry.kind not in _KINDS:
        raise source.problem(f"Expected {source.label} to be one of {', '.join(_KINDS)}, got {entry.kind!r}.")
    fields = {name: value for name, value in entry.guarantee.items() if name != "full_rounds"}  # before 0.1.0
    guarantee: AnyGuarantee = convert(fields, _KINDS[entry.kind], source, strict=False)
    try:
        str(guarantee)
    except (ArithmeticError, TypeError, ValueError):  # such as an ε without its δ
        raise source.problem(
            f"Expected {source.label} to be one that can be stated, got fields that do not agree."
        ) from None
    return guarantee
