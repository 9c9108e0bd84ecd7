"""What a quote says once its signature holds. That it says so is not yet a reason to trust it: see `Policy`."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.protocols.attestation.evidence import Kind


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The part of a quote that policies are about, in one form for all vendors.

    Attributes:
        kind: of the quote.
        measurement: of the code: MRENCLAVE, or SHA-384 over MRTD and the four RTMRs, in hex.
        registers: what the measurement was made of, by name.
        signer: MRSIGNER in hex; empty where there is none.
        svn: the enclave's own security version.
        debug: whether its memory can be read from outside by design.
        report_data: the 64 bytes that it chose.
        status: what the vendor says about processor and firmware.
        advisories: known weaknesses of them.
        issued: when the oldest of the vendor's statements was made, in seconds since 1970.
    """

    kind: Kind
    measurement: str
    registers: Mapping[str, str]
    signer: str
    svn: int
    debug: bool
    report_data: bytes
    status: str
    advisories: tuple[str, ...]
    issued: int
