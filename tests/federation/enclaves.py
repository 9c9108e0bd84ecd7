"""An enclave for tests of federations: configured for a plan of a consortium, and served in this process."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from federation.consortium import Consortium
from tacit.core import Method
from tacit.core.code_digest import code_measurement
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.simulated_quotes import SimulatedAttestor
from tacit.enclave.configuration import Configuration, Journal
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.service import EnclaveService
from tacit.errors import EnclaveUnavailableError
from tacit.federation.channels.enclave import configuration_of, new_configuration
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.pieces.channels import enclave_service

MEASUREMENT = code_measurement()
ATTESTATION = {"measurements": [MEASUREMENT], "simulation": True}
SITES: dict[str, Any] = {"channels": ["enclave"], "attestation": ATTESTATION}


def enclave_plan(
    consortium: Consortium, method: str, *, seed: int | None = None, address: str = "enclave.sock", **changes: Any
) -> FederationPlan:
    """A plan with an enclave, which is configured for it; `seed`: of its noise and cohorts."""
    named = {"address": address, "simulated": True, "attestation": ATTESTATION}
    path = consortium.write_plan(method, **{"enclave": named, **changes})
    return configured(path, seed)


def configured(path: Path, seed: int | None = None) -> FederationPlan:
    """The plan in a file, with an enclave that is configured for it."""
    plan = read_plan(path, configured=False, trusted=True)
    made = new_configuration(plan)
    path.with_name("enclave.json").write_bytes(replace(made, seed=seed).to_bytes())
    return read_plan(path, trusted=True)


@dataclass
class LocalEnclave:
    """The enclave of a configuration, in this process; `dies_at` names a message at which it ends."""

    configuration: Configuration
    journal: Journal | None = None
    dies_at: MessageType | None = None
    after: int = 0  # how many of these messages it still answers
    starts: int = 0
    service: EnclaveService = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @classmethod
    def of(cls, plan: FederationPlan, journal: Journal | None = None) -> "LocalEnclave":
        return cls(configuration_of(plan), journal)

    def restart(self) -> None:
        method = Method.from_canonical(self.configuration.method)
        self.service = enclave_service(self.configuration, method, SimulatedAttestor(insecure=True), self.journal)
        self.dies_at = None

    def __call__(self) -> "LocalEnclave":
        """A connection."""
        self.starts += 1
        return self

    def ask(self, request: bytes) -> bytes:
        if enclave_messages.unpack(request).kind is self.dies_at:
            if not self.after:
                raise EnclaveUnavailableError("The enclave's process ended.")
            self.after -= 1
        return self.service.answer(request)

    def close(self) -> None:
        """Nothing is open."""
