"""Attestation without hardware: good for tests and demonstrations, and for nothing else.

A simulated quote has the form of a real one and is signed by a key that nobody vouches for. It shows that the protocol
is followed. It shows nothing about the machine, whose operator can read and change everything. A policy refuses it
unless it says `simulation = true`.
"""

import hashlib
from functools import cache
from pathlib import Path

from tacit.errors import ProtocolError, expect
from tacit.protocols import crypto
from tacit.protocols.attestation.claims import Claims
from tacit.protocols.attestation.evidence import REPORT_DATA, Kind
from tacit.wire.packing import Reader

SIMULATED = "enclave: simulated (insecure)"  # what every artefact says
_LABEL = b"SIMULATION - NO ISOLATION\0"


class SimulationAttestor:
    """Signs whatever it is given with a fresh key. Its maker has asked for an insecure simulation in so many words."""

    kind = Kind.SIMULATION
    collateral = b""

    def __init__(self, *, insecure: bool, entropy: crypto.Entropy = crypto.system_entropy) -> None:
        expect(insecure, "insecure=True: a simulated enclave isolates nothing")
        self._secret = entropy(crypto.KEY)

    def quote(self, report_data: bytes) -> bytes:
        """The label, the code's measurement, the report data, the key, and a signature over all of it."""
        expect(len(report_data) == REPORT_DATA, f"{REPORT_DATA} bytes of report data, got {len(report_data)}")
        said = _LABEL + bytes.fromhex(code_measurement()) + report_data + crypto.identity(self._secret)
        return said + crypto.sign(self._secret, said)


class SimulationVerifier:
    """Reads simulated quotes."""

    def claims(self, quote: bytes, collateral: bytes, now: int) -> Claims:
        """What it says; anything altered is refused."""
        reader = Reader(quote)
        if reader.take(len(_LABEL)) != _LABEL:
            raise ProtocolError("The quote does not hold: it is not a simulated one.")
        measurement, report_data = reader.take(crypto.KEY).hex(), reader.take(REPORT_DATA)
        known, signature = reader.take(crypto.KEY), reader.take(crypto.SIGNATURE)
        reader.done()
        crypto.verify(known, signature, quote[: -crypto.SIGNATURE])
        return Claims(
            kind=Kind.SIMULATION,
            measurement=measurement,
            registers={"sources": measurement},
            signer="",
            svn=0,
            debug=False,
            report_data=report_data,
            status="Simulated",
            advisories=(),
            issued=now,
        )


def is_simulated(quote: bytes) -> bool:
    """Whether it says so itself."""
    return quote.startswith(_LABEL)


@cache
def code_measurement() -> str:
    """SHA-256 over Tacit's own source files, in hex: what a simulated enclave calls its measurement."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
