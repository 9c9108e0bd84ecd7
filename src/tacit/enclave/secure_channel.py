"""TLS between the host and the enclave: both present a self-signed certificate that the other expects.

The configuration, whose digest every quote binds, contains the host's certificate: nobody else can reach the enclave's
socket. The enclave makes its own certificate when it starts, and its quotes bind the digest of that; the host compares
both before it sends anything else (`connect`). There are no certificate authorities. The protocol is TLS 1.3, as
Python's `ssl` module implements it.
"""

import hashlib
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tacit.enclave import enclave_messages
from tacit.enclave.attestation.evidence import Evidence
from tacit.enclave.attestation.verification import AttestationPolicy, verify_evidence
from tacit.enclave.connection import TIMEOUT, EnclaveConnection
from tacit.enclave.enclave_messages import MessageType
from tacit.errors import EnclaveUnavailableError, ProtocolError
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, Entropy
from tacit.wire.chain import GENESIS


@dataclass(frozen=True)
class ChannelIdentity:
    """A certificate and its secret key.

    Attributes:
        certificate: in DER.
        key: in PEM.
    """

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """The identity with this Ed25519 secret."""
        key = Ed25519PrivateKey.from_private_bytes(secret)
        return cls(certificate(secret), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    @classmethod
    def fresh(cls, entropy: Entropy = crypto.system_entropy) -> Self:
        """A new identity."""
        return cls.of(entropy(KEY))

    @cached_property
    def digest(self) -> bytes:
        """The digest of the certificate, as quotes bind it."""
        return certificate_digest(self.certificate)


def certificate_digest(certificate: bytes) -> bytes:
    """SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def enclave_context(identity: ChannelIdentity, host: bytes) -> ssl.SSLContext:
    """The enclave's side of TLS: only the host with this certificate passes the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=host)
    return _make_context(context, identity)


def host_context(identity: ChannelIdentity) -> ssl.SSLContext:
    """The host's side of TLS; `connect` verifies the enclave's certificate by its quote, not by an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _make_context(context, identity)


def connect(
    connection: socket.socket,
    identity: ChannelIdentity,
    config: bytes,
    policy: AttestationPolicy,
    now: int,
    *,
    timeout: float = TIMEOUT,
    entropy: Entropy = crypto.system_entropy,
) -> EnclaveConnection:
    """The host's connection to the enclave behind a connected socket.

    Args:
        connection: the socket.
        identity: of the host; its certificate is in the enclave's configuration.
        config: the digest of that configuration.
        policy: which enclaves the host accepts.
        now: the time, in seconds since 1970.
        timeout: seconds to wait for a reply.
        entropy: source of the nonce.

    Raises:
        EnclaveUnavailableError: nothing answers, or it does not accept this host.
        ProtocolError: what answers is not the attested enclave.
    """
    connection.settimeout(timeout)
    try:
        secured = host_context(identity).wrap_socket(connection)
    except OSError as error:
        connection.close()
        raise EnclaveUnavailableError(f"The enclave did not complete the TLS handshake: {error}.") from error
    host = EnclaveConnection(secured, timeout)
    nonce = entropy(KEY)
    try:
        reply = host.ask(enclave_messages.pack(MessageType.ATTEST, nonce + GENESIS))
        evidence = Evidence.read(enclave_messages.read_reply(reply, MessageType.EVIDENCE))
        _check(evidence, nonce, config, policy, now, secured.getpeercert(binary_form=True) or b"")
    except ProtocolError:
        host.close()
        raise
    return host


def _check(
    evidence: Evidence, nonce: bytes, config: bytes, policy: AttestationPolicy, now: int, certificate: bytes
) -> None:
    """Raise `ProtocolError` unless the evidence is of the accepted enclave at the other end of this connection."""
    result = verify_evidence(evidence, nonce, policy, now)
    if not result.accepted:
        raise ProtocolError(f"The enclave is rejected: {' '.join(result.violations)}")
    if evidence.config != config:
        raise ProtocolError("The enclave is rejected: its configuration is another one.")
    if evidence.channel != certificate_digest(certificate):
        raise ProtocolError("The enclave is rejected: its quote does not bind the certificate of this connection.")


def _make_context(context: ssl.SSLContext, identity: ChannelIdentity) -> ssl.SSLContext:
    """With its own certificate. The `ssl` module reads keys from files only: one that only its owner can read.

    Inside Gramine, temporary files are in the enclave's own memory.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    text = ssl.DER_cert_to_PEM_cert(identity.certificate).encode() + identity.key
    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
    return context


def certificate(secret: bytes) -> bytes:
    """A self-signed X.509 certificate of an Ed25519 identity, in DER: the same for the same secret.

    It has no period of validity of its own, because its recipient compares it with the one it expects.
    """
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit")])
    key = Ed25519PrivateKey.from_private_bytes(secret)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(crypto.digest("serial", key.public_key().public_bytes_raw())[:16], "big") | 1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, None).public_bytes(Encoding.DER)


def read_certificate(data: bytes) -> bytes:
    """A certificate in PEM or DER, as DER; raises `ProtocolError` for other bytes."""
    try:
        load = x509.load_pem_x509_certificate if data.startswith(b"-----") else x509.load_der_x509_certificate
        return load(data).public_bytes(Encoding.DER)
    except (ValueError, x509.InvalidVersion) as error:
        raise ProtocolError("Expected an X.509 certificate in PEM or DER, got other bytes.") from error
