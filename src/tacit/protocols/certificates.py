"""Certificates for TLS that their owners sign themselves: others know them by their fingerprint.

No authority issues them, so none can issue others. Whoever is to accept a certificate has received it before. The keys
are ECDSA on P-256, the only ones that every TLS library takes.
"""

import hashlib
import ipaddress
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from tacit.errors import UserError

MAX_PEM = 4000  # characters of a certificate
_SKEW = timedelta(days=1)  # of clocks: a new certificate is valid at once, everywhere
_NO_NAME = "tacit-server"  # in the certificate of a server that is reached by an address


@dataclass(frozen=True)
class Certificate:
    """A certificate of P-256, signed by itself, that can issue no other.

    Attributes:
        pem: its text.
    """

    pem: str

    def __post_init__(self) -> None:
        try:
            own, key = self._parsed, self._parsed.public_key()
            own.verify_directly_issued_by(own)
            issues = own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            kind = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
            fits = kind and not issues and own.subject == _subject(key) and bool(self.name)
        except (ValueError, TypeError, LookupError, InvalidSignature, x509.InvalidVersion, x509.ExtensionNotFound):
            fits = False
        if not fits or len(self.pem) > MAX_PEM:
            raise UserError(
                "Expected a certificate as tacit site init and tacit federation init make it, got other text. "
                "Ask for the file again."
            )

    @cached_property
    def _parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.pem.encode())

    @cached_property
    def text(self) -> str:
        """The certificate alone, whatever was around it in `pem`."""
        return self._parsed.public_bytes(Encoding.PEM).decode()

    @cached_property
    def der(self) -> bytes:
        """Its bytes."""
        return self._parsed.public_bytes(Encoding.DER)

    @cached_property
    def fingerprint(self) -> str:
        """What identifies it: SHA-256, in hexadecimal digits."""
        return self._parsed.fingerprint(SHA256()).hex()

    @property
    def ends(self) -> datetime:
        """When it expires."""
        return self._parsed.not_valid_after_utc

    @property
    def made(self) -> int:
        """When it was made: its serial number, in nanoseconds since 1970."""
        return self._parsed.serial_number

    @property
    def name(self) -> str:
        """The name in it, for which a client of TLS looks."""
        names = self._parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.DNSName)[0]


def fingerprint_of(pem: bytes) -> str:
    """The fingerprint of any certificate, such as that of the other end of a connection."""
    return x509.load_pem_x509_certificate(pem).fingerprint(SHA256()).hex()


@dataclass(frozen=True)
class CertificateKey:
    """A certificate with its secret key, as one PEM text.

    Attributes:
        pem: both.
    """

    pem: str

    def __post_init__(self) -> None:
        try:
            key = load_pem_private_key(self.pem.encode(), None).public_key()
            fits = isinstance(key, ec.EllipticCurvePublicKey) and _same(key, self.certificate)
        except (ValueError, TypeError):
            fits = False
        if not fits:
            raise UserError("Expected a secret key and its own certificate, got other text. Make a new one.")

    def __repr__(self) -> str:
        return f"CertificateKey({self.certificate.fingerprint})"

    @cached_property
    def certificate(self) -> Certificate:
        """The public half."""
        return Certificate(self.pem[self.pem.find("-----BEGIN CERTIFICATE") :])


def _same(key: ec.EllipticCurvePublicKey, certificate: Certificate) -> bool:
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(*form) == certificate._parsed.public_key().public_bytes(*form)


def _subject(key: CertificatePublicKeyTypes) -> x509.Name:
    """Of a certificate for this key, and of no other: TLS would confuse two with one subject."""
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, digest)])


def make_certificate(name: str, days: int) -> CertificateKey:
    """A new key, with a certificate for it that is valid from now on for this many days."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    own = _subject(key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(time.time_ns())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return CertificateKey((secret + builder.sign(key, SHA256()).public_bytes(Encoding.PEM)).decode())


def certificate_name(host: str) -> str:
    """The name in the certificate of a server at this host: a certificate's name cannot be an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return _NO_NAME
