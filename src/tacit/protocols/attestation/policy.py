"""What a verifier allows: its own decision, in a file of its own, never the enclave's."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.core.schema import call
from tacit.errors import UserError, expect
from tacit.protocols.attestation.claims import Claims
from tacit.protocols.attestation.evidence import Kind

DAY = 86_400  # seconds


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which enclaves are trusted. As it stands it trusts none: measurements must be named.

    Args:
        measurements: of the code that is known and was looked at, in hex; one of them must be met.
        signers: MRSIGNER values, in hex; empty: whoever signed it, the measurement decides.
        least_svn: the lowest security version of the enclave.
        statuses: what the vendor may say about processor and firmware.
        rejected_advisories: weaknesses that are not accepted whatever the status is, such as `INTEL-SA-00615`.
        collateral_days: how old the vendor's statements may be.
        debug: accept an enclave whose memory can be read from outside by design.
        simulation: accept a process without any isolation. For tests.

    Example:
        >>> Policy(measurements=("33D8",)).measurements
        ('33d8',)
    """

    measurements: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    least_svn: int = 0
    statuses: tuple[str, ...] = ("UpToDate",)
    rejected_advisories: tuple[str, ...] = ()
    collateral_days: float = 30.0
    debug: bool = False
    simulation: bool = False

    def __post_init__(self) -> None:
        expect(self.collateral_days > 0, f"collateral_days={self.collateral_days:g} > 0")
        for name in ("measurements", "signers"):
            object.__setattr__(self, name, tuple(_hex(value, name) for value in getattr(self, name)))

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """From a TOML file; unknown keys are errors."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise UserError(f"Could not read the policy {path}: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not TOML: {error}.") from error
        return call(cls, f"policy {path}", table)

    def complaints(self, claims: Claims, now: int) -> Iterator[str]:
        """Everything in these claims that is not allowed, a sentence each."""
        if claims.kind is Kind.SIMULATION and not self.simulation:
            yield "It is a simulation without any isolation, and the policy does not allow simulations."
        if claims.debug and not self.debug:
            yield "It is a debug enclave: whoever runs the machine can read its memory."
        if claims.measurement not in self.measurements:
            named = "names none" if not self.measurements else f"names {', '.join(self.measurements)}"
            yield f"The code's measurement is {claims.measurement}, but the policy {named}."
        if self.signers and claims.signer not in self.signers:
            yield f"It was signed by {claims.signer or 'nobody'}, but the policy names {', '.join(self.signers)}."
        if claims.svn < self.least_svn:
            yield f"Its security version is {claims.svn}, but the policy wants at least {self.least_svn}."
        if claims.kind is not Kind.SIMULATION:
            yield from self._platform(claims, now)

    def _platform(self, claims: Claims, now: int) -> Iterator[str]:
        if claims.status not in self.statuses:
            yield f"The vendor calls the processor {claims.status}; the policy allows {', '.join(self.statuses)}."
        for advisory in claims.advisories:
            if advisory in self.rejected_advisories:
                yield f"The processor has the weakness {advisory}, which the policy rejects."
        age = (now - claims.issued) / DAY
        if age > self.collateral_days:
            yield f"The collateral is {age:.1f} days old; the policy allows {self.collateral_days:g}."


def _hex(value: str, name: str) -> str:
    try:
        return bytes.fromhex(value).hex()
    except ValueError:
        raise UserError(f"Expected {name} in hex, got {value!r}.") from None
