"""The file of a finished run's guarantees: what the run itself proved, with every charge that its ledger knows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.core import files
from tacit.core.serialization import Source, convert, read_json, write_json
from tacit.errors import RunError
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.runs.manifest import NEW_RUN

FORMAT = 1
_KINDS = {"differential privacy": Guarantee, "d-privacy": LeakageGuarantee}


AnyGuarantee = Guarantee | LeakageGuarantee


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: str
    guarantee: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Document(_Entry):
    format: int
    others: tuple[_Entry, ...] = ()


def write(file: Path, *guarantees: AnyGuarantee) -> None:
    """Write the guarantees of a run, one for each unit, for the file's owner only."""
    first, *others = map(_entry, guarantees)
    content = {**asdict(first), "format": FORMAT, **({"others": [asdict(each) for each in others]} if others else {})}
    files.write(file, write_json(content, indent=2), private=True)


def read(file: Path) -> tuple[AnyGuarantee, ...]:
    """The guarantees in a file; none if there is no file. Raises `RunError` for anything else."""
    return parse(files.read(file, error=RunError), file) if file.exists() else ()


def parse(content: bytes, file: Path) -> tuple[AnyGuarantee, ...]:
    """The guarantees in a JSON document."""
    source = Source(label=f"the guarantee {file}", error=RunError, advice=NEW_RUN)
    document = read_json(content, _Document, source, version=FORMAT, strict=False)
    return tuple(_guarantee(entry, source) for entry in (document, *document.others))


def _entry(guarantee: AnyGuarantee) -> _Entry:
    kind = next(name for name, record in _KINDS.items() if type(guarantee) is record)
    return _Entry(kind=kind, guarantee=asdict(guarantee))


def _guarantee(entry: _Entry, source: Source) -> AnyGuarantee:
    if entry.kind not in _KINDS:
        raise source.problem(f"Expected {source.label} to be one of {', '.join(_KINDS)}, got {entry.kind!r}.")
    found: AnyGuarantee = convert(entry.guarantee, _KINDS[entry.kind], source, strict=False)
    return found
