"""Named keys of randomness, and the secret numbers drawn from them.

Every random choice has a name: `key.child("client", 17).child("round", 3)`. Equal names under equal roots give equal
numbers, independent of the order and the process in which they are drawn.

Keys belong to parties (`RunKeys`): what is shared may be public (masks, sensing); the server has its own (cohorts,
noise on sums), and every client its own (batches, noise shares, rounding).

Whoever predicts noise can subtract it. Generators with a small or recoverable state must therefore not draw it:
PyTorch's keeps 32 bits of its seed, and the Mersenne Twister's output reveals its state. Everything secret is drawn
from a `Stream`: AES-256 in counter mode, keyed with all 256 bits of a key.
"""

import hashlib
import math
import secrets
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, get_args

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from tacit.errors import UserError

Randomness = Literal["secret", "seeded"]
RANDOMNESS: tuple[Randomness, ...] = get_args(Randomness)
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
        """A number of the gamma distribution with this whole shape and scale 1: a sum of exponential numbers."""
        return float(-self.uniform(shape).sub_(1).neg_().log_().sum())

    def permutation(self, count: int) -> Tensor:
        """The numbers below `count` in random order; 10⁶ numbers have a tie with probability 10⁻⁷."""
        return torch.from_numpy(np.argsort(self._words(count) >> np.uint64(1), kind="stable"))

    def subset(self, count: int, size: int) -> Tensor:
        """A uniformly random subset of `size` of the numbers below `count`, ascending.

        Time and memory depend on the size of a small subset, not on `count`.
        """
        if count <= FEW or size > count // 8:
            return self.permutation(count)[:size].sort().values
        fair, chosen = np.uint64((1 << 64) // count * count - 1), np.empty(0, np.uint64)
        while len(chosen) < size:
            words = self._words(size - len(chosen) + 16)
            candidates = np.concatenate([chosen, words[words <= fair] % np.uint64(count)])
            _, first = np.unique(candidates, return_index=True)
            chosen = candidates[np.sort(first)]  # repetitions are drawn again, and the order of the others stays
        return torch.from_numpy(np.sort(chosen[:size]).astype(np.int64))

    def binomial(self, count: int, rate: float) -> int:
        """The number of successes in `count` independent trials: the inverse distribution at 53 random bits."""
        from scipy.stats import binom  # takes long to import

        return int(binom.ppf(float(self.uniform(1)) + _ONE / 2, count, rate))

    def _bits53(self, count: int) -> Tensor:
        return torch.from_numpy((self._words(count) >> np.uint64(11)).view(np.int64))

    def _words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.frombuffer(self.bytes(8 * count), "<u8")


@dataclass(frozen=True)
class Key:
    """One named key: 32 bytes, from which children are derived with keyed BLAKE2b.

    Example:
        >>> root = Key.from_seed(0)
        >>> root.child("round", 1) == root.child("round", 1)
        True
        >>> root.child("round", 1) == root.child("round", 2)
        False
    """

    value: bytes

    @classmethod
    def from_seed(cls, seed: int, name: str = "tacit") -> Self:
        """The root key of a seed."""
        return cls(hashlib.blake2b(f"{name}:{seed}".encode(), digest_size=32).digest())

    @classmethod
    def from_entropy(cls) -> Self:
        """A fresh, unpredictable key from the operating system."""
        return cls(secrets.token_bytes(32))

    def child(self, name: str, index: int = 0) -> "Key":
        """The key with this name and index below this one."""
        digest = hashlib.blake2b(f"{name}:{index}".encode(), key=self.value, digest_size=32)
        return Key(digest.digest())

    def integer(self) -> int:
        """A 63-bit number, the same at every call."""
        return int.from_bytes(self.value[:8], "little") >> 1

    def stream(self) -> Stream:
        """The secret numbers of this key: for noise, cohorts and everything else that must not be predictable."""
        return Stream(self.value)

    def public_generator(self) -> torch.Generator:
        """A PyTorch generator, which keeps only 32 bits of the key: for what may be public (splits, masks)."""
        return torch.Generator().manual_seed(self.integer())

    def public_numpy(self) -> np.random.Generator:
        """A NumPy generator with 128 bits of the key: for what may be public (splits)."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.value[:16], "little")))

    def fast_generator(self) -> np.random.Generator:
        """A NumPy generator with all bits of the key, but not cryptographic: for shuffling, not for noise."""
        first, second = (int.from_bytes(half, "little") for half in (self.value[:16], self.value[16:]))
        return np.random.Generator(np.random.Philox(key=first, counter=second << 128))

    @property
    def digest(self) -> str:
        """A public name of the key, which reveals nothing about its numbers."""
        return hashlib.blake2b(b"digest of a key", key=self.value, digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"Key({self.digest[:8]}…)"  # a key in a log would reveal the noise


@dataclass(frozen=True)
class ClientKeys:
    """The clients' keys of one purpose: of all clients in a simulation, of a single one at a site.

    A key derives from its client's root first, and then by round, attempt and purpose, so that a site needs no key but
    its own root.

    Attributes:
        root: from which the roots of all clients derive; at a site, the root of its client.
        path: names and indices below a client's root.
        single: whether `root` is that of a single client, which is then the only one at hand.

    Example:
        >>> batches = ClientKeys(Key.from_seed(0)).child("batches")
        >>> batches.of(17) == batches.of(18)
        False
        >>> batches.site(17).of(0) == batches.of(17)
        True
    """

    root: Key
    path: tuple[tuple[str, int], ...] = ()
    single: bool = False

    def child(self, name: str, index: int = 0) -> "ClientKeys":
        """The clients' keys with this name and index below these."""
        return replace(self, path=(*self.path, (name, index)))

    def site(self, client: int) -> "ClientKeys":
        """The part of these keys that the site of one client has."""
        return replace(self, root=self._root_of(client), single=True)

    def of(self, client: int) -> Key:
        """The key of one client."""
        key = self._root_of(client)
        for name, index in self.path:
            key = key.child(name, index)
        return key

    def _root_of(self, client: int) -> Key:
        return self.root if self.single else self.root.child("client", client)


@dataclass(frozen=True)
class RunKeys:
    """Keys by party: of a run or, with `at`, of one of its rounds.

    Attributes:
        shared: known to all parties: masks, sensing.
        server: known to the server: cohorts, noise on sums.
        clients: each known to one client: batches, noise shares, rounding.
    """

    shared: Key
    server: Key
    clients: ClientKeys

    @classmethod
    def of(cls, seed: int, secret: Key) -> Self:
        """The keys of a simulation, which plays all parties: only what may be public derives from the seed."""
        return cls(Key.from_seed(seed, "shared"), secret.child("server"), ClientKeys(secret.child("clients")))

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Keys that all derive from a seed, so that whoever knows it can subtract the noise."""
        return cls.of(seed, Key.from_seed(seed, "secret"))

    def at(self, index: int, attempt: int = 0) -> "RunKeys":
        """The keys of one round. A repetition with other messages is another attempt, so that no noise repeats."""
        server = self.server.child("round", index).child("attempt", attempt)
        clients = self.clients.child("round", index).child("attempt", attempt)
        return RunKeys(self.shared.child("round", index), server, clients)

    @classmethod
    def before(cls, seed: int) -> Self:
        """The keys from before the first round, when only public data are used: all of them may be public."""
        shared = Key.from_seed(seed, "shared").child("before")
        return cls(shared, shared.child("server"), ClientKeys(shared.child("clients")))


@dataclass(frozen=True)
class Ratchet:
    """The secret of a run as of one round: later rounds' keys derive from it, earlier ones' do not.

    Attributes:
        round: the index of the round.
        key: its secret.

    Example:
        >>> start = Ratchet(0, Key.from_seed(0))
        >>> start.forward(5) == start.forward(3).forward(5)
        True
    """

    round: int
    key: Key

    @classmethod
    def fresh(cls) -> Self:
        """A new secret from the operating system."""
        return cls(0, Key.from_entropy())

    def forward(self, to: int) -> "Ratchet":
        """The secret as of a later round."""
        if to < self.round:
            raise UserError(
                f"The key of round {to + 1} was erased after the round was complete: its noise cannot be drawn again. "
                "Start a new run."
            )
        key = self.key
        for _ in range(self.round, to):
            key = key.child("next round")
        return Ratchet(to, key)


class KeySource(Protocol):
    """The source of the keys of a simulation's rounds."""

    def keys(self, index: int) -> RunKeys:
        """The keys of round `index`, the same at every call."""


@dataclass(frozen=True)
class SeededKeys:
    """Keys that derive from the seed, so that runs can be repeated; whoever knows the seed can subtract the noise."""

    seed: int

    def keys(self, index: int) -> RunKeys:
        return RunKeys.from_seed(self.seed).at(index)


class SecretKeys:
    """Keys that derive from a secret of the run's own; those of earlier rounds are forgotten.

    Attributes:
        seed: what may be public derives from it.
        ratchet: the secret as of the last round whose keys were asked for.
    """

    def __init__(self, seed: int, ratchet: Ratchet | None = None) -> None:
        self.seed, self.ratchet = seed, ratchet or Ratchet.fresh()

    def keys(self, index: int) -> RunKeys:
        self.ratchet = self.ratchet.forward(index)
        return RunKeys.of(self.seed, self.ratchet.key).at(index)


def key_source(randomness: Randomness, seed: int) -> KeySource:
    """The keys of a new simulation: `secret` ones from the operating system, or `seeded` ones."""
    if randomness not in RANDOMNESS:
        raise UserError(f"Expected randomness in {', '.join(RANDOMNESS)}, got {randomness!r}.")
    return SecretKeys(seed) if randomness == "secret" else SeededKeys(seed)
