import numpy as np
import pytest
from scipy.stats import chisquare

from protocols.secagg.federation import Federation, entropy, parameters, session
from tacit.protocols import crypto
from tacit.protocols.secagg import Phase, ProtocolError, ring
from tacit.protocols.secagg.messages import HEADER


def pad(key: bytes, words: int) -> bytes:
    total = np.zeros(words, np.uint32)
    ring.add_pads(total, [key])
    return total.astype("<u4").tobytes()


def test_the_pad_is_aes_256_in_counter_mode_from_block_zero() -> None:
    """FIPS 197 / GCM specification (McGrew & Viega), test cases 13 and 14: H, E(K, 1), E(K, 2) of the zero key."""
    blocks = (
        "dc95c078a2408989ad48a21492842087"
        "530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )  # fmt: skip
    assert pad(bytes(32), 12).hex() == blocks
    assert pad(b"\x80" + bytes(31), 4).hex() == "e35a6dcb19b201a01ebcfa8aa22b5759"  # NIST AESAVS, VarKey256, COUNT 0


def test_pads_go_on_over_pieces_and_cancel_modulo_two_to_the_32() -> None:
    key, size = b"k" * 32, ring.PIECE + 77
    reference = crypto.stream(key).update(bytes(4 * size))
    assert pad(key, size) == reference
    total = np.arange(size, dtype=np.uint32)
    ring.add_pads(total, [key, b"l" * 32], [b"m" * 32])
    assert not np.array_equal(total, np.arange(size))
    ring.add_pads(total, [b"m" * 32], [b"l" * 32, key])
    assert np.array_equal(total, np.arange(size))


def test_ten_thousand_keys_give_ten_thousand_streams() -> None:
    """Flower's generator has 2^28 seeds (flower#7522): with 10^4 keys it is not seen here, but each bit's effect is."""
    streams = {pad(crypto.derive(bytes(32), "test", b"", j), 4) for j in range(10_000)}
    assert len(streams) == 10_000


def test_every_bit_of_a_key_changes_half_of_the_pad() -> None:
    base = int.from_bytes(pad(bytes(32), 64), "little")
    for bit in range(256):
        other = int.from_bytes(pad((1 << bit).to_bytes(32, "little"), 64), "little")
        assert 0.4 < (base ^ other).bit_count() / 2048 < 0.6


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 5.2, the first of the iterated calls."""
    nine = b"\x09" + bytes(31)
    agreed = crypto.agree(crypto.load(nine), nine).hex()
    assert agreed == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"


def test_points_of_low_order_are_refused() -> None:
    for point in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(ProtocolError, match="low order"):
            crypto.agree(crypto.load(b"s" * 32), point)


def test_what_is_sealed_opens_for_its_key_and_purpose_only() -> None:
    sealed = crypto.seal(b"k" * 32, b"text", b"about")
    assert crypto.unseal(b"k" * 32, sealed, b"about") == b"text"
    for key, text, about in (
        (b"l" * 32, sealed, b"about"),
        (b"k" * 32, sealed, b"other"),
        (b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"about"),
    ):
        with pytest.raises(ProtocolError):
            crypto.unseal(key, text, about)


def test_digests_tell_parts_apart() -> None:
    assert crypto.digest("a", b"bc", b"d") != crypto.digest("a", b"b", b"cd") != crypto.digest("ab", b"", b"cd")
    assert crypto.derive(b"s", "x", b"y", 1, 2) != crypto.derive(b"s", "x", b"y", 2, 1)


def test_padded_uploads_of_zeros_are_uniform() -> None:
    """10^6 bytes each of 21 clients, in 256 bins; both tails: too even would be as suspicious as too uneven."""
    uploads: list[bytes] = []

    def listen(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        if phase is Phase.UPLOAD:
            uploads.extend(data[HEADER:] for _, data in replies)
        return replies

    p = parameters(3, 250_000)
    vectors = {j: np.zeros(p.dim, np.uint32) for j in (1, 2, 3)}
    for seed in range(7):
        outcome = Federation(session(p), vectors, network=listen, kept=False, seed=seed).play()
        assert not outcome.total.any()
    chances = [chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue for data in uploads]
    assert len(chances) == 21
    assert all(0.001 <= chance <= 0.999 for chance in chances)


def test_the_tests_entropy_is_not_the_systems() -> None:
    assert entropy(1)(32) == entropy(1)(32) != entropy(2)(32)
    assert crypto.system_entropy(32) != crypto.system_entropy(32)
