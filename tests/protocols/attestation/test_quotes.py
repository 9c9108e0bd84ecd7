"""Genuine Intel quotes: accepted under a stated policy at a stated time, and refused for every single fault."""

import hashlib
import json
from dataclasses import replace

import pytest

from protocols.attestation.genuine import DAY, HELLO, JULY, MARCH, OUTDATED, SGX, TDX, Sample
from tacit.protocols.attestation import Binding, Evidence, Kind, Policy, kind_of, verify
from tacit.protocols.attestation.verdict import decide

genuine = pytest.mark.parametrize("sample", [SGX, TDX], ids=["sgx", "tdx"])


@genuine
def test_genuine_quotes_are_accepted(sample: Sample) -> None:
    verdict = sample.judged()
    assert verdict.accepted
    assert next(verdict.lines()).startswith("accepted: a genuine processor vouches for this code")
    assert kind_of(sample.quote) is sample.kind


def test_what_an_sgx_quote_says() -> None:
    claims = SGX.judged(expected=HELLO).claims
    assert claims is not None
    assert (claims.status, claims.advisories) == (
        "ConfigurationAndSWHardeningNeeded",
        ("INTEL-SA-00289", "INTEL-SA-00615"),
    )
    assert (claims.debug, claims.svn, claims.report_data) == (False, 0, HELLO)


def test_the_measurement_of_a_tdx_quote_covers_all_five_registers() -> None:
    claims, body = TDX.judged().claims, TDX.quote[48:]
    assert claims is not None
    assert claims.measurement == hashlib.sha384(body[136:184] + body[328:520]).hexdigest()


def test_an_outdated_platform_is_refused_even_if_the_policy_wants_it() -> None:
    assert "No matching TCB level" in OUTDATED.judged().against[0]


@genuine
@pytest.mark.parametrize(
    ("now", "why"),
    [
        (JULY - 13 * DAY, "in the future"),
        (JULY + 18 * DAY, "xpired"),
        (JULY + 365 * DAY, "xpired"),
        (0, "quote does not hold"),
    ],
)
def test_collateral_out_of_its_time_is_refused(sample: Sample, now: int, why: str) -> None:
    verdict = sample.judged(now=now)
    assert why in verdict.against[0]
    assert verdict.claims is None


@genuine
def test_collateral_that_is_too_old_for_the_policy_is_refused(sample: Sample) -> None:
    policy = replace(sample.policy, collateral_days=12)
    assert sample.judged(policy=policy, now=JULY - DAY).accepted
    assert sample.judged(policy=policy).against == ("The collateral is 12.1 days old; the policy allows 12.",)


def test_every_bit_of_header_and_report_counts() -> None:
    """48 + 384 bytes: 3,456 quotes with one bit flipped, none accepted."""
    quote, collateral, accepted = SGX.quote, SGX.collateral, 0
    for bit in range(3456):
        flipped = bytearray(quote)
        flipped[bit // 8] ^= 1 << bit % 8
        accepted += SGX.judged(quote=bytes(flipped), collateral=collateral).accepted
    assert accepted == 0


@genuine
@pytest.mark.parametrize(
    "field", ["tcb_info", "tcb_info_signature", "qe_identity", "qe_identity_signature", "root_ca_crl", "pck_crl"]
)
def test_tampered_collateral_is_refused(sample: Sample, field: str) -> None:
    table = json.loads(sample.collateral)
    assert sample.judged(collateral=json.dumps(table).encode()).accepted
    for place in (3, len(table[field]) // 2, len(table[field]) - 3):
        text = table[field]
        other = "1" if text[place] != "1" else "2"
        changed = {**table, field: text[:place] + other + text[place + 1 :]}
        assert not sample.judged(collateral=json.dumps(changed).encode()).accepted


def test_collateral_of_another_kind_or_of_nobody_is_refused() -> None:
    for other in (TDX.collateral, b"", b"{}", b"[]", b"\xff", b'{"tcb_info": 3}'):
        assert not SGX.judged(collateral=other).accepted


@genuine
def test_quotes_that_were_cut_or_extended_are_refused(sample: Sample) -> None:
    """The library overlooks bytes behind the signature; zeros there are what vendors' tools leave."""
    end = len(sample.quote.rstrip(b"\0"))
    for length in (0, 1, 47, 48, 431, 433, 436, 700, 1048, end - 1):
        assert not sample.judged(quote=sample.quote[:length]).accepted
    assert not sample.judged(quote=sample.quote + b"\1" * 64).accepted
    assert sample.judged(quote=sample.quote + bytes(64)).accepted


@genuine
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"measurements": ("ab" * 32,)}, "The code's measurement is"),
        ({"measurements": ()}, "the policy names none"),
        ({"signers": ("cd" * 32,)}, "It was signed by"),
        ({"least_svn": 1}, "Its security version is 0"),
        ({"statuses": ("SWHardeningNeeded",)}, "The vendor calls the processor"),
    ],
)
def test_what_the_policy_does_not_name_is_refused(sample: Sample, change: dict[str, object], why: str) -> None:
    (against,) = sample.judged(policy=replace(sample.policy, **change)).against
    assert why in against


def test_rejected_advisories_count_whatever_the_status_is() -> None:
    policy = replace(SGX.policy, rejected_advisories=("INTEL-SA-00615",))
    assert SGX.judged(policy=policy).against == (
        "The processor has the weakness INTEL-SA-00615, which the policy rejects.",
    )


@genuine
def test_a_debug_enclave_is_refused(sample: Sample) -> None:
    claims = sample.judged().claims
    assert claims is not None
    debugged = replace(claims, debug=True)
    assert "debug enclave" in decide(sample.kind, debugged, sample.policy, JULY, None).against[0]
    assert decide(sample.kind, debugged, replace(sample.policy, debug=True), JULY, None).accepted


def test_a_quote_of_another_kind_is_refused() -> None:
    claims = SGX.judged().claims
    assert claims is not None
    assert not decide(Kind.TDX, claims, SGX.policy, JULY, None).accepted


@genuine
def test_report_data_must_be_the_expected_ones(sample: Sample) -> None:
    """These quotes bind nothing of ours: whatever key, nonce, configuration and head are meant, they are refused."""
    claims = sample.judged().claims
    assert claims is not None
    assert sample.judged(expected=claims.report_data).accepted
    evidence = Evidence(sample.kind, sample.quote, sample.collateral, bytes(32), bytes(32), bytes(32))
    verdict = verify(evidence, bytes(32), sample.policy, JULY)
    assert verdict.against == (
        "Its report data bind another key, nonce, configuration or ledger head than those expected.",
    )
    assert verdict.bound


def test_the_default_policy_accepts_nobody() -> None:
    assert not any(sample.judged(policy=Policy()).accepted for sample in (SGX, TDX, replace(OUTDATED, now=MARCH)))


def test_each_part_of_a_binding_changes_the_report_data() -> None:
    parts = [bytes([i]) * 32 for i in range(4)]
    plain = Binding(*parts).report_data
    for place in range(4):
        changed = [part if i != place else b"\xff" * 32 for i, part in enumerate(parts)]
        assert Binding(*changed).report_data != plain
    assert Binding(parts[1], parts[0], parts[2], parts[3]).report_data != plain
    assert len(plain) == 64
