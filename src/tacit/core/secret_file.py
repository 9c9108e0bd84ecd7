"""A secret of 32 bytes in a file that only its user can read, as 64 hexadecimal digits."""

import re
import secrets
from pathlib import Path

from tacit.core import files
from tacit.errors import UserError

_SIZE = 32  # bytes
_OTHERS = 0o077  # permissions of anybody but the owner
_DIGITS = re.compile(rf"[0-9a-f]{{{2 * _SIZE}}}")


def make(path: Path) -> None:
    """Write a new secret from the operating system, unless there is one; of several processes, one writes it."""
    with files.storage_errors(path):
        if path.exists():
            return
        files.make_private(path.parent)
        with files.lock_folder(path.parent):
            if not path.exists():
                files.write(path, secrets.token_hex(_SIZE).encode() + b"\n", private=True)


def read(path: Path, what: str) -> bytes:
    """The secret in a file, which messages call `what`; refused if others can read it."""
    content = files.read(path, f"the {what}", limit=1024).strip()
    if path.stat().st_mode & _OTHERS:
        raise UserError(f"Expected {path} to be readable by its user only. Use chmod 600 {path}.")
    if not _DIGITS.fullmatch(content.decode("ascii", "replace")):
        raise UserError(f"Expected {path} to hold the {what}, of {2 * _SIZE} hexadecimal digits, got other content.")
    return bytes.fromhex(content.decode())
