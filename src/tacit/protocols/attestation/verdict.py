"""Whether an enclave is to be trusted, with the reasons."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from tacit.errors import ProtocolError, UserError
from tacit.protocols.attestation import dcap
from tacit.protocols.attestation.claims import Claims
from tacit.protocols.attestation.dcap import DcapVerifier
from tacit.protocols.attestation.evidence import Evidence, Kind
from tacit.protocols.attestation.policy import DAY, Policy
from tacit.protocols.attestation.simulation import SIMULATED, SimulationVerifier, is_simulated


class Attestor(Protocol):
    """Inside the enclave: who makes quotes."""

    @property
    def kind(self) -> Kind:
        """Of which kind they are."""
        ...

    @property
    def collateral(self) -> bytes:
        """What is handed on with every quote for its verification; may be empty."""
        ...

    def quote(self, report_data: bytes) -> bytes:
        """A quote over exactly 64 bytes."""
        ...


class Verifier(Protocol):
    """On a client: who reads quotes of one kind."""

    def claims(self, quote: bytes, collateral: bytes, now: int) -> Claims:
        """What a quote says, if its signatures hold at this time; `ProtocolError` if not."""
        ...


VERIFIERS: Mapping[Kind, Verifier] = {
    Kind.SGX: DcapVerifier(),
    Kind.TDX: DcapVerifier(),
    Kind.SIMULATION: SimulationVerifier(),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Accepted if there is nothing against it.

    Attributes:
        kind: of the quote.
        against: why it is refused, a sentence each; empty if it is accepted.
        claims: what the quote says; None if its signatures do not hold.
        bound: whether its report data were compared with what they must bind.
        at: the time it was verified for, in seconds since 1970.
    """

    kind: Kind
    against: tuple[str, ...]
    claims: Claims | None
    bound: bool
    at: int

    @property
    def accepted(self) -> bool:
        """Whether nothing is against it."""
        return not self.against

    def lines(self) -> Iterator[str]:
        """The verdict in words."""
        yield f"{'accepted' if self.accepted else 'refused'}: {self._summary()}"
        yield from (f"  {reason}" for reason in self.against)
        if self.claims is not None:
            rows = dict(self._rows(self.claims))
            yield from (f"{name:<{max(map(len, rows))}}  {value}" for name, value in rows.items())
        if self.kind is Kind.SIMULATION:
            yield SIMULATED

    def _summary(self) -> str:
        what = {Kind.SGX: "an Intel SGX enclave", Kind.TDX: "an Intel TDX virtual machine"}.get(self.kind)
        if self.claims is None:
            return "nothing that it says can be believed."
        if what is None:
            return "a process that says so itself; no processor vouches for it."
        held = "a genuine processor vouches for this code"
        return f"{held} in {what}." if self.accepted else f"{held} in {what}, but the policy does not allow it."

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
        if claims.kind is not Kind.SIMULATION:
            issued = datetime.fromtimestamp(claims.issued, UTC)
            yield "collateral", f"of {issued:%Y-%m-%d}, {(self.at - claims.issued) / DAY:.1f} days old"
        yield "report data", claims.report_data.hex()
        yield "bound to", "the expected report data" if self.bound else "nothing: report data were not compared"


def kind_of(quote: bytes) -> Kind:
    """What a quote looks like."""
    if is_simulated(quote):
        return Kind.SIMULATION
    kind = dcap.kind_of(quote)
    if kind is None:
        raise UserError("Expected a quote of Intel SGX or TDX, or a simulated one, got other bytes.")
    return kind


def judge(kind: Kind, quote: bytes, collateral: bytes, policy: Policy, now: int, expected: bytes | None) -> Verdict:
    """The verdict on a quote by itself.

    Args:
        kind: what it is said to be.
        quote: the quote.
        collateral: the vendor's statements.
        policy: what is allowed.
        now: the time, in seconds since 1970: that of the clock everywhere but for stored quotes.
        expected: the report data it must have; None: they are not compared.
    """
    try:
        claims = VERIFIERS[kind].claims(quote, collateral, now)
    except ProtocolError as error:
        return Verdict(kind=kind, against=(str(error),), claims=None, bound=False, at=now)
    return decide(kind, claims, policy, now, expected)


def decide(kind: Kind, claims: Claims, policy: Policy, now: int, expected: bytes | None) -> Verdict:
    """The verdict on what a quote says, once its signatures hold."""
    against = list(policy.complaints(claims, now))
    if claims.kind is not kind:
        against.append(f"It is said to be {kind.label}, but is {claims.kind.label}.")
    if expected is not None and claims.report_data != expected:
        against.append("Its report data bind another key, nonce, configuration or ledger head than those expected.")
    return Verdict(kind=kind, against=tuple(against), claims=claims, bound=expected is not None, at=now)


def verify(evidence: Evidence, nonce: bytes, policy: Policy, now: int, collateral: bytes = b"") -> Verdict:
    """The verdict on evidence that answers a nonce of ours.

    Whether key, configuration and head in it are those that the caller wants is the caller's to compare: accepted
    evidence says that the enclave swears by exactly these.

    Args:
        evidence: what the enclave sent.
        nonce: drawn by the caller for this one question.
        policy: what is allowed.
        now: the time, in seconds since 1970.
        collateral: the caller's own, preferred to the one sent.
    """
    expected = evidence.binding(nonce).report_data
    return judge(evidence.kind, evidence.quote, collateral or evidence.collateral, policy, now, expected)
