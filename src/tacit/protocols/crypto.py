"""The five primitives, all from `cryptography`, and how keys are derived. Nothing else touches that library.

X25519 (RFC 7748) for keys of pairs, HKDF-SHA256 (RFC 5869) for everything derived, AES-256-GCM (NIST SP 800-38D) for
what is sealed on its way through the server, AES-256-CTR (NIST SP 800-38A) for pads, Ed25519 (RFC 8032) for identities.

Every derived key is bound to a label, to a digest (which binds run, round, model and configuration) and to the clients
it is for, and is used for one message or one pad only. That is why nonces and counters may start at zero.
"""

import hashlib
import os
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import ProtocolError
from tacit.wire.packing import number

Entropy = Callable[[int], bytes]  # so many bytes nobody can predict; tests inject their own

PrivateKey = X25519PrivateKey

KEY = 32  # bytes of every key, seed and digest
SIGNATURE = 64
TAG = 16  # bytes that AES-GCM adds

system_entropy: Entropy = os.urandom


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 over a label and parts, each with its length, so that no two lists of parts look the same."""
    whole = (b"tacit channels 1", label.encode(), *parts)
    return hashlib.sha256(b"".join(number(len(part), 8) + part for part in whole)).digest()


def derive(secret: bytes, label: str, binding: bytes, *clients: int, length: int = KEY) -> bytes:
    """A key for one purpose, one binding digest and the given clients."""
    info = digest(label, binding, *map(number, clients))
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


def load(secret: bytes) -> X25519PrivateKey:
    """An X25519 key, ready for many agreements: loading one costs as much as an agreement."""
    return X25519PrivateKey.from_private_bytes(secret)


def public(key: X25519PrivateKey) -> bytes:
    """The public half of an X25519 key."""
    return key.public_key().public_bytes_raw()


def agree(key: X25519PrivateKey, other: bytes) -> bytes:
    """The secret of a pair; a point of low order, which would make it known to all, is refused."""
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolError("A public key is a point of low order.") from error


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate, once per key."""
    return AESGCM(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """What was sealed; anything altered is refused."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, about)
    except InvalidTag as error:
        raise ProtocolError("What was sealed was altered on its way, or is meant for somebody else.") from error


def identity(secret: bytes) -> bytes:
    """The public half of an Ed25519 identity."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, statement: bytes) -> bytes:
    """Sign with an identity."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(statement)


def verify(known: bytes, signature: bytes, statement: bytes) -> None:
    """Refuse a statement that the known identity did not sign."""
    try:
        Ed25519PublicKey.from_public_bytes(known).verify(signature, statement)
    except (InvalidSignature, ValueError) as error:
        raise ProtocolError("A signature does not belong to the identity that is known.") from error


def stream(key: bytes) -> CipherContext:
    """The pad generator: AES-256-CTR from block zero. Encrypting zeros gives the pad."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
