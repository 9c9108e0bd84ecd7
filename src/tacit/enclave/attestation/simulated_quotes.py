"""Attestation without hardware, for tests and demonstrations only.

A simulated quote has the form of a real one and is signed by a key that nobody certifies. It shows that the protocol is
followed. It shows nothing about the machine, whose operator can read and change everything. A policy rejects it unless
it contains `simulation = true`.
"""

from tacit.core.code_digest import code_measurement
from tacit.enclave.attestation.evidence import REPORT_DATA, Claims, QuoteKind
from tacit.errors import ProtocolError, expect
from tacit.protocols import crypto
from tacit.wire.packing import Reader

# In every output of a run with a simulated enclave.
SIMULATED = "Simulated enclave (insecure): nothing is isolated, so the operator of this machine can read every update."
_LABEL = b"SIMULATION - NO ISOLATION\0"


class SimulatedAttestor:
    """Signs any report data with a fresh key. The caller must request it explicitly, by `insecure=True`."""

    kind = QuoteKind.SIMULATION
    collateral = b""

    def __init__(self, *, insecure: bool, entropy: crypto.Entropy = crypto.system_entropy) -> None:
        expect(insecure, "insecure=True: a simulated enclave isolates nothing")
        self._secret = entropy(crypto.KEY)

    def quote(self, report_data: bytes) -> bytes:
        """The label, the code's measurement, the report data, the key, and a signature over all of it."""
        expect(len(report_data) == REPORT_DATA, f"{REPORT_DATA} bytes of report data, got {len(report_data)}")
        content = _LABEL + bytes.fromhex(code_measurement()) + report_data + crypto.public_identity(self._secret)
        return content + crypto.sign(self._secret, content)


def read_simulated(quote: bytes, _: bytes, now: int) -> Claims:
    """The content of a simulated quote, which needs no collateral."""
    reader = Reader(quote)
    if reader.take(len(_LABEL)) != _LABEL:
        raise ProtocolError("The quote is not valid: it is not a simulated one.")
    measurement, report_data = reader.take(crypto.KEY).hex(), reader.take(REPORT_DATA)
    identity, signature = reader.take(crypto.KEY), reader.take(crypto.SIGNATURE)
    reader.expect_end()
    crypto.verify(identity, signature, quote[: -crypto.SIGNATURE])
    return Claims(
        kind=QuoteKind.SIMULATION,
        measurement=measurement,
        registers={"sources": measurement},
        debug=False,
        report_data=report_data,
        status="Simulated",
        issued=now,
    )


def is_simulated(quote: bytes) -> bool:
    """Whether a quote declares itself simulated."""
    return quote.startswith(_LABEL)
