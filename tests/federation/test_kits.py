"""Kits and their certificates: secrets stay where they were made, and nobody can exchange what is public."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tacit.errors import UserError
from tacit.federation.transport.kits import (
    DAYS_TO_CHANGE,
    MAX_CERTIFICATES,
    Enrolment,
    Guests,
    Keyring,
    ServerAddress,
    ServerKit,
    SiteKit,
    warn_of_expiry,
)
from tacit.protocols.certificates import Certificate, CertificateKey, make_certificate

IDENTITY = bytes(range(32))


@pytest.fixture
def site(tmp_path: Path) -> SiteKit:
    kit = SiteKit(tmp_path / "kit")
    kit.make(IDENTITY)
    return kit


@pytest.fixture
def server(tmp_path: Path) -> ServerKit:
    kit = ServerKit(tmp_path / "consortium")
    kit.make("fl.example.org", 8002)
    return kit


def test_an_enrolment_that_its_site_has_not_signed_is_refused(site, server):
    content = site.enrolment.read_text()
    other = make_certificate("b" * 64, 10).certificate.text
    for old, new in ((site.keyring.certificates()[0].text, other), ('identity = "', 'identity = "00')):
        site.enrolment.write_text(content.replace(old, new))
        with pytest.raises(UserError, match="to be signed by the site's identity key"):
            server.add("a", site.enrolment)
    assert server.enrolments() == {}


def test_a_server_file_with_another_s_certificate_or_key_is_refused(site, server, tmp_path):
    mallory = ServerKit(tmp_path / "mallory")
    mallory.make("fl.example.org", 8002)
    theirs, own = mallory.address(), server.address()
    file = site.folder / "server.toml"
    for old, new in (
        (own.certificates[0].text, theirs.certificates[0].text),
        (own.identity.hex(), theirs.identity.hex()),
    ):
        file.write_text(server.address_file.read_text().replace(old, new))
        with pytest.raises(UserError, match="to be signed by the server's key"):
            site.server()
    key = tmp_path / "identity.key"
    key.write_text(IDENTITY.hex())
    key.chmod(0o600)
    file.write_bytes(mallory.address_file.read_bytes())
    with pytest.raises(UserError, match=f"server {own.identity.hex()[:16]} in this site's directory"):
        site.validate(key, own.identity)
    file.write_bytes(server.address_file.read_bytes())
    site.validate(key, own.identity)


def foreign(*, issues: bool = False, subject: str = "x", curve: ec.EllipticCurve | None = None) -> str:
    """A certificate that somebody else has made."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=issues, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("x")]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("pem", [foreign(issues=True), foreign(), foreign(curve=ec.SECP384R1()), "", "-----BEGIN", "é"])
def test_a_certificate_that_could_issue_others_or_be_confused_with_another_is_refused(pem):
    """TLS finds a certificate by its subject: with another's, a site could keep that one from connecting."""
    with pytest.raises(UserError, match="Expected a certificate as tacit site init"):
        Certificate(pem)


def test_a_key_belongs_to_its_certificate():
    one, other = make_certificate("a", 10), make_certificate("a", 10)
    assert one.certificate.text != other.certificate.text
    with pytest.raises(UserError, match="its own certificate"):
        CertificateKey(one.pem.replace(one.certificate.text, other.certificate.text))
    assert "PRIVATE" not in repr(one)


def test_keys_that_others_can_read_are_refused(site):
    (path,) = site.keyring.folder.iterdir()
    path.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        site.keyring.keys()


def test_the_server_presents_its_next_certificate_shortly_before_the_earlier_one_expires(tmp_path):
    ring = Keyring(tmp_path / "tls")
    ring.make("localhost", DAYS_TO_CHANGE + 2)
    first = ring.to_present()
    ring.make("localhost", 300)
    assert ring.to_present() == first
    ring.make("localhost", DAYS_TO_CHANGE - 1, only=True)
    nearly = ring.to_present()
    assert ring.keys() == [nearly]
    ring.make("localhost", 300)
    assert ring.to_present() == ring.keys()[0] != nearly


def test_a_keyring_keeps_few_keys(tmp_path):
    ring = Keyring(tmp_path / "tls")
    for _ in range(MAX_CERTIFICATES + 2):
        ring.make("localhost", 300)
    assert len(ring.keys()) == MAX_CERTIFICATES


def test_who_may_connect_is_read_again_when_the_folder_changes(site, server):
    guests, fingerprint = Guests(server), site.keyring.certificates()[0].fingerprint
    guests.refresh()
    assert guests.find(fingerprint) is None
    server.add("a", site.enrolment)
    guests.refresh()
    assert guests.find(fingerprint) == ("a", Enrolment.read(site.enrolment).identity)
    site.make(IDENTITY, renew=True, only=True)
    server.add("a", site.enrolment)
    guests.refresh()
    assert guests.find(fingerprint) is None
    server.remove("a")
    guests.refresh()
    assert guests.enrolments == {}


def test_a_renewal_needs_the_same_identity(site, server, tmp_path):
    server.add("a", site.enrolment)
    other = SiteKit(tmp_path / "other")
    other.make(bytes(32))
    with pytest.raises(UserError, match="run tacit federation remove first"):
        server.add("a", other.enrolment)


def test_a_server_that_has_moved_keeps_its_certificate(server, site):
    text = server.address_file.read_text().replace('"fl.example.org"', '"10.0.0.7"')
    (site.folder / "server.toml").write_text(text)
    address = site.server()
    assert (address.target, address.name) == ("10.0.0.7:8002", "fl.example.org")
    assert ServerAddress("::1", 1, address.identity, address.certificates).target == "[::1]:1"


def test_certificates_that_expire_soon_are_named():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ends = {"a": now + timedelta(days=100), "b": now + timedelta(days=20, hours=1), "c": now - timedelta(days=3)}
    assert [*warn_of_expiry(ends, now)] == [
        "The certificate of b expires in 20 days, on 2026-01-21. Renew it.",
        "The certificate of c expires in 0 days, on 2025-12-29. Renew it.",
    ]
