"""What clients and server must say in the same words: what is signed, what is committed to, which keys pads have."""

from tacit.protocols import crypto
from tacit.protocols.crypto import PrivateKey
from tacit.wire.packing import number, pack_subset


def announced(context: bytes, client: int, keys: bytes) -> bytes:
    """What a client signs when it announces its keys."""
    return crypto.digest("announced", context, number(client), keys)


def agreed(binding: bytes, members: tuple[int, ...], survivors: frozenset[int]) -> bytes:
    """What a client signs about who delivered."""
    return crypto.digest("agreed", binding, pack_subset(survivors, members))


def committed(binding: bytes, client: int, seed: bytes) -> bytes:
    """By what the server knows a seed that was put together from shares; of 256 random bits it tells nothing."""
    return crypto.digest("seed", binding, number(client), seed)


def own_pad(seed: bytes, binding: bytes, client: int) -> bytes:
    """The key of a client's own pad."""
    return crypto.derive(seed, "own pad", binding, client)


def pair_pad(secret: PrivateKey, other: bytes, binding: bytes, client: int, neighbour: int) -> bytes:
    """The key of the pad that two neighbours share: the larger number adds it, the smaller takes it away."""
    return crypto.derive(crypto.agree(secret, other), "pair pad", binding, *sorted((client, neighbour)))
