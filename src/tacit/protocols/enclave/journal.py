"""What was let out, in a file that outlives the process: `round u32 | link 32s`, one after the other.

On real hardware it lies in an encrypted mount that only this very code can read. The host can still put back an older
copy; clients notice, because the attested head then does not follow from the one they remember.
"""

import os
from pathlib import Path

from tacit.errors import StorageError, UserError
from tacit.protocols.crypto import KEY
from tacit.wire.packing import WORD, Reader, number

_ENTRY = WORD + KEY


class Journal:
    """An open journal; every entry is on the disk before `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UserError(f"Could not read the journal {path}: {error.strerror}.") from error
        if len(content) % _ENTRY:
            raise UserError(f"{path} is not a whole journal of an enclave. Restore it, or begin another run.")
        reader = Reader(content)
        self.entries = tuple((reader.number(), reader.take(KEY)) for _ in range(len(content) // _ENTRY))

    def append(self, index: int, link: bytes) -> None:
        """Write down that a round's aggregate is about to leave."""
        try:
            with self.path.open("ab") as file:
                file.write(number(index) + link)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"Could not write the journal {self.path}: {error.strerror}.") from error
        self.entries = (*self.entries, (index, link))
