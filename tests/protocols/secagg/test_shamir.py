import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from protocols.secagg.federation import entropy
from tacit.errors import ProtocolError, TooFewClientsError
from tacit.protocols.secagg import shamir
from tacit.protocols.secagg.shamir import ShareSet, recover_secrets

SECRET = bytes(range(224, 256))


def test_the_textbook_example() -> None:
    """f(x) = 1234 + 166 x + 94 x^2 at 1 to 6 (Wikipedia, "Shamir's secret sharing"), always below the prime."""
    values = shamir.evaluate(np.array([[1234], [166], [94]], np.uint64), range(1, 7))
    assert values.ravel().tolist() == [1494, 1942, 2578, 3402, 4414, 5614]
    for three in combinations(range(6), 3):
        points = np.array([three]) + 1
        assert shamir.recover(points, values[list(three)][None]).tolist() == [[1234]]


def test_evaluation_is_that_of_plain_integers() -> None:
    rows = [[shamir.PRIME - 1 - k, 7**11 % shamir.PRIME] for k in range(70)]
    points = [1, 2, 3, 999, 65535]
    plain = [[sum(row[c] * x**k for k, row in enumerate(rows)) % shamir.PRIME for c in (0, 1)] for x in points]
    assert shamir.evaluate(np.array(rows, np.uint64), points).tolist() == plain


@given(secret=st.binary(min_size=32, max_size=32), threshold=st.integers(2, 9), more=st.integers(0, 5))
def test_any_threshold_of_shares_gives_the_secret_and_one_less_does_not(
    secret: bytes, threshold: int, more: int
) -> None:
    points = list(range(3, 3 + threshold + more))
    shares = shamir.split([secret], points, threshold, entropy(secret))[:, 0]
    last = np.array([points[-threshold:]])
    assert shamir.from_limbs(shamir.recover(last, shares[None, -threshold:])[0].tolist()) == secret
    fewer = shamir.recover(last[:, 1:], shares[None, 1 - threshold :])[0].tolist()
    assert fewer != shamir.to_limbs(secret)


def test_fewer_shares_than_the_threshold_are_uniform_for_every_secret() -> None:
    """Chi-square of 4000 first shares in 64 bins, for the smallest and the largest secret."""
    for secret in (bytes(32), b"\xff" * 32):
        shares = [shamir.split([secret], [1], 2, entropy((secret, k)))[0, 0] for k in range(450)]
        bins = np.bincount((np.concatenate(shares) >> np.uint64(25)).astype(int), minlength=64)
        assert 0.001 <= chisquare(bins).pvalue <= 0.999


def test_limbs_hold_every_secret_and_nothing_more() -> None:
    for secret in (bytes(32), b"\xff" * 32, SECRET):
        assert shamir.from_limbs(shamir.to_limbs(secret)) == secret
    for wrong in ([1 << 30] + [0] * 8, [0] * 8 + [1 << 16]):
        with pytest.raises(ProtocolError, match="inconsistent"):
            shamir.from_limbs(wrong)


def test_shares_on_the_wire_are_numbers_of_the_field() -> None:
    share = shamir.split([SECRET], [5], 3, entropy(0))[0, 0]
    assert np.array_equal(shamir.from_bytes(shamir.to_bytes(share)), share)
    assert len(shamir.to_bytes(share)) == shamir.SHARE
    for wrong in (b"\xff" * shamir.SHARE, shamir.PRIME.to_bytes(4, "little") + bytes(32), bytes(32)):
        with pytest.raises(ProtocolError):
            shamir.from_bytes(wrong)


def _share_set(client: int, holders: list[int], threshold: int) -> tuple[ShareSet, bytes]:
    secret = hashlib.sha256(bytes([client])).digest()
    shares = shamir.split([secret], holders, threshold, entropy(client))[:, 0]
    by_holder = dict(zip(holders, shares, strict=True))
    return ShareSet(client, by_holder, lambda candidate: candidate == secret), secret


def test_many_secrets_are_recovered_at_once_from_different_holders() -> None:
    made = [_share_set(j, list(range(j, j + 12 + j % 3)), 10) for j in range(1, 41)]
    assert recover_secrets([share_set for share_set, _ in made], 10) == {
        share_set.client: secret for share_set, secret in made
    }
    assert recover_secrets([], 10) == {}


@pytest.mark.parametrize("holder", [1, 4, 7])
def test_a_wrong_share_is_detected_and_omitted(holder: int) -> None:
    share_set, secret = _share_set(1, [1, 2, 3, 4, 5, 6, 7], 5)
    share_set.shares[holder][0] ^= 1
    assert recover_secrets([share_set], 5) == {1: secret}


def test_without_a_share_to_spare_there_is_no_secret_rather_than_a_wrong_one() -> None:
    share_set, _ = _share_set(1, [1, 2, 3], 3)
    share_set.shares[2][0] ^= 1
    with pytest.raises(TooFewClientsError, match="are inconsistent"):
        recover_secrets([share_set], 3)
    with pytest.raises(TooFewClientsError, match="Too few shares of a secret remain"):
        recover_secrets([share_set], 4)
