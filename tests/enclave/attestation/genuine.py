"""Genuine quotes, each with a time and a policy by which it is accepted."""

from dataclasses import dataclass
from pathlib import Path

from tacit.enclave.attestation.evidence import QuoteKind
from tacit.enclave.attestation.verification import AttestationPolicy, AttestationResult, verify_quote

SAMPLES = Path(__file__).parent / "samples"
JULY = 1_751_371_200  # 2025-07-01 12:00 UTC
MARCH = 1_772_366_400  # 2026-03-01 12:00 UTC
DAY = 86_400


@dataclass(frozen=True)
class Sample:
    """A quote, its collateral, and the policy and time of its verification."""

    kind: QuoteKind
    name: str
    policy: AttestationPolicy
    now: int = JULY

    @property
    def quote(self) -> bytes:
        return (SAMPLES / self.name).read_bytes()

    @property
    def collateral(self) -> bytes:
        return (SAMPLES / f"{self.name}_collateral.json").read_bytes()

    def verified(
        self,
        quote: bytes | None = None,
        collateral: bytes | None = None,
        policy: AttestationPolicy | None = None,
        now: int | None = None,
        expected: bytes | None = None,
    ) -> AttestationResult:
        """The result, with some arguments replaced."""
        return verify_quote(
            self.kind,
            self.quote if quote is None else quote,
            self.collateral if collateral is None else collateral,
            policy or self.policy,
            self.now if now is None else now,
            expected,
        )


SGX = Sample(
    QuoteKind.SGX,
    "sgx_quote",
    AttestationPolicy(
        measurements=("33d8736db756ed4997e04ba358d27833188f1932ff7b1d156904d3f560452fbb",),
        signers=("815f42f11cf64430c30bab7816ba596a1da0130c3b028b673133a66cf9a3e0e6",),
        statuses=("UpToDate", "ConfigurationAndSWHardeningNeeded"),
    ),
)
TDX = Sample(
    QuoteKind.TDX,
    "tdx_quote",
    AttestationPolicy(
        measurements=(
            "fa13bff786ec94614334ea98d2b49c80d3d029670e86b5615c02afcf50ad9d7a3b02f453567bb20d598b5acf7014d598",
        )
    ),
)
OUTDATED = Sample(
    QuoteKind.TDX, "tdx_quote_outdated", AttestationPolicy(measurements=("00",), statuses=("OutOfDate",)), MARCH
)
HELLO = b"Hello, world!".ljust(64, b"\0")
