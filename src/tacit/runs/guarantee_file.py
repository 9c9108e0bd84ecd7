"""The file of a finished run's guarantee: what the run itself proved, with every charge that its ledger knows."""

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


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: str
    guarantee: Mapping[str, Any]
    format: int


def write(file: Path, guarantee: Guarantee | LeakageGuarantee) -> None:
    """Write a guarantee, for the file's owner only."""
    kind = next(name for name, record in _KINDS.items() if type(guarantee) is record)
    content = write_json({"kind": kind, "guarantee": asdict(guarantee), "format": FORMAT}, indent=2)
    files.write(file, content, private=True)


def read(file: Path) -> Guarantee | LeakageGuarantee | None:
    """The guarantee in a file; None if there is none. Raises `RunError` for anything else."""
    if not file.exists():
        return None
    return parse(files.read(file, error=RunError), file)


def parse(content: bytes, file: Path) -> Guarantee | LeakageGuarantee:
    """The guarantee in a JSON document."""
    source = Source(label=f"the guarantee {file}", error=RunError, advice=NEW_RUN)
    entry = read_json(content, _Entry, source, version=FORMAT, strict=False)
    if entry.kind not in _KINDS:
        raise source.problem(f"Expected {source.label} to be one of {', '.join(_KINDS)}, got {entry.kind!r}.")
    found: Guarantee | LeakageGuarantee = convert(entry.guarantee, _KINDS[entry.kind], source, strict=False)
    return found
