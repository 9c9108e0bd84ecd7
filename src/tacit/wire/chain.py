"""The hash chain of append-only files: the ledger, journals, the release log of an enclave.

The hash of an entry covers the purpose of its chain, the hash before it and the entry itself, so that changed, missing
and reordered entries are detected, and no entry of one kind of file passes for one of another. The last hash, the head,
identifies all entries. Anyone who can write a file can compute a new chain, and an older copy of a file has a valid
chain, too: to detect a rollback, remember a head elsewhere.

In a file, an entry is one line: a JSON object whose last member is the hash, over the line as it would be without it::

    {"event": "charged", "round": 3, "hash": "2c26b46b68ffc68ff99b453c1d304134…"}
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.errors import WireError
from tacit.wire.packing import pack_chunk

GENESIS = bytes(32)  # the head of a chain without entries
MAX_LINE = 1 << 20  # bytes of an entry in a file
_DOMAIN = b"tacit chain 1"
_HASH = b', "hash": "'


def extend(purpose: str, head: bytes, entries: Iterable[bytes]) -> bytes:
    """The head of a chain after these entries, from its head alone.

    Example:
        >>> head = extend("release log", GENESIS, [b"first"])
        >>> extend("release log", head, [b"second"]) == extend("release log", GENESIS, [b"first", b"second"])
        True
    """
    for entry in entries:
        parts = (_DOMAIN, purpose.encode(), head, entry)
        head = hashlib.sha256(b"".join(map(pack_chunk, parts))).digest()
    return head


@dataclass(frozen=True)
class Link:
    """An entry as a line of a file, without the end of the line, and its hash."""

    line: bytes
    hash: bytes


class Chain:
    """A chain of one purpose.

    Attributes:
        purpose: what it is the chain of.
        hashes: those of its entries, in order. The writer of an entry adds its hash once the entry is on the disk.

    Example:
        >>> chain = Chain("example")
        >>> line = chain.seal({"round": 1}).line
        >>> chain.read(line.replace(b"1", b"2", 1))
        Traceback (most recent call last):
            ...
        tacit.errors.WireError: Entry 0 was changed, or entries before it are missing.
        >>> chain.read(line)
        {'round': 1}
    """

    def __init__(self, purpose: str) -> None:
        self.purpose, self.hashes, self._forgotten = purpose, list[bytes](), 0

    @property
    def head(self) -> bytes:
        """The hash of the last entry."""
        return self.hashes[-1] if self.hashes else GENESIS

    @property
    def count(self) -> int:
        """The number of entries, also of those whose hashes were forgotten."""
        return self._forgotten + len(self.hashes)

    def extend(self, digest: bytes) -> None:
        """Add the hash of an entry that `seal` made and that is on the disk."""
        self.hashes.append(digest)

    def forget(self) -> None:
        """Forget all hashes but the last: a long file needs no others."""
        self._forgotten += len(self.hashes[:-1])
        del self.hashes[:-1]

    def seal(self, entry: Mapping[str, object]) -> Link:
        """The next line of a file; the chain is unchanged."""
        if not entry or "hash" in entry:
            raise WireError("Expected an entry with content, and none of it under the name hash.")
        text = json.dumps(entry, ensure_ascii=False, allow_nan=False)
        body = text.encode("utf-8", "backslashreplace")  # half a character is escaped, as in JSON
        digest = extend(self.purpose, self.head, (body,))
        line = body[:-1] + _HASH + digest.hex().encode() + b'"}'
        if len(line) > MAX_LINE:  # nobody could read it
            raise WireError(f"Expected an entry of at most {MAX_LINE} bytes, got {len(line)}.")
        return Link(line, digest)

    def read(self, line: bytes) -> dict[str, Any]:
        """The entry in the next line, now the last of the chain; raises `WireError` if the chain is broken."""
        body, _, rest = line.rpartition(_HASH)
        digest = extend(self.purpose, self.head, (body + b"}",))
        if len(line) > MAX_LINE or rest != digest.hex().encode() + b'"}':
            raise WireError(f"Entry {self.count} was changed, or entries before it are missing.")
        try:
            entry = json.loads(body + b"}")
        except (ValueError, RecursionError):
            entry = None
        if type(entry) is not dict:
            raise WireError(f"Expected entry {self.count} to be a table in JSON, got other content.")
        self.hashes.append(digest)
        return entry
