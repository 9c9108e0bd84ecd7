"""What an enclave is configured to do, which session an upload belongs to, and the journal of what was released."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from tacit.core.serialization import Source, read_json
from tacit.errors import StorageError, UserError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import RUN, Session
from tacit.wire.packing import WORD, Reader, pack_number

_FORMAT = 1
_JOURNAL_ENTRY = WORD + KEY


Client = Annotated[int, Meta(ge=0, description="the number of a client")]
HexBytes = Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$", description="bytes in hex")]


class _Document(Struct, frozen=True, kw_only=True):
    """A configuration in JSON."""

    format: int
    tacit: str
    run: HexBytes
    method: str
    population: int
    directory: dict[Client, HexBytes]
    seed: int | None


def read_directory(content: bytes, label: str) -> dict[int, bytes]:
    """The clients' public keys in a JSON document, in hex by client; `label` names it in error messages."""
    return _keys(read_json(content, dict[Client, HexBytes], Source(label=label)))


def _keys(directory: Mapping[int, str]) -> dict[int, bytes]:
    return {client: bytes.fromhex(key) for client, key in directory.items()}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that decides how uploads are processed. Its digest is in the report data of every quote.

    Attributes:
        run: 16 bytes that are unique to the run.
        method: the `repr` of the method: clipping, noise, aggregation, minimum number of contributors, padding.
        population: number of clients.
        directory: the Ed25519 public keys of all clients that may upload. Without it, a host could fill a cohort with
            its own clients around a single honest one.
        seed: of the noise; None: the noise comes from the enclave's own entropy. A seed makes runs repeatable and the
            noise public: for simulations only.
    """

    run: bytes
    method: str
    population: int
    directory: Mapping[int, bytes]
    seed: int | None = None

    def __post_init__(self) -> None:
        expect(len(self.run) == RUN, f"a run of {RUN} bytes, got {len(self.run)}")
        expect(self.population >= 1, f"population={self.population} >= 1")
        expect(all(len(key) == KEY for key in self.directory.values()), f"identities of {KEY} bytes")
        expect(all(0 <= i < self.population for i in self.directory), "identities of clients of the population")

    @property
    def digest(self) -> bytes:
        """What clients compare, and quotes bind."""
        return crypto.digest("configuration", self.to_bytes())

    def to_bytes(self) -> bytes:
        """As JSON; equal configurations give equal bytes."""
        table = {
            "format": _FORMAT,
            "tacit": version("tacit"),
            "run": self.run.hex(),
            "method": self.method,
            "population": self.population,
            "directory": {str(client): self.directory[client].hex() for client in sorted(self.directory)},
            "seed": self.seed,
        }
        return (json.dumps(table, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Configuration":
        """The inverse of `to_bytes`; raises `UserError` for another document."""
        source = Source(label="the configuration of an enclave")
        document = read_json(data, _Document, source, version=_FORMAT)
        if document.tacit != version("tacit"):
            raise UserError(f"The configuration is for Tacit {document.tacit}; this is {version('tacit')}.")
        return cls(
            run=bytes.fromhex(document.run),
            method=document.method,
            population=document.population,
            directory=_keys(document.directory),
            seed=document.seed,
        )


@dataclass(frozen=True, kw_only=True)
class EnclaveSession(Session):
    """One round of one run in one enclave. Its digest, the context, binds every key and signature of the round.

    A client builds it from what it received itself.

    Attributes:
        run: 16 bytes that are unique to the run.
        round: index of the round.
        model: SHA-256 of the broadcast.
        dim: length of an update.
        weighted: whether the number of samples is sent with it.
        config: the digest of the enclave's configuration.
        head: of the release log before this round.
        key: the enclave's attested public key.
    """

    dim: int
    weighted: bool
    head: bytes
    key: bytes

    @property
    def digests(self) -> tuple[bytes, ...]:
        return (self.model, self.config, self.head, self.key)

    @property
    def context(self) -> bytes:
        """The digest that binds keys and signatures to this session."""
        schema = pack_number(self.round) + pack_number(self.dim, 8) + pack_number(self.weighted, 1)
        return crypto.digest("enclave", self.run, schema, self.model, self.config, self.head, self.key)


class Journal:
    """The release log in a file that outlives the process: `round u32 | log entry 32s`, repeated.

    Every entry is on disk before `append` returns. On real hardware the file is in an encrypted mount that only the
    same code can read. The host can still restore an older copy; clients detect it, because the attested head then does
    not follow from the one they remember.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UserError(f"Could not read the journal {path}: {error.strerror}.") from error
        if len(content) % _JOURNAL_ENTRY:
            raise UserError(f"{path} is not a complete journal of an enclave. Restore it, or start a new run.")
        reader = Reader(content)
        self.entries = tuple((reader.number(), reader.take(KEY)) for _ in range(len(content) // _JOURNAL_ENTRY))

    def append(self, index: int, log_entry: bytes) -> None:
        """Record that a round's aggregate is about to be released."""
        try:
            with self.path.open("ab") as file:
                file.write(pack_number(index) + log_entry)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"Could not write the journal {self.path}: {error.strerror}.") from error
        self.entries = (*self.entries, (index, log_entry))
