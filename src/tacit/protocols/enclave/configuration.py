"""What an enclave will do, as a document that its quote vouches for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from tacit.errors import UserError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.enclave.session import RUN

_FORMAT = 1
_FIELDS = {"format", "tacit", "run", "method", "population", "directory", "seed"}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that decides about what is done with uploads. Its digest is in the report data of every quote.

    Attributes:
        run: 16 bytes that no other run has.
        method: the whole method in print: bound, noise, aggregation, least number of contributors, padding.
        population: of how many clients.
        directory: the Ed25519 public keys of all who may upload. Without it, a host could fill a cohort with
            clients of its own around a single honest one.
        seed: where noise comes from; None: from the enclave's own entropy. A seed makes runs repeatable, and makes
            noise known to whoever knows it: only simulations may have one.
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
        """What was written; anything else is a `UserError`."""
        try:
            table = json.loads(data)
            if set(table) != _FIELDS or table["format"] != _FORMAT:
                raise ValueError(table)
            found = cls(
                run=bytes.fromhex(table["run"]),
                method=str(table["method"]),
                population=int(table["population"]),
                directory={int(client): bytes.fromhex(key) for client, key in table["directory"].items()},
                seed=None if table["seed"] is None else int(table["seed"]),
            )
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError("Expected the configuration of an enclave, got another document.") from error
        if table["tacit"] != version("tacit"):
            raise UserError(f"The configuration is for Tacit {table['tacit']}; this is {version('tacit')}.")
        return found
