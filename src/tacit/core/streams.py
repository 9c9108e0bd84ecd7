"""Secret random numbers: AES-256 in counter mode, keyed with all 256 bits of a key.

Whoever predicts noise can subtract it, so that generators with a small or recoverable state (PyTorch's keeps 32 bits of
its seed, the Mersenne Twister shows its state in its output) must not draw it. Everything secret is drawn here.
"""

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

_ONE = 2.0**-53  # uniform numbers are multiples of it
FEW = 1 << 16  # numbers of which a subset is the beginning of a permutation
_BLOCK = 1 << 15  # pairs of normal numbers at a time: they stay in cache


class Stream:
    """The numbers of one key, in the order in which they are drawn; a second stream of the key repeats them.

    Formal guarantees: without the key, the bytes cannot be distinguished from random ones (AES-256 as a pseudorandom
    function). Normal numbers have 53 bits of magnitude and angle each, and lie within ±8.6; they are floating-point
    numbers, whose rounding no proof considers.

    Example:
        >>> Stream(bytes(32)).bytes(4).hex(), Stream(bytes(32)).bytes(2).hex()
        ('dc95c078', 'dc95')
    """

    def __init__(self, key: bytes) -> None:
        self._keystream = Cipher(AES(key), CTR(bytes(16))).encryptor()  # a key has one stream: the counter begins at 0

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        return self._keystream.update(bytes(count))

    def uniform(self, count: int) -> Tensor:
        """Numbers in [0, 1) as float64, multiples of 2⁻⁵³."""
        return self._bits53(count).double().mul_(_ONE)

    def normal(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        """Standard normal numbers in the type and on the device of `like`, rounded from float64 (Box and Muller)."""
        count = math.prod(shape)
        values = torch.empty(count, dtype=like.dtype)
        for begin in range(0, count, 2 * _BLOCK):
            part = values[begin : begin + 2 * _BLOCK]
            pairs = (len(part) + 1) // 2
            radius = self._bits53(pairs).add_(1).double().mul_(_ONE).log_().mul_(-2).sqrt_()
            angle = self._bits53(pairs).double().mul_(_ONE * 2 * math.pi)
            part[:pairs] = radius * angle.cos()
            part[pairs:] = radius.mul_(angle.sin_())[: len(part) - pairs]
        return values.view(shape).to(like.device)

    def gamma(self, shape: int) -> float:
        """A number of the gamma distribution with this whole shape and scale 1: as many exponential ones, summed."""
        return float(-self.uniform(shape).sub_(1).neg_().log_().sum())

    def permutation(self, count: int) -> Tensor:
        """The numbers below `count` in random order; ties among 63-bit numbers, in order, are 10⁻⁷ likely for 10⁶."""
        return torch.from_numpy(np.argsort(self._words(count) >> np.uint64(1), kind="stable"))

    def subset(self, count: int, size: int) -> Tensor:
        """A uniformly random subset of `size` of the numbers below `count`, ascending.

        Of many numbers, few are drawn one by one, so that it takes time and memory by its size, not by `count`.
        """
        if count <= FEW or size > count // 8:
            return self.permutation(count)[:size].sort().values
        fair, chosen = np.uint64((1 << 64) // count * count - 1), np.empty(0, np.uint64)
        while len(chosen) < size:
            words = self._words(size - len(chosen) + 16)
            drawn = np.concatenate([chosen, words[words <= fair] % np.uint64(count)])
            _, first = np.unique(drawn, return_index=True)
            chosen = drawn[np.sort(first)]  # repetitions are drawn again, and the order of the others stays
        return torch.from_numpy(np.sort(chosen[:size]).astype(np.int64))

    def binomial(self, count: int, rate: float) -> int:
        """How many of `count` independent trials succeed: the inverse of the distribution at 53 random bits."""
        from scipy.stats import binom  # takes long to import

        return int(binom.ppf(float(self.uniform(1)) + _ONE / 2, count, rate))

    def _bits53(self, count: int) -> Tensor:
        return torch.from_numpy((self._words(count) >> np.uint64(11)).view(np.int64))

    def _words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.frombuffer(self.bytes(8 * count), "<u8")
