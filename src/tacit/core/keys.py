"""Named streams of randomness.

Every random choice has a name: `key.child("round", 3).child("client", 17)`. Equal names under equal seeds give equal
numbers, independent of the order and the process in which they are drawn.

Keys belong to parties (`RunKeys`): what is shared may be public (masks, sensing); the server has its own (cohorts,
noise on sums), and every client its own (batches, noise shares, rounding).
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Self

import numpy as np
import torch


@dataclass(frozen=True)
class Key:
    """One named stream: 32 bytes, from which children are derived with keyed BLAKE2b.

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
        """The root stream of a seed."""
        return cls(hashlib.blake2b(f"{name}:{seed}".encode(), digest_size=32).digest())

    @classmethod
    def from_entropy(cls) -> Self:
        """A fresh, unpredictable stream from the operating system."""
        return cls(secrets.token_bytes(32))

    def child(self, name: str, index: int = 0) -> "Key":
        """The stream with this name and index below this one."""
        digest = hashlib.blake2b(f"{name}:{index}".encode(), key=self.value, digest_size=32)
        return Key(digest.digest())

    def integer(self) -> int:
        """A 63-bit number, the same at every call."""
        return int.from_bytes(self.value[:8], "little") >> 1

    def torch(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh PyTorch generator at the start of this stream."""
        return torch.Generator(device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this stream."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.value[:16], "little")))

    def byte_source(self) -> Callable[[int], bytes]:
        """A function that returns the next `n` bytes of this stream (SHAKE-256, unpredictable without the key)."""
        calls = count()
        return lambda length: hashlib.shake_256(self.value + next(calls).to_bytes(8, "little")).digest(length)

    def __repr__(self) -> str:
        return f"Key({self.value[:4].hex()}…)"  # a whole key in a log would reveal the noise


@dataclass(frozen=True)
class ClientKeys:
    """The clients' streams of one purpose: of all clients in a simulation, of a single one at a site.

    Attributes:
        root: from which they derive.
        only: the number of the site's client, which is the only one at hand there; None: all.

    Example:
        >>> batches = ClientKeys(Key.from_seed(0)).child("batches")
        >>> batches.of(17) == batches.of(18)
        False
    """

    root: Key
    only: int | None = None

    def child(self, name: str, index: int = 0) -> "ClientKeys":
        """The clients' streams with this name and index below these."""
        return ClientKeys(self.root.child(name, index), self.only)

    def of(self, client: int) -> Key:
        """The stream of one client."""
        return self.root.child("client", client if self.only is None else self.only)


@dataclass(frozen=True)
class RunKeys:
    """The keys of a run, by party.

    Attributes:
        shared: known to all parties: masks, sensing.
        server: known to the server: cohorts, noise on sums.
        clients: each known to one client: batches, noise shares, rounding.
    """

    shared: Key
    server: Key
    clients: ClientKeys

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The keys of a simulation, all of which derive from its seed."""
        secret = Key.from_seed(seed, "secret")
        return cls(Key.from_seed(seed, "shared"), secret, ClientKeys(secret))

    def child(self, name: str, index: int = 0) -> "RunKeys":
        """Every party's stream with this name and index."""
        shared, server = self.shared.child(name, index), self.server.child(name, index)
        return RunKeys(shared, server, self.clients.child(name, index))
