import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ProtocolError
from tacit.protocols.secagg import shares

SECRET = bytes(range(224, 256))


def shared(chance: random.Random, threshold: int, points: range, columns: int = 1) -> tuple[shares.Field, list[int]]:
    """Shares of random polynomials at some points, by plain integers, and their values at zero."""
    rows = [[chance.randrange(shares.PRIME) for _ in range(columns)] for _ in range(threshold)]
    values = [[sum(row[c] * x**k for k, row in enumerate(rows)) % shares.PRIME for c in range(columns)] for x in points]
    return np.array(values, np.uint64), rows[0]


def test_the_textbook_example() -> None:
    """f(x) = 1234 + 166 x + 94 x^2 at 1 to 6 (Wikipedia, "Shamir's secret sharing"), always below the prime."""
    values = np.array([[1494], [1942], [2578], [3402], [4414], [5614]], np.uint64)
    for three in combinations(range(6), 3):
        points = [place + 1 for place in three]
        assert shares.interpolate(points, values[list(three)], [0, 4]).tolist() == [[1234], [3402]]


@given(seed=st.integers(0, 2**32), threshold=st.integers(1, 12), more=st.integers(0, 12))
def test_any_threshold_of_shares_gives_the_secret(seed: int, threshold: int, more: int) -> None:
    chance, points = random.Random(seed), range(1, threshold + more + 1)
    values, secret = shared(chance, threshold, points, columns=3)
    chosen = chance.sample(points, threshold)
    found = shares.interpolate(chosen, values[[point - 1 for point in chosen]], [0])
    assert found.tolist() == [secret]


@given(seed=st.integers(0, 2**32), threshold=st.integers(1, 12), errors=st.integers(0, 6), more=st.integers(0, 2))
def test_wrong_shares_are_found_up_to_half_of_what_is_to_spare(
    seed: int, threshold: int, errors: int, more: int
) -> None:
    """Whichever they are, in one column or several, and whatever the suspicion was."""
    chance, points = random.Random(seed), range(1, threshold + 2 * errors + more + 1)
    values, _ = shared(chance, threshold, points, columns=2)
    wrong = frozenset(chance.sample(points, chance.randint(0, errors)))
    for point in wrong:
        values[point - 1, chance.randrange(2)] += np.uint64(chance.randrange(1, 1000))
    values %= np.uint64(shares.PRIME)
    for suspects in (frozenset[int](), wrong, frozenset(chance.sample(points, len(points) // 2))):
        assert shares.wrong_places(points, values, threshold, errors, suspects) == wrong


def test_a_word_far_from_the_code_is_none() -> None:
    chance = random.Random(1)
    for threshold, errors in ((2, 1), (7, 1), (10, 4), (30, 9)):
        points = range(1, threshold + 2 * errors + 1)
        values, _ = shared(chance, threshold, points)
        for place in chance.sample(range(len(points)), errors + 1):
            values[place] = chance.randrange(shares.PRIME)
        assert shares.wrong_places(points, values, threshold, errors) is None


def test_limbs_hold_every_secret_and_nothing_more() -> None:
    for secret in (bytes(32), b"\xff" * 32, SECRET, b"\xff" * 16):
        assert shares.from_limbs(shares.to_limbs(secret), len(secret)) == secret
    assert [shares.limbs_of(length) for length in (15, 16, 18, 19, 32)] == [4, 5, 5, 6, 9]
    for wrong, length in (
        ([1 << 30] + [0] * 8, 32),
        ([0] * 8 + [1 << 16], 32),
        ([0] * 4 + [1 << 8], 16),
        ([0] * 4, 16),
    ):
        with pytest.raises(ProtocolError, match=f"the limbs of a secret of {length} bytes"):
            shares.from_limbs(wrong, length)


def test_shares_on_the_wire_are_numbers_of_the_field() -> None:
    share = np.array(shares.to_limbs(SECRET), np.uint64)
    assert np.array_equal(shares.from_bytes(shares.to_bytes(share), 9), share)
    for wrong in (b"\xff" * 36, shares.PRIME.to_bytes(4, "little") + bytes(32), bytes(32)):
        with pytest.raises(ProtocolError):
            shares.from_bytes(wrong, 9)
