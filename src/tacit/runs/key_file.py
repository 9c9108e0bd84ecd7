"""The secret key of a run in a file beside it, so that an interrupted run resumes with the same noise.

The file belongs to one run and is readable by its owner only. Its secret derives the keys of the next round and of
later ones; earlier ones cannot be computed from it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tacit.core import Key, files
from tacit.core.keys import Ratchet
from tacit.core.serialization import Source, read_json
from tacit.errors import RunError

_FORMAT = 1
_OTHERS = 0o077  # permissions of anybody but the owner
_ADVICE = "Start a new run."


@dataclass(frozen=True, kw_only=True)
class _KeyFile:
    """The file's content: the run's name, and the secret as of a round."""

    run: str
    round: int
    key: str
    format: int = _FORMAT


def write(path: Path, ratchet: Ratchet, run: str) -> None:
    """Write the secret atomically, in place of the one before."""
    content = {"format": _FORMAT, "run": run, "round": ratchet.round, "key": ratchet.key.value.hex()}
    files.write(path, (json.dumps(content) + "\n").encode(), private=True)


def read(path: Path, run: str, done: int) -> Ratchet:
    """The secret of this run after `done` rounds; raises `RunError` if it is missing, another's, or not secret."""
    if not path.exists():
        raise RunError(
            f"{path} is missing, so that the run cannot resume with the same noise. Restore it, or start a new run, "
            "which is charged anew. Nothing was released."
        )
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise RunError(
            f"{path} can be read by others (mode {mode:o}), and whoever has its key can subtract the noise of the "
            "rounds to come. If nobody has read it, chmod 600 it; otherwise start a new run. Nothing was released."
        )
    source = Source(label=f"the key {path}", error=RunError, advice=_ADVICE)
    key_file = read_json(files.read(path, error=RunError), _KeyFile, source, version=_FORMAT)
    if key_file.run != run:
        raise RunError(
            f"{path} is the key of another run: the same noise in two runs cancels out of their difference. Restore "
            "the key of this run, or start a new run. Nothing was released."
        )
    if key_file.round > done:
        raise RunError(
            f"{path} is the key after {key_file.round} rounds, but the checkpoint is of round {done}. Restore the "
            "checkpoint that belongs to it, or start a new run. Nothing was released."
        )
    try:
        secret = bytes.fromhex(key_file.key)
    except ValueError:
        secret = b""
    if len(secret) != len(Key.from_entropy().value) or key_file.round < 0:
        raise RunError(f"{path} is not the key of a run: it was cut or changed. {_ADVICE}")
    return Ratchet(key_file.round, Key(secret))
