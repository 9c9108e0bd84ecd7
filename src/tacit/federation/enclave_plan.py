"""The enclave of a plan: its configuration, to which all sites agree, and how the server reaches it as its host.

::

    [enclave]
    address = "127.0.0.1:7070"              # where the server reaches it, or the path of a local socket
    configuration = "enclave.json"          # made by tacit enclave configure --plan
    identity = "host.key"                   # the server's secret key as the enclave's host, made with it
    simulated = false                       # true: without hardware, for tests; every output says so
    [enclave.attestation]                   # which enclaves the server accepts; every site has its own policy
    measurements = ["33d8736d…"]

Configuration and `simulated` are part of the plan that sites accept; the rest is the server's own.
"""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from tacit.core import Method, State, files
from tacit.errors import UserError
from tacit.federation.site_directory import Directory, new_identity, read_identity
from tacit.pieces.channels import Enclave
from tacit.protocols.attestation import AttestationPolicy
from tacit.protocols.kit import RUN
from tacit.protocols.tee import (
    ChannelIdentity,
    Configuration,
    EnclaveConnection,
    connect,
    mechanism_memory,
    memory_digest,
    reach,
)

_CONFIGURE = "Configure the enclave: tacit enclave configure --plan plan.toml --out enclave.json."
NO_POLICY = AttestationPolicy()


class EnclaveTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `enclave` of a plan's file."""

    address: str
    configuration: Path = Path("enclave.json")
    identity: Path = Path("host.key")
    simulated: bool = False
    attestation: AttestationPolicy = NO_POLICY


@dataclass(frozen=True)
class EnclaveAccess:
    """How the server reaches the enclave.

    Attributes:
        address: `HOST:PORT`, or the path of a local socket.
        identity: the file of the server's secret key as the enclave's host.
        attestation: which enclaves the server accepts.
    """

    address: str
    identity: Path
    attestation: AttestationPolicy

    def host(self) -> ChannelIdentity:
        """The server's identity towards the enclave."""
        return ChannelIdentity.of(read_identity(self.identity))

    def new_host(self) -> ChannelIdentity:
        """The same; its key is made if there is none."""
        new_identity(self.identity)
        return self.host()


@dataclass(frozen=True)
class PlannedEnclave:
    """The enclave of a plan.

    Attributes:
        configuration: what it does; None: it is not configured yet.
        simulated: whether it may be a simulation, which isolates nothing.
        access: how the server reaches it; None at sites.
    """

    configuration: Configuration | None
    simulated: bool
    access: EnclaveAccess | None = field(default=None, compare=False)

    @classmethod
    def read(cls, table: EnclaveTable, folder: Path, *, configured: bool = True) -> "PlannedEnclave":
        """What a plan's file says; `configured`: read the configuration, too."""
        path = folder / table.configuration
        if configured and not path.exists():
            raise UserError(f"Expected the enclave's configuration in {path}, which does not exist. {_CONFIGURE}")
        content = files.read(path, "the enclave's configuration") if configured else b""
        local = ":" not in table.address
        access = EnclaveAccess(
            str(folder / table.address) if local else table.address, folder / table.identity, table.attestation
        )
        return cls(Configuration.from_bytes(content) if configured else None, table.simulated, access)

    def restricted(self, policy: AttestationPolicy) -> AttestationPolicy:
        """A party's policy for this enclave: where the plan requires hardware, a simulation is accepted by nobody."""
        return replace(policy, simulation=policy.simulation and self.simulated)

    def connect(self) -> EnclaveConnection:
        """The server's connection to the enclave, which its own policy accepts.

        Raises:
            EnclaveUnavailableError: nothing answers there, or it does not accept this host.
            ProtocolError: what answers is not the enclave of this configuration.
        """
        if self.access is None or self.configuration is None:
            raise UserError("The plan does not say where its enclave is. Use its file at the server.")
        policy, host = self.restricted(self.access.attestation), self.access.host()
        return connect(reach(self.access.address), host, self.configuration.digest, policy, int(time.time()))

    def canonical(self) -> dict[str, Any]:
        """What sites agree to, as plain values."""
        assert self.configuration is not None
        return {"simulated": self.simulated, "configuration": json.loads(self.configuration.to_bytes())}

    @classmethod
    def from_canonical(cls, content: Mapping[str, Any]) -> "PlannedEnclave":
        """The inverse."""
        configuration = Configuration.from_bytes(json.dumps(content["configuration"]).encode())
        return cls(configuration, bool(content["simulated"]))


def new_configuration(method: Method, directory: Directory, state: State, host: ChannelIdentity) -> Configuration:
    """The configuration of a new run of a plan: its sites are the clients, from among whom the enclave draws cohorts.

    Args:
        method: of the plan, as sites run it.
        directory: the enrolled sites.
        state: before the first round.
        host: the server's identity.
    """
    if not isinstance(method.channel, Enclave):
        raise UserError(f'{method.name} sends nothing to an enclave. Use channel = "Enclave()" in the plan\'s args.')
    return Configuration(
        run=secrets.token_bytes(RUN),
        method=repr(method),
        population=len(directory.names),
        directory=directory.by_number,
        rounds=method.rounds,
        parameters=state.dim,
        memory=memory_digest(mechanism_memory(state)),
        host=host.certificate,
    )


def problem(method: Method, directory: Directory, enclave: PlannedEnclave | None) -> str:
    """Why this enclave is not one for this method and these sites, a sentence; empty: it is, or none is needed."""
    if not isinstance(method.channel, Enclave):
        return "" if enclave is None else f"The plan names an enclave, but {method.name} sends nothing to one."
    if enclave is None:
        return (
            f"{method.name} sends messages to an enclave, and the plan names none. Add a table [enclave]. {_CONFIGURE}"
        )
    found = enclave.configuration
    if found is None:
        return f"The plan's enclave has no configuration. {_CONFIGURE}"
    for other, same in (
        ("another method", found.method == repr(method) and found.rounds == method.rounds),
        ("other sites or keys", found.directory == directory.by_number),
    ):
        if not same:
            return f"The enclave's configuration is of another plan, with {other}. {_CONFIGURE}"
    return ""
