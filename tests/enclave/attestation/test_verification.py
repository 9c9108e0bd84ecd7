"""Genuine Intel quotes: accepted under a stated policy at a stated time, and rejected for every single fault."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from enclave.attestation.genuine import DAY, HELLO, JULY, MARCH, OUTDATED, SGX, TDX, Sample
from tacit.enclave.attestation.evidence import Evidence, QuoteKind
from tacit.enclave.attestation.verification import AttestationPolicy, check_claims, quote_kind, verify_evidence
from tacit.errors import UserError

genuine = pytest.mark.parametrize("sample", [SGX, TDX], ids=["sgx", "tdx"])


@genuine
def test_genuine_quotes_are_accepted(sample: Sample) -> None:
    result = sample.verified()
    assert result.accepted
    assert next(result.lines()).startswith("Accepted: a genuine processor confirms that it runs this code")
    assert quote_kind(sample.quote) is sample.kind


def test_the_claims_of_an_sgx_quote() -> None:
    claims = SGX.verified(expected=HELLO).claims
    assert claims is not None
    assert (claims.status, claims.advisories) == (
        "ConfigurationAndSWHardeningNeeded",
        ("INTEL-SA-00289", "INTEL-SA-00615"),
    )
    assert (claims.debug, claims.svn, claims.report_data) == (False, 0, HELLO)


def test_the_measurement_of_a_tdx_quote_covers_all_five_registers() -> None:
    claims, body = TDX.verified().claims, TDX.quote[48:]
    assert claims is not None
    assert claims.measurement == hashlib.sha384(body[136:184] + body[328:520]).hexdigest()


def test_an_outdated_platform_is_rejected_even_if_the_policy_allows_it() -> None:
    assert "No matching TCB level" in OUTDATED.verified().violations[0]


@genuine
@pytest.mark.parametrize(
    ("now", "why"),
    [
        (JULY - 13 * DAY, "in the future"),
        (JULY + 18 * DAY, "xpired"),
        (JULY + 365 * DAY, "xpired"),
        (0, "quote is not valid"),
    ],
)
def test_collateral_outside_its_validity_is_rejected(sample: Sample, now: int, why: str) -> None:
    result = sample.verified(now=now)
    assert why in result.violations[0]
    assert result.claims is None


@genuine
def test_collateral_that_is_too_old_for_the_policy_is_rejected(sample: Sample) -> None:
    policy = replace(sample.policy, collateral_days=12)
    assert sample.verified(policy=policy, now=JULY - DAY).accepted
    assert sample.verified(policy=policy).violations == ("The collateral is 12.1 days old; the policy allows 12.",)


def test_every_bit_of_header_and_report_is_verified() -> None:
    """48 + 384 bytes: 3,456 quotes with one bit flipped, none accepted; it would catch a field that is not verified."""
    quote, collateral, accepted = SGX.quote, SGX.collateral, 0
    for bit in range(3456):
        flipped = bytearray(quote)
        flipped[bit // 8] ^= 1 << bit % 8
        accepted += SGX.verified(quote=bytes(flipped), collateral=collateral).accepted
    assert accepted == 0


@genuine
@pytest.mark.parametrize(
    "field", ["tcb_info", "tcb_info_signature", "qe_identity", "qe_identity_signature", "root_ca_crl", "pck_crl"]
)
def test_tampered_collateral_is_rejected(sample: Sample, field: str) -> None:
    table = json.loads(sample.collateral)
    assert sample.verified(collateral=json.dumps(table).encode()).accepted
    for place in (3, len(table[field]) // 2, len(table[field]) - 3):
        text = table[field]
        other = "1" if text[place] != "1" else "2"
        changed = {**table, field: text[:place] + other + text[place + 1 :]}
        assert not sample.verified(collateral=json.dumps(changed).encode()).accepted


def test_collateral_of_another_kind_or_none_is_rejected() -> None:
    for other in (TDX.collateral, b"", b"{}", b"[]", b"\xff", b'{"tcb_info": 3}'):
        assert not SGX.verified(collateral=other).accepted


@genuine
def test_truncated_or_extended_quotes_are_rejected(sample: Sample) -> None:
    """The library ignores bytes after the signature; vendors' tools leave zeros there."""
    end = len(sample.quote.rstrip(b"\0"))
    for length in (0, 1, 47, 48, 431, 433, 436, 700, 1048, end - 1):
        assert not sample.verified(quote=sample.quote[:length]).accepted
    assert not sample.verified(quote=sample.quote + b"\1" * 64).accepted
    assert sample.verified(quote=sample.quote + bytes(64)).accepted


@genuine
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: replace(p, measurements=("ab" * 32,)), "The code's measurement is"),
        (lambda p: replace(p, measurements=()), "the policy lists none"),
        (lambda p: replace(p, signers=("cd" * 32,)), "It was signed by"),
        (lambda p: replace(p, min_svn=1), "Its security version is 0"),
        (lambda p: replace(p, statuses=("SWHardeningNeeded",)), "The vendor rates processor and firmware"),
    ],
)
def test_what_the_policy_does_not_list_is_rejected(
    sample: Sample, change: Callable[[AttestationPolicy], AttestationPolicy], why: str
) -> None:
    (violation,) = sample.verified(policy=change(sample.policy)).violations
    assert why in violation


def test_rejected_advisories_apply_whatever_the_status() -> None:
    policy = replace(SGX.policy, rejected_advisories=("INTEL-SA-00615",))
    assert SGX.verified(policy=policy).violations == (
        "The processor has the vulnerability INTEL-SA-00615, which the policy rejects.",
    )


@genuine
def test_a_debug_enclave_is_rejected(sample: Sample) -> None:
    claims = sample.verified().claims
    assert claims is not None
    debugged = replace(claims, debug=True)
    assert "debug enclave" in check_claims(sample.kind, debugged, sample.policy, JULY, None).violations[0]
    assert check_claims(sample.kind, debugged, replace(sample.policy, debug=True), JULY, None).accepted


def test_a_quote_of_another_kind_is_rejected() -> None:
    claims = SGX.verified().claims
    assert claims is not None
    assert not check_claims(QuoteKind.TDX, claims, SGX.policy, JULY, None).accepted


@genuine
def test_report_data_must_be_as_expected(sample: Sample) -> None:
    """These quotes bind none of our keys, nonces, configurations and heads, so each is rejected."""
    claims = sample.verified().claims
    assert claims is not None
    assert sample.verified(expected=claims.report_data).accepted
    evidence = Evidence(sample.kind, sample.quote, sample.collateral, bytes(32), bytes(32), bytes(32))
    result = verify_evidence(evidence, bytes(32), sample.policy, JULY)
    assert result.violations == ("Its report data bind a different key, nonce, configuration, head or certificate.",)
    assert result.compared


def test_the_default_policy_accepts_no_quote() -> None:
    assert not any(
        sample.verified(policy=AttestationPolicy()).accepted for sample in (SGX, TDX, replace(OUTDATED, now=MARCH))
    )


def test_a_policy_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('measurements = ["AB12"]\nstatuses = ["UpToDate", "SWHardeningNeeded"]\ncollateral_days = 7\n')
    policy = AttestationPolicy.load(file)
    assert (policy.measurements, policy.collateral_days, policy.simulation) == (("ab12",), 7.0, False)
    assert policy.statuses == ("UpToDate", "SWHardeningNeeded")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('measurement = ["ab"]', "Did you mean 'measurements'"),
        ('measurements = ["xyz"]', "Expected measurements in hex"),
        ("collateral_days = 0", "Expected collateral_days=0.0 > 0"),
        ("simulation = 3", "true or false"),
        ("measurements = [", "to be TOML"),
    ],
)
def test_an_invalid_policy_has_a_clear_error(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=why.replace("(", r"\(")):
        AttestationPolicy.load(file)


def test_a_missing_policy_has_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Could not read .*none\.toml"):
        AttestationPolicy.load(tmp_path / "none.toml")
