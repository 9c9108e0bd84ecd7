"""Quotes of the SGX enclave that this process runs in, through Gramine's pseudo-files. Not run on hardware yet."""

from pathlib import Path

from tacit.errors import UserError, expect
from tacit.protocols.attestation.evidence import REPORT_DATA, Kind

_DEVICE = Path("/dev/attestation")


class GramineAttestor:
    """Asks Gramine for DCAP quotes.

    Args:
        collateral: Intel's statements about this processor, as JSON, to be handed on with every quote; empty if
            verifiers fetch them by themselves.
        device: where Gramine keeps its pseudo-files.
    """

    kind = Kind.SGX

    def __init__(self, collateral: bytes = b"", device: Path = _DEVICE) -> None:
        if not (device / "quote").exists():
            raise UserError(
                f"Expected to run inside Gramine with remote attestation, but there is no {device / 'quote'}. "
                "Start it by gramine-sgx with the manifest of `tacit enclave manifest`, or simulate an enclave "
                "with --insecure-simulation."
            )
        self.collateral, self._device = collateral, device

    def quote(self, report_data: bytes) -> bytes:
        """A quote over these 64 bytes."""
        expect(len(report_data) == REPORT_DATA, f"{REPORT_DATA} bytes of report data, got {len(report_data)}")
        (self._device / "user_report_data").write_bytes(report_data)
        return (self._device / "quote").read_bytes()
