"""A digest of Tacit's own source files, which identifies the code that runs."""

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_measurement() -> str:
    """SHA-256 over the source files of Tacit, in hex: equal where the same code is installed."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
