import pytest

from protocols.secagg.federation import entropy
from tacit.errors import ProtocolError
from tacit.protocols import crypto


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 5.2, the first of the iterated calls."""
    nine = b"\x09" + bytes(31)
    agreed = crypto.agree(crypto.load_key(nine), nine).hex()
    assert agreed == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"


def test_points_of_low_order_are_refused() -> None:
    for point in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(ProtocolError, match="low order"):
            crypto.agree(crypto.load_key(b"s" * 32), point)


def test_a_ciphertext_decrypts_only_with_its_key_and_associated_data() -> None:
    sealed = crypto.seal(b"k" * 32, b"text", b"about")
    assert crypto.unseal(b"k" * 32, sealed, b"about") == b"text"
    for key, ciphertext, associated in (
        (b"l" * 32, sealed, b"about"),
        (b"k" * 32, sealed, b"other"),
        (b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"about"),
    ):
        with pytest.raises(ProtocolError):
            crypto.unseal(key, ciphertext, associated)


def test_digests_distinguish_parts() -> None:
    assert crypto.digest("a", b"bc", b"d") != crypto.digest("a", b"b", b"cd") != crypto.digest("ab", b"", b"cd")
    assert crypto.derive(b"s", "x", b"y", 1, 2) != crypto.derive(b"s", "x", b"y", 2, 1)


def test_test_entropy_is_not_that_of_the_system() -> None:
    assert entropy(1)(32) == entropy(1)(32) != entropy(2)(32)
    assert crypto.system_entropy(32) != crypto.system_entropy(32)
