"""Pads and the vectors they are added to."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy.stats import chisquare

from protocols.secagg.federation import Federation, parameters, session
from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.protocols.secagg import Phase, pads
from tacit.protocols.secagg.secagg_messages import PREAMBLE
from tacit.wire.packing import packed_size


def pad(key: bytes, words: int) -> bytes:
    total = np.zeros(words, np.uint32)
    pads.add_pads(total, [key])
    return total.astype("<u4").tobytes()


def test_the_pad_is_aes_256_in_counter_mode_from_block_two() -> None:
    """The GCM specification (McGrew & Viega), test case 14: E(K, 2) of the zero key; and counter mode itself."""
    assert pad(bytes(32), 4).hex() == "cea7403d4d606b6e074ec5d3baf39d18"
    key, size = bytes(range(32)), 3 * pads.CHUNK + 5
    counter_mode = Cipher(AES256(key), CTR((2).to_bytes(16, "big"))).encryptor()
    assert pad(key, size) == counter_mode.update(bytes(4 * size))


def test_pads_continue_over_chunks_and_cancel_modulo_two_to_the_32() -> None:
    key, size = b"k" * 32, pads.CHUNK + 77
    reference = crypto.keystream(key).update(bytes(4 * size))
    assert pad(key, size) == reference
    total = np.arange(size, dtype=np.uint32)
    pads.add_pads(total, [key, b"l" * 32], [b"m" * 32])
    assert not np.array_equal(total, np.arange(size))
    pads.add_pads(total, [b"m" * 32], [b"l" * 32, key])
    assert np.array_equal(total, np.arange(size))


def test_ten_thousand_keys_give_ten_thousand_streams() -> None:
    """Flower's generator has 2^28 seeds (flower#7522): 10^4 keys would not show that, but the next test would."""
    streams = {pad(crypto.derive(bytes(32), "test", b"", j), 4) for j in range(10_000)}
    assert len(streams) == 10_000


def test_every_bit_of_a_key_changes_half_of_the_pad() -> None:
    base = int.from_bytes(pad(bytes(32), 64), "little")
    for bit in range(256):
        other = int.from_bytes(pad((1 << bit).to_bytes(32, "little"), 64), "little")
        assert 0.4 < (base ^ other).bit_count() / 2048 < 0.6


def test_padded_uploads_of_zeros_are_uniform() -> None:
    """10^6 bytes each of 21 clients, in 256 bins; both tails are tested."""
    uploads: list[bytes] = []

    def record(phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        if phase is Phase.UPLOAD:
            uploads.extend(data[PREAMBLE:] for _, data in replies)
        return replies

    p = parameters(3, 250_000)
    vectors = {j: np.zeros(p.dim, np.uint32) for j in (1, 2, 3)}
    for seed in range(7):
        outcome = Federation(session(p), vectors, network=record, serialised=False, seed=seed).run()
        assert not outcome.result.any()
    chances = [chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue for data in uploads]
    assert len(chances) == 21
    assert all(0.001 <= chance <= 0.999 for chance in chances)


@pytest.mark.parametrize("bits", range(1, 33))
def test_vectors_of_every_width_are_packed_tightly(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, 65_536 + 13, dtype=np.uint64).astype(np.uint32)
    values[:2] = 0, (1 << bits) - 1
    packed = pads.pack_vector(values, bits)
    assert len(packed) == packed_size(values.size, bits) == -(-values.size * bits // 8)
    assert np.array_equal(pads.unpack_vector(packed, values.size, bits), values)
    with pytest.raises(ProtocolError):
        pads.unpack_vector(packed[:-1], values.size, bits)
    if values.size * bits % 8:
        with pytest.raises(ProtocolError, match="beyond its last value"):
            pads.unpack_vector(packed[:-1] + b"\xff", values.size, bits)
