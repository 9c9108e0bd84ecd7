"""The configuration of an enclave, the session of an upload, and the journal of releases."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from tacit import __version__
from tacit.core import Turnout
from tacit.core.files import ChainedFile
from tacit.core.serialization import HexBytes, Source, read_json
from tacit.errors import UserError, expect, whole
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.protocols.kit import RUN, Session
from tacit.wire.packing import pack_number

_FORMAT = 3
PARAMETERS = 1 << 26  # the length of an update, and of the model, unless a configuration says otherwise
MAX_PARAMETERS = 1 << 31
NO_MEMORY = crypto.digest("memory")  # the digest of a mechanism's memory without entries
_JOURNAL_FORMAT = 4

Client = Annotated[int, Meta(ge=0, description="the number of a client")]


class _Document(Struct, frozen=True, kw_only=True):
    """A configuration in JSON."""

    format: int
    tacit: str
    run: HexBytes
    method: str
    population: int
    directory: dict[Client, HexBytes]
    rounds: int
    parameters: int
    memory: HexBytes | None
    host: HexBytes
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
        method: the canonical form of the method: clipping, noise, aggregation, minimum number of contributors, padding.
        population: number of clients.
        directory: the Ed25519 public keys of all clients, from among whom the enclave draws every cohort. Without it, a
            host could fill a cohort with its own clients around a single honest one.
        rounds: the maximum number of released rounds, and of rounds in which a client takes part.
        parameters: the maximum length of an update and of the model: it limits the enclave's memory.
        memory: the digest (`memory_digest`) of the mechanism's memory before the first round, such as a bound that was
            computed from public data; by default there is none. None: that of the first request, for simulations only.
        host: the certificate of the host, in DER: no one else can reach the enclave's socket. Empty: the enclave
            listens on no socket.
        seed: of noise and cohorts; None: both come from the enclave's own entropy. A seed makes runs repeatable and the
            noise public: for simulations only.
    """

    run: bytes
    method: str
    population: int
    directory: Mapping[int, bytes]
    rounds: int
    parameters: int = PARAMETERS
    memory: bytes | None = NO_MEMORY
    host: bytes = b""
    seed: int | None = None

    def __post_init__(self) -> None:
        expect(len(self.run) == RUN, f"a run of {RUN} bytes, got {len(self.run)}")
        whole(1, (1 << 32) - 1, population=self.population, rounds=self.rounds)
        whole(1, MAX_PARAMETERS, parameters=self.parameters)
        expect(all(len(key) == KEY for key in self.directory.values()), f"identities of {KEY} bytes")
        expect(
            len(self.directory) == self.population and sorted(self.directory) == list(range(self.population)),
            f"the identities of all {self.population} clients, numbered from 0, got {len(self.directory)}",
            "The enclave draws cohorts from all clients of the population.",
        )
        expect(
            len(set(self.directory.values())) == self.population,
            "a different key for every client, but some share one",
            "Whoever has that key would be several clients of a cohort.",
        )
        expect(self.memory is None or len(self.memory) == KEY, f"a digest of the mechanism's memory of {KEY} bytes")
        expect(
            self.memory is not None or self.seed is not None,
            "a digest of the mechanism's memory, or a seed",
            "Without it, the host could choose the clipping bound.",
        )

    @property
    def digest(self) -> bytes:
        """What clients compare, and quotes bind."""
        return crypto.digest("configuration", self.to_bytes())

    def to_bytes(self) -> bytes:
        """As JSON; equal configurations give equal bytes."""
        table = {"format": _FORMAT, "tacit": __version__, **vars(self)}
        table["directory"] = dict(sorted(self.directory.items()))
        return (json.dumps(table, indent=1, default=bytes.hex) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Configuration":
        """The inverse of `to_bytes`; raises `UserError` for another document."""
        source = Source(label="the configuration of an enclave")
        document = read_json(data, _Document, source, version=_FORMAT)
        if document.tacit != __version__:
            raise UserError(f"The configuration is for Tacit {document.tacit}; this is {__version__}.")
        table = {name: value for name, value in asdict(document).items() if name not in {"format", "tacit"}}
        for name in ("run", "memory", "host"):
            table[name] = None if table[name] is None else bytes.fromhex(table[name])
        return cls(**{**table, "directory": _keys(document.directory)})


@dataclass(frozen=True, kw_only=True)
class EnclaveSession(Session):
    """One round of one run in one enclave. Its digest, the context, binds every key and signature of the round.

    A client builds it from what it received itself.

    Attributes:
        dim: length of an update.
        weighted: whether the number of samples is sent with it.
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


@dataclass(frozen=True)
class JournalEntry:
    """A released round.

    Attributes:
        round: index of the round.
        turnout: how many clients were drawn, and how many of them contributed; the charge follows from it.
        log_entry: its entry in the release log.
        memory: the digest of the mechanism's memory after the round.
    """

    round: int
    turnout: Turnout
    log_entry: bytes
    memory: bytes

    def to_json(self) -> dict[str, object]:
        """Plain values; `from_json` is the inverse."""
        turnout = {"cohort": self.turnout.cohort, "delivered": self.turnout.delivered}
        return {"round": self.round, **turnout, "log_entry": self.log_entry.hex(), "memory": self.memory.hex()}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "JournalEntry":
        """The entry in a line of a journal; raises `KeyError`, `TypeError` or `ValueError` for another one."""
        turnout = Turnout(line["cohort"], line["delivered"])
        return cls(int(line["round"]), turnout, bytes.fromhex(line["log_entry"]), bytes.fromhex(line["memory"]))


class Journal:
    """The release log and what was charged, in a chained file that outlives the process.

    The first line has the coins with which cohorts are drawn, so that a restart draws no other ones. A line for every
    start of the enclave names its configuration; a line for every round says that it was opened, before anybody is
    told, and one that it was released. Every line is on disk before its method returns.

    A start and the opening of a round have an entry in the release log, of random bytes. So a client that took part in
    a round remembers a head that only this journal has: the host can delete the file or restore an older copy, but no
    client of the rounds that are missing from it follows. A round that was opened is charged, whether it was released
    or not. On real hardware the file is in an encrypted mount that only the same code can read.

    Attributes:
        path: the file.
        coins: of the cohorts.
        entries: the released rounds.
        opened: the rounds that were opened.
        log: the entries of the release log.
        cut: whether a crash cut off the last line, which was left out: nothing was released for it.
    """

    def __init__(self, path: Path, entropy: Entropy = crypto.system_entropy) -> None:
        self.path, self._entropy = path, entropy
        self._file = ChainedFile.open(path, "journal of an enclave")
        self.cut = self._file.cut > 0
        if not self._file.count:
            self._file.append({"format": _JOURNAL_FORMAT, "coins": entropy(KEY).hex()})
        self.entries, self.opened, self.log = tuple[JournalEntry, ...](), set[int](), list[bytes]()
        self._configurations = set[str]()
        try:
            first, *lines = self._file.entries
            expect(first["format"] == _JOURNAL_FORMAT, f"a journal of format {_JOURNAL_FORMAT}, got {first['format']}")
            self.coins = bytes.fromhex(first["coins"])
            for line in lines:
                self._read(line)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is not a complete journal of an enclave. Restore it, or start a new run."
            ) from error

    def _read(self, line: Mapping[str, Any]) -> None:
        """Note a line of the file."""
        if "started" in line:
            self._configurations.add(line["configuration"])
            self.log.append(bytes.fromhex(line["started"]))
        elif "opened" in line:
            self.opened.add(int(line["opened"]))
            self.log.append(bytes.fromhex(line["log_entry"]))
        else:
            entry = JournalEntry.from_json(line)
            self.entries = (*self.entries, entry)
            self.log.append(entry.log_entry)

    def start(self, configuration: bytes) -> None:
        """Record the start of an enclave with the configuration of this digest; one journal has one configuration."""
        others = self._configurations - {configuration.hex()}
        if others:
            raise UserError(
                f"Expected {self.path} to be the journal of the configuration {configuration.hex()[:16]}, got that of "
                f"{min(others)[:16]}. Give every configuration a journal of its own."
            )
        self._append({"started": self._entropy(KEY).hex(), "configuration": configuration.hex()})

    def open_round(self, index: int) -> None:
        """Record that a round is about to be opened, once."""
        if index not in self.opened:
            self._append({"opened": index, "log_entry": self._entropy(KEY).hex()})

    def append(self, entry: JournalEntry) -> None:
        """Record that a round's aggregate is about to be released."""
        self._append(entry.to_json())

    def _append(self, line: Mapping[str, object]) -> None:
        self._file.append(line)
        self._read(line)
