import hashlib
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ProtocolError
from tacit.protocols.secagg import shares


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


def test_elements_from_a_key_are_the_same_for_every_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where words are left out that are no elements: one in 859 million, so here for a smaller prime."""
    for prime in (shares.PRIME, 3 << 30):
        monkeypatch.setattr(shares, "PRIME", prime)
        many = shares.uniform(3000, bytes(32))
        words = np.frombuffer(hashlib.shake_256(bytes(32)).digest(20_000), "<u4")
        assert np.array_equal(many, words[words < prime][:3000])
        assert all(np.array_equal(shares.uniform(count, bytes(32)), many[:count]) for count in range(40))


def test_shares_on_the_wire_are_numbers_of_the_field() -> None:
    share = np.array([0, 1, 1 << 31, shares.PRIME - 1], np.uint64)
    assert np.array_equal(shares.from_bytes(shares.to_bytes(share), 4), share)
    for wrong in (b"\xff" * 16, shares.PRIME.to_bytes(4, "little") + bytes(12), bytes(12)):
        with pytest.raises(ProtocolError):
            shares.from_bytes(wrong, 4)


def test_products_of_the_largest_elements_do_not_overflow() -> None:
    top = np.full((3, 200), shares.PRIME - 1, np.uint64)
    assert (shares.combine(top, top.T) == 200).all()  # (-1)² each
    inverse = shares._inverse(np.array([1, 2, shares.PRIME - 1], np.uint64))
    assert inverse.tolist() == [1, (shares.PRIME + 1) // 2, shares.PRIME - 1]
