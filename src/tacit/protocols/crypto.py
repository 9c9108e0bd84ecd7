"""Cryptographic primitives, from `cryptography`, and key derivation.

Only `tacit.core.keys`, for its streams, and the certificates of enclaves also use that library.

X25519 (RFC 7748) for pairwise keys, HKDF-SHA256 (RFC 5869; its HMAC is that of the standard library, which is faster)
for derived keys, AES-256-GCM (NIST SP 800-38D) for authenticated encryption, AES-256 in counter mode (NIST SP
800-38A) for pads, Ed25519 (RFC 8032) for identities, X.509 certificates of these for TLS.

Every derived key is bound to a label, to a digest (which binds run, round, model and configuration) and to the clients
it is for, and is used for one message or one pad only. That is why nonces and counters may start at zero.
"""

import hashlib
import hmac
import os
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tacit.errors import ProtocolError
from tacit.wire.packing import pack_chunk, pack_number

Entropy = Callable[[int], bytes]  # returns `n` unpredictable bytes; tests inject a deterministic source

PrivateKey = X25519PrivateKey

KEY = 32  # bytes of every key, seed and digest
SIGNATURE = 64  # bytes
TAG = 16  # bytes that AES-GCM adds

system_entropy: Entropy = os.urandom


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 over a label and parts, each prefixed with its length, so that different lists never collide."""
    whole = (pack_chunk(part) for part in (b"tacit channels 1", label.encode(), *parts))
    return hashlib.sha256(b"".join(whole)).digest()


def derive(secret: bytes, label: str, binding: bytes, *clients: int, length: int = KEY) -> bytes:
    """A key of at most 32 bytes for one purpose, one binding digest and the given clients."""
    info = digest(label, binding, *map(pack_number, clients))
    extracted = hmac.digest(bytes(KEY), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:length]


def load_key(secret: bytes) -> X25519PrivateKey:
    """An X25519 private key. Loading costs as much as one agreement, so load once and reuse."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_key(key: X25519PrivateKey) -> bytes:
    """The public half of an X25519 key."""
    return key.public_key().public_bytes_raw()


def agree(key: X25519PrivateKey, other: bytes) -> bytes:
    """The shared secret of two parties; rejects low-order points, with which the secret would be public."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolError("A public key is a point of low order.") from error


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Encrypt and authenticate with associated data; each key is used once."""
    return AESGCM(key).encrypt(bytes(12), plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Decrypt; raises `ProtocolError` if ciphertext, key or associated data differ."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, associated)
    except InvalidTag as error:
        raise ProtocolError("Decryption failed: the ciphertext was altered, or is for another recipient.") from error


def public_identity(secret: bytes) -> bytes:
    """The public half of an Ed25519 identity."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, statement: bytes) -> bytes:
    """An Ed25519 signature."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(statement)


def verify(identity: bytes, signature: bytes, statement: bytes) -> None:
    """Raise `ProtocolError` unless the owner of this public identity signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, statement)
    except (InvalidSignature, ValueError) as error:
        raise ProtocolError("A signature does not match the registered identity.") from error


def keystream(key: bytes) -> CipherContext:
    """The pad generator: AES-256 in counter mode from block two. Encrypting zeros yields the pad.

    That is what GCM encrypts with, of which OpenSSL has the faster code on CPUs with vector AES. Its tag is never
    computed. A key has one stream, of at most 64 GiB.
    """
    return Cipher(algorithms.AES256(key), modes.GCM(bytes(12))).encryptor()
