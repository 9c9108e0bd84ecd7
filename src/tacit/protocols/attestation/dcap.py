"""Intel's quotes (SGX, TDX), verified off line by `dcap-qvl`. Nothing else touches that library.

Version 0.3.8 and older did not verify the quoting enclave's identity (CVE-2026-22696), hence the pinned range. What it
returns is a statement whose signatures hold, nothing more: debug, measurement, status and report data are compared by
`Policy` and `verify`. It overlooks bytes behind the signature; they are refused here unless they are zero.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dcap_qvl

from tacit.errors import ProtocolError
from tacit.protocols.attestation.claims import Claims
from tacit.protocols.attestation.evidence import Kind

_HEADER = 48
_BODIES = {3: 384, 4: 584}  # by version; from version 5 on, the body says its own length
_SGX_DEBUG = 1 << 1  # of the attributes' first byte
_RTMRS = ("mr_td", "rt_mr0", "rt_mr1", "rt_mr2", "rt_mr3")


def kind_of(quote: bytes) -> Kind | None:
    """SGX or TDX, by the quote's own header, which is not believed before its signature holds; None: neither."""
    types = {0x00: Kind.SGX, 0x81: Kind.TDX}
    return types.get(struct.unpack_from("<I", quote, 4)[0]) if len(quote) >= _HEADER else None


class DcapVerifier:
    """Reads SGX and TDX quotes whose certificates lead to Intel's root."""

    def claims(self, quote: bytes, collateral: bytes, now: int) -> Claims:
        """What the quote says; `ProtocolError` if a signature, a certificate or the time does not hold."""
        _check_length(quote)
        try:
            held = dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
            report = json.loads(dcap_qvl.verify(quote, held, now).to_json())
            issued = min(_issued(held.tcb_info), _issued(held.qe_identity))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"The quote does not hold: {' '.join(str(error).split())}.") from error
        ((form, body),) = report["report"].items()
        common = {"status": report["status"], "advisories": tuple(report["advisory_ids"]), "issued": issued}
        return _sgx(body, common) if form == "SgxEnclave" else _tdx(body, common)


def _sgx(body: Mapping[str, Any], common: Mapping[str, Any]) -> Claims:
    return Claims(
        kind=Kind.SGX,
        measurement=body["mr_enclave"],
        registers={"mr_enclave": body["mr_enclave"]},
        signer=body["mr_signer"],
        svn=int(body["isv_svn"]),
        debug=bool(bytes.fromhex(body["attributes"])[0] & _SGX_DEBUG),
        report_data=bytes.fromhex(body["report_data"]),
        **common,
    )


def _tdx(body: Mapping[str, Any], common: Mapping[str, Any]) -> Claims:
    body = {**body, **body.get("base", {})}  # newer reports wrap the older one
    registers = {name: body[name] for name in _RTMRS}
    return Claims(
        kind=Kind.TDX,
        measurement=hashlib.sha384(bytes.fromhex("".join(registers.values()))).hexdigest(),
        registers=registers,
        signer="",
        svn=0,
        debug=bytes.fromhex(body["td_attributes"])[0] != 0,  # the whole group "TD under debug"
        report_data=bytes.fromhex(body["report_data"]),
        **common,
    )


def _issued(document: str) -> int:
    return int(datetime.fromisoformat(json.loads(document)["issueDate"]).timestamp())


def _check_length(quote: bytes) -> None:
    """Behind the signature there may be zeros, as vendors' tools leave them, and nothing else."""
    try:
        (version,) = struct.unpack_from("<H", quote)
        at = _HEADER + _BODIES[version] if version in _BODIES else 54 + struct.unpack_from("<I", quote, 50)[0]
        end = at + 4 + struct.unpack_from("<I", quote, at)[0]
    except struct.error as error:
        raise ProtocolError("The quote was cut: it ends before its signature.") from error
    if end > len(quote):
        raise ProtocolError("The quote was cut: it ends inside its signature.")
    if any(quote[end:]):
        raise ProtocolError(f"The quote has {len(quote) - end} bytes behind its end.")
