"""Intel quotes (SGX, TDX), verified offline by `dcap-qvl`. No other module imports that library.

Version 0.3.8 and older did not verify the quoting enclave's identity (CVE-2026-22696), hence the pinned range. The
library only checks signatures: debug, measurement, status and report data are checked by `AttestationPolicy` and
`verify_quote`. It ignores bytes after the signature; they are rejected here unless they are zero.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tacit.enclave.attestation.evidence import Claims, QuoteKind
from tacit.errors import ProtocolError, UserError

_HEADER = 48
_BODIES = {3: 384, 4: 584}  # by version; from version 5 on, the body declares its length
_SGX_DEBUG = 1 << 1  # in the first byte of the attributes
_RTMRS = ("mr_td", "rt_mr0", "rt_mr1", "rt_mr2", "rt_mr3")


def quote_kind(quote: bytes) -> QuoteKind | None:
    """SGX or TDX, by the quote's header, which its signature has yet to confirm; None: neither."""
    types = {0x00: QuoteKind.SGX, 0x81: QuoteKind.TDX}
    return types.get(struct.unpack_from("<I", quote, 4)[0]) if len(quote) >= _HEADER else None


def read_dcap(quote: bytes, collateral: bytes, now: int) -> Claims:
    """The content of an SGX or TDX quote whose certificate chain ends at Intel's root."""
    _check_length(quote)
    dcap_qvl = _library()
    try:
        parsed = dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
        report = json.loads(dcap_qvl.verify(quote, parsed, now).to_json())
        issued = min(_time_of_issue(parsed.tcb_info), _time_of_issue(parsed.qe_identity))
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"The quote is not valid: {' '.join(str(error).split())}.") from error
    ((report_type, body),) = report["report"].items()
    common = {
        "report_data": bytes.fromhex(body["report_data"]),
        "status": report["status"],
        "advisories": tuple(report["advisory_ids"]),
        "issued": issued,
    }
    return _sgx(body, common) if report_type == "SgxEnclave" else _tdx(body, common)


def _library() -> Any:
    """The library, which simulated enclaves do not need."""
    try:
        import dcap_qvl
    except ImportError:
        raise UserError("Quotes of hardware need dcap-qvl. Install it: pip install 'tacit-fl[enclave]'.") from None
    return dcap_qvl


def _sgx(body: Mapping[str, Any], common: Mapping[str, Any]) -> Claims:
    return Claims(
        kind=QuoteKind.SGX,
        measurement=body["mr_enclave"],
        registers={"mr_enclave": body["mr_enclave"]},
        signer=body["mr_signer"],
        svn=int(body["isv_svn"]),
        debug=bool(bytes.fromhex(body["attributes"])[0] & _SGX_DEBUG),
        **common,
    )


def _tdx(body: Mapping[str, Any], common: Mapping[str, Any]) -> Claims:
    body = {**body, **body.get("base", {})}  # newer reports wrap the older one
    registers = {name: body[name] for name in _RTMRS}
    return Claims(
        kind=QuoteKind.TDX,
        measurement=hashlib.sha384(bytes.fromhex("".join(registers.values()))).hexdigest(),
        registers=registers,
        debug=bytes.fromhex(body["td_attributes"])[0] != 0,  # the whole group "TD under debug"
        **common,
    )


def _time_of_issue(document: str) -> int:
    return int(datetime.fromisoformat(json.loads(document)["issueDate"]).timestamp())


def _check_length(quote: bytes) -> None:
    """After the signature only zeros may follow, as vendors' tools leave them."""
    try:
        (version,) = struct.unpack_from("<H", quote)
        start = _HEADER + _BODIES[version] if version in _BODIES else 54 + struct.unpack_from("<I", quote, 50)[0]
        end = start + 4 + struct.unpack_from("<I", quote, start)[0]
    except struct.error as error:
        raise ProtocolError("The quote is truncated: it ends before its signature.") from error
    if end > len(quote):
        raise ProtocolError("The quote is truncated: it ends inside its signature.")
    if any(quote[end:]):
        raise ProtocolError(f"The quote has {len(quote) - end} bytes after its end.")
