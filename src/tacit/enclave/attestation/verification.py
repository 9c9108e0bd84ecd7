"""Whether to trust an enclave: a verifier's policy, and the result of checking a quote against it.

The terms are those of RFC 9334 (RATS): an attester produces evidence, a verifier appraises it by its own policy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tacit.core.serialization import read_toml
from tacit.enclave.attestation import dcap
from tacit.enclave.attestation.dcap import read_dcap
from tacit.enclave.attestation.evidence import Claims, Evidence, QuoteKind
from tacit.enclave.attestation.simulated_quotes import SIMULATED, is_simulated, read_simulated
from tacit.errors import ProtocolError, UserError, positive

DAY = 86_400  # seconds


class Attestor(Protocol):
    """Inside the enclave: produces quotes of one kind, and collateral for their verification, which may be empty."""

    kind: QuoteKind
    collateral: bytes

    def quote(self, report_data: bytes) -> bytes:
        """A quote over exactly 64 bytes."""


_VERIFIERS: Mapping[QuoteKind, Callable[[bytes, bytes, int], Claims]] = {
    QuoteKind.SGX: read_dcap,
    QuoteKind.TDX: read_dcap,
    QuoteKind.SIMULATION: read_simulated,
}
"""They read a quote, by its collateral; one whose signatures are not valid at this time is a `ProtocolError`."""


@dataclass(frozen=True, kw_only=True)
class AttestationPolicy:
    """Which enclaves a verifier trusts. The default trusts none: measurements must be listed.

    Args:
        measurements: of trusted code, in hex; the enclave's must be one of them.
        signers: MRSIGNER values, in hex; empty: any signer, the measurement decides.
        min_svn: the lowest security version number of the enclave.
        statuses: acceptable ratings of processor and firmware by the vendor.
        rejected_advisories: vulnerabilities that are rejected whatever the status, such as `INTEL-SA-00615`.
        collateral_days: maximum age of the vendor's statements.
        acceptance_hours: how long an enclave that was accepted is not verified again.
        debug: accept an enclave whose memory can be read from outside by design.
        simulation: accept a process without any isolation. For tests.

    Example:
        >>> AttestationPolicy(measurements=("33D8",)).measurements
        ('33d8',)
    """

    measurements: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    min_svn: int = 0
    statuses: tuple[str, ...] = ("UpToDate",)
    rejected_advisories: tuple[str, ...] = ()
    collateral_days: float = 30.0
    acceptance_hours: float = 24.0
    debug: bool = False
    simulation: bool = False

    def __post_init__(self) -> None:
        positive(collateral_days=self.collateral_days, acceptance_hours=self.acceptance_hours)
        for name in ("measurements", "signers"):
            object.__setattr__(self, name, tuple(_hex(value, name) for value in getattr(self, name)))

    @classmethod
    def load(cls, path: Path) -> "AttestationPolicy":
        """From a TOML file; unknown keys are errors."""
        return read_toml(path, cls)

    def violations(self, claims: Claims, now: int) -> Iterator[str]:
        """Every claim that the policy does not allow, one sentence each."""
        if claims.kind is QuoteKind.SIMULATION and not self.simulation:
            yield "It is a simulation without any isolation, and the policy does not allow simulations."
        if claims.debug and not self.debug:
            yield "It is a debug enclave: the operator of the machine can read its memory."
        if claims.measurement not in self.measurements:
            listed = "lists none" if not self.measurements else f"lists {', '.join(self.measurements)}"
            yield f"The code's measurement is {claims.measurement}, but the policy {listed}."
        if self.signers and claims.signer not in self.signers:
            yield f"It was signed by {claims.signer or 'nobody'}, but the policy lists {', '.join(self.signers)}."
        if claims.svn < self.min_svn:
            yield f"Its security version is {claims.svn}, but the policy requires at least {self.min_svn}."
        if claims.kind is not QuoteKind.SIMULATION:
            yield from self._platform_violations(claims, now)

    def _platform_violations(self, claims: Claims, now: int) -> Iterator[str]:
        if claims.status not in self.statuses:
            yield (
                f"The vendor rates processor and firmware as {claims.status}; "
                f"the policy allows {', '.join(self.statuses)}."
            )
        for advisory in claims.advisories:
            if advisory in self.rejected_advisories:
                yield f"The processor has the vulnerability {advisory}, which the policy rejects."
        age = (now - claims.issued) / DAY
        if age > self.collateral_days:
            yield f"The collateral is {age:.1f} days old; the policy allows {self.collateral_days:g}."


@dataclass(frozen=True, kw_only=True)
class AttestationResult:
    """Whether a quote is accepted, and why not.

    Attributes:
        kind: of the quote.
        violations: why it is rejected, one sentence each; empty if it is accepted.
        claims: the content of the quote; None if its signatures are not valid.
        compared: whether its report data were compared with expected ones.
        verified_at: the time for which it was verified, in seconds since 1970.
    """

    kind: QuoteKind
    violations: tuple[str, ...]
    claims: Claims | None
    compared: bool
    verified_at: int

    @property
    def accepted(self) -> bool:
        """Whether nothing violates the policy."""
        return not self.violations

    def lines(self) -> Iterator[str]:
        """The result in words."""
        yield f"{'Accepted' if self.accepted else 'Rejected'}: {self._summary()}"
        yield from (f"  {reason}" for reason in self.violations)
        if self.claims is not None:
            rows = dict(self._rows(self.claims))
            yield from (f"{name:<{max(map(len, rows))}}  {value}" for name, value in rows.items())
        if self.kind is QuoteKind.SIMULATION:
            yield SIMULATED

    def _summary(self) -> str:
        hardware = {QuoteKind.SGX: "an Intel SGX enclave", QuoteKind.TDX: "an Intel TDX virtual machine"}.get(self.kind)
        if self.claims is None:
            return "the quote is not valid, so nothing in it can be trusted."
        if hardware is None:
            return "this process attests itself; no processor confirms it."
        confirmed = f"a genuine processor confirms that it runs this code in {hardware}"
        return f"{confirmed}." if self.accepted else f"{confirmed}, but the policy does not allow it."

    def _rows(self, claims: Claims) -> Iterator[tuple[str, str]]:
        yield "kind", claims.kind.label
        yield "measurement", claims.measurement
        if len(claims.registers) > 1:
            yield from claims.registers.items()
        if claims.signer:
            yield "signer", claims.signer
            yield "security version", str(claims.svn)
        yield "debug", "on" if claims.debug else "off"
        yield "status", claims.status
        yield "advisories", ", ".join(claims.advisories) or "none"
        if claims.kind is not QuoteKind.SIMULATION:
            issued = datetime.fromtimestamp(claims.issued, UTC)
            yield "collateral", f"of {issued:%Y-%m-%d}, {(self.verified_at - claims.issued) / DAY:.1f} days old"
        yield "report data", claims.report_data.hex()
        compared = "compared with the expected value" if self.compared else "not compared: no expected value was given"
        yield "report data check", compared


def quote_kind(quote: bytes) -> QuoteKind:
    """The kind of a quote, by its header; raises `UserError` for other bytes."""
    if is_simulated(quote):
        return QuoteKind.SIMULATION
    kind = dcap.quote_kind(quote)
    if kind is None:
        raise UserError("Expected a quote of Intel SGX or TDX, or a simulated one, got other bytes.")
    return kind


def verify_quote(
    kind: QuoteKind, quote: bytes, collateral: bytes, policy: AttestationPolicy, now: int, expected: bytes | None
) -> AttestationResult:
    """Check a quote of a declared kind by itself.

    `now` is in seconds since 1970; for stored quotes, a time at which their collateral was valid. `expected` are the
    report data that it must have; None: they are not compared.
    """
    try:
        claims = _VERIFIERS[kind](quote, collateral, now)
    except ProtocolError as error:
        return AttestationResult(kind=kind, violations=(str(error),), claims=None, compared=False, verified_at=now)
    return check_claims(kind, claims, policy, now, expected)


def check_claims(
    kind: QuoteKind, claims: Claims, policy: AttestationPolicy, now: int, expected: bytes | None
) -> AttestationResult:
    """Check the content of a quote whose signatures are valid."""
    violations = list(policy.violations(claims, now))
    if claims.kind is not kind:
        violations.append(f"It is declared as {kind.label}, but is {claims.kind.label}.")
    if expected is not None and claims.report_data != expected:
        violations.append("Its report data bind a different key, nonce, configuration, head or certificate.")
    compared = expected is not None
    return AttestationResult(kind=kind, violations=tuple(violations), claims=claims, compared=compared, verified_at=now)


def verify_evidence(
    evidence: Evidence, nonce: bytes, policy: AttestationPolicy, now: int, collateral: bytes = b""
) -> AttestationResult:
    """Check evidence that answers the caller's nonce.

    The caller must still compare key, configuration and head in the evidence with those it expects: an accepted result
    means that the enclave attests exactly these.

    Args:
        evidence: what the enclave sent.
        nonce: drawn by the caller for this request only.
        policy: what is allowed.
        now: the time, in seconds since 1970.
        collateral: the caller's own, preferred to the one in the evidence.
    """
    expected = evidence.binding(nonce).report_data
    return verify_quote(evidence.kind, evidence.quote, collateral or evidence.collateral, policy, now, expected)


def _hex(value: str, name: str) -> str:
    try:
        return bytes.fromhex(value).hex()
    except ValueError:
        raise UserError(f"Expected {name} in hex, got {value!r}.") from None
